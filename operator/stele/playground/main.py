"""The command line of the playground; `kubectl stele playground` runs it."""

import asyncio
import inspect
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from stele.adapters.kubernetes.api import CLUSTERS, PODS
from stele.adapters.kubernetes.console import Console
from stele.cli import actions, live, state, status, why
from stele.cli import output as out
from stele.cli.main import exit_code_of
from stele.cli.options import OutputOption, Where
from stele.client.resp import Place
from stele.core.control.commands import ClusterState
from stele.errors import BadInput, SteleError, Unavailable, Uncertain
from stele.model import TabletCluster
from stele.playground.api import SocketApi
from stele.playground.cluster import NAME, Engine, Wanted, check_members
from stele.playground.folder import DEFAULT, held, is_held, remove, running_socket
from stele.playground.limits import AWAY_SECONDS_MAX, CLIENTS_MAX, MEMBERS_MAX
from stele.playground.load import Counts, run_load
from stele.playground.objects import NAMESPACE
from stele.playground.progress import line_of

PROGRAM = "kubectl stele playground"
STOP_SECONDS_MAX = 60.0
"""Seconds that `down` waits for the one that runs."""
LOOK_SECONDS = 0.1

T = TypeVar("T")

app = typer.Typer(
    help="""Run a whole cluster on this machine, without Kubernetes, to look at.

    \b
    Examples:
      kubectl stele playground up
      kubectl stele playground load
      kubectl stele playground scale 4
      kubectl stele playground down
    """,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

FolderOption = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Folder with its table and volumes.")
]
MemberArgument = Annotated[str, typer.Argument(metavar="MEMBER", help="Name of a member, such as demo-0.")]


@dataclass(frozen=True)
class Here(Where):
    """The playground of one folder, in place of what a kubeconfig selects."""

    folder: Path = DEFAULT

    def ask(self, question: Callable[[Console], Awaitable[T]]) -> T:
        """Connect, run the query, and disconnect."""
        return self.ask_api(lambda api: question(Console(api, NAMESPACE)))

    def ask_api(self, question: Callable[[SocketApi], Awaitable[T]]) -> T:
        """Do the same with what the socket takes. Raises Unavailable when nothing runs there, or no more."""
        socket = running_socket(self.folder)

        async def connected() -> T:
            async with SocketApi(socket) as api:
                try:
                    return await question(api)
                except (Unavailable, Uncertain):
                    running_socket(self.folder)
                    raise

        return asyncio.run(connected())


def _here(folder: Path) -> Here:
    return Here(folder=folder.expanduser().absolute())


