"""`kubectl stele quarantine restore --as-owner`: the last resort for a partition without a live copy."""

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from stele.cli import output as out
from stele.cli.cluster_view import read_cluster
from stele.cli.options import Where
from stele.cli.tablets import op_text
from stele.cli.waiting import POLL_SECONDS
from stele.errors import BadInput

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console
    from stele.core.table.table import Partition
    from stele.explain.cluster_view import ClusterView
    from stele.wire.admin import QuarantinedTablet, TabletFacts

WAIT_SECONDS = 30.0
"""How long the command waits until the operator has made the copy the owner."""


@dataclass(frozen=True)
class _Lost:
    """A lost partition as the user has to see it; `facts` are sentences."""

    cluster: str
    index: int
    partition: int
    version: int
    facts: tuple[str, ...]


def accept(where: Where, member: str, item: str, path: str, *, yes: bool) -> None:
    """Say what is lost, ask, restore the copy at `path`, and make it the owner."""
    lost = where.ask(lambda console: _look(console, member, item))
    for fact in lost.facts:
        print(fact)
    question = f"Make {member} the owner of partition {lost.partition} with this copy?"
    if not yes and not typer.confirm(question):
        raise typer.Exit(out.EXIT_FAILURE)
    if where.ask(lambda console: _accept(console, member, path, lost)):
        print(f"{member} owns partition {lost.partition}")
    else:
        print(
            f"{item} is restored and accepted; {member} owns partition {lost.partition} as soon as the "
            f"operator counts it as lost: kubectl stele why {lost.cluster}/{lost.partition}"
        )


async def _look(console: "Console", member: str, item: str) -> _Lost:
    """Read what there is. Raises BadInput when the partition is not lost, or the copy is not there."""
    found = next((each for each in await console.members() if each.metadata.name == member), None)
    if found is None:
        raise BadInput(f'there is no TabletMember "{member}" in namespace "{console.namespace}"')
    view = await read_cluster(console, found.spec.cluster)
    number, generation = map(int, item.split("/"))
    if number >= len(view.table.partitions):
        raise BadInput(f"partition {number} does not exist: there are 0 to {len(view.table.partitions) - 1}")
    row = view.table.partitions[number]
    _check_lost(view, number, row, found.spec.index)
    copy = await _copy(console, member, number, generation)
    names = ", ".join(_named(view, index) for index in row.replicas if index is not None)
    return _Lost(
        found.spec.cluster,
        found.spec.index,
        number,
        row.version,
        (
            f"Partition {number} has no live copy; version {row.version} of its row names {names}.",
            f"This copy of {member} ends with operation {op_text(copy.last)}: {copy.entries} entries, "
            f"{out.size(copy.bytes)}.",
            "Everything that was written to the partition after that is LOST, also when those members come "
            "back: their data is then put into quarantine, not merged.",
        ),
    )


async def _copy(
    console: "Console", member: str, number: int, generation: int
) -> "QuarantinedTablet | TabletFacts":
    """Return the copy, also when it was restored already. Raises BadInput when it is not there."""
    from stele.wire.admin import TabletFacts

    tablet = await console.ask_member("GET", member, f"/v1/tablets/{number}", TabletFacts)
    if (tablet.state, tablet.generation) == ("READY", generation):
        return tablet
    for each in tablet.quarantined:
        if each.generation == generation:
            return each
    raise BadInput(
        f"{number}/{generation} is not in the quarantine of {member}: kubectl stele quarantine list {member}"
    )


def _check_lost(view: "ClusterView", number: int, row: "Partition", index: int) -> None:
    name = view.cluster.metadata.name
    if not view.cluster.status.partitions.lost:
        raise BadInput(
            f"no partition of {name} is lost (status.partitions.lost is 0), so partition {number} has a live "
            f"copy, or its members may still come back: kubectl stele why {name}/{number}"
        )
    if index in row.members:
        raise BadInput(f"version {row.version} of partition {number} names this member: it is repaired")


def _named(view: "ClusterView", index: int) -> str:
    member = view.members.get(index)
    if member is None:
        return f"member {index} (gone)"
    state = member.status.state
    return f"{member.metadata.name} ({state.value if state else 'unknown'})"


async def _accept(console: "Console", member: str, path: str, lost: _Lost) -> bool:
    """Restore the copy and accept it for this version of the row; return whether it became the owner."""
    from stele.model.member import ACCEPTED_COPY
    from stele.wire.admin import Done

    note = f"{ACCEPTED_COPY}{lost.partition}"
    await console.ask_member("POST", member, path, Done)
    await console.annotate_member(member, {note: str(lost.version)})
    end = time.monotonic() + WAIT_SECONDS
    while True:
        row = (await console.table(lost.cluster)).rows[lost.partition]
        if row.version > lost.version:
            await console.annotate_member(member, {note: None})
            return row.owner == lost.index
        if time.monotonic() > end:
            return False
        await asyncio.sleep(POLL_SECONDS)
