"""Index of the table's rows by member.

Updating a row costs its length; queries cost the size of their result. Nothing walks through the table.
"""

from collections import Counter
from collections.abc import Iterable

from stele.core.table.groups import NO_GROUPS, PartitionGroups
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition


class ReplicaIndex:
    """`rows_of` maps a member to the partitions whose row names it; `owned` counts the rows that it owns
    and `sole` the rows that name no other member; `copies` counts rows by number of replicas: first those
    outside of groups, then those of each group."""

    __slots__ = ("_groups", "copies", "owned", "rows_of", "sole")

    def __init__(self, rows: Iterable[Partition], groups: PartitionGroups = NO_GROUPS) -> None:
        self.rows_of: dict[MemberIndex, set[PartitionId]] = {}
        self.owned: Counter[MemberIndex] = Counter()
        self.sole: Counter[MemberIndex] = Counter()
        self._groups = groups
        self.copies: list[Counter[int]] = [Counter() for _ in (None, *groups.groups)]
        for number, row in enumerate(rows):
            self._count(number, row, 1)
            for member in row.members:
                self.rows_of.setdefault(member, set()).add(number)

    def set(self, number: PartitionId, before: Partition, after: Partition) -> None:
        """Replace the row of partition `number`, `before`, by `after`."""
        self._count(number, before, -1)
        self._count(number, after, 1)
        for member in before.members - after.members:
            self.rows_of[member].discard(number)
        for member in after.members - before.members:
            self.rows_of.setdefault(member, set()).add(number)

    def _count(self, number: PartitionId, row: Partition, change: int) -> None:
        members = row.members
        self.copies[self._groups.position(number)][len(members)] += change
        if row.owner is not None:
            self.owned[row.owner] += change
        if len(members) == 1:
            self.sole[next(iter(members))] += change

    def of(self, member: MemberIndex) -> frozenset[PartitionId]:
        """Return the partitions whose row names the member."""
        return frozenset(self.rows_of.get(member, ()))

    def names(self, number: PartitionId, member: MemberIndex) -> bool:
        """Return whether the partition's row names the member."""
        return number in self.rows_of.get(member, ())

    def number(self, member: MemberIndex) -> int:
        """Return how many rows name the member."""
        return len(self.rows_of.get(member, ()))

    @property
    def members(self) -> frozenset[MemberIndex]:
        """Return the members that are named by at least one row."""
        return frozenset(member for member, rows in self.rows_of.items() if rows)
