"""`kubectl stele watch`: a cluster as it changes, in the terminal; lines without one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from stele.cli import output as out
from stele.cli.options import Where, on_cluster
from stele.cli.status import ClusterArgument
from stele.errors import Refused, Unavailable

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.cli.live_view import Scene, Short

LOOK_SECONDS = 2.0
"""Seconds between two looks."""


@on_cluster
def watch(where: Where, cluster: ClusterArgument) -> None:
    """Show a cluster as it changes: copies that are missing, plans that run, members. Ctrl-C ends it.

    Without a terminal it prints a line whenever phase, counts or progress change.

    \b
    Examples:
      kubectl stele watch demo -n stele
      kubectl stele watch demo -n stele | tee rebalance.log
    """
    console = out.console()
    show = _live if console.is_terminal and not console.is_dumb_terminal else _print_lines
    where.ask(lambda asked: show(asked, cluster))


async def _live(console: "Console", name: str) -> None:
    """Draw over the last picture, which stays at the end, with the cursor below it."""
    from rich.live import Live

    from stele.cli.live_view import picture

    with Live(console=out.console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        async for scene in _scenes(console, name):
            live.update(picture(scene), refresh=True)


async def _print_lines(console: "Console", name: str) -> None:
    from datetime import datetime

    from stele.cli.live_view import sentences

    shown: list[str] = []
    async for scene in _scenes(console, name):
        lines = list(sentences(scene))
        for line in lines:
            if line not in shown:
                print(f"{datetime.now().astimezone():%H:%M:%S}  {out.plain(line)}", flush=True)
        shown = lines


async def _scenes(console: "Console", name: str) -> "AsyncIterator[Scene]":
    """Iterate moments without an end; once there is one, a silent API server is a problem of the next."""
    scene: Scene | None = None
    while True:
        try:
            scene = await read_scene(console, name)
        except Unavailable as error:
            if scene is None:
                raise
            scene = replace(scene, problem=f"no newer state: {error.text}")
        yield scene
        await asyncio.sleep(LOOK_SECONDS)


async def read_scene(console: "Console", name: str) -> "Scene":
    """Read what is shown. Raises NotFound without such a cluster."""
    from stele.cli.live_view import Scene
    from stele.core.control.progress import FINAL
    from stele.model.rebalance import RebalanceMode

    cluster = await console.cluster(name)
    plans = [
        each
        for each in await console.rebalances(name)
        if each.status.phase not in FINAL and each.spec.mode is RebalanceMode.EXECUTE
    ]
    partitions = cluster.status.partitions
    short = await _short(console, name) if partitions.under_replicated or partitions.lost else []
    return Scene(cluster, await console.members(name), plans, short)


async def _short(console: "Console", name: str) -> "list[Short]":
    """Return the partitions with too few copies; none for users who may not read the table."""
    from stele.cli.live_view import Short

    try:
        table = await console.table(name)
    except Refused:
        return []
    names = {each.index: each.name for each in table.head.members}
    return [
        Short(
            number,
            len(row.members),
            table.head.replicas_of(number),
            "" if row.owner is None else names.get(row.owner, f"(member {row.owner})"),
        )
        for number, row in enumerate(table.rows)
        if len(row.members) < table.head.replicas_of(number)
    ]
