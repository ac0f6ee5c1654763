"""Restarts outdated members one after the other (docs/internals/operator.md, "Rolling updates").

A member is outdated when its pod is not what the spec makes of it. Which restart is under way is stored as an
annotation of its TabletMember before its pod is deleted, so a new master continues it.
"""

from collections.abc import Iterable, Iterator

from stele.core.control.commands import ClusterState
from stele.core.control.failover.repair import unusable
from stele.core.control.failure_detector import MemberObject
from stele.core.control.state import (
    AboutMember,
    DesiredSpec,
    FinishRestart,
    Intent,
    Observation,
    RestartMember,
    State,
    UpdatePolicy,
    UpdateType,
)
from stele.core.table.ids import MemberIndex

RESTART_SECONDS = 600.0
"""Seconds that an emptied member may take until it serves again; until then its place is kept."""


def update_members(state: State, observation: Observation) -> tuple[Intent, ...]:
    """Return the restarts to carry out and to finish, and choose the member that is emptied for the next one.

    Only one member restarts at a time, and only while every partition has its copies. The pod of a member
    that cannot start is replaced without waiting, so that a corrected spec takes effect; the member's place
    is kept for the grace period, as that of any member that failed.
    """
    stops = state.stops
    gone = unusable(state, observation.desired, observation.now)
    members = [
        each for each in observation.members if each.index in state.table.members and not each.deleting
    ]
    finished = [
        each.index
        for each in members
        if each.restart_until_seconds and _is_back(state, observation, each, gone)
    ]
    restarting = [each for each in members if each.restart_until_seconds and each.index not in finished]
    stops.update_problem = _problem(state, observation, restarting)
    old = [each for each in members if each.outdated]
    outdated = [each for each in old if each.index >= observation.desired.update.partition]
    stops.update_waits = _waits(observation.desired, bool(outdated)) if old else ""
    if not outdated or stops.update_waits:
        stops.updating = None
        return tuple(FinishRestart(index) for index in finished)
    broken = [each for each in outdated if each.index in gone and _cannot_start(each)]
    stops.updating = None if broken else _next(state, observation, outdated, restarting, gone)
    ready = [each for each in outdated if each.index == stops.updating and each.index in stops.may_stop]
    return (
        *(FinishRestart(index) for index in finished),
        *_restarts(broken, observation.desired.timing.grace),
        *_restarts(ready, RESTART_SECONDS),
    )


def _restarts(members: Iterable[MemberObject], keep_seconds: float) -> Iterator[RestartMember]:
    for each in members:
        if each.pod is not None:
            yield RestartMember(each.index, each.pod.uid, keep_seconds)


def _next(
    state: State,
    observation: Observation,
    outdated: list[MemberObject],
    restarting: list[MemberObject],
    gone: frozenset[MemberIndex],
) -> MemberIndex | None:
    """Return the member to restart: the one that was chosen before, else the one with the highest index.

    The one that was chosen is let go when others fail meanwhile, which may need its copies.
    """
    indexes = [each.index for each in outdated if each.index not in gone]
    updating = state.stops.updating
    if updating in indexes and not gone and not _is_needed(state, observation, updating):
        return updating
    others = [each.index for each in restarting if each.index not in indexes]
    if others:
        state.stops.update_waits = f"{state.names_of(others)} restarts"
        return None
    state.stops.update_waits = _unsettled(state, observation, gone)
    if state.stops.update_waits or not indexes:
        return None
    chosen = max(indexes)
    text = f"{state.name_of(chosen)} is emptied and restarted, because it is outdated"
    state.emit("MemberUpdating", text, about=AboutMember(chosen))
    return chosen


def _waits(desired: DesiredSpec, due: bool) -> str:
    """Return why outdated members are not restarted; empty when those that are `due` are."""
    held = held_back(desired.update, desired.paused, desired.state, desired.migration_paused)
    return held or ("" if due else left_alone(desired.update))


def left_alone(update: UpdatePolicy) -> str:
    """Return which members are never restarted; empty when all are."""
    lowest = update.partition
    return f"spec.updateStrategy.partition is {lowest}: members below it keep their pods" if lowest else ""


def held_back(update: UpdatePolicy, paused: bool, state: str, migration_paused: bool) -> str:
    """Return what a user set that keeps outdated members from being restarted; empty when nothing does."""
    if update.type is not UpdateType.ROLLING_UPDATE:
        return f"spec.updateStrategy.type is {update.type}: delete their pods one by one"
    if update.paused:
        return "spec.updateStrategy.paused is true: kubectl stele rollout resume"
    if paused:
        return "the annotation stele.dev/paused is set"
    if state != ClusterState.ACTIVE:
        return f"the cluster state {state} allows no migration"
    if migration_paused:
        return "spec.migration.paused is true, or the cluster state is about to change"
    return ""


def _unsettled(state: State, observation: Observation, gone: frozenset[MemberIndex]) -> str:
    """Return what has to end before another member may stop; empty when everything is in place."""
    if gone:
        return f"{state.names_of(gone)} does not answer"
    if others := state.stops.since.keys() - {state.stops.updating}:
        return f"{state.names_of(others)} stops"
    if lacking := _lacking(state, observation):
        return f"{lacking} partitions lack a copy"
    if blind := _without_users(state):
        return f"{state.names_of(blind)} cannot read the file of users: a restarted member would have none"
    if state.operations.migrations or state.failing_over or len(state.rebalance.queues):
        return "migrations are under way"
    return ""


def _lacking(state: State, observation: Observation) -> int:
    """Return how many partitions have fewer copies than the data members allow."""
    return state.table.lacking(observation.desired.replicas, _holders(state))


def _holders(state: State) -> int:
    """Return how many members can hold a copy."""
    return sum(not member.lite for member in state.table.members.values()) - len(state.membership.leaving)


def _without_users(state: State) -> list[MemberIndex]:
    """Return the members that go on with the users of before."""
    reports = ((index, each.report) for index, each in sorted(state.membership.liveness.items()))
    return [index for index, report in reports if report is not None and report.users_problem]


def _is_needed(state: State, observation: Observation, member: MemberIndex) -> bool:
    """Return whether a partition would have fewer copies without the member than all but one."""
    table, replicas, most = state.table, observation.desired.replicas, _holders(state)
    return bool(table.lacking(replicas, most, less=1)) or any(
        len(table.partitions[number].members) < table.full(number, replicas, most)
        for number in table.replica_index.of(member)
    )


def _is_back(
    state: State, observation: Observation, member: MemberObject, gone: frozenset[MemberIndex]
) -> bool:
    """Return whether a restarted member serves again with its copies."""
    pod = member.pod
    started = pod is not None and not pod.terminating and not member.outdated and member.index not in gone
    return started and not _lacking(state, observation)


def _cannot_start(member: MemberObject) -> bool:
    pod = member.pod
    return pod is not None and not pod.terminating and (not pod.process or pod.ended or bool(pod.problem))


def _problem(state: State, observation: Observation, restarting: Iterable[MemberObject]) -> str:
    """Return which restarted member does not come back, and why; empty when none is overdue."""
    for member in restarting:
        problem = "" if member.pod is None else member.pod.problem
        if problem or observation.now > (member.restart_until_seconds or 0.0):
            text = f"{state.name_of(member.index)} does not come back after its restart"
            return f"{text}: {problem or 'it does not answer'}"
    return ""
