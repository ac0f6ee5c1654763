"""From plan to migrations under way: what to start, which copies share a wave, what is done."""

from collections.abc import Callable, Iterable

from stele.core.control.failover.repair import unusable
from stele.core.control.operations.copy_session import CopySession, Engine, SparkFailure, Stage, choose_engine
from stele.core.control.operations.move import MigrationOperation, Step, begin
from stele.core.control.operations.operation import Operation
from stele.core.control.operations.partition_reset import PartitionReset
from stele.core.control.operations.promotion import Promotion
from stele.core.control.rebalance.copy_scheduling import (
    NO_SPACE,
    Sources,
    Space,
    forget_short,
    forget_waiting,
    give_up_stalled,
    has_room,
    note_end,
    note_engine,
    note_short,
    share_bandwidth,
)
from stele.core.control.rebalance.planner import data_members
from stele.core.control.state import Observation, Phase, RebalanceProgress, State
from stele.core.placement.migration import Migration, Type, step
from stele.core.placement.plan import Refusal
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition, shard_of
from stele.core.tablet.lifecycle import TabletState

STALL_SECONDS = 120.0
"""A migration without any progress for so long is rolled back and planned afresh."""

GATHER_SECONDS = 0.3
"""How long a wave waits for further tablets of the same pair."""

QUIET_SECONDS = 2.0
"""After an ingest the owner needs a probe before it notices; its older word is not believed for so long."""

STORE_GATHER_SECONDS = 0.06
"""How long a row that is agreed to waits for others of its shard that are about to be: they share a write."""

FROZEN_GATHER_SECONDS = 0.01
"""The same for a row that changes the owner: its clients wait until it is stored."""

SERVICE_SECONDS = 120.0
"""A service that held no change of an owner up for so long is well again: plans are tried more often."""

COPIES_MAX = 3
"""Sessions that one migration may use before it is rolled back."""


def start(state: State, observation: Observation) -> None:
    """Begin what may begin."""
    desired = observation.desired
    forget_short(state, observation.now)
    _forget_service_failures(state, observation.now)
    if not len(state.queues):
        forget_waiting(state)
        return
    if not desired.may_start or state.promotions or state.shrinking:
        return
    able = frozenset(member.index for member in data_members(state, desired, observation.now))
    held = frozenset().union(
        state.migrations,
        state.staged,
        state.claimed,
        state.fenced,
        state.lost,
        _unresolved(state, able),
        _with_stale_copies(state, able),
    )
    busy = [operation.participants for operation in state.migrations.values() if _burdens(operation)]
    # After a pause of this process nobody counts as gone yet: a row must not shrink to one that is.
    able = frozenset(each for each in able if state.liveness[each].reachable(observation.now, desired.timing))
    rows = state.table.partitions
    admit = _admission(state, observation.now)
    for migration in state.queues.startable(rows, busy, held, able, desired.parallel_per_member, admit=admit):
        row = rows[migration.partition]
        if migration.type is Type.SHIFT_UP and migration.destination_new_index == 0:
            id = _begin_shift(state, migration, row, observation.now)
        else:
            operation = begin(state.new_id("m"), migration, row, observation.now)
            id = operation.id
            state.operations.begin(operation)
        state.counted_for[id] = tuple(_records_for(state, migration.partition))


def _burdens(operation: MigrationOperation) -> bool:
    """Whether it counts towards the limits of its members; one that only waits to be stored does not."""
    return operation.step is not Step.STORE or operation.destination is None


def _admission(state: State, now: float) -> Callable[[Migration], bool]:
    """Tells whether a migration's destination has room for it; what has not is shown as waiting."""
    space = Space(state)
    forget_waiting(state)

    def admit(migration: Migration) -> bool:
        refusal = space.admit(migration)
        if refusal is not None and migration.destination is not None:
            note_short(state, migration.destination, refusal, now)
            for progress in _records_for(state, migration.partition):
                progress.waiting[migration.partition] = refusal
        return refusal is None

    return admit


def _records_for(state: State, number: PartitionId) -> Iterable[RebalanceProgress]:
    """The present plan, and the users' plans that ask for something of this partition."""
    if state.progress is not None:
        yield state.progress
    for progress in state.user_plans.values():
        if progress.phase is Phase.RUNNING and number in progress.partitions:
            yield progress


def _unresolved(state: State, able: frozenset[MemberIndex]) -> set[PartitionId]:
    """Partitions of which a live member speaks of a migration that is over: its abort comes first."""
    found: set[PartitionId] = set()
    for index in able:
        if (report := state.liveness[index].report) is not None:
            found |= {each.partition for each in report.learners if each.id not in state.operations}
            found |= {each.partition for each in report.copies if each.id not in state.operations}
    return found


