"""Which member should hold which replica: a target row per partition (20-partition-table.md,
"Assignment").
"""

from dataclasses import dataclass

from stele.core.ids import MemberIndex, PartitionId


@dataclass(frozen=True, slots=True)
class DataMember:
    """A live member that holds data. `leaving` ones count as full copies until they are replaced, and get
    nothing.
    """

    index: MemberIndex
    weight: int = 1
    zone: str | None = None
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A user's wish: the replica of `partition` on `source` should be on `destination`."""

    partition: PartitionId
    source: MemberIndex
    destination: MemberIndex
