"""A hand-over: which backups become the owners of what one member owns. Nothing is copied."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from stele.core.placement.members import DataMember
from stele.core.placement.migration import Migration, step, swap
from stele.core.placement.plan import Code, Plan, Refusal
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import PartitionTable, Replicas


def handover(
    table: PartitionTable,
    member: MemberIndex,
    members: Sequence[DataMember],
    *,
    to: MemberIndex | None = None,
    partitions: Iterable[PartitionId] | None = None,
) -> Plan:
    """Return one SWAP for each partition that `member` owns, in a plan without copies.

    Each goes to the backup of its row that then owns least for its weight; one that leaves takes only what no
    other can. Members that are away, demoted or not in `members` take nothing. With `to`, only that member
    does. Partitions that stay are refused: NO_BACKUP when no backup can own them, NOT_A_HOLDER when `to` has
    no replica. Looks at `partitions` only, if they are given; the targets are the rows of the whole table.
    """
    numbers = range(len(table.partitions)) if partitions is None else partitions
    able = {each.index: each for each in members if not (each.away or each.demoted or each.index == member)}
    rows = [partition.replicas for partition in table.partitions]
    choices = {
        number: [each for each in rows[number][1:] if each in able and (to is None or each == to)]
        for number in numbers
        if rows[number] and rows[number][0] == member
    }
    owned = Counter(row[0] for row in rows if row)
    migrations = []
    for number in sorted(choices, key=lambda each: (len(choices[each]), each)):
        takers = [able[each] for each in choices[number] if each is not None]
        if takers:
            taker = min(takers, key=lambda m: (m.leaving, (owned[m.index] + 1) / m.weight, m.index)).index
            owned[taker] += 1
            migrations.append(swap(number, member, taker, rows[number].index(taker)))
    return _plan(table, rows, migrations, choices.keys(), to)


def _plan(
    table: PartitionTable,
    rows: list[Replicas],
    migrations: Sequence[Migration],
    owned: Iterable[PartitionId],
    to: MemberIndex | None,
) -> Plan:
    for migration in migrations:
        rows[migration.partition] = step(rows[migration.partition], migration)
    left = sorted(set(owned) - {migration.partition for migration in migrations})
    return Plan(tuple(migrations), tuple(_refusals(table, left, to)), targets=tuple(rows))


def _refusals(
    table: PartitionTable, partitions: Iterable[PartitionId], to: MemberIndex | None
) -> Iterator[Refusal]:
    taker = table.members.get(to) if to is not None else None
    for number in partitions:
        row = table.partitions[number].members
        if to is not None and to not in row:
            name = f"member {to}" if taker is None else taker.name
            yield Refusal(number, Code.NOT_A_HOLDER, f"{name} holds no replica of it")
        elif len(row) == 1:
            yield Refusal(number, Code.NO_BACKUP, "it has a single replica, so no other member can own it")
        else:
            text = "each of its backups is away, or is to own nothing as well"
            yield Refusal(number, Code.NO_BACKUP, text)
