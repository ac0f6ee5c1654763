"""Which fault strikes when: drawn from a seed, and nothing else. Pure.

No fault takes a volume away, and what is acknowledged is on the volumes of all members of its row. So
whatever strikes at once, also all members, no acknowledged write may be lost.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import StrEnum

FIRST_SECONDS = 2.0
LAST_SECONDS = 3.0
"""No fault begins in the last seconds: what a fault breaks shows a moment later."""
BURST_OF_100 = 40
BURST_GAP_SECONDS, GAP_SECONDS = (0.05, 0.8), (2.0, 8.0)
MEMBERS_AT_FIRST, MEMBERS_DRAWN = 3, (3, 4, 5)
VICTIMS = 1 << 16
REACHABLE, UNREACHABLE, ALONE = "reachable", "unreachable", "alone"
READY_MIN, STILL_SECONDS_MAX = 2, 10.0
CALM_SECONDS = 4.0
"""Between the end of all that lasts and a fault that strikes in calm."""


class Kind(StrEnum):
    """What a fault does."""

    KILL = "SIGKILL a member"
    KILL_ALL = "SIGKILL all members at once"
    PAUSE = "SIGSTOP a member for a while"
    DELETE = "delete a pod"
    DELETE_BY_FORCE = "delete a pod by force"
    ORPHAN = "delete a pod by force while its kubelet stands still"
    EVICT = "evict a pod"
    STOP_THEN_STRIKE = "delete a pod, and strike the others when it ended"
    CUT = "cut two members off each other"
    CUT_ONE_WAY = "cut the way from a member to another"
    ISOLATE = "cut a member off the others and the operator"
    HIDE = "cut a member off the operator"
    OPERATOR_KILL = "SIGKILL the operator"
    OPERATOR_PAUSE = "SIGSTOP the operator for a while"
    OPERATOR_DELETE = "delete the operator's pod"
    OPERATOR_CUT = "cut the operator off the API server"
    COPIER_DELETE = "delete the copier's pod by force"
    SCALE = "scale"
    STATE = "change the state"


WEIGHTS = {
    Kind.KILL: 10,
    Kind.KILL_ALL: 2,
    Kind.PAUSE: 10,
    Kind.DELETE: 14,
    Kind.DELETE_BY_FORCE: 10,
    Kind.ORPHAN: 10,
    Kind.EVICT: 5,
    Kind.STOP_THEN_STRIKE: 10,
    Kind.CUT: 6,
    Kind.CUT_ONE_WAY: 6,
    Kind.ISOLATE: 6,
    Kind.HIDE: 4,
    Kind.OPERATOR_KILL: 3,
    Kind.OPERATOR_PAUSE: 3,
    Kind.OPERATOR_DELETE: 2,
    Kind.OPERATOR_CUT: 3,
    Kind.COPIER_DELETE: 2,
    Kind.SCALE: 5,
    Kind.STATE: 3,
}
SECONDS = {
    Kind.PAUSE: (0.3, 12.0),
    Kind.STOP_THEN_STRIKE: (4.0, 12.0),
    Kind.ORPHAN: (2.5, 8.0),
    Kind.CUT: (1.0, 12.0),
    Kind.CUT_ONE_WAY: (1.0, 12.0),
    Kind.ISOLATE: (1.0, 12.0),
    Kind.HIDE: (1.0, 12.0),
    Kind.OPERATOR_PAUSE: (1.0, 10.0),
    Kind.OPERATOR_CUT: (1.0, 10.0),
    Kind.STATE: (1.0, 4.0),
}
"""How long those last that end by themselves."""
WORDS = {
    Kind.STOP_THEN_STRIKE: ("SIGKILL", "SIGSTOP"),
    Kind.ORPHAN: (REACHABLE, UNREACHABLE, ALONE, ALONE),
    Kind.SCALE: ("Direct", "Direct", "Spark"),
    Kind.STATE: ("NoMigration", "Frozen", "Passive"),
}
"""What else is drawn: the signal for the others, who still reaches the process (all, all but the operator, or
only clients), the engine that copies, the state.
"""


@dataclass(frozen=True)
class Fault:
    """One fault, `at` seconds after the storm began. `victim` and `other` choose among who is there."""

    at: float
    kind: Kind
    victim: int = 0
    other: int = 0
    lasts: float = 0.0
    word: str = ""

    @property
    def calm(self) -> bool:
        """Whether it strikes while nothing else does: what it may break shows only where writes go on."""
        return self.word == ALONE

    def __str__(self) -> str:
        facts = [self.word] if self.word else []
        facts += [f"{self.victim} members"] if self.kind is Kind.SCALE else []
        facts += [f"{self.lasts} s"] if self.lasts else []
        return f"{self.at:8.2f} s  {self.kind}" + (f": {', '.join(facts)}" if facts else "")


def draw(seed: int, seconds: float) -> list[Fault]:
    """The faults of a storm, by time. About four of ten follow the one before within a second."""
    chance = random.Random(seed)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    found: list[Fault] = []
    at, ended = FIRST_SECONDS, 0.0
    while at < seconds - LAST_SECONDS:
        (kind,) = chance.choices(kinds, weights)
        fault = _one(chance, round(at, 2), kind)
        if fault.calm:
            fault = replace(fault, at=round(max(at, ended + CALM_SECONDS), 2))
        if fault.at < seconds - LAST_SECONDS:
            found.append(fault)
        ended = max(ended, fault.at + fault.lasts)
        gap = BURST_GAP_SECONDS if chance.randrange(100) < BURST_OF_100 else GAP_SECONDS
        at = (ended if fault.calm else at) + chance.uniform(*gap)
    return found


def _one(chance: random.Random, at: float, kind: Kind) -> Fault:
    lasts = round(chance.uniform(*SECONDS.get(kind, (0.0, 0.0))), 2)
    word = chance.choice(WORDS.get(kind, ("",)))
    victim = chance.choice(MEMBERS_DRAWN) if kind is Kind.SCALE else chance.randrange(VICTIMS)
    return Fault(at, kind, victim, chance.randrange(VICTIMS), lasts, word)


class Clock:
    """The storm's time. While the cluster is not well it stands still, though not for long: faults would find
    nobody, and on a slow machine most of them did.
    """

    def __init__(self, now: float) -> None:
        self._seconds, self._last, self._well_at = 0.0, now, now

    def turn(self, now: float, well: bool) -> float:
        """Seconds of the storm until `now`, when the cluster is well or not."""
        if well:
            self._well_at = now
        if not 0 < now - self._well_at <= STILL_SECONDS_MAX:
            self._seconds += now - self._last
        self._last = now
        return self._seconds
