"""Limits of credible reports."""

from stele.core.control.commands import ExchangeReply
from stele.core.table.ids import STEP_MAX, VERSION_MAX
from stele.core.table.steps import jump
from stele.core.table.table import PartitionTable


def reported_jump(table: PartitionTable, list_version: int, report: ExchangeReply) -> str:
    """Return the first number of a report that jumps beyond the stored table's; empty when there is none.

    A promise of VERSION_MAX does not count: it stands for promises that were lost with their file.
    """
    if text := jump("the member list's version", list_version, report.member_list_version):
        return text
    versions = [(row.partition, row.version) for rows in (report.rows, report.accepted) for row in rows]
    versions += [(each.partition, each.promised) for each in report.tablets if each.promised != VERSION_MAX]
    for number, version in versions:
        known = table.partitions[number].version if number < len(table.partitions) else 0
        if version > known + STEP_MAX:
            return jump(f"partition {number}: version", known, version)
    return ""
