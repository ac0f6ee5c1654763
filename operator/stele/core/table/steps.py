"""Numbers that only grow, and that nobody may let jump: epochs, versions, terms, versions of the member list.

What is believed is stored, and everything below it is refused from then on: a single number near the end of
its range would leave nothing above it that a successor could take.
"""

from stele.core.table.ids import STEP_MAX

REPAIR = 'who told it is not believed (docs/internals/operator.md, "Numbers that jump")'


def jump(what: str, known: int, told: int) -> str:
    """What is wrong with a number that `told` is, where `known` is the highest so far; empty when nothing."""
    if told <= known + STEP_MAX:
        return ""
    return f"{what} {told} is more than {STEP_MAX} above {known}, the highest that is known here: {REPAIR}"


def is_above(ours: int, told: int) -> bool:
    """Whether it is the epoch of another master above ours, and to be believed."""
    return ours < told <= ours + STEP_MAX
