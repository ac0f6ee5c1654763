"""One decision of the master: take over, repair, plan, start, commit, sweep.

See docs/internals/operator.md, "The loop".

`decide` does no I/O. The driver first stores what is staged, calls `stored`, and only then sends the commands
(`publication.exchange_request`). When storing fails in any way, the driver drops the whole State and takes
over again: nothing in it is needed to continue.
"""

from dataclasses import replace

from stele.core.control.answers import take_in
from stele.core.control.commands import Command
from stele.core.control.failover.accept_copies import accept_copies
from stele.core.control.failover.recover import is_recovering, recover
from stele.core.control.failover.reinitialize import reset_lost_partitions
from stele.core.control.failover.repair import note_repaired, repair, unusable
from stele.core.control.failover.take_over import take_over
from stele.core.control.features import usable_features
from stele.core.control.gc import collect_garbage
from stele.core.control.invariants import hold
from stele.core.control.member_list import Dictionary, holds_data, scale, set_members, update_dictionary
from stele.core.control.operations.cluster_state import ChangeInput, Step
from stele.core.control.rebalance.apply_requests import apply_requests
from stele.core.control.rebalance.copy_scheduling import waiting_for_space
from stele.core.control.rebalance.copy_sessions import drive_sessions
from stele.core.control.rebalance.data_members import data_members, places_known
from stele.core.control.rebalance.groups import add_groups, assign_groups
from stele.core.control.rebalance.planner import end_plan, make_plan
from stele.core.control.rebalance.scheduler import follow, note_stored, start
from stele.core.control.rebalance.user_handovers import drive_user_handovers
from stele.core.control.rebalance.user_plans import end_user_plans
from stele.core.control.replacement import stuck_pods
from stele.core.control.restarts.planned_stops import empty_stopping
from stele.core.control.restarts.rolling_update import update_members
from stele.core.control.restarts.unstarted import replace_unstarted
from stele.core.control.state import Decision, Intent, Observation, State
from stele.core.formats import MEMBER_TLS
from stele.core.placement.assignment import assign
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition, check_changes

FORMING_SECONDS = 60.0
"""Seconds that a new cluster waits for all its members before it starts with those present."""

COMMANDS_MAX = 2_000
"""Maximum number of commands in one exchange; the others follow in the next."""


def decide(state: State, observation: Observation) -> Decision:
    """Return everything to store, to send and to create now.

    Raises Corrupt when tables contradict each other, and BrokenInvariant when the state does.
    """
    staged = len(state.table.staged)
    hold(not staged, "the driver neither stored {} rows nor dropped the state", staged)
    hold(state.table.staged_groups is None, "the driver neither stored the groups nor dropped the state")
    state.check()
    state.events = []
    take_in(state, observation)
    if is_recovering(state, observation):
        return _decision(state, observation, *recover(state, observation), {})
    if not state.recovered and not take_over(state, observation):
        return _decision(state, observation, None, (), {})
    observation = _change_state(state, observation)
    _change_tls(state, observation)
    apply_requests(state, observation)
    drive_user_handovers(state, observation)
    follow(state, observation)
    repair(state, observation.desired, observation.now)
    reset_lost_partitions(state, observation.desired, observation.now)
    accept_copies(state, observation.desired, observation.now)
    intents = (
        *scale(state, observation),
        *stuck_pods(state, observation),
        *update_members(state, observation),
        *replace_unstarted(state, observation),
    )
    empty_stopping(state, observation)
    _assign_first(state, observation)
    add_groups(state, observation)
    assign_groups(state, observation)
    end_plan(state, observation.now)
    end_user_plans(state, observation)
    make_plan(state, observation)
    drive_sessions(state, observation)
    start(state, observation)
    dictionary = update_dictionary(state, observation)
    return _decision(state, observation, dictionary, intents, _commands(state, observation))


def _decision(
    state: State,
    observation: Observation,
    dictionary: Dictionary | None,
    intents: tuple[Intent, ...],
    commands: dict[MemberIndex, list[Command]],
) -> Decision:
    staged, operations = dict(state.table.staged), state.operations
    check_changes(state.table.stored, staged, state.table.members if dictionary is None else dictionary)
    state.check()
    jobs = tuple(session for session in operations.sessions.values() if session.wants_job)
    settled = state.recovered or state.failover.recovering
    groups = state.table.staged_groups
    busy = bool(operations or state.failover.shrinking or staged or dictionary or groups or not settled)
    return Decision(
        staged,
        dictionary,
        state.membership.next_index,
        {member: tuple(batch[:COMMANDS_MAX]) for member, batch in commands.items()},
        intents,
        jobs,
        tuple(state.events),
        busy or bool(commands) or _may_start_soon(state, observation),
        *operations.change.values_to_store,
        state.tls.coming,
        groups,
    )


