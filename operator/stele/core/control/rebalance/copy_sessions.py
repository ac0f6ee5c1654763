"""Running copy sessions: what opens one, its engine, and its result (docs/internals/copy.md)."""

from stele.core.control.commands import Reason, ReasonCode
from stele.core.control.failover.repair import unusable
from stele.core.control.operations.copy_session import CopySession, Engine, SparkFailure, Stage, choose_engine
from stele.core.control.operations.move import MigrationOperation, Step
from stele.core.control.rebalance.copy_scheduling import (
    Sources,
    Space,
    give_up_stalled,
    has_room,
    note_end,
    note_engine,
    plans_of,
    share_bandwidth,
)
from stele.core.control.rebalance.scheduler import pass_reports
from stele.core.control.state import Observation, State
from stele.core.table.ids import MemberIndex

Pair = tuple[MemberIndex, MemberIndex]
"""Source and destination."""

GATHER_SECONDS = 0.3
"""Seconds that a session waits for further tablets of the same pair."""

QUIET_SECONDS = 2.0
"""Seconds after an ingest in which the owner's report may be outdated, until a probe notices it."""

COPIES_MAX = 3
"""Sessions that one migration may use before it is rolled back."""


def drive_sessions(state: State, observation: Observation) -> None:
    """Open sessions for migrations that need a copy, record progress, and drop ended ones."""
    gone = unusable(state, observation.desired, observation.now)
    if observation.copier_problem:
        # Drivers end with their copier.
        state.copies.spark_used_seconds.clear()
    for session in list(state.operations.sessions.values()):
        # A source may leave the cluster once the row no longer names it.
        left = session.participants - state.table.members.keys()
        session.forget_gone({member: state.name_of(member) for member in gone | left})
        pass_reports(state, session, (session.destination, session.source), observation.now)
        session.on_job(observation.jobs.get(session.id))
        session.note_progress(observation.now)
        if session.stage is Stage.COPY and session.engine is None:
            _choose(state, observation, session)
        if session.stage is Stage.COPY and not session.engine_noted:
            _note_engine(state, session, observation.now)
        if session.stage in (Stage.CLOSE, Stage.CLOSED):
            _end_session(state, session, observation.now)
        if session.done:
            state.operations.end(session)
    give_up_stalled(state.operations.sessions.values(), observation.now)
    _open_sessions(state, observation, gone)
    share_bandwidth(state.operations.sessions.values(), observation.desired.bandwidth_per_member)


def _end_session(state: State, session: CopySession, now: float) -> None:
    """End a session once: its migrations continue (ingested), copy again (without Spark if it failed), or
    roll back."""
    running = (state.operations.get(id) for id in session.partitions.values())
    operations = [each for each in running if isinstance(each, MigrationOperation)]
    _count_bytes(state, session, operations)
    note_end(state, session, now)
    if operations:
        _note_outcome(state, session, now)
    for operation in operations:
        operation.session = ""
        if operation.step is not Step.COPY:
            continue
        again = session.blames_spark or (session.spoiled and operation.copies + 1 < COPIES_MAX)
        if session.failure and not again:
            operation.abort(session.failure, now)
            continue
        operation.enter(Step.CATCH_UP, now)
        operation.copies += 1
        operation.copied_seconds = float("-inf") if session.failure else now
    session.partitions = {}


def _note_outcome(state: State, session: CopySession, now: float) -> None:
    """Note whether Spark works for the destination, and report what went wrong there."""
    destination, copies = session.destination, state.copies
    if session.blames_spark:
        failure = str(session.failure)
        if _spark_failure(state, destination, now) != failure:
            text = f"copies to {state.name_of(destination)} go on without Spark: {failure}"
            state.emit("SparkFailed", text, warning=True)
        before = copies.spark_failures.get(destination)
        copies.spark_failures[destination] = SparkFailure.after(before, failure, now)
        copies.spark_used_seconds.pop(destination, None)
    elif session.spoiled:
        text = f"what was copied to {state.name_of(destination)} was damaged there, and is copied again"
        state.emit("CopySpoiled", f"{text}: {session.failure}", warning=True)
    elif session.engine is Engine.SPARK and not session.failure:
        copies.spark_used_seconds[destination] = now
        copies.spark_failures.pop(destination, None)


def _count_bytes(state: State, session: CopySession, operations: list[MigrationOperation]) -> None:
    """Count a session's bytes for each plan, by its tablets' share."""
    session.copied_bytes = max(session.copied_bytes, 0 if session.failure else session.bytes)
    for operation in operations:
        part = session.part_of((operation.id,))
        for progress in state.rebalance.counted_for.get(operation.id, ()):
            progress.bytes_copied += part
            progress.bytes_by_spark += part if session.engine is Engine.SPARK else 0