def _with_stale_copies(state: State, able: frozenset[MemberIndex]) -> set[PartitionId]:
    """Partitions that began anew and of which a live member still has a copy from before: that is put aside
    first.
    """
    return {
        number
        for number in state.reset_partitions
        for index in able - state.table.partitions[number].members
        if state.liveness[index].tablet_state(number) == TabletState.READY
    }


def _begin_shift(state: State, migration: Migration, row: Partition, now: float) -> str:
    """A member of the row becomes its owner: nothing is copied, so it is a promotion with a known end."""
    number, id = migration.partition, state.new_id("p")
    live = tuple(member for member in row.replicas if member is not None)
    term = state.next_version(number)
    result = step(row.replicas, migration)
    state.operations.begin(
        Promotion(number, row, term, live, True, now, id, wanted=migration.destination, wanted_row=result)
    )
    return id


def follow(state: State, observation: Observation) -> None:
    """Move everything under way on by what the reports of both sides say, and clear away what ended."""
    gone = unusable(state, observation.desired, observation.now)
    for operation in list(state.migrations.values()):
        _hear(state, operation, (operation.owner, operation.destination), observation.now)
        _note_gone(state, operation, gone, observation.now)
        if operation.step is Step.CONFIRM and _confirmed(state, operation):
            operation.confirmed(observation.now)
        if not operation.session and observation.now - operation.progressed_seconds > STALL_SECONDS:
            operation.abort(f"STALLED: no progress in step {operation.step.value}", observation.now)
        if operation.step is Step.ACCEPT:
            number = operation.partition
            state.claimed[number] = max(state.claimed.get(number, 0), operation.version)
        elif operation.step is Step.VOID:
            version = state.next_version(operation.partition)
            state.staged[operation.partition] = Partition(version, operation.base.replicas)
        elif operation.step is Step.ABORTED:
            note_failed(state, operation, observation.now)
    _stage_agreed(state, gone, observation.now)


def _stage_agreed(state: State, gone: frozenset[MemberIndex], now: float) -> None:
    """Stage the rows that destinations agreed to, those of one shard together."""
    agreed: dict[int, list[MigrationOperation]] = {}
    for operation in state.migrations.values():
        if operation.step is Step.STORE:
            agreed.setdefault(shard_of(operation.partition), []).append(operation)
    coming = {
        shard_of(operation.partition)
        for operation in state.migrations.values()
        if operation.step in (Step.HAND_OVER, Step.ACCEPT)
    }
    for shard, some in agreed.items():
        due = min(operation.progressed_seconds + _patience(operation) for operation in some)
        patient = shard in coming and now < due
        if not patient or any(operation.participants & gone for operation in some):
            for operation in some:
                state.staged[operation.partition] = Partition(operation.version, operation.result)


def _patience(operation: MigrationOperation) -> float:
    return FROZEN_GATHER_SECONDS if operation.owner_changes else STORE_GATHER_SECONDS


def _hear(state: State, operation: Operation, members: tuple[MemberIndex | None, ...], now: float) -> None:
    """Give an operation what these members reported last."""
    for member in members:
        liveness = None if member is None else state.liveness.get(member)
        if liveness is not None and liveness.report is not None:
            operation.on_report(liveness.index, state.name_of(liveness.index), liveness.report, now)


def _confirmed(state: State, operation: MigrationOperation) -> bool:
    """Whether all who stay in a row that shrinks showed their copy when asked after it began."""
    staying = (member for member in operation.result if member is not None)
    return all(state.showed(member, operation.partition, operation.started_seconds) for member in staying)


def _note_gone(state: State, operation: MigrationOperation, gone: frozenset[MemberIndex], now: float) -> None:
    staying = operation.result if operation.step is Step.CONFIRM else ()
    if operation.step is Step.ACCEPT and operation.destination in gone:
        operation.go(Step.VOID, now, f"MEMBER_GONE: {state.names_of({operation.destination})} did not answer")
    elif missing := gone & operation.participants.union(staying):
        operation.abort(f"MEMBER_GONE: {state.names_of(missing)}", now)


def note_failed(state: State, operation: MigrationOperation, now: float) -> None:
    """A migration that was rolled back: what was planned after it is void, and it is planned again: at once
    when it was not its own fault, because a member that went may be back, or another takes its place.
    """
    state.operations.end(operation)
    state.queues.drop(operation.partition)
    records = state.counted_for.pop(operation.id, ())
    if operation.reason.startswith(("MEMBER_", "CANCELLED")):
        state.retries.note_void(operation.partition, now)
    else:
        state.retries.note_failed(operation.partition, now)
    if operation.session in state.copy_sessions:
        state.copy_sessions[operation.session].drop(operation.partition)
    if operation.reason.startswith("SERVICE_FAILED"):
        _note_service_failure(state, operation, now)
    for progress in records:
        progress.failed += 1
        code = operation.reason.partition(":")[0]
        progress.failures[operation.partition] = Refusal(operation.partition, code, operation.reason)


