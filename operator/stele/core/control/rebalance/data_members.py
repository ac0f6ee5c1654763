"""The members that a plan gives partitions to, as the placement takes them."""

from dataclasses import replace

from stele.core.control.failover.repair import unusable
from stele.core.control.scaling import Candidate, leaving, missing, next_index
from stele.core.control.state import DesiredSpec, State
from stele.core.placement.plan import DataMember


def data_members(state: State, desired: DesiredSpec, now: float) -> tuple[DataMember, ...]:
    """Return live members that hold data; leaving ones are marked."""
    return tuple(each for each in expected_members(state, desired, now) if not each.away)


def expected_members(state: State, desired: DesiredSpec, now: float) -> tuple[DataMember, ...]:
    """Return live members that hold data, and those whose place is kept, marked as away: they are gone, or
    stop soon."""
    gone = unusable(state, desired, now)
    demoted = {demotion.member for demotion in state.rebalance.demotions.values()}
    expected = []
    for index, member in sorted(state.table.members.items()):
        liveness = state.membership.liveness.get(index)
        if member.lite or liveness is None:
            continue
        # A member without an object is being removed, though its process may answer for a moment.
        shown = liveness.member_object
        drained = shown is None or shown.drain or shown.lite or shown.deleting
        leaving, away = drained or index in state.membership.leaving, index in gone
        if away and (leaving or liveness.replaced_by_uuid or not liveness.in_grace(now, desired.timing)):
            continue
        weight, zone = (1, None) if shown is None else (shown.weight, shown.zone or None)
        away = away or index in state.stops.emptied or index in state.stops.left
        to_own_nothing = index in demoted
        expected.append(DataMember(index, weight, zone, leaving=leaving, away=away, demoted=to_own_nothing))
    return tuple(expected)


def supposed_members(state: State, desired: DesiredSpec, now: float) -> tuple[DataMember, ...]:
    """Return the data members with the desired number of members: new indexes are added, surplus members
    leave."""
    present = expected_members(state, desired, now)
    drained = {each.index for each in present if each.leaving and each.index not in state.membership.leaving}
    candidates = [Candidate(each.index, each.index in drained, reachable=not each.away) for each in present]
    going = leaving(candidates, desired.members) | drained
    new = missing(candidates, desired.members, next_index(state.table.members, state.membership.next_index))
    stay = [each for each in present if not (each.away and each.index in going)]
    kept = [replace(each, leaving=each.index in going) for each in stay]
    return (*kept, *(DataMember(index) for index in new))


def places_known(state: State) -> bool:
    """Return whether every member's domain has been read; until then nothing is placed."""
    return all(
        liveness.member_object is None or liveness.member_object.zone is not None
        for liveness in state.membership.liveness.values()
    )
