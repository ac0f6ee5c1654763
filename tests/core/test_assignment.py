"""Target rows: balance, copies against the lower bound, zones, weights, and what is refused."""

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from stele.core.assignment import DataMember, Move, assign, assign_rows
from stele.core.errors import BadInput
from stele.core.shares import fair_shares
from stele.core.table import Partition, PartitionTable, Replicas, row_fault, trimmed

GRID = [(3, 271, 2), (3, 1000, 2), (4, 271, 3), (10, 271, 2), (10, 5000, 2), (10, 1000, 3), (20, 5000, 3)]


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
        for index, (down, up) in fair_shares(total, len(rows), weights).items():
            assert down - (down == up) <= counts[index] <= up + (down == up), (index, counts)
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
        assert max(pairs.values()) <= 1.25 * even + 2, (
            "the loss of one member must not fall on another one alone"
        )


@pytest.mark.parametrize(("members", "partitions", "replicas"), GRID)
def test_join_leave_and_crash_copy_no_more_than_the_lower_bound(
    members: int, partitions: int, replicas: int
) -> None:
    before = first(partitions, data(range(members)), replicas)
    everyone = data(range(members + 1))
    joined = assign_rows(before, everyone, replicas)
    check_balanced(joined.rows, everyone, replicas)
    assert new_replicas(before, joined.rows) == joined.lower_bound == partitions * replicas // (members + 1)

    leaving = data(range(members + 1), leaving=[1])
    left = assign_rows(joined.rows, leaving, replicas)
    check_balanced(left.rows, leaving, replicas)
    on_it = sum(1 in row for row in joined.rows)
    assert new_replicas(joined.rows, left.rows) == left.lower_bound == on_it

    survivors = [member for member in everyone if member.index != 1]
    repaired = crashed(joined.rows, 1)
    healed = assign_rows(repaired, survivors, replicas)
    check_balanced(healed.rows, survivors, replicas)
    assert new_replicas(repaired, healed.rows) == healed.lower_bound == on_it


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


def test_raising_the_number_of_replicas_keeps_what_is_there() -> None:
    before = first(300, data(range(5)), 2)
    after = assign_rows(before, data(range(5)), 3)
    check_balanced(after.rows, data(range(5)), 3)
    assert new_replicas(before, after.rows) == after.lower_bound == 300


def test_a_users_move_is_granted_and_the_rest_makes_up_for_it() -> None:
    before = first(60, data(range(4)), 2)
    partition = next(number for number, row in enumerate(before) if row == (0, 1))
    after = assign_rows(before, data(range(4)), 2, [Move(partition, 1, 3)])
    check_balanced(after.rows, data(range(4)), 2)
    assert after.rows[partition] == (0, 3)
    assert after.refused == ()


@pytest.mark.parametrize(
    ("move", "reason"),
    [
        (Move(9, 0, 2), "there is no partition 9"),
        (Move(0, 0, 1), "member 1 holds a replica"),
        (Move(0, 0, 7), "member 7 is not there"),
        (Move(0, 2, 3), "member 2 holds no replica"),
        (Move(0, 0, 4), "member 4 is not there"),
    ],
)
def test_moves_that_break_a_rule_are_refused(move: Move, reason: str) -> None:
    assignment = assign_rows([(0, 1), (2, 3)], data(range(5), leaving=[4]), 2, [move])
    assert len(assignment.refused) == 1
    assert reason in assignment.refused[0][1]
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