def _note_service_failure(state: State, operation: MigrationOperation, now: float) -> None:
    """A service at the owner kept it from being changed: said once until all were well for a while."""
    if not state.service_failures:
        text = f"partition {operation.partition} keeps its owner, and it is tried again: {operation.reason}"
        state.emit("ServiceFailed", text, warning=True)
    state.service_failures[operation.partition] = (now, operation.reason)


def _forget_service_failures(state: State, now: float) -> None:
    state.service_failures = {
        number: (since, text)
        for number, (since, text) in state.service_failures.items()
        if now - since < SERVICE_SECONDS
    }


def note_stored(state: State, rows: dict[PartitionId, Partition], now: float) -> None:
    """Rows were stored: the operations that made them are done, migrations that were voided have failed."""
    for number, row in rows.items():
        operation = state.operations.by_row.get(number)
        if isinstance(operation, Promotion):
            state.operations.end(operation)
            for progress in state.counted_for.pop(operation.id, ()):
                progress.done[Type.SHIFT_UP] += 1
        elif isinstance(operation, PartitionReset):
            state.operations.end(operation)
        elif operation is not None and operation.step is Step.VOID:
            note_failed(state, operation, now)
        elif operation is not None and operation.step is Step.STORE and row.version == operation.version:
            state.operations.end(operation)
            state.service_failures.pop(number, None)
            state.retries.note_done(number)
            for progress in state.counted_for.pop(operation.id, ()):
                progress.done[operation.migration.type] += 1
                progress.failures.pop(number, None)


def drive_sessions(state: State, observation: Observation) -> None:
    """Open waves for what needs a copy, take in progress, and let go of what ended."""
    gone = unusable(state, observation.desired, observation.now)
    if observation.copier_problem:
        # Drivers end with the copier that they ran in.
        state.spark_used_seconds.clear()
    for session in list(state.copy_sessions.values()):
        # A source may leave the cluster as soon as the row does not name it any more.
        left = {session.source, session.destination} - state.table.members.keys()
        session.forget_gone({member: state.name_of(member) for member in gone | left})
        _hear(state, session, (session.destination, session.source), observation.now)
        session.heard_job(observation.jobs.get(session.id))
        session.note_progress(observation.now)
        if session.stage is Stage.COPY and session.engine is None:
            _choose(state, observation, session)
        if session.stage in (Stage.CLOSE, Stage.CLOSED):
            _end_wave(state, session, observation.now)
        if session.done:
            state.operations.end(session)
    give_up_stalled(state.copy_sessions.values(), observation.now)
    for pair, waiting in _gathered(state, gone, observation.now).items():
        if has_room(state.copy_sessions.values(), *pair):
            _open(state, observation, pair, waiting)
    share_bandwidth(state.copy_sessions.values(), observation.desired.bandwidth_per_member)


def _end_wave(state: State, session: CopySession, now: float) -> None:
    """Once: its migrations go on (ingested), copy again (without Spark if it failed), or are rolled back."""
    mine = [state.migrations[p] for p, id in session.partitions.items() if _is(state, p, id)]
    _count_bytes(state, session, mine)
    note_end(state, session, now)
    if session.blames_spark and mine:
        if _spark_failure(state, session.destination, now) != session.failure:
            text = f"copies to {state.name_of(session.destination)} go on without Spark: {session.failure}"
            state.emit("SparkFailed", text, warning=True)
        before = state.spark_failures.get(session.destination)
        state.spark_failures[session.destination] = SparkFailure.after(before, session.failure, now)
        state.spark_used_seconds.pop(session.destination, None)
    elif session.spoiled and mine:
        text = (
            f"what was copied to {state.name_of(session.destination)} was damaged there, and is copied again"
        )
        state.emit("CopySpoiled", f"{text}: {session.failure}", warning=True)
    elif session.engine is Engine.SPARK and mine and not session.failure:
        state.spark_used_seconds[session.destination] = now
        state.spark_failures.pop(session.destination, None)
    for operation in mine:
        operation.session = ""
        if operation.step is not Step.COPY:
            continue
        again = session.blames_spark or (session.spoiled and operation.copies + 1 < COPIES_MAX)
        if session.failure and not again:
            operation.abort(session.failure, now)
            continue
        operation.go(Step.CATCH_UP, now)
        operation.copies += 1
        operation.copied_seconds = float("-inf") if session.failure else now
    session.partitions = {}


def _is(state: State, number: PartitionId, id: str) -> bool:
    return number in state.migrations and state.migrations[number].id == id


