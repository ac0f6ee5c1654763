"""`kubectl stele logs`: what the containers of a cluster have logged, and log now."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from stele.adapters import json_lines
from stele.cli import output as out
from stele.cli.log_place import LogPlace
from stele.cli.options import Where, on_cluster
from stele.cli.status import ClusterArgument
from stele.errors import BadInput, Refused, SteleError, Unavailable

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.adapters.kubernetes.pod_logs import Container

FOLLOWED_LINES = 10
"""Earlier lines of each container that -f begins with, without --since and --tail."""
LOOK_SECONDS = 2.0
"""Seconds between two looks for containers that started."""
CONTAINERS_MAX = 100
"""Containers that are followed at once."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
SINCE = re.compile(r"(?:[0-9]{1,6}[smhd])+")

Which = tuple[str, str | None]
"""Cluster, and member for one pod only."""
Shown = Callable[["Container", str], list[str]]
"""What is printed for a line of a container."""


def seconds_of(text: str) -> int:
    """Return seconds for what --since is given. Raises BadInput."""
    if not SINCE.fullmatch(text):
        raise BadInput(f"--since is {text}; expected numbers with s, m, h or d, such as 90s, 5m or 1h30m")
    return sum(int(each[:-1]) * UNITS[each[-1]] for each in re.findall(r"[0-9]+[smhd]", text))


@on_cluster
def logs(
    where: Where,
    cluster: ClusterArgument,
    member: Annotated[
        str | None, typer.Argument(metavar="MEMBER", help="Only this member; all pods by default.")
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with new lines, and containers, until Ctrl-C.")
    ] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="DURATION", help="Only lines of the last 90s, 5m, 1h30m.")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", metavar="N", min=0, help="Only the last N lines of each."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print lines as they are, JSON, without pod and container: for jq.")
    ] = False,
) -> None:
    """Print the logs of a cluster's members and copies, each line with its pod and container.

    Lines of JSON are shown as text, unless --raw is given.

    \b
    Examples:
      kubectl stele logs demo -n stele --since 10m
      kubectl stele logs demo demo-0 -f -n stele
      kubectl stele logs demo --raw -n stele | jq -R 'fromjson? | select(.partition == 17)'
    """
    query = {} if since is None else {"sinceSeconds": str(seconds_of(since))}
    if tail is None and since is None and follow:
        tail = FOLLOWED_LINES
    query |= {} if tail is None else {"tailLines": str(tail)}
    shown = _raw_line if raw else _text_lines
    printed = where.ask(
        lambda console: (_follow if follow else _print)(console, (cluster, member), query, shown)
    )
    if not printed:
        raise typer.Exit(out.EXIT_FAILURE)


def _raw_line(container: "Container", line: str) -> list[str]:
    return [line]


def _text_lines(container: "Container", line: str) -> list[str]:
    texts: Iterable[str] = [line]
    if (fields := json_lines.decode(line)) is not None:
        texts = json_lines.text_of({name: value for name, value in fields.items() if value != container.pod})
    return [f"[{container.title}] {text}" for text in texts]


async def _containers(console: "Console", cluster: str, member: str | None) -> "list[Container]":
    """Return the containers. Raises NotFound without such a cluster, BadInput without such a pod."""
    from stele.adapters.kubernetes.pod_logs import containers_of

    pods = await console.pods(cluster)
    names = [str(pod["metadata"]["name"]) for pod in pods]
    if member is not None and member not in names:
        there = ", ".join(names) or "none"
        raise BadInput(f"MEMBER is {member}; the pods of {cluster} are: {there}", "UNKNOWN_MEMBER")
    chosen = [pod for pod in pods if member in (None, pod["metadata"]["name"])]
    return [each for pod in chosen for each in containers_of(pod)]


async def _print(console: "Console", which: Which, query: dict[str, str], shown: Shown) -> bool:
    """Print one log after the other; return whether all of them could be read."""
    cluster, containers, failed = which[0], await _containers(console, *which), 0
    if not containers:
        raise Refused(f"{cluster} has no pods now: kubectl stele status {cluster}", "NO_PODS")
    for each in containers:
        try:
            await _one(console, each, query, shown)
        except (BadInput, Refused, Unavailable) as error:
            failed += 1
            out.say_error(f"{each.title}: {error}")
    return not failed


async def _one(console: "Console", container: "Container", query: dict[str, str], shown: Shown) -> None:
    async for line in console.log_lines(container, **query):
        _show(container, line, shown)


def _show(container: "Container", line: bytes, shown: Shown) -> None:
    for text in shown(container, line.decode(errors="replace")):
        print(out.plain(text), flush=True)


async def _follow(console: "Console", which: Which, query: dict[str, str], shown: Shown) -> bool:
    """Follow every start of a container, until Ctrl-C. Later ones are shown from their beginning."""
    follower = _Follower(console, shown)
    try:
        follower.look(await _containers(console, *which), query)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(Unavailable, BadInput):
                # A silent API server, and a member whose pod is being replaced, come back.
                follower.look(await _containers(console, *which), {})
    finally:
        await follower.close()


class _Follower:
    """One task for each log."""

    def __init__(self, console: "Console", shown: Shown) -> None:
        self._console, self._shown = console, shown
        self._tasks: dict[Container, asyncio.Task[None]] = {}
        self._places: dict[Container, LogPlace] = {}

    def look(self, containers: "Sequence[Container]", query: dict[str, str]) -> None:
        """Follow those that are not followed yet, and again those whose connection ended, from where it did.

        Raises Refused for more than CONTAINERS_MAX.
        """
        found = [each for each in containers if each.start]
        if len(found) > CONTAINERS_MAX:
            text = f"{len(found)} containers; at most {CONTAINERS_MAX} are followed: name a MEMBER"
            raise Refused(text, "TOO_MANY")
        for each in [each for each, task in self._tasks.items() if task.done()]:
            self._tasks.pop(each).result()
        self._places = {each: place for each, place in self._places.items() if each in found}
        for each in found:
            if each not in self._tasks:
                place = self._places.setdefault(each, LogPlace(query, asyncio.get_running_loop().time))
                self._tasks[each] = asyncio.create_task(self._one(each, place))

    async def _one(self, container: "Container", place: LogPlace) -> None:
        query = {**place.query(), "follow": "true", "timestamps": "true"}
        try:
            async for line in self._console.log_lines(container, **query):
                if (text := place.unseen(line)) is not None:
                    _show(container, text, self._shown)
        except Unavailable:
            return
        except SteleError as error:
            out.say_error(f"{container.title}: {error}; it is not followed any more")
            await asyncio.Event().wait()

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
