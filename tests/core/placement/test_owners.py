"""Owners are evened out by SWAPs alone, and handed over by them."""

from collections import Counter
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.placement.handover import handover
from stele.core.placement.members import DataMember
from stele.core.placement.migration import Type
from stele.core.placement.plan import Code, Plan, plan
from stele.core.placement.quotas import quota_bounds
from stele.core.placement.requested_moves import Move
from stele.core.table.table import Member, Partition, PartitionTable, Replicas

NAMES = {index: Member(index, f"demo-{index}", f"uuid-{index}", "") for index in range(8)}


def table(*rows: Replicas) -> PartitionTable:
    return PartitionTable(tuple(Partition(1, row) for row in rows), NAMES)


def planned(rows: tuple[Replicas, ...], *members: DataMember) -> Plan:
    return plan(table(*rows), members, len(rows[0]))


def check_even(rows: tuple[Replicas, ...], *members: DataMember) -> None:
    """All is in reach where each row has each member: whatever the owners are, no copy is needed."""
    made = planned(rows, *members)
    weights = {member.index: member.weight for member in members if not member.demoted}
    number = sum(row[0] in weights for row in rows)
    bounds = quota_bounds(number, number, weights)
    owned = Counter(row[0] for row in made.targets)
    assert all(bounds[each][0] <= owned[each] <= bounds[each][1] for each in bounds), (rows, made.targets)
    assert (made.copies, made.refusals) == (0, ())
    assert {each.type for each in made.migrations} <= {Type.SWAP}
    assert len({each.partition for each in made.migrations}) == len(made.migrations)
    for row, target in zip(rows, made.targets, strict=True):
        assert set(row) == set(target)
    assert not planned(made.targets, *members).migrations, "a plan that was carried out is empty"


@pytest.mark.parametrize("members", [2, 3])
def test_owners_are_even_wherever_each_row_has_each_member(members: int) -> None:
    everyone = [DataMember(index) for index in range(members)]
    for number in range(1, 6 if members == 3 else 9):
        for rows in product(permutations(range(members)), repeat=min(number, 4)):
            check_even(tuple(rows) + (tuple(range(members)),) * (number - len(rows)), *everyone)


@given(st.data())
def test_any_owners_are_evened_out(data: st.DataObject) -> None:
    number = data.draw(st.integers(2, 5))
    weights = data.draw(st.lists(st.integers(1, 4), min_size=number, max_size=number))
    members = [DataMember(index, weight) for index, weight in enumerate(weights)]
    rows = data.draw(st.lists(st.permutations(range(number)).map(tuple), min_size=1, max_size=40))
    check_even(tuple(rows), *members)


def test_few_rows_change_and_no_more_than_needed() -> None:
    rows = ((0, 1, 2),) * 6 + ((1, 0, 2),) * 2 + ((2, 1, 0),)
    made = planned(rows, *(DataMember(index) for index in range(3)))
    assert Counter(row[0] for row in made.targets) == {0: 3, 1: 3, 2: 3}
    assert len(made.migrations) == 3


def test_a_chain_of_swaps_reaches_a_member_that_shares_no_row() -> None:
    """What 0 owns too much reaches 2 over 1."""
    rows = ((0, 1),) * 4 + ((1, 2),) * 2
    made = planned(rows, *(DataMember(index) for index in range(3)))
    assert Counter(row[0] for row in made.targets) == {0: 2, 1: 2, 2: 2}
    owners = [each for each in made.migrations if each.type is Type.SWAP]
    assert owners


def test_a_member_that_is_demoted_gets_nothing_to_own() -> None:
    rows = ((0, 1, 2),) * 4 + ((1, 2, 0),) * 4
    members = (DataMember(0), DataMember(1), DataMember(2, demoted=True))
    made = planned(rows, *members)
    assert Counter(row[0] for row in made.targets) == {0: 4, 1: 4}
    made = planned(((0, 1, 2),) * 8, *members)
    assert Counter(row[0] for row in made.targets) == {0: 4, 1: 4}


