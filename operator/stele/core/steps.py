"""Numbers that only grow, and that nobody may let jump: epochs, versions, terms, versions of the member list.

What is believed is stored, and everything below it is refused from then on: a single number near the end of
its range would leave nothing above it that a successor could take.
"""

from stele.core.ids import STEP_MAX, VERSION_MAX
from stele.core.orders import Report
from stele.core.table import PartitionTable

REPAIR = 'who told it is not believed (docs/operator.md, "Numbers that jump")'


def jump(what: str, known: int, told: int) -> str:
    """What is wrong with a number that `told` is, where `known` is the highest so far; empty when nothing."""
    if told <= known + STEP_MAX:
        return ""
    return f"{what} {told} is more than {STEP_MAX} above {known}, the highest that is known here: {REPAIR}"


def is_above(ours: int, told: int) -> bool:
    """Whether it is the epoch of another master above ours, and to be believed."""
    return ours < told <= ours + STEP_MAX


def reported_jump(table: PartitionTable, list_version: int, report: Report) -> str:
    """The first number of a report that jumps; empty when there is none. The table is the one that is stored.

    A promise of VERSION_MAX is none: it stands for promises that were lost with their file.
    """
    if text := jump("the member list's version", list_version, report.member_list_version):
        return text
    told = [(row.partition, row.version) for rows in (report.rows, report.accepted) for row in rows]
    told += [(each.partition, each.promised) for each in report.tablets if each.promised != VERSION_MAX]
    for number, version in told:
        known = table.partitions[number].version if number < len(table.partitions) else 0
        if version > known + STEP_MAX:
            return jump(f"partition {number}: version", known, version)
    return ""