def _may_start_soon(state: State, observation: Observation) -> bool:
    """Return whether something waits for its turn; what waits for space, or for a lost copy, does not
    count."""
    waiting = state.rebalance.queues.waiting.keys()
    if waiting <= state.failover.lost or not observation.desired.may_start:
        return False
    return waiting_for_space(state) is None


def _change_state(state: State, observation: Observation) -> Observation:
    """Advance a change of the cluster state or features. Returns the observation with the state in effect."""
    change, desired = state.operations.change, observation.desired
    gone = unusable(state, desired, observation.now)
    processes = {
        index: -1 if (report := state.membership.liveness[index].report) is None else report.incarnation
        for index in state.table.members
        if index not in gone
    }
    before = change.step
    change.drive(
        ChangeInput(
            desired.state,
            observation.now,
            len(state.operations.migrations) + len(state.operations.promotions),
            state.table.stamp.value,
            state.membership.list_version,
            processes,
            _desired_features(state, observation),
        ),
        lambda: state.new_id("c"),
    )
    change.forget(gone)
    if before is Step.LOCKING and change.step is Step.WAITING and change.reason and change.changes_state:
        text = f"{change.desired} is not in effect, {change.state} is: {change.reason}"
        state.emit("ClusterStateRefused", text, warning=True)
    elif change.step is Step.COMMITTING:
        _report_commit(state, len(processes))
    paused = desired.migration_paused or change.pending
    return replace(observation, desired=replace(desired, state=change.state, migration_paused=paused))


def _change_tls(state: State, observation: Observation) -> None:
    """Take the next step of TLS among members. The last release cannot read a head that names one."""
    if observation.desired.paused or state.operations.change.features < MEMBER_TLS:
        return
    known = [state.membership.liveness[index].report for index in state.table.members]
    reported = [None if report is None else report.member_tls for report in known]
    plain = any(report is not None and report.plain_links for report in known)
    formed = state.table.formed
    level = state.tls.drive(observation.desired.member_tls, reported, formed=formed, plain=plain)
    if level is not None:
        state.emit("MemberTlsChanged", f"TLS among members: {level}, after {state.tls.level}")


def _desired_features(state: State, observation: Observation) -> int:
    """Return the features to use: higher ones only while nothing runs or waits that they would delay."""
    delays = bool(state.operations) or _may_start_soon(state, observation)
    return (
        state.operations.change.features if delays or observation.desired.paused else usable_features(state)
    )


def _report_commit(state: State, agreed: int) -> None:
    change = state.operations.change
    if change.changes_state:
        state.emit("ClusterStateChanged", f"{change.desired} is in force, {agreed} members agreed")
    if change.desired_features != change.features:
        text = f"format {change.desired_features} is in force, which all members speak"
        state.emit("FeaturesRaised", f"{text}; a build that does not is refused from now on")


def stored(
    state: State, rows: dict[PartitionId, Partition], dictionary: Dictionary | None, now: float
) -> None:
    """Apply what the driver has stored."""
    state.apply(rows)
    note_repaired(state, rows)
    if dictionary is not None:
        set_members(state, dictionary)
    note_stored(state, rows, now)
    state.table.clear_staged()
    state.operations.change.stored()
    state.tls.stored()


def _assign_first(state: State, observation: Observation) -> None:
    """Stage the first row of every partition: no member has data yet, so none is asked.

    A member that has data but cannot join shows that the table was lost, which must stay visible.
    """
    if state.table.formed or observation.desired.paused or not observation.desired.join_allowed:
        return
    if not places_known(state) or any(map(holds_data, state.membership.liveness.values())):
        return
    members = [each for each in data_members(state, observation.desired, observation.now) if not each.leaving]
    patient = observation.now - state.started_seconds < FORMING_SECONDS
    if not members or (patient and len(members) < observation.desired.members):
        return
    rows = assign(state.table.stored, members, observation.desired.replicas)
    for number, row in enumerate(rows):
        if row:
            state.table.stage(number, Partition(1, row))
    state.emit("TableAssigned", f"{len(rows)} partitions on {len(members)} members")


def _commands(state: State, observation: Observation) -> dict[MemberIndex, list[Command]]:
    """Return the commands for each reachable member."""
    commands: dict[MemberIndex, list[Command]] = {}
    for operation in state.operations:
        for member, command in operation.commands(observation.now):
            commands.setdefault(member, []).append(command)
    reachable = {
        index
        for index, liveness in state.membership.liveness.items()
        if index in state.table.members and liveness.reachable(observation.now, observation.desired.timing)
    }
    for index in reachable:
        if garbage := collect_garbage(
            state, observation.desired, index, state.membership.liveness[index], observation.now
        ):
            commands.setdefault(index, []).extend(garbage)
    return {member: batch for member, batch in commands.items() if member in reachable}
