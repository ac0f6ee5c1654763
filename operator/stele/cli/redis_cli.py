"""`kubectl stele cli`: redis-cli of this machine, through the API server, with CA and password."""

import asyncio
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli.client_port import LOCAL, PASSWORD, Way, active_members, ca_of, password_of
from stele.cli.options import Where, on_cluster
from stele.cli.status import ClusterArgument
from stele.errors import BadInput

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

PROGRAM = "redis-cli"


@on_cluster
def cli(
    where: Where,
    cluster: ClusterArgument,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENTS", help="For redis-cli, after --.")
    ] = None,
) -> None:
    """Run redis-cli against a cluster, as the user default unless REDISCLI_AUTH and --user say another one.

    A port of this machine leads to a member while it runs. Exits with the code of redis-cli.

    \b
    Examples:
      kubectl stele cli demo -n stele
      kubectl stele cli demo -n stele -- GET greeting
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise BadInput(f"{PROGRAM} is not on the PATH: install it, such as by the package redis-tools")
    code = where.ask(lambda console: _run(console, cluster, program, arguments or []))
    if code:
        raise typer.Exit(code)


async def _run(console: "Console", name: str, program: str, arguments: list[str]) -> int:
    """Run the program with a port, and return its exit code."""
    cluster, given = await console.cluster(name), dict(os.environ)
    if password := await password_of(console, cluster):
        given[PASSWORD] = password
    way, ca = Way(console, (await active_members(console, name))[:1]), await ca_of(console, cluster)
    with tempfile.TemporaryDirectory(prefix="kubectl-stele-") as folder:
        tls = _tls(ca, Path(folder)) if ca else []
        async with await way.serve() as server:
            port = server.sockets[0].getsockname()[1]
            with suppress(RuntimeError):
                # Ctrl-C is for the program, which may go on. Threads that are not the main one hear of none.
                asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
            words = ["-h", LOCAL, "-p", str(port), *tls, *arguments]
            process = await asyncio.create_subprocess_exec(program, *words, env=given)
            try:
                return await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    process.terminate()


def _tls(ca: str, folder: Path) -> list[str]:
    """Return the arguments for TLS, with the CA in a file."""
    (folder / "ca.crt").write_text(ca)
    return ["--tls", "--cacert", str(folder / "ca.crt")]
