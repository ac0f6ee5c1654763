"""The remaining migrations of a plan, and which may start now.

Those of a partition run in order, those of different partitions in parallel; a member takes part in at most
`limit` migrations at once, as source, destination or owner. Rows with the fewest copies go first, in any
shard.

Partitions wait in groups with the same need, participants and shard, so that migrations that start together
are copied together and share writes of their shard. With equal need, shards are finished one after the other.
A search for startable migrations costs one step per group, and one per partition that starts or is held.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stele.core.placement.migration import Migration, step
from stele.core.placement.plan import Plan
from stele.core.table.ids import MAX_REPLICAS, MemberIndex, PartitionId
from stele.core.table.table import Partition, shard_of
from stele.errors import Conflict

Group = tuple[int, int, int, int, int]
"""Need, most urgent first; shard; owner, destination and source (-1: none)."""

NO_MEMBER = -1

LACKS_NOTHING = MAX_REPLICAS
"""The need of a row that gets no further copy; for others, it is the number of copies that they have."""

GROUPS_MAX = 2_000
"""Maximum number of groups that one search skips; those after them wait until earlier ones are done."""

REFUSED_MAX = 50
"""Maximum number of refused migrations per destination in one search."""


@dataclass(slots=True)
class Queues:
    """Remaining migrations per partition.

    Invariants: every partition of `waiting` is in one of `groups`; one that is in the wrong group, because
    its row changed, is corrected when it is met. `order` has the keys of `groups`, sorted. `dropped` has all
    partitions that may have to be planned again.
    """

    waiting: dict[PartitionId, deque[Migration]] = field(default_factory=dict)
    groups: dict[Group, dict[PartitionId, None]] = field(default_factory=dict)
    order: list[Group] = field(default_factory=list)
    left: int = 0
    dropped: set[PartitionId] = field(default_factory=set)

    @staticmethod
    def of(plan: Plan, rows: Sequence[Partition]) -> "Queues":
        """Create the queues of a plan for a table with these rows."""
        queues = Queues()
        queues.add(plan, rows)
        return queues

    def add(self, plan: Plan, rows: Sequence[Partition]) -> None:
        """Add migrations of partitions without waiting ones."""
        by_partition = plan.by_partition()
        self.waiting.update({partition: deque(migrations) for partition, migrations in by_partition.items()})
        self.left += len(plan.migrations)
        for partition in by_partition:
            self._enqueue(partition, rows[partition])

    def __len__(self) -> int:
        return self.left

    def drop(self, partition: PartitionId) -> None:
        """Drop a partition's migrations: an earlier one failed, or its row changed."""
        self.dropped.add(partition)
        self.left -= len(self.waiting.pop(partition, ()))

    def startable(
        self,
        rows: Sequence[Partition],
        busy: Iterable[frozenset[MemberIndex]],
        held: frozenset[PartitionId],
        able: frozenset[MemberIndex],
        limit: int,
        *,
        admit: Callable[[Migration], bool] = lambda migration: True,
    ) -> Iterator[Migration]:
        """Remove and yield what may start.

        `held` partitions have a running operation; only `able` members take part. A queue whose head no
        longer fits its row is dropped and planned again. A migration that is not admitted stays; a
        destination with REFUSED_MAX of those is skipped in this search. Nothing starts in a group of an
        unable member, except for partitions whose rows no longer name it, so that none waits for a member
        that never returns.
        """
        room = _Room(busy, able, limit, admit)
        under_way = set(held)
        for group in self.order[:GROUPS_MAX]:
            if room.full:
                return
            if room.for_all(group[2:]):
                yield from self._startable_in(group, rows, under_way, room)
            elif not able.issuperset({*group[2:]} - {NO_MEMBER}):
                self._correct(group, rows, held)

    def _startable_in(
        self, group: Group, rows: Sequence[Partition], held: set[PartitionId], room: "_Room"
    ) -> Iterator[Migration]:
        for partition in [each for each in self.groups[group] if each not in held]:
            if not room.for_all(group[2:]):
                return
            migration = self._dequeue(group, partition, rows[partition], room)
            if migration is not None:
                room.take(group[2:])
                # The one after it waits in a group that may come later in this search.
                held.add(partition)
                yield migration
        self._end_if_empty(group)

    def _correct(self, group: Group, rows: Sequence[Partition], held: frozenset[PartitionId]) -> None:
        """Remove partitions that do not belong there, up to the first that does, which becomes the last: so
        one search costs little, and several meet all."""
        while self.groups[group]:
            partition = next(iter(self.groups[group]))
            if partition in held:
                self.groups[group][partition] = self.groups[group].pop(partition)
                break
            if self._belongs(group, partition, rows[partition]):
                self._enqueue(partition, rows[partition])
                break
        self._end_if_empty(group)

    def _end_if_empty(self, group: Group) -> None:
        if not self.groups[group]:
            del self.groups[group]
            del self.order[bisect_left(self.order, group)]

    def _belongs(self, group: Group, partition: PartitionId, row: Partition) -> bool:
        """Remove a partition from its group.

        Returns whether it belongs there and is neither done nor in another group.
        """
        del self.groups[group][partition]
        queue = self.waiting.get(partition)
        if queue is None:
            return False
        if not fits(queue[0], row):
            self.drop(partition)
            return False
        if _group(queue, row) != group:
            self._enqueue(partition, row)
            return False
        return True

    def _dequeue(
        self, group: Group, partition: PartitionId, row: Partition, room: "_Room"
    ) -> Migration | None:
        """Return the next migration of a partition, unless it is done, waits elsewhere, or is not
        admitted."""
        if not self._belongs(group, partition, row):
            return None
        queue = self.waiting[partition]
        if not room.admits(queue[0]):
            self._enqueue(partition, row)
            return None
        migration = queue.popleft()
        self.left -= 1
        if queue:
            self._enqueue(partition, row)
        else:
            del self.waiting[partition]
        return migration

    def _enqueue(self, partition: PartitionId, row: Partition) -> None:
        group = _group(self.waiting[partition], row)
        if group not in self.groups:
            self.groups[group] = {}
            insort(self.order, group)
        self.groups[group][partition] = None


