"""From plan to migrations under way: what to start, which copies share a wave, what is done."""

from collections.abc import Callable, Iterable

from stele.core.control.failover.repair import unusable
from stele.core.control.operations.copy_session import Engine, SparkFailure, Stage, Wave, choose_engine
from stele.core.control.operations.move import Running, Step, begin
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
from stele.core.control.state import Observation, Record, State
from stele.core.placement.migration import Migration, Type, step
from stele.core.placement.plan import Refusal
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition, shard_of

STALL_SECONDS = 120.0
"""A migration without any progress for so long is rolled back and planned afresh."""

GATHER_SECONDS = 0.3
"""How long a wave waits for further tablets of the same pair."""

SETTLE_SECONDS = 2.0
"""After an ingest the owner needs a probe before it notices; its older word is not believed for so long."""

STORE_GATHER_SECONDS = 0.06
"""How long a row that is agreed to waits for others of its shard that are about to be: they share a write."""

FROZEN_GATHER_SECONDS = 0.01
"""The same for a row that changes the owner: its clients wait until it is stored."""

SERVICE_SECONDS = 120.0
"""A service that held no change of an owner up for so long is well again: plans are tried more often."""

COPIES_MAX = 3
"""Sessions that one migration may use before it is rolled back."""


def start(state: State, seen: Observation) -> None:
    """Begin what may begin."""
    wishes = seen.wishes
    forget_short(state, seen.now)
    _forget_service_failures(state, seen.now)
    if not len(state.queues):
        forget_waiting(state)
        return
    if not wishes.may_start or state.promotions or state.shrinking:
        return
    able = frozenset(member.index for member in data_members(state, wishes, seen.now))
    held = frozenset().union(
        state.running,
        state.staged,
        state.claimed,
        state.fenced,
        state.lost,
        _unresolved(state, able),
        _with_relics(state, able),
    )
    busy = [running.participants for running in state.running.values() if _burdens(running)]
    # After a pause of this process nobody counts as gone yet: a row must not shrink to one that is.
    able = frozenset(each for each in able if state.contacts[each].reachable(seen.now, wishes.timing))
    rows = state.table.partitions
    admit = _admission(state, seen.now)
    for migration in state.queues.startable(rows, busy, held, able, wishes.parallel_per_member, admit=admit):
        row = rows[migration.partition]
        if migration.type is Type.SHIFT_UP and migration.destination_new_index == 0:
            id = _begin_shift(state, migration, row, seen.now)
        else:
            running = begin(state.new_id("m"), migration, row, seen.now)
            id, state.running[migration.partition] = running.id, running
        state.records[id] = tuple(_records_for(state, migration.partition))


def _burdens(running: Running) -> bool:
    """Whether it counts towards the limits of its members; one that only waits to be stored does not."""
    return running.step is not Step.STORE or running.destination is None


def _admission(state: State, now: float) -> Callable[[Migration], bool]:
    """Tells whether a migration's destination has room for it; what has not is shown as waiting."""
    space = Space(state)
    forget_waiting(state)

    def admit(migration: Migration) -> bool:
        refusal = space.admit(migration)
        if refusal is not None and migration.destination is not None:
            note_short(state, migration.destination, refusal, now)
            for record in _records_for(state, migration.partition):
                record.waiting[migration.partition] = refusal
        return refusal is None

    return admit


def _records_for(state: State, number: PartitionId) -> Iterable[Record]:
    """The present plan, and the users' plans that ask for something of this partition."""
    if state.record is not None:
        yield state.record
    for record in state.asked.values():
        if record.phase == "Running" and number in record.partitions:
            yield record


def _unresolved(state: State, able: frozenset[MemberIndex]) -> set[PartitionId]:
    """Partitions of which a live member speaks of a migration that is over: its abort comes first."""
    active = {(number, running.id) for number, running in state.running.items()}
    spoken: set[tuple[PartitionId, str]] = set()
    for index in able:
        contact = state.contacts[index]
        if contact.report is not None:
            spoken.update((each.partition, each.id) for each in contact.report.learners)
            spoken.update((each.partition, each.id) for each in contact.report.copies)
    return {number for number, _ in spoken - active}


def _with_relics(state: State, able: frozenset[MemberIndex]) -> set[PartitionId]:
    """Partitions that began anew and of which a live member still has a copy from before: that is put aside
    first.
    """
    return {
        number
        for number in state.reassigned
        for index in able - state.table.partitions[number].members
        if state.contacts[index].tablet_state(number) == "READY"
    }


