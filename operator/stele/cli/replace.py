"""`kubectl stele replace`: another member, or another pod, for a member that does not come back."""

from typing import TYPE_CHECKING, Annotated

import typer

from stele.cli import output as out
from stele.cli.options import Where, on_cluster
from stele.core.control.failure_detector import Replacement
from stele.errors import BadInput, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stele.adapters.kubernetes.console import Console
    from stele.core.table.ids import MemberIndex, PartitionId
    from stele.explain.cluster_view import ClusterView

PARTITIONS_SHOWN_MAX = 10


@on_cluster
def replace(
    where: Where,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Name of a TabletMember.")],
    *,
    keep_volume: Annotated[
        bool, typer.Option("--keep-volume", help="Another pod gets the same volume; nothing is copied.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let the operator decide again; too late once it is removed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Replace a member that does not come back by another one with an empty volume.

    If the member answers, its data is moved to the others first. Its volume claim stays, unless all data was
    moved off it and spec.storage.keepVolumes is Delete. Refused while the volume may have the only copy of a
    partition.

    With --keep-volume the member itself gets another pod with its volume, even when its node cannot confirm
    that the pod has ended: make sure that the node is off. Until --undo no other member takes its place.

    \b
    Examples:
      kubectl stele replace demo-2 -n stele
      kubectl stele replace demo-2 --keep-volume -n stele
      kubectl stele replace demo-2 --undo -n stele
    """
    if undo and keep_volume:
        raise BadInput("--undo takes back any replacement: leave out --keep-volume")
    wanted = None if undo else Replacement.KEEP_VOLUME if keep_volume else Replacement.NEW_VOLUME
    print(where.ask(lambda console: _replace(console, member, wanted, confirmed=yes)))


async def _replace(console: "Console", member: str, wanted: Replacement | None, *, confirmed: bool) -> str:
    from stele.cli.cluster_view import cluster_of, read_cluster

    view = await read_cluster(console, await cluster_of(console, member))
    index, model = next((i, each) for i, each in view.members.items() if each.metadata.name == member)
    if model.spec.replacement is wanted:
        return f"{member}: {'nothing to undo' if wanted is None else 'this is asked for already'}"
    if wanted is Replacement.NEW_VOLUME:
        _check_copies(view, index)
        if not confirmed:
            _confirm(view, index)
    await console.change_member(member, {"replacement": wanted and wanted.value})
    match wanted:
        case None:
            return f"{member} is not replaced, unless its node is gone or it stays away for too long"
        case Replacement.KEEP_VOLUME:
            return f"{member} keeps its volume, and gets another pod once its node is lost or not ready"
        case Replacement.NEW_VOLUME:
            return f"{member} is being replaced; see: kubectl stele members {view.cluster.metadata.name}"


def _check_copies(view: "ClusterView", index: "MemberIndex") -> None:
    """Raise Refused when its volume may have the only copy of a partition that nobody could copy from."""
    from stele.explain.cluster_view import is_gone

    gone = {number for number, each in view.members.items() if is_gone(each)}
    if index not in gone:
        return
    lost = [n for n, row in enumerate(view.table.partitions) if index in row.members and row.members <= gone]
    if lost:
        name = view.members[index].metadata.name
        raise Refused(
            f"the volume of {name} may have the only copy of partitions {_listed(lost)}: bring its node or "
            f"its disk back, or use --keep-volume; spec.onPartitionLoss: ResetToEmpty gives them up",
            "ONLY_COPY",
        )


def _confirm(view: "ClusterView", index: "MemberIndex") -> None:
    """Ask when a silent member's volume may have a copy of what at most one other member has."""
    from stele.explain.cluster_view import is_gone

    gone = {number for number, each in view.members.items() if is_gone(each)}
    rows = [(n, row.members) for n, row in enumerate(view.table.partitions) if index not in row.members]
    thin = [n for n, members in rows if len(members) == 1 or members <= gone]
    if not thin or index not in gone:
        return
    name = view.members[index].metadata.name
    cost = (
        f"Partitions {_listed(thin)} have one copy left or none; {name} may have another, which is given up."
    )
    if not typer.confirm(f"{cost} Replace it now?"):
        raise typer.Exit(out.EXIT_FAILURE)


def _listed(numbers: "Sequence[PartitionId]") -> str:
    more = len(numbers) - PARTITIONS_SHOWN_MAX
    return ", ".join(map(str, numbers[:PARTITIONS_SHOWN_MAX])) + (f" and {more} more" if more > 0 else "")
