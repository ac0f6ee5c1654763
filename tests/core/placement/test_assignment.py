"""Target rows: balance, copies against the lower bound, zones, weights, and what is refused."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import pytest

from stele.core.placement import shares
from stele.core.placement.assignment import Assignment, assign, assign_rows
from stele.core.placement.balancer import IndexBalancer
from stele.core.placement.draft import Slot
from stele.core.placement.members import DataMember
from stele.core.placement.plan import plan
from stele.core.placement.quotas import quota_bounds
from stele.core.placement.requested_moves import Move
from stele.core.table.table import Partition, PartitionTable, Replicas, row_fault, trimmed
from stele.errors import BadInput

GRID = [*product((3, 10, 20), (271, 5_000), (2, 3)), (3, 1_000, 2), (10, 20_000, 2), (4, 1_000, 3)]


def data(indexes: Iterable[int], leaving: Iterable[int] = ()) -> list[DataMember]:
    gone = set(leaving)
    return [DataMember(index, leaving=index in gone) for index in indexes]


def first(partitions: int, members: Sequence[DataMember], replicas: int) -> list[Replicas]:
    return list(assign_rows([()] * partitions, members, replicas).rows)


def crashed(rows: Sequence[Replicas], lost: int) -> list[Replicas]:
    """The rows as a repair leaves them: the hottest backup promoted, a gap where it was."""
    repaired = []
    for row in rows:
        slots = [None if member == lost else member for member in row]
        if slots[0] is None:
            successor = next(index for index, member in enumerate(slots) if member is not None)
            slots[0], slots[successor] = slots[successor], None
        repaired.append(trimmed(slots))
    return repaired


def new_replicas(before: Sequence[Replicas], after: Sequence[Replicas]) -> int:
    return sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))


def check_balanced(rows: Sequence[Replicas], members: Sequence[DataMember], replicas: int) -> None:
    weights = {member.index: member.weight for member in members if not member.leaving}
    owned = Counter(row[0] for row in rows)
    held = Counter(member for row in rows for member in row)
    for counts, total in ((owned, len(rows)), (held, len(rows) * replicas)):
        for index, (down, up) in quota_bounds(total, len(rows), weights).items():
            assert down <= counts[index] <= up, (index, counts)
    assert all(len(row) == replicas and row_fault(row) is None and None not in row for row in rows)
    assert held.keys() <= weights.keys()


def check_apart(rows: Sequence[Replicas], members: Sequence[DataMember], replicas: int) -> None:
    zone = {member.index: member.zone for member in members}
    spread = min(replicas, len(set(zone.values())))
    assert all(len({zone[member] for member in row if member is not None}) == spread for row in rows)


@pytest.mark.parametrize(("members", "partitions", "replicas"), GRID)
def test_first_assignment_is_balanced_and_its_pairs_are_mixed(
    members: int, partitions: int, replicas: int
) -> None:
    rows = first(partitions, data(range(members)), replicas)
    check_balanced(rows, data(range(members)), replicas)
    for index in range(1, replicas):
        pairs = Counter((row[0], row[index]) for row in rows)
        even = partitions / (members * (members - 1))
        assert max(pairs.values()) <= 1.25 * even + 3, (
            "the loss of one member must not fall on another one alone"
        )


def test_replicas_that_stay_keep_their_index_when_a_member_leaves() -> None:
    before = first(271, data(range(5)), 3)
    after = assign_rows(before, data(range(5), leaving=[2]), 3).rows
    for old, new in zip(before, after, strict=True):
        assert [n for o, n in zip(old, new, strict=True) if o != 2] == [o for o in old if o != 2]


def test_the_same_input_gives_the_same_rows_whatever_the_order_of_members() -> None:
    before = first(500, data(range(7)), 3)
    members = data(range(9), leaving=[4])
    assert assign_rows(before, members, 3) == assign_rows(before, members[::-1], 3)


def test_a_balanced_table_is_left_alone() -> None:
    rows = first(271, data(range(4)), 2)
    assert assign_rows(rows, data(range(4)), 2).rows == tuple(rows)


def test_weights_divide_owners_and_replicas() -> None:
    members = [
        DataMember(0, weight=1),
        DataMember(1, weight=2),
        DataMember(2, weight=3),
        DataMember(3, weight=2),
    ]
    rows = first(800, members, 2)
    check_balanced(rows, members, 2)
    assert Counter(row[0] for row in rows) == {0: 100, 1: 200, 2: 300, 3: 200}


def test_a_member_with_too_great_a_weight_holds_each_partition_once() -> None:
    members = [DataMember(0, weight=1_000), DataMember(1), DataMember(2)]
    rows = first(100, members, 2)
    check_balanced(rows, members, 2)
    assert all(0 in row for row in rows)


@pytest.mark.parametrize("zones", ["aabbcc", "aaabbb", "aaabbbccc"])
@pytest.mark.parametrize("replicas", [2, 3])
def test_zones_are_kept_apart_and_members_balanced(zones: str, replicas: int) -> None:
    members = [DataMember(index, zone=zone) for index, zone in enumerate(zones)]
    assignment = assign_rows([()] * 600, members, replicas)
    check_balanced(assignment.rows, members, replicas)
    check_apart(assignment.rows, members, replicas)
    assert assignment.crowded == ()


@pytest.mark.parametrize("zones", ["aaaabc", "aab", "aaabbbbbc"])
def test_members_of_a_small_zone_hold_more_rather_than_two_replicas_share_a_zone(zones: str) -> None:
    members = [DataMember(index, zone=zone) for index, zone in enumerate(zones)]
    rows = assign_rows([()] * 600, members, 2).rows
    check_apart(rows, members, 2)
    held, owned = Counter(m for row in rows for m in row), Counter(row[0] for row in rows)
    assert max(owned.values()) - min(owned.values()) <= 1
    for zone in set(zones):
        alike = [held[index] for index, name in enumerate(zones) if name == zone]
        assert max(alike) - min(alike) <= 1


def test_inside_a_zone_replicas_are_spread_over_the_next_key() -> None:
    places = [
        ("a", "r1"),
        ("a", "r1"),
        ("a", "r2"),
        ("a", "r2"),
        ("b", "r1"),
        ("b", "r1"),
        ("b", "r2"),
        ("b", "r2"),
    ]
    members = [DataMember(index, zone=place) for index, place in enumerate(places)]
    rows = assign_rows([()] * 400, members, 4).rows
    check_balanced(rows, members, 4)
    assert all({places[member or 0] for member in row} == set(places) for row in rows)
    left = [DataMember(index, zone=place, leaving=index == 5) for index, place in enumerate(places)]
    after = assign_rows(rows, left, 4).rows
    assert all({places[member or 0] for member in row} == set(places) for row in after)
    assert all({places[member or 0][0] for member in row[:2]} for row in after)


def test_zones_are_still_apart_after_join_and_leave() -> None:
    members = [DataMember(index, zone="abc"[index % 3]) for index in range(6)]
    before = assign_rows([()] * 600, members, 2).rows
    joined = [*members, DataMember(6, zone="a"), DataMember(7, zone="b"), DataMember(8, zone="c")]
    after = assign_rows(before, joined, 2)
    check_balanced(after.rows, joined, 2)
    assert after.crowded == ()
    assert new_replicas(before, after.rows) == after.lower_bound


def test_zones_that_are_new_are_honoured_by_exchanging_replicas() -> None:
    before = first(300, data(range(6)), 2)
    members = [DataMember(index, zone="ab"[index // 3]) for index in range(6)]
    after = assign_rows(before, members, 2)
    check_balanced(after.rows, members, 2)
    assert after.crowded == ()


def test_members_without_a_zone_are_a_domain_each() -> None:
    """Rows of two of them are as good as any; members that share a zone are still kept apart."""
    rows: list[Replicas] = [(0, 1), (1, 2), (2, 0)]
    alone = [DataMember(0, zone="a"), DataMember(1), DataMember(2)]
    assert assign_rows(rows, alone, 2) == Assignment(tuple(rows), 0)
    found = assign_rows([*rows, (0, 3), (2, 3)], [*alone, DataMember(3, zone="a")], 2)
    assert not found.crowded
    assert all(not {0, 3}.issubset(row) for row in found.rows)


def test_fewer_members_than_replicas_fill_what_they_can() -> None:
    assert set(first(10, data(range(2)), 3)) <= {(0, 1), (1, 0)}
    assert first(2, data([5]), 3) == [(5,), (5,)]
    assert assign_rows([(0, 1)], [], 2).rows == ((0, 1),)


def test_a_leaving_member_stays_while_nobody_can_take_its_place() -> None:
    rows = assign_rows([(0, 1), (1, 0), (2, 1)], data(range(3), leaving=[1, 2]), 2).rows
    assert rows == ((0, 1), (1, 0), (0, 1))


def test_lowering_the_number_of_replicas_copies_nothing() -> None:
    before = first(300, data(range(5)), 3)
    after = assign_rows(before, data(range(5)), 2)
    assert all(set(new) <= set(old) for old, new in zip(before, after.rows, strict=True))
    assert {len(row) for row in after.rows} == {2}


@pytest.mark.parametrize("row", [(0, 5, 6, 2), (0, 4, 3, 2, 1)])
def test_a_backup_that_stays_becomes_no_owner_of_a_row_that_shrinks(row: Replicas) -> None:
    """It would have to leave the row before it can, and be copied back."""
    found = plan(PartitionTable((Partition(1, row),), {}), data(range(7), leaving=[0]), 2)
    assert found.copies == 0
    assert found.targets[0][0] in row[2:]
    assert found.targets[0][1] in row[1:]


def test_a_backup_that_is_given_up_takes_no_index_that_the_owner_would_step_down_from() -> None:
    """Nobody new comes to such a row, so its owner cannot go to a colder index."""
    members = [DataMember(index, weight=100 if index == 8 else 1) for index in range(12)]
    rows: list[Replicas] = [(11, None, 8, 10), *[(8, index) for index in range(4)]]
    found = plan(PartitionTable(tuple(Partition(1, row) for row in rows), {}), members, 2)
    assert found.targets[0][0] == 11
    assert not found.refusals


@pytest.mark.parametrize(
    ("replicas", "sources", "row", "refused"),
    [(2, [1, 2], (0, 3), 0), (3, [1, 2], (0, 2, 3), 1), (2, [2, 1, 0], (0, 3), 1)],
)
def test_several_replicas_of_one_partition_may_be_given_up(
    replicas: int, sources: list[int], row: Replicas, refused: int
) -> None:
    """Such as by two plans of users, when the number of replicas was lowered: as many go as may."""
    table = PartitionTable((Partition(1, (0, 1, 2, 3)),), {})
    found = plan(table, data(range(4)), replicas, [Move(0, source, None) for source in sources])
    assert sorted(found.targets[0]) == sorted(row)
    assert len(found.refusals) == refused


def test_raising_the_number_of_replicas_keeps_what_is_there() -> None:
    before = first(300, data(range(5)), 2)
    after = assign_rows(before, data(range(5)), 3)
    check_balanced(after.rows, data(range(5)), 3)
    assert new_replicas(before, after.rows) == after.lower_bound == 300


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("partitions", [271, 5_000])
def test_each_plan_of_a_chain_copies_no_more_than_its_lower_bound(partitions: int, replicas: int) -> None:
    members = data(range(7))
    rows = first(partitions, members, replicas)
    events = ["join", "crash", "leave", "join", "join", "leave", "leave", "crash", "join", "join"]
    for index, event in enumerate(events, 7):
        gone = members[index % len(members)].index
        if event == "join":
            members = [*members, DataMember(index), DataMember(index + 100)]
        elif event == "crash":
            members = [member for member in members if member.index != gone]
            rows = crashed(rows, gone)
        else:
            members = [DataMember(member.index, leaving=member.index == gone) for member in members]
        after = assign_rows(rows, members, replicas)
        check_balanced(after.rows, members, replicas)
        assert new_replicas(rows, after.rows) == after.lower_bound > 0
        rows, members = list(after.rows), [member for member in members if not member.leaving]


def test_the_loss_of_one_of_many_members_copies_what_it_held() -> None:
    before = first(20_000, data(range(400)), 2)
    lost = sum(7 in row for row in before)
    repaired = crashed(before, 7)
    survivors = data(index for index in range(400) if index != 7)
    after = assign_rows(repaired, survivors, 2)
    check_balanced(after.rows, survivors, 2)
    assert new_replicas(repaired, after.rows) == after.lower_bound == lost


def test_rows_do_not_depend_on_the_seed_of_hashes() -> None:
    script = (
        "from stele.core.placement.assignment import assign_rows\n"
        "from stele.core.placement.members import DataMember\n"
        "members = [DataMember(i, zone='abc'[i % 3], leaving=i == 4) for i in range(8)]\n"
        "rows = assign_rows([()] * 200, members[:6], 3).rows\n"
        "print(assign_rows(rows, members, 2))\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(printed) == 1


def test_the_place_of_a_member_that_is_away_is_kept() -> None:
    before = first(300, data(range(5)), 2)
    repaired = crashed(before, 3)
    members = [DataMember(index, away=index == 3) for index in range(5)]
    away = assign_rows(repaired, members, 2)
    assert list(away.rows) == repaired, "nobody else gets its replicas, nobody moves"
    back = assign_rows(repaired, data(range(5)), 2)
    check_balanced(back.rows, data(range(5)), 2)
    assert all(set(new) - set(old) <= {3} for old, new in zip(repaired, back.rows, strict=True))
    assert new_replicas(repaired, back.rows) == sum(3 in row for row in before)


def test_members_join_and_leave_around_one_that_is_away() -> None:
    before = first(600, data(range(6)), 3)
    repaired = crashed(before, 0)
    still_named = [
        row if number % 2 else old for number, (row, old) in enumerate(zip(repaired, before, strict=True))
    ]
    members = [DataMember(index, away=index == 0, leaving=index == 5) for index in range(8)]
    after = assign_rows(still_named, members, 3)
    for old, new in zip(still_named, after.rows, strict=True):
        assert (0 in old) == (0 in new)
        assert 0 not in old or old.index(0) == new.index(0)
        assert 5 not in new
    held = Counter(member for row in after.rows for member in row)
    assert max(held[index] for index in (1, 2, 3, 4, 6, 7)) <= 600 * 3 / 7 + 1


def test_a_users_move_is_granted_and_the_rest_makes_up_for_it() -> None:
    before = first(60, data(range(4)), 2)
    partition = next(number for number, row in enumerate(before) if row == (0, 1))
    after = assign_rows(before, data(range(4)), 2, [Move(partition, 1, 3)])
    check_balanced(after.rows, data(range(4)), 2)
    assert after.rows[partition] == (0, 3)
    assert after.refused == ()


def test_moves_that_keep_replicas_where_they_are_do_not_raise_the_lower_bound() -> None:
    rows = first(16, data(range(3)), 2)
    stays = [Move(partition, row[0], row[0]) for partition, row in enumerate(rows)]
    assert assign_rows(rows, data(range(3)), 2, stays).lower_bound == 0


def test_a_move_disturbs_no_more_than_it_has_to() -> None:
    before = first(271, data(range(5)), 2)
    partition = next(number for number, row in enumerate(before) if row[0] == 0 and 4 not in row)
    after = assign_rows(before, data(range(5)), 2, [Move(partition, 0, 4)]).rows
    check_balanced(after, data(range(5)), 2)
    assert after[partition][0] == 4
    assert sum(new != old for old, new in zip(before, after, strict=True)) <= 3


def test_a_move_says_who_takes_the_place_of_a_leaving_member() -> None:
    after = assign_rows([(0, 1), (1, 2), (2, 0)], data(range(5), leaving=[1]), 2, [Move(0, 1, 4)])
    assert after.rows[0] == (0, 4)
    assert after.refused == ()


def test_a_move_into_the_zone_of_another_replica_is_refused() -> None:
    members = [DataMember(index, zone="aabb"[index]) for index in range(4)]
    rows = assign_rows([()] * 8, members, 2).rows
    number = next(number for number, row in enumerate(rows) if row[0] == 0)
    other = rows[number][1] or 0
    after = assign_rows(rows, members, 2, [Move(number, other, 1)])
    assert [fault.message({}) for _, fault in after.refused] == [
        "member 1 is in the zone of another replica of it, and another zone has room"
    ]


def test_moves_from_a_member_that_is_away_are_refused() -> None:
    members = [DataMember(index, away=index == 1) for index in range(4)]
    after = assign_rows([(0, 1), (2, 3)], members, 2, [Move(0, 1, 2), Move(1, 3, 1)])
    assert ["is away" in fault.text or "not available" in fault.text for _, fault in after.refused] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("move", "reason"),
    [
        (Move(9, 0, 2), "there is no partition 9"),
        (Move(0, 0, 1), "member 1 holds a replica"),
        (Move(0, 0, 7), "member 7 is not available"),
        (Move(0, 2, 3), "member 2 holds no replica"),
        (Move(0, 0, 4), "member 4 is not available"),
    ],
)
def test_moves_that_break_a_rule_are_refused(move: Move, reason: str) -> None:
    assignment = assign_rows([(0, 1), (2, 3)], data(range(5), leaving=[4]), 2, [move])
    assert len(assignment.refused) == 1
    assert reason in assignment.refused[0][1].message({})
    assert assignment.rows == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("members", "replicas", "reason"),
    [
        (data([0, 1]), 0, "replicas is 0"),
        (data([0, 1]), 8, "replicas is 8"),
        (data([0, 0]), 2, "same index"),
        ([DataMember(0, weight=0)], 1, "weight 0"),
        (data(range(1001)), 1, "1001 members"),
    ],
)
def test_impossible_arguments_are_refused(members: list[DataMember], replicas: int, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        assign_rows([()], members, replicas)


def test_assign_takes_a_table() -> None:
    table = PartitionTable((Partition(0, ()), Partition(4, (1, 0))), {})
    assert assign(table, data(range(2)), 2) == ((0, 1), (1, 0))


@pytest.mark.plain
def test_slots_that_cannot_help_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One member owns nearly all of many different rows: what has to be looked at grows with them alone."""
    looked = {}
    for number in (1_000, 3_000):
        seen = 0
        real = IndexBalancer.costs_nothing

        def counted(self: IndexBalancer, slot: Slot, free: bool, source: bool, real: Any = real) -> bool:
            nonlocal seen
            seen += 1
            return bool(real(self, slot, free, source))

        with monkeypatch.context() as patch:
            patch.setattr(IndexBalancer, "costs_nothing", counted)
            patch.setattr(shares, "even_owners", lambda *_: None)
            chance = random.Random(1)
            rows = [(0, *chance.sample(range(1, 30), 6)) for _ in range(number)]
            assert len(set(rows)) == number
            assign_rows(rows, data(range(30)), 7)
        looked[number] = seen
    assert looked[3_000] < 3 * looked[1_000]
