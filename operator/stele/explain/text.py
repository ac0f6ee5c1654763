"""Facts as people read them."""

from collections.abc import Sequence

from stele.core.placement.plan import WHOLE_CLUSTER
from stele.core.table.ids import PartitionId
from stele.explain.situation import Outcome


def refusal_lines(outcome: Outcome, most: int | None) -> list[str]:
    """Return refusals with their partitions; the first `most` of each, all when None."""
    partitions_of: dict[str, list[PartitionId]] = {}
    for refusal in outcome.plan.refusals:
        reason = f"{refusal.reason}: {refusal.detail}"
        partitions_of.setdefault(reason, []).append(refusal.partition)
    lines = [
        f"{reason} ({places(partitions, most)})" for reason, partitions in list(partitions_of.items())[:most]
    ]
    if len(lines) < len(partitions_of):
        lines.append(f"and {len(partitions_of) - len(lines)} more; plan -o wide shows all")
    return lines


def places(partitions: Sequence[PartitionId], most: int | None) -> str:
    """Format the numbers of partitions, the first `most` of them."""
    if partitions[0] == WHOLE_CLUSTER:
        return "cluster"
    shown = partitions[:most]
    more = ", ..." if len(shown) < len(partitions) else ""
    count = "partition" if len(partitions) == 1 else f"{len(partitions)} partitions:"
    return f"{count} {', '.join(map(str, shown))}{more}"
