"""The member dictionary: who comes in, whose address changed, who is taken out, which objects are to be
made or removed.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from stele.core.control.failover.repair import unusable
from stele.core.control.failure_detector import Contact, Life, Seen
from stele.core.control.scaling import Candidate, leaving, missing, next_index
from stele.core.control.state import EnsureMember, Intent, Observation, RemoveMember, State, Wishes
from stele.core.table.ids import MEMBERS_MAX, MemberIndex
from stele.core.table.table import Member, PartitionTable

Dictionary = Mapping[MemberIndex, Member]


def named(state: State) -> frozenset[MemberIndex]:
    """Members that some row names, or will name when what is under way ends."""
    found = set(state.holdings.members)
    for row in state.staged.values():
        found.update(member for member in row.replicas if member is not None)
    for running in state.running.values():
        found.update(member for member in running.result if member is not None)
    return frozenset(found)


def update_dictionary(state: State, seen: Observation) -> Dictionary | None:
    """The dictionary as it should be stored, or None when it is right."""
    members = dict(state.table.members)
    in_rows = named(state)
    present = {each.index for each in seen.seen}
    for index in [i for i in members if i not in present and i not in in_rows]:
        state.say("MemberLeft", f"{members.pop(index).name} holds nothing any more and is gone")
    for index, contact in state.contacts.items():
        if contact.seen is None or contact.report is None or contact.stranger:
            continue
        pod = contact.seen.pod
        if index not in members:
            if not contact.seen.deleting and pod is not None:
                _admit(state, members, contact, seen.wishes)
            continue
        if pod is not None and pod.address and not contact.ended:
            members[index] = replace(members[index], address=pod.address)
        if contact.reachable(seen.now, seen.wishes.timing):
            members[index] = _as_wished(state, members[index], contact.seen, holds=index in in_rows)
    return members if members != dict(state.table.members) else None


def _as_wished(state: State, member: Member, seen: Seen, *, holds: bool) -> Member:
    """A lite member that is to hold data does so from now on; one that is to be lite must be empty first."""
    if member.lite and not seen.lite:
        state.say("MemberPromoted", f"{member.name} is a data member now and gets its share")
        return replace(member, lite=False)
    if seen.lite and not member.lite and not holds:
        state.say("MemberDemoted", f"{member.name} is a lite member now: it holds nothing")
        return replace(member, lite=True)
    return member


def _admit(state: State, members: dict[MemberIndex, Member], contact: Contact, wishes: Wishes) -> None:
    if wishes.join_allowed:
        _join(state, members, contact)
    elif contact.seen is not None:
        text = f"{contact.seen.name} is not let in: the cluster state {wishes.state} forbids joining"
        _complain(state, contact, "JoinRefused", text)


def _join(state: State, members: dict[MemberIndex, Member], contact: Contact) -> None:
    seen, report = contact.seen, contact.report
    assert seen is not None
    assert seen.pod is not None
    assert report is not None
    twin = next((m for m in members.values() if m.uuid == report.uuid), None)
    if twin is not None:
        text = f"{seen.name} has the identity of {twin.name}: its volume is a copy; give it an empty one"
        _complain(state, contact, "DuplicateMember", text)
        return
    if not any(row.version for row in state.table.partitions) and holds_data(contact):
        text = f"{seen.name} holds tablets and the table is empty: restore the ConfigMaps of the table"
        _complain(state, contact, "TableMissing", text)
        return
    if len(members) >= MEMBERS_MAX:
        text = f"{seen.name} cannot join: there are {len(members)} members, the most that a table names"
        _complain(state, contact, "TooManyMembers", text)
        return
    contact.problem = ""
    members[contact.index] = Member(contact.index, seen.name, report.uuid, seen.pod.address, seen.lite)
    state.say("MemberJoined", f"{seen.name} joined as member {contact.index} ({report.uuid})")


def holds_data(contact: Contact) -> bool:
    """Whether it told of a tablet of this cluster that was not given up."""
    return any(tablet.state != "DELETED" for tablet in contact.tablets.values())


def _complain(state: State, contact: Contact, reason: str, text: str) -> None:
    if contact.problem != text:
        contact.problem = text
        state.say(reason, text, warning=True)


def set_members(state: State, members: Dictionary) -> None:
    """The dictionary was stored."""
    state.table = PartitionTable(state.table.partitions, MappingProxyType(dict(members)))
    state.member_list_version += 1


def scale(state: State, seen: Observation) -> tuple[Intent, ...]:
    """Decide who is to go, and say which members should exist and which may be removed."""
    wishes = seen.wishes
    in_rows = named(state)
    candidates = _candidates(state, seen, in_rows)
    state.leaving = leaving(candidates, wishes.members)
    if wishes.held:
        return ()
    used = [each.index for each in candidates] + list(state.table.members)
    first = next_index(used, state.next_index)
    made = missing(candidates, wishes.members, first) if wishes.join_allowed else ()
    state.next_index = max([state.next_index, *(index + 1 for index in (*used, *made))])
    kept = [
        EnsureMember(each.index)
        for each in candidates
        if not each.deleting and (each.index not in state.leaving or each.index in in_rows)
    ]
    gone = [RemoveMember(each.index) for each in candidates if each.index in state.leaving - in_rows]
    return (*kept, *(EnsureMember(index) for index in made), *gone)


def _candidates(state: State, seen: Observation, in_rows: frozenset[MemberIndex]) -> list[Candidate]:
    """Everybody with an object, and those that rows name although somebody deleted their object."""
    gone = unusable(state, seen.wishes, seen.now)
    found = []
    for each in seen.seen:
        contact = state.contacts.get(each.index)
        lost = contact is not None and bool(contact.stranger)
        unreachable = each.index in gone or (each.pod is None and each.index in state.table.members)
        found.append(Candidate(each.index, each.drain, not unreachable, lost, each.deleting))
    present = {each.index for each in seen.seen}
    found.extend(
        Candidate(index, False, False)
        for index in state.table.members
        if index not in present and index in in_rows
    )
    return found


def life_of(state: State, index: MemberIndex, wishes: Wishes, now: float) -> Life:
    """Where a member is in its life, for its status."""
    contact = state.contacts.get(index)
    if index not in state.table.members or contact is None:
        return Life.JOINING
    if contact.stranger:
        return Life.LOST
    if contact.gone(now, wishes.timing):
        return Life.UNREACHABLE
    if state.holdings.number(index) and contact.report is not None and not contact.tablets:
        # Rows name it, and it has not heard of them.
        return Life.JOINING
    drained = contact.seen is not None and contact.seen.drain
    return Life.DRAINING if drained or index in state.leaving else Life.ACTIVE
