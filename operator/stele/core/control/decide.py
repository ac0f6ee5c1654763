"""One decision of the master: listen, take over, repair, plan, start, commit, sweep
(docs/internals/operator.md, "The loop").

`decide` does no I/O. The driver stores what it stages *first*, tells `stored`, and only then sends the
commands (`publication.exchange_request`). When storing fails in any way the driver drops the whole State and
takes over again: nothing in it is needed to go on.
"""

from dataclasses import replace

from stele.core.control.commands import OK, WAIT, Abort, Command, DeleteTablet, ExchangeReply, Result
from stele.core.control.failover.reinitialize import reset_lost_partitions
from stele.core.control.failover.repair import note_repaired, repair, unusable
from stele.core.control.failover.take_over import take_over
from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.gc import collect_garbage
from stele.core.control.invariants import hold
from stele.core.control.member_list import Dictionary, holds_data, scale, set_members, update_dictionary
from stele.core.control.operations.cluster_state import ChangeInput, Step
from stele.core.control.publication import note_published
from stele.core.control.rebalance.apply_requests import apply_requests
from stele.core.control.rebalance.copy_scheduling import waiting_for_space
from stele.core.control.rebalance.copy_sessions import drive_sessions
from stele.core.control.rebalance.planner import data_members, end_plan, make_plan, places_known
from stele.core.control.rebalance.scheduler import follow, note_stored, start
from stele.core.control.rebalance.user_plans import end_user_plans
from stele.core.control.reported import reported_jump
from stele.core.control.state import Answer, Decision, Intent, Observation, State
from stele.core.placement.assignment import assign
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.steps import jump
from stele.core.table.table import Partition, check_changes

FORMING_SECONDS = 60.0
"""A new cluster waits so long for all its members before it begins with those that are there."""

PAUSE_HEARTBEATS = 2.0
"""Between two decisions; after a longer pause the master does not believe that others were silent."""

ORDERS_MAX = 2_000
"""Orders in one exchange; the others follow in the next."""


def decide(state: State, observation: Observation) -> Decision:
    """Everything to store, to send and to make now.

    Raises Corrupt when tables contradict each other, BrokenInvariant when the state does.
    """
    hold(not state.staged, "the driver neither stored {} rows nor dropped the state", len(state.staged))
    state.check()
    state.events = []
    _look(state, observation)
    _forgive_own_pause(state, observation)
    for answer in observation.answers:
        _take_answer(state, answer, observation.now)
    for liveness in state.liveness.values():
        liveness.evaluate(observation.now)
        _note_life(state, liveness, observation)
    if not state.recovered and not take_over(state, observation):
        return _decision(state, observation, None, (), {})
    observation = _change_state(state, observation)
    apply_requests(state, observation)
    follow(state, observation)
    repair(state, observation.desired, observation.now)
    reset_lost_partitions(state, observation.desired, observation.now)
    intents = scale(state, observation)
    _assign_first(state, observation)
    end_plan(state, observation.now)
    end_user_plans(state, observation)
    make_plan(state, observation)
    drive_sessions(state, observation)
    start(state, observation)
    dictionary = update_dictionary(state, observation)
    return _decision(state, observation, dictionary, intents, _orders(state, observation))


def _decision(
    state: State,
    observation: Observation,
    dictionary: Dictionary | None,
    intents: tuple[Intent, ...],
    orders: dict[MemberIndex, list[Command]],
) -> Decision:
    check_changes(state.table, state.staged, state.table.members if dictionary is None else dictionary)
    state.check()
    jobs = tuple(session for session in state.copy_sessions.values() if session.wants_job)
    busy = bool(
        state.operations or state.failover.shrinking or state.staged or dictionary or not state.recovered
    )
    return Decision(
        dict(state.staged),
        dictionary,
        state.next_index,
        {member: tuple(some[:ORDERS_MAX]) for member, some in orders.items()},
        intents,
        jobs,
        tuple(state.events),
        busy or bool(orders) or _may_start_soon(state, observation),
        state.change.desired if state.change.step is Step.COMMITTING else state.change.state,
    )


