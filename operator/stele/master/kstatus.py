"""Ready, Reconciling and Stalled: by these three, tools such as Flux and Argo CD judge an object.

Of Reconciling and Stalled at most one is True, and neither while Ready is (docs/operating/gitops.md).
"""

from collections.abc import Iterable
from datetime import datetime
from enum import Enum, auto

from stele.model.conditions import Conditions, ConditionType, Reason, set_condition

Observed = tuple[ConditionType, bool, Reason, str]
"""A condition: its type, whether it is True, reason and message."""


class Progress(Enum):
    """How an object gets to what its spec says."""

    DONE = auto()
    """Nothing is left to do."""
    UNDER_WAY = auto()
    """It gets there by itself."""
    HELD = auto()
    """It waits because a user said so: by a pause, a state, or an approval that is not given yet."""
    STALLED = auto()
    """It needs a user."""


Verdict = tuple[Progress, Reason, str]


def progress_conditions(verdict: Verdict) -> list[Observed]:
    """Return the three conditions. One that is False while another says why has the same reason."""
    progress, reason, text = verdict
    return [
        (ConditionType.READY, progress is Progress.DONE, reason, text),
        (ConditionType.RECONCILING, progress is Progress.UNDER_WAY, reason, text),
        (ConditionType.STALLED, progress is Progress.STALLED, reason, text),
    ]


def with_conditions(
    before: Conditions, observed: Iterable[Observed], generation: int, now: datetime
) -> Conditions:
    """Return the conditions after these were observed of that generation."""
    for type_, holds, reason, text in observed:
        before = set_condition(before, type_, holds, reason, text, generation=generation, now=now)
    return before