def test_what_a_demoted_member_owns_is_left_to_its_hand_over() -> None:
    rows = ((2, 1, 0),) * 4
    members = (DataMember(0), DataMember(1), DataMember(2, demoted=True))
    assert planned(rows, *members).targets == rows


def test_a_member_that_joins_while_it_is_demoted_holds_backups_only() -> None:
    rows = ((0, 1), (1, 0)) * 6
    made = plan(table(*rows), [DataMember(0), DataMember(1), DataMember(2, demoted=True)], 2)
    held = Counter(member for row in made.targets for member in row)
    assert (held[2], Counter(row[0] for row in made.targets)[2]) == (8, 0)


def test_nothing_is_evened_out_while_a_member_is_expected_back() -> None:
    rows = ((0, 1, 2),) * 6
    assert not planned(rows, DataMember(0), DataMember(1), DataMember(2, away=True)).migrations


# -- hand-over


def everyone(number: int, **changes: int) -> list[DataMember]:
    return [DataMember(i, **{name: True for name, at in changes.items() if at == i}) for i in range(number)]


def test_each_partition_goes_to_the_backup_that_owns_least() -> None:
    rows = [(0, 1, 2)] * 5 + [(1, 0, 2)] * 3
    made = handover(table(*rows), 0, everyone(3))
    assert Counter(row[0] for row in made.targets) == {1: 4, 2: 4}
    assert [each.type for each in made.migrations] == [Type.SWAP] * 5
    assert (made.copies, made.refusals) == (0, ())


def test_weights_count() -> None:
    rows = [(0, 1, 2)] * 9
    members = [DataMember(0), DataMember(1, weight=2), DataMember(2)]
    assert Counter(row[0] for row in handover(table(*rows), 0, members).targets) == {1: 6, 2: 3}


def test_what_has_fewer_choices_goes_first() -> None:
    rows = [(0, 1, 2), (0, 1, 2), (0, 1), (0, 1)]
    assert Counter(row[0] for row in handover(table(*rows), 0, everyone(3)).targets) == {1: 2, 2: 2}


@pytest.mark.parametrize("state", ["away", "demoted"])
def test_members_that_cannot_own_take_nothing(state: str) -> None:
    made = handover(table((0, 1), (0, 2), (0,)), 0, everyone(3, **{state: 1}))
    assert made.targets == ((0, 1), (2, 0), (0,))
    assert [(each.partition, each.reason) for each in made.refusals] == [
        (0, Code.NO_BACKUP),
        (2, Code.NO_BACKUP),
    ]
    assert "single replica" in made.refusals[1].detail


def test_a_leaving_member_takes_what_no_other_can() -> None:
    made = handover(table((0, 1, 2), (0, 1)), 0, everyone(3, leaving=1))
    assert made.targets == ((2, 1, 0), (1, 0))


def test_all_go_to_one_member_if_that_is_wanted() -> None:
    made = handover(table((0, 1, 2), (0, 1), (1, 0)), 0, everyone(3), to=2)
    assert made.targets == ((2, 1, 0), (0, 1), (1, 0))
    (refusal,) = made.refusals
    assert (refusal.partition, refusal.reason) == (1, Code.NOT_A_HOLDER)
    assert refusal.detail == "demo-2 holds no replica of it"


def test_only_the_partitions_that_are_named_are_handed_over() -> None:
    made = handover(table((0, 1), (0, 1)), 0, everyone(2), partitions=[1])
    assert made.targets == ((0, 1), (1, 0))


def test_a_backup_takes_over_for_a_leaving_owner_when_no_other_member_may() -> None:
    members = [DataMember(0, leaving=True), DataMember(1, demoted=True), DataMember(2)]
    made = plan(table((0, 2)), members, 2)
    assert made.targets == ((2, 1),)
    assert [each.type for each in made.migrations] == [Type.SWAP, Type.MOVE]


def test_a_row_that_nobody_may_own_stays_as_it_is() -> None:
    members = [DataMember(0, leaving=True), DataMember(1, demoted=True), DataMember(2, leaving=True)]
    made = plan(table((0, 2)), [*members, DataMember(3)], 2, [Move(0, 2, 3)])
    assert (made.migrations, made.targets) == ((), ((0, 2),))
