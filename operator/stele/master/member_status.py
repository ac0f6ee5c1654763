"""The status of a TabletMember. Pure."""

from stele.core.control.failure_detector import Life, MemberLiveness
from stele.core.control.member_list import life_of
from stele.core.tablet.lifecycle import TabletState
from stele.master.kstatus import Observed, Progress, Verdict, progress_conditions, with_conditions
from stele.master.lost_volumes import unavailable_volumes
from stele.master.manifests import RESP_PORT
from stele.master.view import View
from stele.model import TabletMember
from stele.model.conditions import ConditionType, Reason
from stele.model.member import MemberState, TabletMemberStatus
from stele.wire.urls import host_port


def member_status(member: TabletMember, view: View, restarts: int) -> TabletMemberStatus:
    state, index = view.state, member.spec.index
    liveness, entry = state.membership.liveness.get(index), state.table.members.get(index)
    report = None if liveness is None else liveness.report
    shown = None if liveness is None else liveness.member_object
    replica_index = state.table.replica_index
    owned, held = replica_index.owned[index], replica_index.number(index)
    # Rows that the cluster state keeps have a member that is silent.
    kept = sum(index in state.table.partitions[number].members for number in state.failover.kept)
    alone = replica_index.sole[index] + kept
    life = life_of(state, index, view.desired, view.now)
    problem = "" if liveness is None else liveness.problem
    verdict = _verdict(life, held, problem, view.nodes_problem)
    if text := unavailable_volumes(view).get(index):
        verdict = Progress.STALLED, Reason.VOLUME_UNAVAILABLE, text
    if liveness is not None and liveness.incompatible:
        verdict = Progress.STALLED, Reason.MEMBERS_INCOMPATIBLE, liveness.incompatible
    return TabletMemberStatus(
        observed_generation=member.metadata.generation,
        uuid="" if entry is None else entry.uuid,
        incarnation=0 if report is None else report.incarnation,
        address="" if entry is None or not entry.address else host_port(entry.address, RESP_PORT),
        state=MemberState(life.value),
        node="" if shown is None else shown.node,
        zone=() if shown is None else shown.zone or (),
        owned=owned,
        backups=held - owned,
        bytes=_held_bytes(liveness),
        stamp="" if report is None else str(report.stamp),
        safe_to_evict=not alone,
        restarts=restarts,
        conditions=with_conditions(
            member.status.conditions,
            [*progress_conditions(verdict), _safe_to_evict(alone, held)],
            member.metadata.generation,
            view.clock,
        ),
    )


def _held_bytes(liveness: MemberLiveness | None) -> int:
    tablets = () if liveness is None else liveness.tablets.values()
    return sum(tablet.bytes for tablet in tablets if tablet.state != TabletState.DELETED)


def _verdict(life: Life, held: int, problem: str, nodes_problem: str) -> Verdict:
    match life:
        case Life.ACTIVE:
            return Progress.DONE, Reason.AS_DESIRED, "it answers clients and other members"
        case Life.DRAINING if held:
            return Progress.UNDER_WAY, Reason.DRAINING, f"{held} copies are still to be moved off"
        case Life.DRAINING:
            return Progress.DONE, Reason.AS_DESIRED, "it answers, and holds no copy any more"
        case Life.JOINING if problem:
            return Progress.STALLED, Reason.MEMBERS_STARTING, problem
        case Life.JOINING:
            text = "it is starting; the Events of its pod say why, if it does not"
            return Progress.UNDER_WAY, Reason.MEMBERS_STARTING, text
        case Life.LEFT:
            return Progress.UNDER_WAY, Reason.HOLDS_NOTHING, "it holds no copy and is being removed"
        case Life.UNREACHABLE:
            text = "it does not answer; its copies stay its own until the grace period ends"
            text += f"; whether its node is lost is not known: {nodes_problem}" if nodes_problem else ""
            return Progress.UNDER_WAY, Reason.MEMBER_UNREACHABLE, text
        case Life.LOST:
            text = "it did not answer within the grace period: its copies are made elsewhere; look at its pod"
            return Progress.STALLED, Reason.MEMBER_UNREACHABLE, text


def _safe_to_evict(alone: int, held: int) -> Observed:
    type_ = ConditionType.SAFE_TO_EVICT
    if alone:
        return type_, False, Reason.HOLDS_LAST_COPIES, f"{alone} partitions have no other copy"
    if held:
        return type_, True, Reason.HOLDS_DATA, f"{held} copies, each with another elsewhere"
    return type_, True, Reason.HOLDS_NOTHING, "no partition has a copy here"