def _begin_shift(state: State, migration: Migration, row: Partition, now: float) -> str:
    """A member of the row becomes its owner: nothing is copied, so it is a promotion with a known end."""
    number, id = migration.partition, state.new_id("p")
    live = tuple(member for member in row.replicas if member is not None)
    term = state.next_version(number)
    result = step(row.replicas, migration)
    state.promotions[number] = Promotion(
        number, row, term, live, True, now, id, wanted=migration.destination, wanted_row=result
    )
    return id


def follow(state: State, seen: Observation) -> None:
    """Move everything under way on by what the reports of both sides say, and clear away what ended."""
    gone = unusable(state, seen.wishes, seen.now)
    for running in list(state.running.values()):
        _note_reports(state, running, seen.now)
        _note_gone(state, running, gone, seen.now)
        if running.step is Step.CONFIRM and _confirmed(state, running):
            running.confirmed(seen.now)
        if not running.session and seen.now - running.progressed_seconds > STALL_SECONDS:
            running.abort(f"STALLED: no progress in step {running.step.value}", seen.now)
        if running.step is Step.ACCEPT:
            number = running.partition
            state.claimed[number] = max(state.claimed.get(number, 0), running.version)
        elif running.step is Step.VOID:
            version = state.next_version(running.partition)
            state.staged[running.partition] = Partition(version, running.base.replicas)
        elif running.step is Step.ABORTED:
            note_failed(state, running, seen.now)
    _stage_agreed(state, gone, seen.now)


def _stage_agreed(state: State, gone: frozenset[MemberIndex], now: float) -> None:
    """Stage the rows that destinations agreed to, those of one shard together."""
    agreed: dict[int, list[Running]] = {}
    for running in state.running.values():
        if running.step is Step.STORE:
            agreed.setdefault(shard_of(running.partition), []).append(running)
    coming = {
        shard_of(running.partition)
        for running in state.running.values()
        if running.step in (Step.HAND_OVER, Step.ACCEPT)
    }
    for shard, some in agreed.items():
        due = min(running.progressed_seconds + _patience(running) for running in some)
        patient = shard in coming and now < due
        if not patient or any(running.participants & gone for running in some):
            for running in some:
                state.staged[running.partition] = Partition(running.version, running.result)


def _patience(running: Running) -> float:
    return FROZEN_GATHER_SECONDS if running.owner_changes else STORE_GATHER_SECONDS


def _note_reports(state: State, running: Running, now: float) -> None:
    for member in (running.owner, running.destination):
        contact = state.contacts.get(member) if member is not None else None
        if contact is None or contact.report is None or member is None:
            continue
        if running.step in (Step.CATCH_UP, Step.COPY, Step.HAND_OVER):
            running.note_incarnation(member, contact.report.incarnation, state.name_of(member), now)
        if member == running.owner:
            learner = next((each for each in contact.report.learners if each.id == running.id), None)
            running.heard_from_owner(learner, now)
        if member == running.destination:
            copy = next((each for each in contact.report.copies if each.id == running.id), None)
            running.heard_from_destination(copy, now)


def _confirmed(state: State, running: Running) -> bool:
    """Whether all who stay in a row that shrinks showed their copy when asked after it began."""
    staying = (member for member in running.result if member is not None)
    return all(state.showed(member, running.partition, running.started_seconds) for member in staying)


def _note_gone(state: State, running: Running, gone: frozenset[MemberIndex], now: float) -> None:
    staying = running.result if running.step is Step.CONFIRM else ()
    if running.step is Step.ACCEPT and running.destination in gone:
        running.go(Step.VOID, now, f"MEMBER_GONE: {state.names_of({running.destination})} did not answer")
    elif missing := gone & running.participants.union(staying):
        running.abort(f"MEMBER_GONE: {state.names_of(missing)}", now)


def note_failed(state: State, running: Running, now: float) -> None:
    """A migration that was rolled back: what was planned after it is void, and it is planned again: at once
    when it was not its own fault, because a member that went may be back, or another takes its place.
    """
    state.running.pop(running.partition, None)
    state.queues.drop(running.partition)
    records = state.records.pop(running.id, ())
    if running.reason.startswith(("MEMBER_", "CANCELLED")):
        state.retries.note_void(running.partition, now)
    else:
        state.retries.note_failed(running.partition, now)
    if running.session in state.waves:
        state.waves[running.session].drop(running.partition)
    if running.reason.startswith("SERVICE_FAILED"):
        _note_service_failure(state, running, now)
    for record in records:
        record.failed += 1
        code = running.reason.partition(":")[0]
        record.failures[running.partition] = Refusal(running.partition, code, running.reason)


