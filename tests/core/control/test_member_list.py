"""The member dictionary is never fuller than a table can be."""

import pytest

from stele.core.control.commands import ExchangeReply
from stele.core.control.failure_detector import MemberLiveness, MemberObject, PodFacts, Timing
from stele.core.control.member_list import update_dictionary
from stele.core.control.state import Observation, State
from stele.core.table.ids import MEMBERS_MAX
from stele.core.table.table import Member, PartitionTable
from tests.fakes.spec import desired_spec


@pytest.mark.parametrize(("known", "joins"), [(MEMBERS_MAX - 1, True), (MEMBERS_MAX, False)])
def test_a_member_too_many_does_not_join(known: int, joins: bool) -> None:
    members = [Member(index, f"m-{index}", f"u-{index}", "") for index in range(known)]
    present = tuple(MemberObject(index, f"m-{index}") for index in range(known))
    new = MemberObject(known, "new", pod=PodFacts("p", "10.0.0.1", "c", False))
    state = State(1, PartitionTable.empty(1, members), 1, known + 1, 0.0)
    report = ExchangeReply("OK", "", "u-new", "c", 1, 1, 0, 0)
    state.membership.liveness[known] = MemberLiveness(known, 0.0, member_object=new, report=report)
    desired = desired_spec(members=known + 1, replicas=1, timing=Timing(1.0, 3.0, 60.0))
    made = update_dictionary(state, Observation(0.0, desired, (*present, new)))
    assert (made is not None and known in made) is joins
    said = [(each.reason, each.message) for each in state.events]
    if not joins:
        text = "new cannot join: there are 1000 members, the most that a table names"
        assert said == [("TooManyMembers", text)]
