"""From plan to running migrations: what to start, which copies share a session, what is done."""

from collections.abc import Callable, Iterable

from stele.core.control.commands import Reason, ReasonCode
from stele.core.control.failover.repair import unusable
from stele.core.control.operations.move import MigrationOperation, Step, begin
from stele.core.control.operations.operation import Operation
from stele.core.control.operations.partition_reset import PartitionReset
from stele.core.control.operations.promotion import Promotion
from stele.core.control.rebalance.copy_scheduling import (
    Space,
    forget_short,
    forget_waiting,
    note_short,
)
from stele.core.control.rebalance.copy_waves import CopyWaves
from stele.core.control.rebalance.data_members import data_members
from stele.core.control.rebalance.handover import SwapRoom, start_handovers
from stele.core.control.rebalance.planner import plans_for
from stele.core.control.state import DesiredSpec, Observation, State
from stele.core.placement.migration import Migration
from stele.core.placement.plan import Refusal
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition, shard_of

STALL_SECONDS = 120.0
"""Seconds without progress after which a migration is rolled back and planned again."""

STORE_GATHER_SECONDS = 0.06
"""Seconds that an accepted row waits for others of its shard, to share a write with them."""

FROZEN_GATHER_SECONDS = 0.01
"""The same for a row that changes the owner, since clients wait until it is stored."""

SERVICE_SECONDS = 120.0
"""Seconds without a held up hand-over after which a service is healthy: plans are retried more often."""

NOT_ITS_FAULT = frozenset(
    {
        ReasonCode.CANCELLED,
        ReasonCode.FORBIDDEN,
        ReasonCode.MEMBER_GONE,
        ReasonCode.MEMBER_RESTARTED,
        ReasonCode.MEMBER_STOPPING,
    }
)
"""A migration that fails for one of these reasons is planned again at once."""

FAILED_COPIES = frozenset({ReasonCode.COPY_FAILED, ReasonCode.SESSION_LOST, ReasonCode.STALLED})
"""Reasons for which a copy may fail because too much is copied at once."""


def start(state: State, observation: Observation) -> None:
    """Start the migrations that may start."""
    plans, desired, now = state.rebalance, observation.desired, observation.now
    forget_short(state, now)
    _forget_service_failures(state, now)
    if not len(plans.queues):
        forget_waiting(state)
    if observation.ending or not desired.may_start or not (len(plans.queues) or plans.demotions):
        return
    able = frozenset(member.index for member in data_members(state, desired, now))
    held = frozenset().union(
        state.operations.by_row,
        state.table.staged,
        state.table.claimed,
        state.failover.fenced,
        state.failover.shrinking,
        state.failover.lost,
        _unresolved(state, able),
        _with_stale_copies(state, able),
    )
    busy = [each.participants for each in state.operations.migrations.values() if _burdens(each)]
    # After a pause of this process no member counts as failed yet: a row must not shrink to one that has.
    known = state.membership.liveness
    able = frozenset(each for each in able if known[each].reachable(now, desired.timing))
    held |= start_handovers(state, observation, able, held)
    if state.failing_over:
        return
    rows, room = state.table.partitions, SwapRoom(state)
    admit = _admission(state, desired, room, now)
    for migration in plans.queues.startable(rows, busy, held, able, desired.parallel_per_member, admit=admit):
        operation = begin(state.new_id("m"), migration, rows[migration.partition], now)
        state.operations.begin(operation)
        room.take(migration)
        plans.counted_for[operation.id] = tuple(plans_for(state, migration.partition))


def _burdens(operation: MigrationOperation) -> bool:
    """Return whether it counts towards the limits of its members; one that only waits to be stored does
    not."""
    return operation.step is not Step.STORE or operation.destination is None


