"""The member list: who joins, changes its address or leaves, and which objects to create or remove."""

from collections.abc import Mapping
from dataclasses import replace

from stele.core.control.failover.repair import unusable
from stele.core.control.failure_detector import Life, MemberLiveness, MemberObject
from stele.core.control.replacement import replaced_members
from stele.core.control.scaling import Candidate, leaving, missing, next_index
from stele.core.control.state import (
    AboutMember,
    DesiredSpec,
    EnsureMember,
    Intent,
    Observation,
    RemoveMember,
    State,
)
from stele.core.table.ids import MEMBERS_MAX, MemberIndex
from stele.core.table.table import Member
from stele.core.tablet.lifecycle import TabletState

Dictionary = Mapping[MemberIndex, Member]


def members_in_rows(state: State) -> frozenset[MemberIndex]:
    """Return members that a row names, or will name once running operations have ended."""
    members = set(state.table.replica_index.members)
    for row in state.table.staged.values():
        members.update(member for member in row.replicas if member is not None)
    for operation in state.operations.migrations.values():
        members.update(member for member in operation.result if member is not None)
    return frozenset(members)


def update_dictionary(state: State, observation: Observation) -> Dictionary | None:
    """Return the member list to store; None when it is up to date."""
    members = dict(state.table.members)
    in_rows = members_in_rows(state)
    present = {each.index for each in observation.members}
    for index in [i for i in members if i not in present and i not in in_rows]:
        text = f"{members.pop(index).name} holds nothing any more and is gone"
        state.emit("MemberLeft", text, about=AboutMember(index))
    for index, liveness in state.membership.liveness.items():
        shown = liveness.member_object
        if shown is None or liveness.report is None or liveness.replaced_by_uuid:
            continue
        pod = shown.pod
        if index not in members:
            if not shown.deleting and pod is not None:
                _join(state, members, liveness, observation.desired)
            continue
        if pod is not None and pod.address not in ("", members[index].address) and not liveness.ended:
            members[index] = replace(members[index], address=pod.address)
        if liveness.reachable(observation.now, observation.desired.timing):
            members[index] = _as_desired(state, members[index], shown, holds=index in in_rows)
    return members if members != dict(state.table.members) else None


def _as_desired(state: State, member: Member, shown: MemberObject, *, holds: bool) -> Member:
    """Return the member as specified: a lite member may hold data at once, but must be empty to become
    lite."""
    if member.lite and not shown.lite:
        text = f"{member.name} is a data member now and gets its share"
        state.emit("MemberPromoted", text, about=AboutMember(member.index))
        return replace(member, lite=False)
    if shown.lite and not member.lite and not holds:
        text = f"{member.name} is a lite member now: it holds nothing"
        state.emit("MemberDemoted", text, about=AboutMember(member.index))
        return replace(member, lite=True)
    return member


def _join(
    state: State, members: dict[MemberIndex, Member], liveness: MemberLiveness, desired: DesiredSpec
) -> None:
    """Add a member to the list, or warn why it cannot join."""
    shown, report = liveness.member_object, liveness.report
    assert shown is not None
    assert shown.pod is not None
    assert report is not None
    if refusal := _join_refusal(state, members, liveness, desired, report.uuid):
        reason, text = refusal
        state.warn_about(liveness, reason, f"{shown.name} {text}")
        return
    liveness.note_problem("")
    index = liveness.index
    members[index] = Member(index, shown.name, report.uuid, shown.pod.address, shown.lite)
    text = f"{shown.name} joined as member {index} ({report.uuid})"
    state.emit("MemberJoined", text, about=AboutMember(index))


def _join_refusal(
    state: State, members: Dictionary, liveness: MemberLiveness, desired: DesiredSpec, uuid: str
) -> tuple[str, str] | None:
    """Return why the member cannot join, as reason and message of an Event; None when it can."""
    if not desired.join_allowed:
        return "JoinRefused", f"cannot join: the cluster state {desired.state} forbids joining"
    other = next((member for member in members.values() if member.uuid == uuid), None)
    if other is not None:
        text = f"has the identity of {other.name}: its volume is a copy; give it an empty one"
        return "DuplicateMember", text
    if not state.table.formed and holds_data(liveness):
        return "TableMissing", "holds tablets and the table is empty: restore the ConfigMaps of the table"
    if len(members) >= MEMBERS_MAX:
        return "TooManyMembers", f"cannot join: there are {len(members)} members, the most that a table names"
    return None