def _may_start_soon(state: State, observation: Observation) -> bool:
    """Whether something waits for its turn; what waits for space keeps nobody busy."""
    return (
        len(state.rebalance.queues) > 0 and observation.desired.may_start and waiting_for_space(state) is None
    )


def _change_state(state: State, observation: Observation) -> Observation:
    """Move a change of the cluster state on; from here on the desired spec is those that are in force."""
    change, desired = state.change, observation.desired
    gone = unusable(state, desired, observation.now)
    processes = {
        index: -1 if (report := state.liveness[index].report) is None else report.incarnation
        for index in state.table.members
        if index not in gone
    }
    before = change.step
    change.drive(
        ChangeInput(
            desired.state,
            observation.now,
            len(state.migrations) + len(state.promotions),
            state.stamp.value,
            state.member_list_version,
            processes,
        ),
        state.new_id("c"),
    )
    change.forget(gone)
    if before is Step.LOCKING and change.step is Step.WAITING and change.reason:
        text = f"{change.desired} is not in force, {change.state} is: {change.reason}"
        state.emit("ClusterStateRefused", text, warning=True)
    elif change.step is Step.COMMITTING:
        state.emit("ClusterStateChanged", f"{change.desired} is in force, {len(processes)} members agreed")
    paused = desired.migration_paused or change.pending
    return replace(observation, desired=replace(desired, state=change.state, migration_paused=paused))


def stored(
    state: State, rows: dict[PartitionId, Partition], dictionary: Dictionary | None, now: float
) -> None:
    """The driver stored what was decided: now it holds."""
    state.apply(rows)
    note_repaired(state, rows)
    if dictionary is not None:
        set_members(state, dictionary)
    note_stored(state, rows, now)
    state.table_view.clear_staged()
    state.change.stored()


def _look(state: State, observation: Observation) -> None:
    """Take in what Kubernetes shows of every member."""
    shown = {each.index: each for each in observation.members}
    for index in shown.keys() | state.table.members.keys():
        liveness = state.liveness.get(index)
        if liveness is None:
            liveness = state.liveness[index] = MemberLiveness(index, observation.now)
        liveness.observe_pod(shown.get(index), observation.now)
    for index in state.liveness.keys() - shown.keys() - state.table.members.keys():
        del state.liveness[index]


def _forgive_own_pause(state: State, observation: Observation) -> None:
    """When this process stood still nobody was asked: silence counts from now on only."""
    if observation.now - state.decided_seconds > PAUSE_HEARTBEATS * observation.desired.timing.heartbeat:
        for liveness in state.liveness.values():
            liveness.since = observation.now
    state.decided_seconds = observation.now


def _note_life(state: State, liveness: MemberLiveness, observation: Observation) -> None:
    """Say it once when a member is lost and when it is back."""
    member = state.table.members.get(liveness.index)
    if member is None:
        return
    before = liveness.lost_seconds
    liveness.note_loss(observation.now, observation.desired.timing)
    if before is None and liveness.lost_seconds is not None and liveness.member_object is not None:
        why = "its container ended" if liveness.ended else "it does not answer"
        state.emit("MemberUnreachable", f"{member.name} is unreachable: {why}", warning=True)
    elif before is not None and liveness.lost_seconds is None:
        state.emit("MemberReturned", f"{member.name} is back after {observation.now - before:.1f} s")


def _take_answer(state: State, answer: Answer, now: float) -> None:
    liveness = state.liveness.get(answer.member)
    if liveness is None:
        return
    if answer.report is None:
        liveness.failed_seconds = answer.sent_seconds
        return
    if not _check_identity(state, liveness, answer.report, now):
        return
    liveness.on_report(answer.report, answer.sent_seconds)
    if answer.member in state.table.members:
        liveness.problem = ""
    if state.recovered:
        _note_claims(state, answer.report)
    if answer.published is not None:
        note_published(liveness, answer.published, answer.report)
    state.change.on_report(answer.member, state.name_of(answer.member), answer.report, now)
    for command, result in zip(answer.orders, answer.report.results, strict=False):
        _route(state, answer.member, command, result, now)


