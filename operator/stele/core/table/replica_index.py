"""Which rows name which members, kept row by row: no question about it walks through the table.

Setting a row costs what the row is long; the questions cost what their answers are large.
"""

from collections import Counter
from collections.abc import Iterable

from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition


class ReplicaIndex:
    """`rows_of` maps each member to the partitions whose row names it, `owned` counts those that it owns,
    `sole` those that name no other member, `copies` rows by their number of replicas.
    """

    __slots__ = ("copies", "owned", "rows_of", "sole")

    def __init__(self, rows: Iterable[Partition]) -> None:
        self.rows_of: dict[MemberIndex, set[PartitionId]] = {}
        self.owned: Counter[MemberIndex] = Counter()
        self.sole: Counter[MemberIndex] = Counter()
        self.copies: Counter[int] = Counter()
        for number, row in enumerate(rows):
            self._count(row, 1)
            for member in row.members:
                self.rows_of.setdefault(member, set()).add(number)

    def set(self, number: PartitionId, before: Partition, after: Partition) -> None:
        """The row of `number` was `before` and is `after` now."""
        self._count(before, -1)
        self._count(after, 1)
        for member in before.members - after.members:
            self.rows_of[member].discard(number)
        for member in after.members - before.members:
            self.rows_of.setdefault(member, set()).add(number)

    def _count(self, row: Partition, change: int) -> None:
        members = row.members
        self.copies[len(members)] += change
        if row.owner is not None:
            self.owned[row.owner] += change
        if len(members) == 1:
            self.sole[next(iter(members))] += change

    def of(self, member: MemberIndex) -> frozenset[PartitionId]:
        """Partitions whose row names the member."""
        return frozenset(self.rows_of.get(member, ()))

    def names(self, number: PartitionId, member: MemberIndex) -> bool:
        """Whether the partition's row names the member."""
        return number in self.rows_of.get(member, ())

    def number(self, member: MemberIndex) -> int:
        """How many rows name the member."""
        return len(self.rows_of.get(member, ()))

    @property
    def members(self) -> frozenset[MemberIndex]:
        """The members that a row names."""
        return frozenset(member for member, rows in self.rows_of.items() if rows)
