"""Recovery of what the previous master left (docs/reference/protocol.md, "Take-over by a new master").

Per partition the highest published version wins. A row that a member *accepted* above that was committed at a
destination by the predecessor and not stored: it is stored now. All other unfinished operations are void.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stele.core.control.commands import ExchangeReply
from stele.core.table.ids import MemberIndex, PartitionId, Version
from stele.core.table.table import Partition, PartitionTable, newer, version_for_epoch
from stele.errors import Corrupt

SKIP = 2
"""Versions that a change skips when an unreachable member may have accepted another row."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """`rows` to store, and versions that may have been claimed: later changes must be above them."""

    rows: Mapping[PartitionId, Partition]
    claimed: Mapping[PartitionId, Version]


def resolve(
    table: PartitionTable, reports: Iterable[ExchangeReply], gone: frozenset[MemberIndex], epoch: int
) -> Recovered:
    """Return the starting point of the leadership with this epoch. Pure.

    Raises Corrupt when two published rows of one version differ: no decision is then safe.
    """
    answers = tuple(reports)
    rows = _published(table, answers)
    accepted = [row for report in answers for row in report.accepted]
    for row in sorted(accepted, key=lambda each: each.version):
        if row.version > _version(rows, table, row.partition):
            rows[row.partition] = Partition(row.version, tuple(row.replicas))
    claimed: dict[PartitionId, Version] = {}
    for number, stored in enumerate(table.partitions):
        present = rows.get(number, stored)
        if gone & present.members:
            claimed[number] = present.version + SKIP
    for number in _unanswered(answers, gone):
        claimed[number] = max(claimed.get(number, 0), _version(rows, table, number) + SKIP - 1)
        if number not in rows:
            present = table.partitions[number]
            rows[number] = Partition(version_for_epoch(epoch, claimed[number] + 1), present.replicas)
    return Recovered(rows, claimed)


def _published(table: PartitionTable, answers: tuple[ExchangeReply, ...]) -> dict[PartitionId, Partition]:
    """Return rows that members have and the ConfigMaps lack, after an older copy of those was restored."""
    rows: dict[PartitionId, Partition] = {}
    for report in answers:
        for row in report.rows:
            if row.partition >= len(table.partitions):
                raise Corrupt(f"a member has partition {row.partition}; there are {len(table.partitions)}")
            published = Partition(row.version, tuple(row.replicas))
            present = rows.get(row.partition, table.partitions[row.partition])
            if newer(row.partition, present, published) is published:
                rows[row.partition] = published
    return rows


def _version(rows: Mapping[PartitionId, Partition], table: PartitionTable, number: PartitionId) -> Version:
    return rows.get(number, table.partitions[number]).version


def _unanswered(answers: tuple[ExchangeReply, ...], gone: frozenset[MemberIndex]) -> set[PartitionId]:
    """Return partitions of migrations whose destination is unreachable: it may have accepted base + 1."""
    return {
        learner.partition for report in answers for learner in report.learners if learner.destination in gone
    }