def _note_claims(state: State, report: ExchangeReply) -> None:
    """Rows and terms that a member agreed to under a master before us, while we could not ask it."""
    rows = state.table.partitions
    agreed = [(row.partition, row.version) for row in report.accepted]
    agreed += [(tablet.partition, tablet.promised) for tablet in report.tablets]
    for number, version in agreed:
        if number < len(rows) and version > rows[number].version and number not in state.promotions:
            state.table_view.claim(number, version)


def _check_identity(state: State, liveness: MemberLiveness, report: ExchangeReply, now: float) -> bool:
    """Whether the report is the known member's own and a good one; notes what it is otherwise."""
    member = state.table.members.get(liveness.index)
    if report.code in ("STALE_EPOCH",):
        if text := jump("epoch", state.epoch, report.epoch):
            _complain(state, liveness, "MemberNotBelieved", text)
            return False
        liveness.refused_epoch = max(liveness.refused_epoch, report.epoch)
        return False
    if report.code == "STARTING":
        liveness.starting_seconds = now
        return False
    if report.code == "WRONG_CLUSTER":
        _complain(state, liveness, "ForeignVolume", f"its volume belongs to cluster {report.cluster}")
        return False
    if member is not None and report.uuid != member.uuid:
        if not liveness.replaced_by_uuid:
            text = f"{member.name} lost its volume: it is {report.uuid} now, not {member.uuid}"
            state.emit("MemberLost", text, warning=True)
        liveness.replaced_by_uuid = report.uuid
        return False
    if report.code != "OK":
        _complain(state, liveness, "MemberRefuses", f"{report.code}: {report.detail}")
        return False
    liveness.replaced_by_uuid = ""
    if text := reported_jump(state.table, state.member_list_version, report):
        _complain(state, liveness, "MemberNotBelieved", text)
        return False
    return True


def _complain(state: State, liveness: MemberLiveness, reason: str, text: str) -> None:
    if liveness.problem != text:
        liveness.problem = text
        state.emit(reason, f"{state.name_of(liveness.index)}: {text}", warning=True)


def _route(state: State, member: MemberIndex, command: Command, result: Result, now: float) -> None:
    """Give the result to the operation that sent the command."""
    operation = state.operations.get(command.id)
    if operation is not None:
        operation.on_result(member, command, result, now)
    elif isinstance(command, Abort | DeleteTablet) and result.code not in (OK, WAIT):
        text = f"{state.name_of(member)}: {command}: {result.code} {result.detail}"
        state.emit("OrderRefused", text)


def _assign_first(state: State, observation: Observation) -> None:
    """The first row of every partition: nobody has data yet, so nothing is asked of anybody.

    Somebody who has data and is not let in shows that the table was lost: that is not covered up.
    """
    if (
        any(row.version for row in state.table.partitions)
        or observation.desired.held
        or not observation.desired.join_allowed
    ):
        return
    if not places_known(state) or any(holds_data(liveness) for liveness in state.liveness.values()):
        return
    members = [each for each in data_members(state, observation.desired, observation.now) if not each.leaving]
    patient = observation.now - state.started_seconds < FORMING_SECONDS
    if not members or (patient and len(members) < observation.desired.members):
        return
    rows = assign(state.table, members, observation.desired.replicas)
    for number, row in enumerate(rows):
        if row:
            state.table_view.stage(number, Partition(1, row))
    state.emit("TableAssigned", f"{len(rows)} partitions on {len(members)} members")


def _orders(state: State, observation: Observation) -> dict[MemberIndex, list[Command]]:
    """What to send to whom; nothing to members that cannot be reached."""
    orders: dict[MemberIndex, list[Command]] = {}
    for operation in state.operations:
        for member, command in operation.commands(observation.now):
            orders.setdefault(member, []).append(command)
    reachable = {
        index
        for index, liveness in state.liveness.items()
        if index in state.table.members and liveness.reachable(observation.now, observation.desired.timing)
    }
    for index in reachable:
        if swept := collect_garbage(
            state, observation.desired, index, state.liveness[index], observation.now
        ):
            orders.setdefault(index, []).extend(swept)
    return {member: some for member, some in orders.items() if member in reachable}
