"""Guards for numbers that only grow: epochs, versions, terms, member-list versions.

A receiver stores the highest number it has accepted and rejects every lower one from then on. One bogus
number near the end of the range would leave no higher number to any successor, so a number that jumps by more
than STEP_MAX is rejected.
"""

from stele.core.table.ids import STEP_MAX

REPAIR = 'the sender is not trusted (docs/internals/operator.md, "Numbers that jump")'


def jump(what: str, known: int, received: int) -> str:
    """Return why `received` is not credible after `known`, the highest number so far; empty when it is."""
    if received <= known + STEP_MAX:
        return ""
    return f"{what} {received} is more than {STEP_MAX} above {known}, the highest known here: {REPAIR}"


def is_above(ours: int, received: int) -> bool:
    """Return whether `received` is the credible epoch of a later master."""
    return ours < received <= ours + STEP_MAX
