"""The status of a TabletMember. Pure."""

from collections.abc import Mapping
from typing import Any

from stele.core.control.commands import ExchangeReply
from stele.core.control.failure_detector import Life, MemberLiveness
from stele.core.control.member_list import life_of
from stele.core.tablet.lifecycle import TabletState
from stele.master.kstatus import Observed, Progress, Verdict, progress_conditions, with_conditions
from stele.master.lost_volumes import unavailable_volume
from stele.master.manifests import RESP_PORT
from stele.master.view import View
from stele.model import TabletMember
from stele.model.conditions import ConditionType, Reason
from stele.model.member import MemberState, TabletMemberStatus, VolumeStatus
from stele.wire.urls import host_port

MIB, GIB = 1 << 20, 1 << 30


def member_status(
    member: TabletMember, view: View, restarts: int, claim: Mapping[str, Any] | None = None
) -> TabletMemberStatus:
    state, index = view.state, member.spec.index
    liveness, entry = state.membership.liveness.get(index), state.table.members.get(index)
    report = None if liveness is None else liveness.report
    shown = None if liveness is None else liveness.member_object
    replica_index = state.table.replica_index
    owned, held = replica_index.owned[index], replica_index.number(index)
    alone = replica_index.sole[index] + view.kept[index]
    life = life_of(state, index, view.desired, view.now)
    return TabletMemberStatus(
        observed_generation=member.metadata.generation,
        uuid="" if entry is None else entry.uuid,
        incarnation=0 if report is None else report.incarnation,
        address="" if entry is None or not entry.address else host_port(entry.address, RESP_PORT),
        state=MemberState(life.value),
        lite=entry is not None and entry.lite,
        node="" if shown is None else shown.node,
        zone=() if shown is None else shown.zone or (),
        owned=owned,
        backups=held - owned,
        bytes=_held_bytes(liveness),
        volume=_volume(claim, report),
        stamp="" if report is None else str(report.stamp),
        safe_to_evict=not alone,
        restarts=restarts,
        conditions=with_conditions(
            member.status.conditions,
            [*progress_conditions(_verdict(member, view, life, held)), _safe_to_evict(alone, held)],
            member.metadata.generation,
            view.clock,
        ),
    )


def _volume(claim: Mapping[str, Any] | None, report: ExchangeReply | None) -> VolumeStatus:
    spec, status = ({}, {}) if claim is None else (claim["spec"], claim.get("status") or {})
    return VolumeStatus(
        requested=str(((spec.get("resources") or {}).get("requests") or {}).get("storage", "")),
        capacity=str((status.get("capacity") or {}).get("storage", "")),
        free="" if report is None else _quantity(report.stats.disk_free_bytes),
    )


def _quantity(number: int) -> str:
    """Round down to a quantity that changes rarely; empty when unknown, which is below 0."""
    if number < 0:
        return ""
    return f"{number // GIB}Gi" if number >= 10 * GIB else f"{number // MIB}Mi"


def _held_bytes(liveness: MemberLiveness | None) -> int:
    tablets = () if liveness is None else liveness.tablets.values()
    return sum(tablet.bytes for tablet in tablets if tablet.state != TabletState.DELETED)


def _verdict(member: TabletMember, view: View, life: Life, held: int) -> Verdict:
    """Return the verdict by what matters most to users; `held` is the number of its copies."""
    state, index = view.state, member.spec.index
    liveness, entry = state.membership.liveness.get(index), state.table.members.get(index)
    shown = None if liveness is None else liveness.member_object
    if liveness is not None and liveness.incompatible:
        return Progress.STALLED, Reason.MEMBERS_INCOMPATIBLE, liveness.incompatible
    if entry is not None and shown is not None and shown.lite != entry.lite:
        return _role_change(view, life, held, to_lite=shown.lite)
    if text := unavailable_volume(view, index):
        return Progress.STALLED, Reason.VOLUME_UNAVAILABLE, text
    if text := view.maintenance_problems.get(index, ""):
        return Progress.STALLED, Reason.INVALID_RESOURCE, text
    if life is Life.DRAINING and held and not view.takes_data:
        return Progress.STALLED, Reason.NO_OTHER_MEMBER, _nowhere(member.metadata.name, held)
    problem = "" if liveness is None else liveness.problem
    return _verdict_on_life(life, held, problem, view.nodes_problem)


def _verdict_on_life(life: Life, held: int, problem: str, nodes_problem: str) -> Verdict:
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


def _nowhere(name: str, held: int) -> str:
    text = f"{held} copies cannot be moved off, because no other member takes data"
    return f"{text}: add members, or: kubectl stele drain {name} --undo"


def _role_change(view: View, life: Life, held: int, *, to_lite: bool) -> Verdict:
    """Return what a change of spec.lite waits for."""
    becomes = "it becomes a lite member" if to_lite else "it becomes a data member"
    if life is Life.UNREACHABLE:
        return Progress.UNDER_WAY, Reason.MEMBER_UNREACHABLE, f"{becomes} once it answers"
    if not to_lite or not held:
        return Progress.UNDER_WAY, Reason.MIGRATING, f"{becomes} with the next member list"
    text = f"{becomes} once {held} copies are moved off"
    if not view.desired.may_start:
        return (
            Progress.HELD,
            Reason.DRAINING,
            f"{text}; the condition Paused of the TabletCluster says why not",
        )
    return Progress.UNDER_WAY, Reason.DRAINING, text


def _safe_to_evict(alone: int, held: int) -> Observed:
    type_ = ConditionType.SAFE_TO_EVICT
    if alone:
        return type_, False, Reason.HOLDS_LAST_COPIES, f"{alone} partitions have no other copy"
    if held:
        return type_, True, Reason.HOLDS_DATA, f"{held} copies, each with another elsewhere"
    return type_, True, Reason.HOLDS_NOTHING, "no partition has a copy here"
