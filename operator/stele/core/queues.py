"""What a plan still has to do, and what may start now.

Within a partition in order, across partitions in parallel; a member takes part in at most `limit`
migrations at once, as source, destination or owner. What makes a missing copy goes first, and hotter
indexes before colder ones.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from stele.core.errors import Conflict
from stele.core.ids import MemberIndex, PartitionId
from stele.core.migration import Migration, step
from stele.core.plan import Plan
from stele.core.table import Partition


@dataclass(slots=True)
class Queues:
    """Remaining migrations per partition. `order` remembers the plan's priorities."""

    waiting: dict[PartitionId, deque[Migration]] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan) -> "Queues":
        return Queues({partition: deque(some) for partition, some in plan.by_partition().items()})

    def __len__(self) -> int:
        return sum(map(len, self.waiting.values()))

    def drop(self, partition: PartitionId) -> None:
        """What was planned after a migration that failed is void."""
        self.waiting.pop(partition, None)

    def startable(
        self,
        rows: tuple[Partition, ...],
        busy: Iterable[frozenset[MemberIndex]],
        held: frozenset[PartitionId],
        able: frozenset[MemberIndex],
        limit: int,
    ) -> Iterator[Migration]:
        """Take out and yield what may start. `held` partitions have something under way; only `able` members
        take part. A queue whose head does not fit its row any more is dropped: it is planned afresh."""
        load = Counter(member for members in busy for member in members)
        for partition in self._grouped(rows):
            if partition in held:
                continue
            queue = self.waiting[partition]
            migration, row = queue[0], rows[partition]
            if not fits(migration, row):
                self.drop(partition)
                continue
            members = migration.participants | {row.owner}
            if not members <= able or any(load[member] >= limit for member in members if member is not None):
                continue
            load.update(member for member in members if member is not None)
            queue.popleft()
            if not queue:
                del self.waiting[partition]
            yield migration

    def _grouped(self, rows: tuple[Partition, ...]) -> list[PartitionId]:
        """In the plan's order, but those with one source and destination of a copy next to each other: what
        starts together is copied together. What makes a missing copy stays before the rest."""
        groups: dict[tuple[bool, object, object], list[PartitionId]] = {}
        for partition, queue in self.waiting.items():
            head = queue[0]
            pair = (rows[partition].owner, head.destination) if head.copies else (None, None)
            groups.setdefault((not head.adds, *pair), []).append(partition)
        urgent_first = sorted(groups.items(), key=lambda item: item[0][0])
        return [partition for _, some in urgent_first for partition in some]


def fits(migration: Migration, row: Partition) -> bool:
    """Whether the migration can be made from this row."""
    try:
        return row.owner is not None and bool(step(row.replicas, migration))
    except Conflict:
        return False


def planned_bytes(plan: Plan, bytes_of: Mapping[PartitionId, int]) -> Counter[MemberIndex]:
    """Bytes that a plan brings each destination, by the sizes that owners report."""
    total: Counter[MemberIndex] = Counter()
    for migration in plan.migrations:
        if migration.copies and migration.destination is not None:
            total[migration.destination] += bytes_of.get(migration.partition, 0)
    return total