class _Room:
    """Which members may take part in another migration."""

    def __init__(
        self,
        busy: Iterable[frozenset[MemberIndex]],
        able: Iterable[MemberIndex],
        limit: int,
        admit: Callable[[Migration], bool],
    ) -> None:
        self._admit, self._refused = admit, Counter[MemberIndex]()
        self._load = Counter(member for members in busy for member in members)
        self._limit = limit
        self._free = {NO_MEMBER, *(member for member in able if self._load[member] < limit)}

    @property
    def full(self) -> bool:
        """Whether no member may take part."""
        return len(self._free) < 2

    def for_all(self, members: Iterable[MemberIndex]) -> bool:
        return self._free.issuperset(members)

    def admits(self, migration: Migration) -> bool:
        """Return whether the destination has room, which may limit it for others."""
        destination = migration.destination
        if destination is None or self._admit(migration):
            return True
        self._refused[destination] += 1
        if self._refused[destination] >= REFUSED_MAX:
            self._free.discard(destination)
        return False

    def take(self, members: Iterable[MemberIndex]) -> None:
        for member in {*members} - {NO_MEMBER}:
            self._load[member] += 1
            if self._load[member] >= self._limit:
                self._free.discard(member)


def _group(queue: Sequence[Migration], row: Partition) -> Group:
    """Return the group of a partition. Steps before a missing copy are as urgent as the copy."""
    first = queue[0]
    participants = (row.owner, first.destination, first.source)
    owner, destination, source = (NO_MEMBER if each is None else each for each in participants)
    need = len(row.members) if any(each.adds for each in queue) else LACKS_NOTHING
    return need, shard_of(first.partition), owner, destination, source


def fits(migration: Migration, row: Partition) -> bool:
    """Return whether the migration can start from this row."""
    try:
        return row.owner is not None and bool(step(row.replicas, migration))
    except Conflict:
        return False


def planned_bytes(plan: Plan, bytes_of: Mapping[PartitionId, int]) -> Counter[MemberIndex]:
    """Return the bytes that a plan brings each destination, by the sizes that owners report."""
    total: Counter[MemberIndex] = Counter()
    for migration in plan.migrations:
        if migration.copies and migration.destination is not None:
            total[migration.destination] += bytes_of.get(migration.partition, 0)
    return total