def _admission(state: State, desired: DesiredSpec, room: SwapRoom, now: float) -> Callable[[Migration], bool]:
    """Return a check whether a migration has room; one that lacks space at its destination is shown."""
    space, waves = Space(state), CopyWaves(state, desired, now)
    forget_waiting(state)

    def admit(migration: Migration) -> bool:
        if not room.admits(migration):
            return False
        refusal = space.admit(migration)
        if refusal is not None and migration.destination is not None:
            note_short(state, migration.destination, refusal, now)
            for progress in plans_for(state, migration.partition):
                progress.waiting[migration.partition] = refusal
        return refusal is None and waves.admit(migration)

    return admit


def _unresolved(state: State, able: frozenset[MemberIndex]) -> set[PartitionId]:
    """Return partitions with an ended migration that a live member still reports: its abort comes first."""
    unresolved: set[PartitionId] = set()
    for index in able:
        if (report := state.membership.liveness[index].report) is not None:
            unresolved |= {each.partition for each in report.learners if each.id not in state.operations}
            unresolved |= {each.partition for each in report.copies if each.id not in state.operations}
    return unresolved


def _with_stale_copies(state: State, able: frozenset[MemberIndex]) -> set[PartitionId]:
    """Return partitions that were reset and of which a live member has an old copy, which is quarantined
    first."""
    return {
        number
        for number in state.failover.reset_partitions
        for index in able - state.table.partitions[number].members
        if state.membership.has_copy(index, number)
    }


def follow(state: State, observation: Observation) -> None:
    """Advance running operations by the reports of both sides, and remove ended ones."""
    gone = unusable(state, observation.desired, observation.now)
    for operation in list(state.operations.migrations.values()):
        pass_reports(state, operation, (operation.owner, operation.destination), observation.now)
        _note_gone(state, operation, gone, observation.now)
        if operation.step is Step.CONFIRM and _confirmed(state, operation):
            operation.confirmed(observation.now)
        operation.limit_freeze(observation.now)
        ends = operation.step is Step.START or observation.desired.rollback_copies
        if ends and state.operations.change.forbids_copies:
            text = f"the cluster is to be {state.operations.change.desired}"
            operation.abort(Reason(ReasonCode.FORBIDDEN, text), observation.now)
        if not operation.session and observation.now - operation.progressed_seconds > STALL_SECONDS:
            reason = Reason(ReasonCode.STALLED, f"no progress in step {operation.step.value}")
            operation.abort(reason, observation.now)
        if operation.step is Step.ACCEPT:
            state.table.claim(operation.partition, operation.version)
        elif operation.step is Step.VOID:
            version = state.table.next_version(operation.partition)
            state.table.stage(operation.partition, Partition(version, operation.base.replicas))
        elif operation.step is Step.ABORTED:
            note_failed(state, operation, observation.now)
    _stage_agreed(state, gone, observation.now)


def _stage_agreed(state: State, gone: frozenset[MemberIndex], now: float) -> None:
    """Stage the rows that destinations have accepted, those of one shard together."""
    agreed: dict[int, list[MigrationOperation]] = {}
    for operation in state.operations.migrations.values():
        if operation.step is Step.STORE:
            agreed.setdefault(shard_of(operation.partition), []).append(operation)
    coming = {
        shard_of(operation.partition)
        for operation in state.operations.migrations.values()
        if operation.step in (Step.HAND_OVER, Step.ACCEPT)
    }
    for shard, operations in agreed.items():
        due = min(operation.progressed_seconds + _patience(operation) for operation in operations)
        patient = shard in coming and now < due
        if not patient or any(operation.participants & gone for operation in operations):
            for operation in operations:
                state.table.stage(operation.partition, Partition(operation.version, operation.result))


def _patience(operation: MigrationOperation) -> float:
    return FROZEN_GATHER_SECONDS if operation.owner_changes else STORE_GATHER_SECONDS


def pass_reports(
    state: State, operation: Operation, members: Iterable[MemberIndex | None], now: float
) -> None:
    """Pass the last reports of these members to an operation."""
    for member in members:
        liveness = None if member is None else state.membership.liveness.get(member)
        if liveness is not None and liveness.report is not None:
            operation.on_report(liveness.index, state.name_of(liveness.index), liveness.report, now)


