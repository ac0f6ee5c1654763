"""Plans: what they cost, in which order they run, what they refuse."""

from random import Random

import pytest

from stele.core.placement import plan as plan_module
from stele.core.placement.assignment import Change, Outcome, assign_rows
from stele.core.placement.members import DataMember
from stele.core.placement.ordering import order
from stele.core.placement.plan import Code, Plan, Refusal, Type, plan, replay
from stele.core.placement.requested_moves import Move
from stele.core.table.ids import VERSION_MAX, VERSIONS_RESERVED
from stele.core.table.table import Member, Partition, PartitionTable, Replicas


def table(*rows: Replicas) -> PartitionTable:
    return PartitionTable(tuple(Partition(1 if row else 0, row) for row in rows), {})


def members(*indexes: int, leaving: int | None = None) -> list[DataMember]:
    return [DataMember(index, leaving=index == leaving) for index in indexes]


def replayed(rows: tuple[Replicas, ...], planned: Plan) -> tuple[Replicas, ...]:
    steps = planned.by_partition()
    return tuple(replay(row, steps.get(number, ())) for number, row in enumerate(rows))


def test_replaying_the_migrations_gives_the_targets() -> None:
    rows = assign_rows([()] * 100, members(*range(4)), 3).rows
    planned = plan(table(*rows), members(*range(5), leaving=2), 3)
    assert replayed(rows, planned) == planned.targets
    assert planned.copies == planned.lower_bound == sum(m.copies for m in planned.migrations)
    assert plan(table(*planned.targets), members(0, 1, 3, 4), 3) == Plan(targets=planned.targets)


def test_what_lacks_replicas_comes_first_then_what_is_hotter() -> None:
    rows: tuple[Replicas, ...] = ((3, 0), (0, 3), (1,), (2,), (1, 2), (0, 1))
    planned = plan(table(*rows), members(0, 1, 2, 3, leaving=3), 2)
    kinds = [(m.type, m.destination_new_index) for m in planned.migrations]
    fills = [kind for kind in kinds if kind[0] in (Type.COPY, Type.SHIFT_DOWN)]
    assert kinds[: len(fills)] == fills
    moved = [index for kind, index in kinds if kind is Type.MOVE]
    assert moved == sorted(moved)
    assert len(fills) == 2


def test_the_partition_with_the_fewest_replicas_goes_before_the_others() -> None:
    planned = plan(table((0, 1), (0,), (1, 2)), members(0, 1, 2), 3)
    assert planned.migrations[0].partition == 1
    assert planned.migrations[0].adds


def test_rows_that_nobody_holds_get_no_migration_and_say_why() -> None:
    never = PartitionTable((Partition(0, ()), Partition(3, (9,)), Partition(2, (0, 1))), {})
    planned = plan(never, members(0, 1), 2)
    assert [(refusal.partition, refusal.reason) for refusal in planned.refusals] == [
        (0, "UNASSIGNED"),
        (1, "NO_REPLICA"),
    ]
    assert planned.migrations == ()
    assert planned.targets == ((), (), (0, 1))


def test_a_first_assignment_is_shown_as_copies_from_nobody() -> None:
    never = PartitionTable((Partition(0, ()), Partition(3, (9,)), Partition(2, (0, 1))), {})
    planned = plan(never, members(0, 1), 2, first=True)
    assert [(refusal.partition, refusal.reason) for refusal in planned.refusals] == [(1, "NO_REPLICA")]
    assert planned.targets == ((1, 0), (), (0, 1))
    assert [(m.partition, m.type, m.source, m.destination) for m in planned.migrations] == [
        (0, Type.COPY, None, 1),
        (0, Type.COPY, None, 0),
    ]


def test_members_that_are_gone_count_as_empty_indexes() -> None:
    planned = plan(table((0, 9), (1, 9)), members(0, 1), 2)
    assert planned.targets == ((0, 1), (1, 0))
    assert {m.type for m in planned.migrations} == {Type.COPY}


def test_too_few_members_are_told_once() -> None:
    planned = plan(table((0,), (0,)), members(0), 2)
    assert [(refusal.partition, refusal.reason) for refusal in planned.refusals] == [(-1, "TOO_FEW_MEMBERS")]


def test_refused_moves_name_the_partition_of_the_table() -> None:
    planned = plan(table((), (0, 1), (1, 0)), members(0, 1), 2, [Move(2, 1, 0), Move(0, 1, 0), Move(1, 0, 7)])
    refused = sorted(refusal.partition for refusal in planned.refusals if refusal.reason == "NOT_ALLOWED")
    assert refused == [0, 1, 2]


def test_a_granted_move_is_planned_on_its_own_partition() -> None:
    rows: tuple[Replicas, ...] = ((), (0, 1), (1, 2), (2, 0))
    planned = plan(table(*rows), members(0, 1, 2), 2, [Move(2, 2, 0)])
    assert planned.targets[2] == (1, 0)


def test_migrations_are_told_in_words() -> None:
    planned = plan(table((0, 1, 3), (0, 1)), members(0, 1, 2, leaving=3), 2)
    assert all(str(m).startswith(m.type.value) for m in planned.migrations)


def test_whatever_is_aimed_at_each_partition_keeps_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for targets that the assignment does not make today, such as chains of MOVEs."""
    random = Random(7)
    current = tuple(tuple(random.sample(range(9), random.randint(1, 5))) for _ in range(500))
    desired = tuple(tuple(random.sample(range(9), random.randint(1, 5))) for _ in range(500))
    changes = tuple(Change(*pair, [number]) for number, pair in enumerate(zip(current, desired, strict=True)))
    monkeypatch.setattr(plan_module, "assign_parts", lambda *_: Outcome(changes))
    planned = plan(table(*current), members(*range(9)), 5)
    assert replayed(current, planned) == planned.targets
    steps = planned.by_partition()
    for number, (row, target) in enumerate(zip(current, desired, strict=True)):
        assert tuple(steps.get(number, ())) == order(number, row, target), (row, target)


def test_moves_to_lite_members_say_so() -> None:
    lite = {7: Member(7, "orders-7", "u-7", "", lite=True)}
    rows = tuple(Partition(1, row) for row in ((0, 1), (1, 0)))
    planned = plan(PartitionTable(rows, lite), members(0, 1), 2, [Move(0, 0, 7), Move(1, 0, 9)])
    assert [(refusal.partition, refusal.reason) for refusal in planned.refusals] == [
        (0, Code.MEMBER_LITE),
        (1, Code.NOT_ALLOWED),
    ]
    assert planned.refusals[0].detail == "orders-7 is a lite member and holds no data"


def test_the_last_versions_of_a_partition_are_kept_for_its_rescue() -> None:
    exhausted = VERSION_MAX - VERSIONS_RESERVED
    for version, planned_for in ((exhausted, {0, 1}), (exhausted + 1, {1})):
        rows = (Partition(version, (0, 1)), Partition(1, (1, 0)))
        made = plan(PartitionTable(rows, {}), members(1, 2, 0, leaving=0), 2)
        assert {migration.partition for migration in made.migrations} == planned_for
        refused = [refusal for refusal in made.refusals if refusal.reason is Code.VERSION_LIMIT]
        assert [refusal.partition for refusal in refused] == sorted({0, 1} - planned_for)
    assert made.targets[0] == (0, 1), "it stays as it is"


def test_refusal_codes_are_plain_text_for_those_who_show_them() -> None:
    assert f"{Refusal(0, Code.CYCLE, '').reason}" == Code.CYCLE == "CYCLE"
    assert {code.name for code in Code} == set(Code)
