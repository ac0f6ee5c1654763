"""One running migration and its next commands (docs/reference/protocol.md, "A migration").

    START -> ATTACH -> CATCH_UP <-> COPY       a destination that is new to the row
    CATCH_UP -> HAND_OVER -> ACCEPT            when the owner changes
    CATCH_UP -> ACCEPT                         when it does not
    HAND_OVER -> ACCEPT                        a SWAP: the destination is an in-sync backup
    CONFIRM -> STORE, or ACCEPT                when the row shrinks: nothing is copied, but the remaining
                                               members must reply once more first
    ACCEPT -> STORE                            the destination agreed; the row may be stored
    any before ACCEPT -> ABORTED               both sides get Abort until neither reports it
    ACCEPT -> VOID                             refused, or the destination failed: version + 2, then as
    ABORTED

Commands follow from the step alone and are repeated until their results arrive. Nothing here is stored: a new
master finds the migration in the reports of both sides, and resumes it at CATCH_UP or COPY, or aborts it.
"""

from dataclasses import dataclass, field
from enum import Enum

from stele.core.control.commands import (
    OK,
    WAIT,
    Accept,
    AddLearner,
    Command,
    CopyReport,
    ExchangeReply,
    HandOver,
    LearnerReport,
    OpId,
    Reason,
    ReasonCode,
    Result,
    Row,
    StartTabletCopy,
)
from stele.core.copy.states import CopyState
from stele.core.placement.migration import Migration, Type, copying, step
from stele.core.table.ids import MemberIndex, PartitionId, Version
from stele.core.table.table import Partition, Replicas
from stele.core.tablet.owner import LearnerState
from stele.core.transitions import check_step
from stele.errors import Refused


class Step(Enum):
    CONFIRM = "CONFIRM"
    START = "START"
    ATTACH = "ATTACH"
    CATCH_UP = "CATCH_UP"
    COPY = "COPY"
    HAND_OVER = "HAND_OVER"
    ACCEPT = "ACCEPT"
    STORE = "STORE"
    ABORTED = "ABORTED"
    VOID = "VOID"


TRANSITIONS: dict[Step, frozenset[Step]] = {
    Step.CONFIRM: frozenset({Step.ACCEPT, Step.STORE, Step.ABORTED}),
    Step.START: frozenset({Step.ATTACH, Step.ABORTED}),
    Step.ATTACH: frozenset({Step.CATCH_UP, Step.ABORTED}),
    Step.CATCH_UP: frozenset({Step.COPY, Step.HAND_OVER, Step.ACCEPT, Step.ATTACH, Step.ABORTED}),
    Step.COPY: frozenset({Step.CATCH_UP, Step.ABORTED}),
    Step.HAND_OVER: frozenset({Step.ACCEPT, Step.ABORTED}),
    Step.ACCEPT: frozenset({Step.STORE, Step.VOID}),
    Step.STORE: frozenset(),
    Step.ABORTED: frozenset(),
    Step.VOID: frozenset(),
}

SWAP_FREEZE_SECONDS_MAX = 5.0
"""Seconds that an owner has to hand over to a backup before the SWAP is rolled back.

Services may take 2 s to be notified before the freeze, and 2 s to hand out their state; clients' requests
fail after 15 s.
"""

DECIDED = frozenset({Step.ACCEPT, Step.STORE, Step.VOID})
"""From here on only the destination's reply counts: no abort, even if the owner fails."""


