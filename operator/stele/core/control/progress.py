"""Progress of a plan, as its TabletRebalance shows it."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from stele.core.control.invariants import hold
from stele.core.control.operations.copy_session import Copied, Engine
from stele.core.placement.migration import Type
from stele.core.placement.plan import Plan, Refusal
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.transitions import check_step


class RebalancePhase(StrEnum):
    """Phase of the plan.

    Done, Failed and Superseded are final. Proposed: a finished DryRun, or a plan that waits for
    spec.approved.
    """

    PENDING = "Pending"
    PROPOSED = "Proposed"
    RUNNING = "Running"
    CANCELLING = "Cancelling"
    DONE = "Done"
    FAILED = "Failed"
    SUPERSEDED = "Superseded"


FINAL = frozenset({RebalancePhase.DONE, RebalancePhase.FAILED, RebalancePhase.SUPERSEDED})
"""Phases that a plan never leaves."""

TRANSITIONS: dict[RebalancePhase, frozenset[RebalancePhase]] = {
    RebalancePhase.PENDING: frozenset({RebalancePhase.RUNNING, RebalancePhase.SUPERSEDED}),
    RebalancePhase.PROPOSED: FINAL | {RebalancePhase.RUNNING, RebalancePhase.CANCELLING},
    RebalancePhase.RUNNING: FINAL | {RebalancePhase.CANCELLING},
    RebalancePhase.CANCELLING: frozenset({RebalancePhase.SUPERSEDED}),
    **dict.fromkeys(FINAL, frozenset()),
}


@dataclass(slots=True, eq=False)
class RebalanceProgress:
    """Progress of one plan, as its TabletRebalance shows it. Equal only to itself.

    A user's plan has its object's `name`, and the `partitions` that are not yet as requested. `refusals` are
    final, `failures` were rolled back and are retried, `waiting` may not start yet.
    """

    number: int
    plan: Plan
    reason: str
    started_seconds: float
    bytes_planned: int
    planned: Counter[Type]
    done: Counter[Type] = field(default_factory=Counter)
    failed: int = 0
    bytes_copied: int = 0
    bytes_by_spark: int = 0
    engine: Engine | None = None
    engine_reason: str = ""
    refusals: dict[PartitionId, Refusal] = field(default_factory=dict)
    failures: dict[PartitionId, Refusal] = field(default_factory=dict)
    waiting: dict[PartitionId, Refusal] = field(default_factory=dict)
    destinations: dict[MemberIndex, Copied] = field(default_factory=dict)
    phase: RebalancePhase = RebalancePhase.RUNNING
    finished_seconds: float | None = None
    name: str = ""
    uid: str = ""
    partitions: frozenset[PartitionId] = frozenset()
    situation: str = ""
    copies_left: int | None = None

    @staticmethod
    def of_user(name: str, uid: str, now: float) -> "RebalanceProgress":
        """Create the progress of a user's plan that has not been checked yet."""
        text = "moves that a user asked for"
        return RebalanceProgress(
            0, Plan(), text, now, 0, Counter(), phase=RebalancePhase.PENDING, name=name, uid=uid
        )

    def enter(self, to: RebalancePhase, now: float) -> None:
        """Change the phase. Raises Refused, without a change, unless TRANSITIONS allows it."""
        check_step(f"plan {self.name or self.number}", TRANSITIONS, self.phase, to)
        self.phase = to
        if to is RebalancePhase.RUNNING:
            self.started_seconds = now
        elif to in FINAL:
            self.finished_seconds = now

    def check(self) -> None:
        """Raise BrokenInvariant when counts are negative or contradict each other."""
        counts = (self.failed, self.bytes_by_spark, *self.done.values())
        sound = min(counts) >= 0 and self.bytes_by_spark <= self.bytes_copied
        hold(sound, "counts of plan {}: {}, of {} bytes", self.name or self.number, counts, self.bytes_copied)