def _note_service_failure(state: State, running: Running, now: float) -> None:
    """A service at the owner kept it from being changed: said once until all were well for a while."""
    if not state.service_failures:
        text = f"partition {running.partition} keeps its owner, and it is tried again: {running.reason}"
        state.say("ServiceFailed", text, warning=True)
    state.service_failures[running.partition] = (now, running.reason)


def _forget_service_failures(state: State, now: float) -> None:
    state.service_failures = {
        number: (since, text)
        for number, (since, text) in state.service_failures.items()
        if now - since < SERVICE_SECONDS
    }


def note_stored(state: State, rows: dict[PartitionId, Partition], now: float) -> None:
    """Rows were stored: the migrations that made them are done, those that were voided have failed."""
    for number, row in rows.items():
        promotion = state.promotions.pop(number, None)
        for record in () if promotion is None else state.records.pop(promotion.id, ()):
            record.done[Type.SHIFT_UP] += 1
        running = state.running.get(number)
        if running is None:
            continue
        if running.step is Step.STORE and row.version == running.version:
            state.running.pop(number)
            state.service_failures.pop(number, None)
            state.retries.note_done(number)
            for record in state.records.pop(running.id, ()):
                record.done[running.migration.type] += 1
                record.failures.pop(number, None)
        elif running.step is Step.VOID:
            note_failed(state, running, now)


def drive_waves(state: State, seen: Observation) -> None:
    """Open waves for what needs a copy, take in progress, and let go of what ended."""
    gone = unusable(state, seen.wishes, seen.now)
    if seen.copier_problem:
        # Drivers end with the copier that they ran in.
        state.spark_used_seconds.clear()
    for wave in list(state.waves.values()):
        # A source may leave the cluster as soon as the row does not name it any more.
        left = {wave.source, wave.destination} - state.table.members.keys()
        wave.forget_gone({member: state.name_of(member) for member in gone | left})
        contact = state.contacts.get(wave.destination)
        if contact is not None and contact.report is not None:
            wave.heard_fetch(next((f for f in contact.report.fetches if f.session == wave.session), None))
        source = state.contacts.get(wave.source)
        if source is not None and source.report is not None:
            wave.heard_sessions(source.report.sessions)
        wave.heard_job(seen.jobs.get(wave.session))
        wave.note_progress(seen.now)
        if wave.stage is Stage.COPY and wave.engine is None:
            _choose(state, seen, wave)
        if wave.stage in (Stage.CLOSE, Stage.CLOSED):
            _end_wave(state, wave, seen.now)
        if wave.stage is Stage.CLOSED:
            del state.waves[wave.session]
    give_up_stalled(state.waves.values(), seen.now)
    for pair, waiting in _gathered(state, gone, seen.now).items():
        if has_room(state.waves.values(), *pair):
            _open(state, seen, pair, waiting)
    share_bandwidth(state.waves.values(), seen.wishes.bandwidth_per_member)


def _end_wave(state: State, wave: Wave, now: float) -> None:
    """Once: its migrations go on (ingested), copy again (without Spark if it failed), or are rolled back."""
    mine = [state.running[p] for p, id in wave.partitions.items() if _is(state, p, id)]
    _count_bytes(state, wave, mine)
    note_end(state, wave, now)
    if wave.blames_spark and mine:
        if _spark_failure(state, wave.destination, now) != wave.failure:
            text = f"copies to {state.name_of(wave.destination)} go on without Spark: {wave.failure}"
            state.say("SparkFailed", text, warning=True)
        before = state.spark_failures.get(wave.destination)
        state.spark_failures[wave.destination] = SparkFailure.after(before, wave.failure, now)
        state.spark_used_seconds.pop(wave.destination, None)
    elif wave.spoiled and mine:
        text = f"what was copied to {state.name_of(wave.destination)} was damaged there, and is copied again"
        state.say("CopySpoiled", f"{text}: {wave.failure}", warning=True)
    elif wave.engine is Engine.SPARK and mine and not wave.failure:
        state.spark_used_seconds[wave.destination] = now
        state.spark_failures.pop(wave.destination, None)
    for running in mine:
        running.session = ""
        if running.step is not Step.COPY:
            continue
        again = wave.blames_spark or (wave.spoiled and running.copies + 1 < COPIES_MAX)
        if wave.failure and not again:
            running.abort(wave.failure, now)
            continue
        running.go(Step.CATCH_UP, now)
        running.copies += 1
        running.copied_seconds = float("-inf") if wave.failure else now
    wave.partitions = {}


