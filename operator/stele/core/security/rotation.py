"""When a cluster's CA and its certificates are renewed. Times are Unix seconds.

A CA is changed in three steps: members trust the next one too; their certificates are of the next one; they
no longer trust the old one. Each step waits until every member uses what the one before wrote, so that at
any moment each member trusts the certificate of every other, wherever the operator ends.
"""

from dataclasses import dataclass
from enum import Enum

DAY = 86_400.0
CA_DAYS, LEAF_DAYS = 5 * 365, 30
GRACE_SECONDS = 7 * DAY
"""How long after its end a certificate is still taken from parts of the cluster, where that is allowed: an
operator that is away is no reason to stop writes."""

CLIENT_OVERLAP = 30 * DAY
"""How long clients have to take over the next CA before members show it, unless a user is in a hurry."""


def grace_seconds(*, takes_expired: bool) -> float:
    """Return how long after its end a certificate is taken, where that is allowed or not."""
    return GRACE_SECONDS if takes_expired else 0.0


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is valid. It is renewed after two thirds of that."""

    begins: float
    ends: float

    @property
    def renew_at(self) -> float:
        return self.begins + (self.ends - self.begins) * 2 / 3

    def days_left(self, now: float) -> int:
        """Return whole days until it ends, rounded down; below zero once it has ended."""
        return int((self.ends - now) // DAY)


class Step(Enum):
    """What to do next with a CA."""

    KEEP = "Keep"
    ADD_NEXT = "AddNext"
    HURRY = "Hurry"
    DROP_NEXT = "DropNext"
    PROMOTE = "Promote"
    RETIRE = "Retire"


class Brought(Enum):
    """Which CA the one is that a user brings; without one, the operator makes them itself."""

    NONE = "None"
    CURRENT = "Current"
    NEXT = "Next"
    OTHER = "Other"


@dataclass(frozen=True, slots=True)
class CaState:
    """What is stored of a cluster's CA.

    `promote_at` is from when on the next one may sign, 0 without one. `handled` is the last request of a
    user that was begun.
    """

    current: Validity
    promote_at: float = 0.0
    has_next: bool = False
    has_old: bool = False
    handled: str = ""
    brought: Brought = Brought.NONE


def next_step(ca: CaState, asked: str, *, everybody_uses_it: bool, now: float) -> Step:
    """Return the next step. `asked` is the present request of a user, any text that differs from the last.

    `everybody_uses_it`: each member has reported what was written last, after this state of the CA. Nobody
    shows a certificate of a next CA, so it can be dropped and replaced at any time.
    """
    hurries = asked not in ("", ca.handled)
    if ca.has_old:
        return Step.RETIRE if everybody_uses_it else Step.KEEP
    if ca.brought is Brought.OTHER:
        return Step.ADD_NEXT
    if ca.brought is Brought.CURRENT:
        return Step.DROP_NEXT if ca.has_next else Step.KEEP
    if not ca.has_next:
        return Step.ADD_NEXT if hurries or now >= ca.current.renew_at else Step.KEEP
    if hurries and ca.promote_at > now:
        return Step.HURRY
    due = now >= min(ca.promote_at, ca.current.ends - LEAF_DAYS * DAY)
    return Step.PROMOTE if due and everybody_uses_it else Step.KEEP


def promote_at(handled: str, asked: str, now: float) -> float:
    """Return from when on a CA that is added now may sign; `handled` is the last request that was begun."""
    return now if asked not in ("", handled) else now + CLIENT_OVERLAP