def _count_bytes(state: State, session: CopySession, mine: list[MigrationOperation]) -> None:
    """To each plan by the share that its tablets have in the wave."""
    copied = max(session.copied_bytes, 0 if session.failure else session.bytes)
    session.copied_bytes = copied
    for operation in mine:
        part = session.part_of((operation.id,))
        for progress in state.counted_for.get(operation.id, ()):
            progress.bytes_copied += part
            progress.bytes_by_spark += part if session.engine is Engine.SPARK else 0


def _gathered(
    state: State, gone: frozenset[MemberIndex], now: float
) -> dict[tuple[int, int], list[MigrationOperation]]:
    """Migrations that may be copied now, by source and destination, unless others are about to join."""
    waiting: dict[tuple[int, int], list[MigrationOperation]] = {}
    coming: set[tuple[int, int]] = set()
    sources = Sources(state, gone)
    for operation in state.migrations.values():
        if operation.destination is None or not operation.migration.copies:
            continue
        if operation.step not in (Step.START, Step.ATTACH, Step.CATCH_UP):
            continue
        pair = (sources.of(operation), operation.destination)
        if operation.step in (Step.START, Step.ATTACH) or (
            operation.step is Step.CATCH_UP and not operation.attached
        ):
            coming.add(pair)
        elif operation.step is Step.CATCH_UP and operation.needs_copy and _believable(operation, now):
            waiting.setdefault(pair, []).append(operation)
    busy = {
        (session.source, session.destination) for session in state.copy_sessions.values() if session.copying
    }
    ready: dict[tuple[int, int], list[MigrationOperation]] = {}
    for pair, found in waiting.items():
        if pair in busy or not has_room(state.copy_sessions.values(), *pair):
            for operation in found:
                # It waits for its turn, however long that takes: it is not stuck.
                operation.progressed_seconds = now
        elif pair not in coming or now - min(r.progressed_seconds for r in found) > GATHER_SECONDS:
            ready[pair] = found
    return ready


def _believable(operation: MigrationOperation, now: float) -> bool:
    """Whether the owner's word that a copy is needed is newer than the last copy."""
    return now - operation.copied_seconds > QUIET_SECONDS


def _open(
    state: State, observation: Observation, pair: tuple[int, int], waiting: list[MigrationOperation]
) -> None:
    source, destination = pair
    for operation in [each for each in waiting if each.copies >= COPIES_MAX]:
        waiting.remove(operation)
        operation.abort(
            f"COPY_FAILED: still not in the log's reach after {COPIES_MAX} copies", observation.now
        )
    if not waiting:
        return
    id = state.new_id("s")
    partitions = {operation.partition: operation.id for operation in waiting}
    generations = {operation.partition: operation.generation for operation in waiting}
    fragments = observation.desired.fragments
    state.operations.begin(
        CopySession(id, source, destination, partitions, generations, observation.now, fragments)
    )
    for operation in waiting:
        operation.session, operation.needs_copy = id, False
        operation.go(Step.COPY, observation.now)


def _choose(state: State, observation: Observation, session: CopySession) -> None:
    """Who copies what the source has put into the wave's snapshot."""
    used = state.spark_used_seconds.get(session.destination, float("-inf"))
    session.engine, session.engine_reason = choose_engine(
        observation.desired.engine,
        session.bytes + _needed_besides(state, session),
        observation.desired.spark_threshold_bytes,
        warm=observation.now - used < observation.desired.spark_idle_seconds,
        copier_problem=observation.copier_problem,
        spark_failure=_spark_failure(state, session.destination, observation.now),
    )
    for id in session.partitions.values():
        for progress in state.counted_for.get(id, ()):
            if progress.engine is not Engine.SPARK:
                progress.engine, progress.engine_reason = session.engine, session.engine_reason
    note_engine(state, session, observation.now)
    if lack := Space(state, but=session.id).lack(session.destination, session.bytes):
        session.fail(f"{NO_SPACE}: {lack}")


def _spark_failure(state: State, destination: MemberIndex, now: float) -> str:
    """Why Spark is not used for a member for a while; empty when it may be."""
    failure = state.spark_failures.get(destination)
    return "" if failure is None or now >= failure.until_seconds else failure.text


def _needed_besides(state: State, session: CopySession) -> int:
    """Bytes, as owners report them, of other tablets under way to the same member that need a copy, too."""
    total = 0
    for operation in state.migrations.values():
        if operation.destination != session.destination or operation.partition in session.partitions:
            continue
        owner = state.liveness.get(operation.owner)
        if owner is not None and (operation.step is Step.COPY or operation.needs_copy):
            tablet = owner.tablets.get(operation.partition)
            total += 0 if tablet is None else tablet.bytes
    return total