def _confirmed(state: State, operation: MigrationOperation) -> bool:
    """Return whether all remaining members of a shrinking row showed their copy after the operation began."""
    number, since = operation.partition, operation.started_seconds
    staying = (member for member in operation.result if member is not None)
    return all(state.membership.has_shown_copy(member, number, since) for member in staying)


def _note_gone(state: State, operation: MigrationOperation, gone: frozenset[MemberIndex], now: float) -> None:
    staying = operation.result if operation.step is Step.CONFIRM else ()
    if operation.step is Step.ACCEPT and operation.destination in gone:
        text = f"{state.names_of({operation.destination})} did not answer"
        operation.enter(Step.VOID, now, Reason(ReasonCode.MEMBER_GONE, text))
    elif missing := gone & operation.participants.union(staying):
        operation.abort(Reason(ReasonCode.MEMBER_GONE, state.names_of(missing)), now)


def note_failed(state: State, operation: MigrationOperation, now: float) -> None:
    """Handle a migration that was rolled back: drop later ones of its partition, and plan it again.

    That happens at once when the migration was not at fault, because a failed member may be back, or another
    takes its place.
    """
    plans = state.rebalance
    state.operations.end(operation)
    if operation.step is Step.ABORTED:
        state.operations.note_rolled_back(operation)
    plans.migrations_ended[operation.migration.type, False] += 1
    plans.queues.drop(operation.partition)
    reason = operation.reason
    assert reason is not None, "what is rolled back has a reason"
    if reason.code in NOT_ITS_FAULT:
        plans.retries.note_void(operation.partition, now)
    else:
        copies = max(1, operation.copies) if reason.code in FAILED_COPIES else 0
        took = now - operation.started_seconds
        plans.retries.note_failed(operation.partition, now, copies=copies, took=took)
    if operation.session in state.operations.sessions:
        state.operations.sessions[operation.session].drop(operation.partition)
    if reason.code == ReasonCode.SERVICE_FAILED:
        _note_service_failure(state, operation.partition, str(reason), now)
    for progress in plans.counted_for.pop(operation.id, ()):
        progress.failed += 1
        text = f"{reason}{_tried_smaller(state, operation.partition)}"
        progress.failures[operation.partition] = Refusal(operation.partition, reason.code, text)


def _tried_smaller(state: State, partition: PartitionId) -> str:
    """Return how often the copies of a partition have failed, and that they are tried smaller."""
    retries = state.rebalance.retries
    if not retries.tried_smaller(partition):
        return ""
    failed = retries.copies_failed[partition]
    return f"; {failed} copies of it have failed in a row: it is tried again with fewer others at a time"


def _note_service_failure(state: State, partition: PartitionId, reason: str, now: float) -> None:
    """Report, once until all were healthy for a while, that a service held up a change of the owner."""
    if not state.rebalance.service_failures:
        text = f"partition {partition} keeps its owner, and the change is retried: {reason}"
        state.emit("ServiceFailed", text, warning=True)
    state.rebalance.service_failures[partition] = (now, reason)


def _forget_service_failures(state: State, now: float) -> None:
    state.rebalance.service_failures = {
        number: (since, text)
        for number, (since, text) in state.rebalance.service_failures.items()
        if now - since < SERVICE_SECONDS
    }


def note_stored(state: State, rows: dict[PartitionId, Partition], now: float) -> None:
    """Handle stored rows: their operations are done, and migrations that they made void have failed."""
    plans = state.rebalance
    for number, row in rows.items():
        operation = state.operations.by_row.get(number)
        if isinstance(operation, Promotion | PartitionReset):
            state.operations.end(operation)
        elif operation is not None and operation.step is Step.VOID:
            note_failed(state, operation, now)
        elif operation is not None and operation.step is Step.STORE and row.version == operation.version:
            state.operations.end(operation)
            plans.migrations_ended[operation.migration.type, True] += 1
            plans.service_failures.pop(number, None)
            plans.retries.note_done(number)
            for progress in plans.counted_for.pop(operation.id, ()):
                progress.done[operation.migration.type] += 1
                progress.failures.pop(number, None)