@dataclass(slots=True)
class MigrationOperation:
    """`base` is the row at its start, `result` the resulting row, at version base + 1."""

    id: str
    migration: Migration
    base: Partition
    result: Replicas
    started_seconds: float
    step: Step
    progressed_seconds: float
    reason: Reason | None = None
    generation: int = 0
    session: str = ""
    copies: int = 0
    copied_from: MemberIndex | None = None
    copied_seconds: float = float("-inf")
    needs_copy: bool = False
    attached: bool = False
    last: OpId | None = None
    incarnations: dict[MemberIndex, int] = field(default_factory=dict)
    _progress_key: object = None

    @property
    def partition(self) -> PartitionId:
        return self.migration.partition

    @property
    def owner(self) -> MemberIndex:
        owner = self.base.owner
        assert owner is not None, "only partitions with an owner are migrated"
        return owner

    @property
    def destination(self) -> MemberIndex | None:
        return self.migration.destination

    @property
    def version(self) -> Version:
        return self.base.version + 1

    @property
    def owner_changes(self) -> bool:
        return self.result[0] != self.owner

    @property
    def holds_clients(self) -> bool:
        """Whether the owner is frozen: clients' requests wait until the row is published."""
        return self.owner_changes and self.step in (Step.HAND_OVER, Step.ACCEPT, Step.STORE)

    @property
    def participants(self) -> frozenset[MemberIndex]:
        """Source, destination and the streaming owner, each of which counts towards its limit."""
        return self.migration.participants | {self.owner}

    def enter(self, to: Step, now: float, reason: Reason | None = None) -> None:
        """Change the step. Raises Refused, without a change, unless TRANSITIONS allows it."""
        check_step(f"migration {self.id}", TRANSITIONS, self.step, to)
        self.step, self.progressed_seconds = to, now
        self.reason = reason or self.reason

    def abort(self, reason: Reason, now: float) -> None:
        """Roll back if that is still possible; from ACCEPT on the destination's reply decides."""
        if self.step not in DECIDED and self.step is not Step.ABORTED:
            self.enter(Step.ABORTED, now, reason)

    @property
    def taken_in(self) -> bool:
        """Whether the destination has ingested a copy."""
        return self.copied_seconds > float("-inf")

    @property
    def done(self) -> bool:
        return self.step in (Step.STORE, Step.ABORTED, Step.VOID)

    def makes(self, row: Partition) -> bool:
        """Return whether it wants this row stored; a void one must be exceeded, because it may be
        accepted."""
        if self.step is Step.VOID:
            return row.version > self.version and row.replicas == self.base.replicas
        return self.step is Step.STORE and row == Partition(self.version, self.result)

    def commands(self, now: float) -> list[tuple[MemberIndex, Command]]:
        """Return the commands to send now, with their recipients."""
        destination = self.destination
        if destination is None:
            return []
        what = (self.migration.type, self.result)
        if self.step is Step.START:
            start = StartTabletCopy(self.id, self.partition, self.base.version, self.owner, *what)
            return [(destination, start)]
        if self.step is Step.ATTACH:
            attach = AddLearner(self.id, self.partition, self.base.version, destination, *what)
            return [(self.owner, attach)]
        if self.step is Step.HAND_OVER:
            swap = (self.base.version, destination) if self.migration.type is Type.SWAP else ()
            return [(self.owner, HandOver(self.id, self.partition, *swap))]
        if self.step is Step.ACCEPT:
            accept = Accept(self.id, Row(self.partition, self.version, self.result), self.last)
            return [(destination, accept)]
        return []

    def on_result(self, member: MemberIndex, command: Command, result: Result, now: float) -> None:
        """Handle the result of one of its commands; those of earlier steps are ignored."""
        if result.code == WAIT:
            return
        match command:
            case StartTabletCopy() if self.step is Step.START:
                self.generation = result.generation
                self._advance(Step.ATTACH, result, now)
            case AddLearner() if self.step is Step.ATTACH:
                self._advance(Step.CATCH_UP, result, now)
            case HandOver() if self.step is Step.HAND_OVER:
                self.last = result.last
                self._advance(Step.ACCEPT, result, now)
            case Accept() if self.step is Step.ACCEPT:
                if result.code == OK:
                    self.enter(Step.STORE, now)
                else:
                    self.enter(Step.VOID, now, result.reason)
            case _:
                return

    def _advance(self, to: Step, result: Result, now: float) -> None:
        if result.code == OK:
            self.enter(to, now)
        else:
            self.enter(Step.ABORTED, now, result.reason)

    def limit_freeze(self, now: float) -> None:
        """Roll back a SWAP whose owner waits too long for the backup: clients wait for it, too."""
        late = now - self.progressed_seconds > SWAP_FREEZE_SECONDS_MAX
        if self.migration.type is Type.SWAP and self.step is Step.HAND_OVER and late:
            text = f"the backup did not have every operation within {SWAP_FREEZE_SECONDS_MAX:g} s"
            self.abort(Reason(ReasonCode.BACKUP_BEHIND, text), now)

    def confirmed(self, now: float) -> None:
        """Confirm that all remaining members have their copy, so the row may shrink to them."""
        self.enter(Step.STORE if self.destination is None else Step.ACCEPT, now)

    def on_report(self, member: MemberIndex, name: str, report: ExchangeReply, now: float) -> None:
        """Handle the last report of the owner or the destination."""
        if self.step in (Step.CATCH_UP, Step.COPY, Step.HAND_OVER):
            self.note_incarnation(member, report.incarnation, name, now)
        if member == self.owner:
            self.on_learner_report(next((each for each in report.learners if each.id == self.id), None), now)
        if member == self.destination:
            self.on_copy_report(next((each for each in report.copies if each.id == self.id), None), now)

    def on_learner_report(self, learner: LearnerReport | None, now: float) -> None:
        """Handle the owner's report of the learner, or None when it has none."""
        if self.step not in (Step.CATCH_UP, Step.COPY):
            return
        if learner is None:
            # Reports older than the command do not have it yet; after that it must not disappear.
            if self.attached:
                text = "the owner no longer knows the learner"
                self.abort(Reason(ReasonCode.LEARNER_LOST, text), now)
            return
        self.attached = True
        self._note_progress((learner.state, learner.lag), now)
        if learner.state == LearnerState.IN_SYNC:
            if self.step is Step.COPY:
                self.enter(Step.CATCH_UP, now)
            self.enter(Step.HAND_OVER if self.owner_changes else Step.ACCEPT, now)
            return
        self.needs_copy = learner.state == LearnerState.NEEDS_COPY

    def on_copy_report(self, copy: CopyReport | None, now: float) -> None:
        if copy is None or self.step in DECIDED or self.step is Step.ABORTED:
            return
        if copy.generation:
            self.generation = copy.generation
        if copy.state == CopyState.FAILED:
            self.abort(Reason(ReasonCode.COPY_FAILED, copy.error), now)

    def note_incarnation(self, member: MemberIndex, incarnation: int, name: str, now: float) -> None:
        """Restart when a side has restarted and lost what it had not persisted."""
        before = self.incarnations.setdefault(member, incarnation)
        if before != incarnation:
            self.incarnations[member] = incarnation
            self.abort(Reason(ReasonCode.MEMBER_RESTARTED, f"{name} restarted"), now)

    def resume_copy(self, session: str, source: MemberIndex, now: float) -> None:
        """Continue with a session of the previous master, which copies its tablet."""
        self.session, self.copied_from = session, source
        self.enter(Step.COPY, now)

    def _note_progress(self, key: object, now: float) -> None:
        if key != self._progress_key:
            self._progress_key, self.progressed_seconds = key, now