def _is(state: State, number: PartitionId, id: str) -> bool:
    return number in state.running and state.running[number].id == id


def _count_bytes(state: State, wave: Wave, mine: list[Running]) -> None:
    """To each plan by the share that its tablets have in the wave."""
    copied = max(wave.copied_bytes, 0 if wave.failure else wave.bytes)
    wave.copied_bytes = copied
    for running in mine:
        part = wave.part_of((running.id,))
        for record in state.records.get(running.id, ()):
            record.bytes_copied += part
            record.bytes_by_spark += part if wave.engine is Engine.SPARK else 0


def _gathered(state: State, gone: frozenset[MemberIndex], now: float) -> dict[tuple[int, int], list[Running]]:
    """Migrations that may be copied now, by source and destination, unless others are about to join."""
    waiting: dict[tuple[int, int], list[Running]] = {}
    coming: set[tuple[int, int]] = set()
    sources = Sources(state, gone)
    for running in state.running.values():
        if running.destination is None or not running.migration.copies:
            continue
        if running.step not in (Step.START, Step.ATTACH, Step.CATCH_UP):
            continue
        pair = (sources.of(running), running.destination)
        if running.step in (Step.START, Step.ATTACH) or (
            running.step is Step.CATCH_UP and not running.attached
        ):
            coming.add(pair)
        elif running.step is Step.CATCH_UP and running.needs_copy and _believable(running, now):
            waiting.setdefault(pair, []).append(running)
    busy = {(wave.source, wave.destination) for wave in state.waves.values() if wave.copying}
    ready: dict[tuple[int, int], list[Running]] = {}
    for pair, found in waiting.items():
        if pair in busy or not has_room(state.waves.values(), *pair):
            for running in found:
                # It waits for its turn, however long that takes: it is not stuck.
                running.progressed_seconds = now
        elif pair not in coming or now - min(r.progressed_seconds for r in found) > GATHER_SECONDS:
            ready[pair] = found
    return ready


def _believable(running: Running, now: float) -> bool:
    """Whether the owner's word that a copy is needed is newer than the last copy."""
    return now - running.copied_seconds > SETTLE_SECONDS


def _open(state: State, seen: Observation, pair: tuple[int, int], waiting: list[Running]) -> None:
    source, destination = pair
    for running in [each for each in waiting if each.copies >= COPIES_MAX]:
        waiting.remove(running)
        running.abort(f"COPY_FAILED: still not in the log's reach after {COPIES_MAX} copies", seen.now)
    if not waiting:
        return
    session = state.new_id("s")
    partitions = {running.partition: running.id for running in waiting}
    generations = {running.partition: running.generation for running in waiting}
    fragments = seen.wishes.fragments
    state.waves[session] = Wave(session, source, destination, partitions, generations, seen.now, fragments)
    for running in waiting:
        running.session, running.needs_copy = session, False
        running.go(Step.COPY, seen.now)


def _choose(state: State, seen: Observation, wave: Wave) -> None:
    """Who copies what the source has put into the wave's snapshot."""
    used = state.spark_used_seconds.get(wave.destination, float("-inf"))
    wave.engine, wave.engine_reason = choose_engine(
        seen.wishes.engine,
        wave.bytes + _needed_besides(state, wave),
        seen.wishes.spark_threshold_bytes,
        warm=seen.now - used < seen.wishes.spark_idle_seconds,
        copier_problem=seen.copier_problem,
        spark_failure=_spark_failure(state, wave.destination, seen.now),
    )
    for id in wave.partitions.values():
        for record in state.records.get(id, ()):
            if record.engine is not Engine.SPARK:
                record.engine, record.engine_reason = wave.engine, wave.engine_reason
    note_engine(state, wave, seen.now)
    if lack := Space(state, but=wave.session).lack(wave.destination, wave.bytes):
        wave.fail(f"{NO_SPACE}: {lack}")


def _spark_failure(state: State, destination: MemberIndex, now: float) -> str:
    """Why Spark is not used for a member for a while; empty when it may be."""
    failure = state.spark_failures.get(destination)
    return "" if failure is None or now >= failure.until_seconds else failure.text


def _needed_besides(state: State, wave: Wave) -> int:
    """Bytes, as owners report them, of other tablets under way to the same member that need a copy, too."""
    total = 0
    for running in state.running.values():
        if running.destination != wave.destination or running.partition in wave.partitions:
            continue
        owner = state.contacts.get(running.owner)
        if owner is not None and (running.step is Step.COPY or running.needs_copy):
            tablet = owner.tablets.get(running.partition)
            total += 0 if tablet is None else tablet.bytes
    return total