def holds_data(liveness: MemberLiveness) -> bool:
    """Return whether it reported a tablet of this cluster that was not deleted."""
    return any(tablet.state != TabletState.DELETED for tablet in liveness.tablets.values())


def set_members(state: State, members: Dictionary) -> None:
    """Apply the stored member list."""
    state.table.set_members(members)
    state.membership.note_list_stored()


def scale(state: State, observation: Observation) -> tuple[Intent, ...]:
    """Decide which members leave. Returns which should exist and which may be removed."""
    desired = observation.desired
    in_rows = members_in_rows(state)
    candidates = _candidates(state, observation, in_rows, _replaced(state, observation))
    state.membership.set_leaving(leaving(candidates, desired.members))
    if desired.paused:
        return ()
    used = [each.index for each in candidates] + list(state.table.members)
    first = next_index(used, state.membership.next_index)
    new = missing(candidates, desired.members, first) if desired.join_allowed else ()
    state.membership.use_indexes((*used, *new))
    empty = frozenset(
        each
        for each in state.membership.leaving - in_rows
        if not _may_lack_last_rows(state, observation, each)
    )
    kept = [each.index for each in candidates if not each.deleting and each.index not in empty]
    removed = [
        RemoveMember(each.index, keep_volume=_is_away(state, observation, each.index))
        for each in candidates
        if each.index in empty
    ]
    return (*map(EnsureMember, (*kept, *new)), *removed)


def _may_lack_last_rows(state: State, observation: Observation, index: MemberIndex) -> bool:
    """Return whether the member answers and may not know yet that its last rows name it no more: what runs in
    it is to hear of the end of each migration before its process ends."""
    liveness = state.membership.liveness.get(index)
    if liveness is None or index not in state.table.members or liveness.replaced_by_uuid:
        return False
    return liveness.reachable(observation.now, observation.desired.timing) and not liveness.has_heard


def _replaced(state: State, observation: Observation) -> frozenset[MemberIndex]:
    """Return the members in whose place others come, and say so once."""
    reasons = replaced_members(state, observation)
    for index in sorted(state.membership.set_replaced(frozenset(reasons))):
        text = f"another member takes the place of {state.name_of(index)}: {reasons[index]}"
        state.emit("MemberReplaced", text, warning=True, about=AboutMember(index))
    return state.membership.replaced


def _is_away(state: State, observation: Observation, index: MemberIndex) -> bool:
    """Return whether the member does not answer, which says nothing about what its volume has."""
    liveness = state.membership.liveness.get(index)
    silent = liveness is None or liveness.gone(observation.now, observation.desired.timing)
    return silent and not (liveness is not None and liveness.replaced_by_uuid)


def _candidates(
    state: State,
    observation: Observation,
    in_rows: frozenset[MemberIndex],
    replaced: frozenset[MemberIndex],
) -> list[Candidate]:
    """Return members with an object, and those that rows name although their object was deleted."""
    gone = unusable(state, observation.desired, observation.now)
    candidates = []
    for each in observation.members:
        liveness = state.membership.liveness.get(each.index)
        lost = each.index in replaced or (liveness is not None and bool(liveness.replaced_by_uuid))
        unreachable = each.index in gone or (each.pod is None and each.index in state.table.members)
        candidates.append(Candidate(each.index, each.drain, not unreachable, lost, each.deleting))
    present = {each.index for each in observation.members}
    candidates.extend(
        Candidate(index, False, False)
        for index in state.table.members
        if index not in present and index in in_rows
    )
    return candidates


def life_of(state: State, index: MemberIndex, desired: DesiredSpec, now: float) -> Life:
    """Return a member's state, for its status."""
    liveness = state.membership.liveness.get(index)
    if index not in state.table.members or liveness is None:
        return Life.JOINING
    if liveness.replaced_by_uuid:
        return Life.LOST
    if liveness.gone(now, desired.timing):
        return Life.UNREACHABLE
    if state.table.replica_index.number(index) and liveness.report is not None and not liveness.tablets:
        # Rows name it, but it has not received them.
        return Life.JOINING
    drained = liveness.member_object is not None and liveness.member_object.drain
    return Life.DRAINING if drained or index in state.membership.leaving else Life.ACTIVE
