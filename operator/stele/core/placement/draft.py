"""Draft of an assignment: rows in groups, while members are chosen for their indexes.

Partitions with the same row are interchangeable, so rows are decided by *group*: all partitions that have one
row today and get one row. Ten members with two replicas make 90 groups out of 20,000 partitions, and rows
that do not change are never visited one by one.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stele.core.placement.topology import Topology
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Replicas

Row = tuple[MemberIndex | None, ...]
PartitionsByRow = dict[Replicas, list[PartitionId]]


@dataclass(eq=False, slots=True)
class RowGroup:
    """Partitions with one row `today` and one target `row`.

    None in `row` is to be filled; `fixed` indexes do not change. The rows that `shrinks` is true of get
    shorter, and there are enough eligible replicas today, so nothing is copied.
    """

    today: Replicas
    row: Row
    fixed: frozenset[int]
    partitions: list[PartitionId]
    shrinks: bool

    def free_backup_index(self) -> int:
        """Return the hottest empty backup index that no member has to leave first; -1 for none."""
        if None not in self.row or self.row[0] is None:
            return -1
        for index in range(1, len(self.row)):
            if self.row[index] is None and not self.occupied(index):
                return index
        return -1

    def occupied(self, index: int) -> bool:
        """Return whether a member of today has to leave the index."""
        present = self.today[index] if index < len(self.today) else None
        return present is not None and present not in self.row


class Slot(NamedTuple):
    """Index `at` of a group's rows, to be given to another member.

    The present holder leaves the row or, as an owner, steps `down` to that index.
    """

    group: RowGroup
    at: int
    down: int = -1

    @property
    def holder(self) -> MemberIndex | None:
        return self.group.row[self.at]


class DraftAssignment:
    """The groups while their rows are decided, and what each member holds in them."""

    def __init__(self, eligible: Collection[MemberIndex], topology: Topology | None) -> None:
        self.groups: dict[tuple[Replicas, Row, frozenset[int]], RowGroup] = {}
        self.held: Counter[MemberIndex] = Counter()
        self.owned: Counter[MemberIndex] = Counter()
        self.strict = True
        self.partitions = 0
        self._eligible = eligible
        self._topology = topology
        self._unfilled: list[RowGroup] = []
        self._listed = False
        # Those of backups, then those of owners.
        self._by_holder: tuple[dict[MemberIndex | None, list[RowGroup]], ...] = (
            defaultdict(list),
            defaultdict(list),
        )
        self._regained: Counter[tuple[MemberIndex | None, bool]] = Counter()

    def add(
        self, today: Replicas, row: Row, partitions: list[PartitionId], fixed: frozenset[int] = frozenset()
    ) -> RowGroup:
        """Add partitions to their group and count them for the members that hold them."""
        self._count(row, len(partitions))
        return self._put(today, row, partitions, fixed)

    def _put(
        self, today: Replicas, row: Row, partitions: list[PartitionId], fixed: frozenset[int]
    ) -> RowGroup:
        group = self.groups.get((today, row, fixed))
        if group is not None:
            if not group.partitions:
                self._regained.update((member, index == 0) for index, member in enumerate(row))
            group.partitions.extend(partitions)
            return group
        group = RowGroup(today, row, fixed, partitions, self._shrinks(today, row))
        self.groups[today, row, fixed] = group
        if None in row:
            self._unfilled.append(group)
        if self._listed:
            self._list(group)
        return group

    def _shrinks(self, today: Replicas, row: Row) -> bool:
        shorter = len(today) > len(row)
        return shorter and sum(member in self._eligible for member in today) >= len(row)

    def assign(self, slot: Slot, member: MemberIndex, number: int) -> None:
        """Put `member` into `number` of the group's partitions."""
        group, at, down = slot
        slots = list(group.row)
        before, replaced = slots[at], slots[at if down == -1 else down]
        if down != -1:
            slots[down] = before
        slots[at] = member
        for counts, left in ((self.held, replaced), (self.owned, before))[: 1 if at else 2]:
            counts[member] += number
            if left is not None:
                counts[left] -= number
        self._put(group.today, tuple(slots), _take(group.partitions, number), group.fixed)

    def fix(self, slot: Slot, member: MemberIndex, partition: PartitionId) -> RowGroup:
        """Put `member` into one partition of the group, and fix the index."""
        group, index, _ = slot
        self._count(group.row, -1)
        group.partitions.remove(partition)
        row = (*group.row[:index], member, *group.row[index + 1 :])
        return self.add(group.today, row, [partition], group.fixed | {index})

    def swaps(self, group: RowGroup, index: int) -> bool:
        """Return whether a SWAP with the backup at this index runs without a copy.

        That backup must stay where it is today; the owner must too, or take the index of one that leaves.
        """
        row, today = group.row, group.today
        if not today or group.fixed & {0, index} or today[index : index + 1] != (row[index],):
            return False
        return today[0] == row[0] or (row[0] not in today and today[0] not in row)

    def swap_owner(self, group: RowGroup, index: int, number: int) -> None:
        """Let the owner and the backup at this index change places in `number` of the group's partitions."""
        slots = list(group.row)
        slots[0], slots[index] = slots[index], slots[0]
        for member, change in zip((slots[index], slots[0]), (-number, number), strict=True):
            if member is not None:
                self.owned[member] += change
        self._put(group.today, tuple(slots), _take(group.partitions, number), group.fixed)

    def fits(self, slot: Slot, member: MemberIndex) -> bool:
        """Return whether `member` may take the slot.

        It must not be in the row, must be apart from the others, and must not have another index in the row
        today, since permutations cannot run. A row that shrinks takes no new member, and its present backups
        in any order: a present owner would leave and be copied again.
        """
        group, index, down = slot
        row, today = group.row, group.today
        if member in row:
            return False
        if member in today:
            was = today.index(member)
            if down != -1 or (was < len(row) and was != index and not (group.shrinks and index and was)):
                return False
        elif group.shrinks and self.strict:
            return False
        if self._topology is None:
            return True
        others = row if down != -1 else (*row[:index], *row[index + 1 :])
        return self._topology.apart(others, member)

    def open_slots(self, index: int) -> list[Slot]:
        """Return the slots at this index that are empty."""
        return [
            Slot(group, index)
            for group in self._unfilled
            if group.partitions and index < len(group.row) and group.row[index] is None
        ]

    def groups_of(self, member: MemberIndex, owned: bool) -> Iterator[RowGroup]:
        """Iterate the groups that the member owns, or is a backup in. Assign nothing during the iteration."""
        if not self._listed:
            self._listed = True
            for group in self.groups.values():
                self._list(group)
        return (group for group in self._by_holder[owned][member] if group.partitions)

    def gains(self, member: MemberIndex, owned: bool) -> int:
        """Return a counter that grows whenever `groups_of` gets a group that it just lacked."""
        return len(self._by_holder[owned][member]) + self._regained[member, owned]

    def _list(self, group: RowGroup) -> None:
        for index, member in enumerate(group.row):
            self._by_holder[index == 0][member].append(group)

    def _count(self, row: Row, number: int) -> None:
        self.partitions += number
        held = self.held
        for member in row:
            if member is not None:
                held[member] += number
        if row and row[0] is not None:
            self.owned[row[0]] += number


def _take(partitions: list[PartitionId], number: int) -> list[PartitionId]:
    """Remove `number` partitions from the list, spread over it, and return them."""
    if number == len(partitions):
        taken = partitions[:]
        partitions.clear()
        return taken
    step = len(partitions) // number
    taken = partitions[: number * step : step]
    del partitions[: number * step : step]
    return taken


def partition_count(slots: Iterable[Slot]) -> int:
    """Count the partitions of the slots."""
    return sum(len(slot.group.partitions) for slot in slots)


def demotable_owners(groups: Iterable[RowGroup]) -> Counter[MemberIndex]:
    """Count, per owner, the partitions in which a free index lets it become a backup without a copy."""
    demotable: Counter[MemberIndex] = Counter()
    for group in groups:
        if group.free_backup_index() != -1 and group.row[0] is not None:
            demotable[group.row[0]] += len(group.partitions)
    return demotable