def _waiting(
    state: State, gone: frozenset[MemberIndex], now: float
) -> tuple[dict[Pair, list[MigrationOperation]], set[Pair]]:
    """Choose sources. Returns what needs a copy, and the pairs that other migrations are about to join."""
    waiting: dict[Pair, list[MigrationOperation]] = {}
    coming: set[Pair] = set()
    sources = Sources(state, gone)
    for operation in state.operations.migrations.values():
        if operation.destination is None or not operation.migration.copies:
            continue
        if operation.step not in (Step.START, Step.ATTACH, Step.CATCH_UP):
            continue
        pair = (sources.choose(operation), operation.destination)
        if operation.step is not Step.CATCH_UP or not operation.attached:
            coming.add(pair)
        elif operation.needs_copy and _believable(operation, now):
            waiting.setdefault(pair, []).append(operation)
    return waiting, coming


def _open_sessions(state: State, observation: Observation, gone: frozenset[MemberIndex]) -> None:
    """Open a session for each pair that may have one, unless other tablets are about to join it."""
    now, sessions = observation.now, state.operations.sessions.values()
    waiting, coming = _waiting(state, gone, now)
    busy = {(session.source, session.destination) for session in sessions if session.copying}
    blocked = {pair for pair in waiting if pair in busy or not has_room(sessions, *pair)}
    for operation in (each for pair in blocked for each in waiting[pair]):
        # It waits for its turn, which may take long: it is not stalled.
        operation.progressed_seconds = now
    for pair, operations in waiting.items():
        gathers = pair in coming and now - min(r.progressed_seconds for r in operations) <= GATHER_SECONDS
        if pair not in blocked and not gathers and has_room(sessions, *pair):
            _open(state, observation, pair, operations)


def _believable(operation: MigrationOperation, now: float) -> bool:
    """Return whether the owner's report that a copy is needed is newer than the last copy."""
    return now - operation.copied_seconds > QUIET_SECONDS


def _in_vain(operation: MigrationOperation) -> str:
    """Return why another copy would not help this migration; empty when it may."""
    if operation.taken_in:
        # The destination takes in one copy of a migration: another needs another generation.
        return (
            "the owner's log did not reach back to the copy, because more was written meanwhile than "
            "spec.migration.logSpacePerMember keeps"
        )
    return f"{COPIES_MAX} copies failed" if operation.copies >= COPIES_MAX else ""


def _open(state: State, observation: Observation, pair: Pair, waiting: list[MigrationOperation]) -> None:
    source, destination = pair
    for operation in list(waiting):
        if text := _in_vain(operation):
            waiting.remove(operation)
            operation.abort(Reason(ReasonCode.COPY_FAILED, text), observation.now)
    if not waiting:
        return
    id, now = state.new_id("s"), observation.now
    partitions = {operation.partition: operation.id for operation in waiting}
    generations = {operation.partition: operation.generation for operation in waiting}
    session = CopySession(
        id, source, destination, partitions, generations, now, observation.desired.fragments
    )
    state.operations.begin(session)
    for operation in waiting:
        operation.session, operation.needs_copy = id, False
        operation.enter(Step.COPY, now)


def _choose(state: State, observation: Observation, session: CopySession) -> None:
    """Choose the engine for the tablets in the source's snapshot."""
    used = state.copies.spark_used_seconds.get(session.destination, float("-inf"))
    session.engine, session.engine_reason = choose_engine(
        observation.desired.engine,
        session.bytes + _needed_besides(state, session),
        observation.desired.spark_threshold_bytes,
        warm=observation.now - used < observation.desired.spark_idle_seconds,
        copier_problem=observation.copier_problem,
        spark_failure=_spark_failure(state, session.destination, observation.now),
    )
    _note_engine(state, session, observation.now)
    if lack := Space(state, but=session.id).lack(session.destination, session.bytes):
        session.fail(Reason(ReasonCode.NO_SPACE, lack))


def _note_engine(state: State, session: CopySession, now: float) -> None:
    """Note the engine in the session's plans: when it is chosen, or by the master that adopted it."""
    session.engine_noted = True
    for progress in plans_of(state, session):
        if progress.engine is not Engine.SPARK:
            progress.engine, progress.engine_reason = session.engine, session.engine_reason
    note_engine(state, session, now)


def _spark_failure(state: State, destination: MemberIndex, now: float) -> str:
    """Return why Spark is not used for a member for a while; empty when it may be."""
    failure = state.copies.spark_failures.get(destination)
    return "" if failure is None or now >= failure.until_seconds else failure.text


def _needed_besides(state: State, session: CopySession) -> int:
    """Return the bytes of other running migrations to the same member that also need a copy."""
    total = 0
    for operation in state.operations.migrations.values():
        if operation.destination != session.destination or operation.partition in session.partitions:
            continue
        tablet = state.membership.tablet(operation.owner, operation.partition)
        if tablet is not None and (operation.step is Step.COPY or operation.needs_copy):
            total += tablet.bytes
    return total
