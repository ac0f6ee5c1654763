"""Judges a plan without any help of the planner: what a migration does to a row, how many copies a table
costs, how few could do and how far members are apart is all said here once more, from the definitions.

Members weigh the same here and there are no zones. Rows are sequences of member numbers, None for nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from e2e.bench.errors import BenchError
from stele.core.placement.migration import Migration

Row = Sequence[int | None]
Rows = Sequence[Row]


class PlanError(BenchError):
    """A plan does not do what it says, or a table breaks a rule; the text says where."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What a target costs and how even it is.

    `copies`: replicas on members that had none of the partition. `lower_bound`: the fewest copies of any
    table in which every member has its fair share of replicas, rounded down or up. Spreads: the most that a
    staying member has, less the fewest. `off_share`: how far the member that is farthest from it is from its
    fair share, of owned partitions or of replicas. `missing`: replicas that are wanted and nobody holds.
    """

    copies: int
    lower_bound: int
    owner_spread: int
    replica_spread: int
    off_share: float
    missing: int

    @property
    def good(self) -> bool:
        """Nothing is missing, everybody is within 1 of the fair share, nothing is copied without need."""
        return self.off_share <= 1 and not self.missing and self.copies <= self.lower_bound


def judge(current: Rows, target: Rows, staying: Collection[int], replicas: int) -> Quality:
    """What it takes to come from `current` to `target`; raises PlanError for a target that is no table."""
    if len(current) != len(target):
        raise PlanError(f"the target has {len(target)} rows, the table {len(current)}")
    members = frozenset(staying)
    for partition, row in enumerate(target):
        _check(partition, row, members, replicas)
    wanted = len(target) * min(replicas, len(members))
    owned = _counts(members, (row[0] for row in target if row))
    held = _counts(members, (member for row in target for member in row))
    return Quality(
        copies=sum(len(_held(row) - _held(old)) for old, row in zip(current, target, strict=True)),
        lower_bound=lower_bound(current, members, replicas),
        owner_spread=max(owned) - min(owned),
        replica_spread=max(held) - min(held),
        off_share=max(_off(owned, len(target)), _off(held, wanted)),
        missing=wanted - sum(held),
    )


def check(
    current: Rows, migrations: Iterable[Migration], target: Rows, staying: Collection[int], replicas: int
) -> Quality:
    """As `judge`, for a plan: its migrations must lead to the target, step by step and safely, and the copies
    are those that they make. Raises PlanError.
    """
    quality = judge(current, target, staying, replicas)
    planned = list(migrations)
    reached = replay(current, planned, target)
    for partition, (row, wanted) in enumerate(zip(reached, target, strict=True)):
        if _trimmed(row) != _trimmed(wanted):
            raise PlanError(f"partition {partition} ends as {row}, the target is {wanted}")
    copies = sum(m.destination is not None and m.destination_current_index < 0 for m in planned)
    return replace(quality, copies=copies)


def lower_bound(current: Rows, staying: Collection[int], replicas: int) -> int:
    """The fewest copies after which every staying member has its share of replicas, rounded down or up.

    A member needs a copy for each replica that it has less than its share. The members that are rounded up
    are free to choose: best those that hold that many already.
    """
    held = Counter(member for row in current for member in _held(row))
    share, rest = divmod(len(current) * min(replicas, len(staying)), len(staying))
    above = sum(held[member] > share for member in staying)
    return sum(max(0, share - held[member]) for member in staying) + max(0, rest - above)


def replay(current: Rows, migrations: Iterable[Migration], target: Rows) -> list[list[int | None]]:
    """The rows after all migrations in order. Raises PlanError when one does not fit its row, or leaves the
    row with fewer replicas than it began with and shall end with.
    """
    rows = [list(row) for row in current]
    fewest = [min(len(_held(row)), len(_held(end))) for row, end in zip(current, target, strict=True)]
    for migration in migrations:
        row = rows[migration.partition]
        fault = _apply(row, migration)
        if fault is None and len(_held(row)) < fewest[migration.partition]:
            fault = f"only {len(_held(row))} replicas are left"
        if fault is not None:
            raise PlanError(f"partition {migration.partition}, {migration}: {fault}; the row is {row}")
    return rows


def _apply(row: list[int | None], migration: Migration) -> str | None:
    """Change the row; or say, as the end of a sentence, why the migration does not fit it."""
    new, later = migration.destination_new_index, migration.source_new_index
    row += [None] * (1 + max(new, later) - len(row))
    for member, index in (
        (migration.source, migration.source_current_index),
        (migration.destination, migration.destination_current_index),
    ):
        if index >= 0:
            if index >= len(row) or row[index] != member:
                return f"{member} is not at index {index}"
            row[index] = None
    for member, index in ((migration.destination, new), (migration.source, later)):
        if index >= 0:
            if member is None or member in row:
                return f"{member} cannot go to index {index}: it is in the row"
            if row[index] is not None:
                return f"index {index} is not empty"
            row[index] = member
    return None


def _check(partition: int, row: Row, members: frozenset[int], replicas: int) -> None:
    held = [member for member in row if member is not None]
    if len(set(held)) != len(held):
        raise PlanError(f"partition {partition} names a member twice: {row}")
    if not members.issuperset(held):
        raise PlanError(f"partition {partition} names a member that does not stay: {row}")
    if len(held) > replicas:
        raise PlanError(f"partition {partition} has more than {replicas} replicas: {row}")


def _held(row: Row) -> set[int]:
    return {member for member in row if member is not None}


def _trimmed(row: Row) -> list[int | None]:
    last = max((index for index, member in enumerate(row) if member is not None), default=-1)
    return list(row[: last + 1])


def _counts(members: Collection[int], holders: Iterable[int | None]) -> list[int]:
    count = Counter(holders)
    return [count[member] for member in members]


def _off(counts: Sequence[int], total: int) -> float:
    return max(abs(count - total / len(counts)) for count in counts)