def begin(id: str, migration: Migration, row: Partition, now: float) -> MigrationOperation:
    """Start a migration on the present row. Raises Conflict when it was planned for another row."""
    result = step(row.replicas, migration)
    operation = MigrationOperation(id, migration, row, result, now, _first_step(migration), now)
    if operation.owner_changes and not (migration.copies or migration.type is Type.SWAP):
        raise Refused(f"{migration} changes the owner inside the row: that is a SWAP", "ILLEGAL_STATE")
    return operation


def resume(learner: LearnerReport, copy: CopyReport, row: Partition, now: float) -> MigrationOperation | None:
    """Rebuild a migration from the present reports of its owner and its destination, at CATCH_UP.

    Returns None when it cannot go on. It began on the present row, or it would overwrite a later one. Neither
    side restarted: a restarted one does not know the result. A destination that accepted the row may serve
    soon, and one that failed or refused never will. An owner that is frozen already is asked to hand over
    once more, which changes nothing.
    """
    agree = (learner.id, learner.partition, learner.result) == (copy.id, copy.partition, copy.result)
    unfit = copy.refused or copy.state in (CopyState.FAILED, CopyState.ACCEPTED)
    if not agree or unfit or copy.base != row.version:
        return None
    migration = copying(copy.partition, row.replicas, copy.result, learner.destination)
    if migration is None:
        return None
    operation = MigrationOperation(copy.id, migration, row, copy.result, now, Step.CATCH_UP, now)
    operation.generation, operation.attached = copy.generation, True
    if copy.state is CopyState.INGESTED:
        operation.copies, operation.copied_seconds = 1, now
    return operation


def _first_step(migration: Migration) -> Step:
    if migration.removes:
        return Step.CONFIRM
    if migration.type is Type.SWAP:
        return Step.HAND_OVER
    return Step.START if migration.copies else Step.ACCEPT