def _command(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command of `kubectl stele` that is told where."""
    unwrapped: Callable[..., Any] = inspect.unwrap(command)
    return unwrapped


@app.command()
def up(
    *,
    members: Annotated[
        int | None, typer.Option("--members", metavar="N", help=f"Members, 1 to {MEMBERS_MAX}; 3 at first.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", metavar="N", help="Copies of each partition; 2 at first.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", metavar="N", help="Partitions; 271. Cannot change.")
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            "--engine",
            metavar="Direct|Spark",
            case_sensitive=False,
            help="What copies data: members (at first), or Spark, which needs PySpark and Java.",
        ),
    ] = None,
    folder: FolderOption = DEFAULT,
) -> None:
    """Start a playground, or go on with the one in DIR. Ctrl-C ends it, and keeps all data.

    \b
    Examples:
      kubectl stele playground up
      kubectl stele playground up --members 5 --replicas 3 --dir /tmp/stele
      kubectl stele playground up --engine Spark
    """
    from stele.playground.up import up as run

    raise SystemExit(run(_here(folder).folder, Wanted(members, replicas, partitions, engine)))


@app.command()
def scale(
    members: Annotated[int, typer.Argument(metavar="N", help=f"Number of members, 1 to {MEMBERS_MAX}.")],
    folder: FolderOption = DEFAULT,
) -> None:
    """Change the number of members; data moves to new ones, and off those that leave.

    \b
    Example:
      kubectl stele playground scale 4
    """
    check_members(members, "N")
    _here(folder).ask(lambda console: console.change_cluster(NAME, {"members": members}))
    print(f"{NAME} is to have {members} members")


@app.command()
def kill(
    member: MemberArgument,
    *,
    away: Annotated[
        float,
        typer.Option("--away", metavar="SECONDS", min=0, max=AWAY_SECONDS_MAX, help="Stay away for so long."),
    ] = 0.0,
    folder: FolderOption = DEFAULT,
) -> None:
    """End a member's processes at once (kill -9); they are started again.

    \b
    Examples:
      kubectl stele playground kill demo-1
      kubectl stele playground kill demo-1 --away 60
    """
    body = {"member": member, "awaySeconds": away}
    _here(folder).ask_api(lambda api: api.ask("POST", "kill", body))
    print(f"{member} was killed{f', and stays away for {away:g} s' if away else ''}")


@app.command()
def drain(
    member: MemberArgument,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Let the member hold data again.")] = False,
    folder: FolderOption = DEFAULT,
) -> None:
    """Move all data off a member.

    \b
    Example:
      kubectl stele playground drain demo-0
    """
    _command(actions.drain)(_here(folder), member, undo=undo)


@app.command(name="state")
def change_state(
    wanted: Annotated[
        ClusterState,
        typer.Argument(metavar="STATE", case_sensitive=False, help="Active, NoMigration, Frozen or Passive."),
    ],
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is in force.")] = False,
    folder: FolderOption = DEFAULT,
) -> None:
    """Change what the cluster allows: members that join, data that moves, writes.

    \b
    Example:
      kubectl stele playground state Passive --wait
    """
    _command(state.state)(_here(folder), NAME, wanted, rollback_copies=False, wait=wait)


@app.command(name="status")
def show_status(*, output: OutputOption = None, folder: FolderOption = DEFAULT) -> None:
    """Show the cluster and its members.

    \b
    Example:
      kubectl stele playground status
    """
    here = _here(folder)
    _command(status.status)(here, NAME, output=output)
    if output in (None, out.Output.WIDE):
        print()
        _command(status.members)(here, NAME, output=output)


@app.command()
def watch(*, folder: FolderOption = DEFAULT) -> None:
    """Show the cluster as it changes, until Ctrl-C.

    \b
    Example:
      kubectl stele playground watch
    """
    _command(live.watch)(_here(folder), NAME)


@app.command(name="why")
def explain(
    about: Annotated[
        str,
        typer.Argument(metavar="PARTITION|MEMBER", help="What to explain; the cluster by default."),
    ] = NAME,
    *,
    output: OutputOption = None,
    folder: FolderOption = DEFAULT,
) -> None:
    """Explain the state of a partition, a member or the cluster, and what is planned for it.

    \b
    Examples:
      kubectl stele playground why 17
      kubectl stele playground why demo-1
    """
    named = f"{NAME}/{about}" if about.isascii() and about.isdigit() else about
    _command(why.why)(_here(folder), named, output=output)


@app.command()
def load(
    *,
    clients: Annotated[
        int, typer.Option("--clients", metavar="N", min=1, max=CLIENTS_MAX, help="Connections.")
    ] = 4,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="SECONDS", min=1, help="How long; until Ctrl-C by default.")
    ] = float("inf"),
    folder: FolderOption = DEFAULT,
) -> None:
    """Write and read without end, check what is read, and print a line each second.

    \b
    Examples:
      kubectl stele playground load
      kubectl stele playground load --clients 16 --seconds 60
    """
    _here(folder).ask_api(lambda api: Load(api).run(clients, seconds))


class Load:
    """Clients, and what the cluster does meanwhile."""

    def __init__(self, api: SocketApi) -> None:
        self._api = api
        self._places: list[Place] = []
        self._line = ""
        self._wrong = 0

    async def run(self, clients: int, seconds: float) -> None:
        """Run for so many seconds, or until Ctrl-C.

        Raises SteleError for what was read and should not have been, and when the playground ends.
        """
        await self._look()
        if not self._places:
            raise BadInput("no member runs yet: wait until the playground is Running")
        print("writes/s  reads/s  p99 ms  errors  lost  cluster", flush=True)
        parts = {
            asyncio.create_task(run_load(clients, lambda: self._places, seconds, self._show)),
            asyncio.create_task(self._look_on()),
            (ended := asyncio.create_task(asyncio.Event().wait())),
        }
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, ended.cancel)
        done, running = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._wrong:
            raise SteleError(f"{self._wrong} reads did not find what was acknowledged", "LOST_WRITES")
        for each in done - {ended}:
            each.result()

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            await self._look()

    async def _look(self) -> None:
        """Learn where members are, and how the cluster is."""
        port = (await self._api.ask("GET", "ports"))["resp"]
        pods = await self._api.list(PODS, NAMESPACE, "stele.dev/component=member")
        addresses = [(each.get("status") or {}).get("podIP") for each in pods]
        self._places = [(str(address), int(port)) for address in addresses if address] or self._places
        cluster = TabletCluster.read(await self._api.get(CLUSTERS, NAMESPACE, NAME))
        self._line = line_of(cluster) if isinstance(cluster, TabletCluster) else ""

    def _show(self, counts: Counts) -> None:
        self._wrong += len(counts.wrong)
        numbers = (
            f"{counts.writes:8,}  {counts.reads:7,}  {counts.p99_ms:6.1f}  {counts.errors:6}  {self._wrong:4}"
        )
        print(f"{numbers}  {self._line}", flush=True)
        for each in counts.wrong[:3]:
            print(f"          LOST: {each}", flush=True)
        if counts.errors:
            print(f"          error: {counts.last_error}", flush=True)


@app.command()
def down(
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    folder: FolderOption = DEFAULT,
) -> None:
    """End the playground, and remove its table and all its data; asks first.

    \b
    Example:
      kubectl stele playground down --yes
    """
    here = _here(folder)
    if not (here.folder / "lock").exists():
        raise BadInput(f"there is no playground in {here.folder}")
    if not yes and not typer.confirm(f"Remove the playground in {here.folder} with all its data?"):
        raise SystemExit(out.EXIT_FAILURE)
    if is_held(here.folder):
        here.ask_api(lambda api: api.ask("POST", "stop"))
        asyncio.run(_ended(here.folder))
    with held(here.folder):
        remove(here.folder)
    print(f"the playground in {here.folder} is removed")


async def _ended(folder: Path) -> None:
    """Wait until nobody has the folder. Raises TimeoutError."""
    async with asyncio.timeout(STOP_SECONDS_MAX):
        while is_held(folder):  # noqa: ASYNC110  a lock of another process has no event
            await asyncio.sleep(LOOK_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    return exit_code_of(app, arguments, PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
