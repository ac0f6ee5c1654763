"""A change of the cluster state: when it waits, who must agree, what undoes it."""

import itertools
from types import SimpleNamespace

import pytest

from stele.core.control.commands import Command, LockState, Result, UnlockState
from stele.core.control.operations.cluster_state import (
    LOCK_SECONDS,
    RETRY_SECONDS,
    TRANSITIONS,
    ChangeInput,
    StateChange,
    Step,
)
from stele.errors import Refused
from tests.master.harness import Harness


def change_input(
    desired: str = "Passive", now: float = 0.0, busy: int = 0, stamp: int = 7, **members: int
) -> ChangeInput:
    found = {int(name[1:]): process for name, process in members.items()} or {0: 1, 1: 1}
    return ChangeInput(desired, now, busy, stamp, 3, found)


def asked(change: StateChange, *members: int, code: str = "OK") -> None:
    for member, order in change.commands(0.0):
        if isinstance(order, LockState) and member in members:
            answer(change, member, order, Result(code, "why"))


def answer(change: StateChange, member: int, order: Command, result: Result) -> None:
    """The result, in a report of the member's first process."""
    change.on_report(member, "", SimpleNamespace(incarnation=1), 0.0)  # type: ignore[arg-type]
    change.on_result(member, order, result, 0.0)


def locking() -> StateChange:
    change = StateChange()
    change.drive(change_input(), "c1")
    assert change.step is Step.LOCKING
    return change


def test_all_members_agree_and_only_then_it_is_committed() -> None:
    change = locking()
    assert [member for member, _ in change.commands(0.0)] == [0, 1]
    asked(change, 0)
    change.drive(change_input(), "c2")
    assert (change.step, change.state) == (Step.LOCKING, "Active")
    asked(change, 1)
    change.drive(change_input(), "c3")
    assert (change.step, change.state) == (Step.COMMITTING, "Active")
    change.stored()
    assert (change.step, change.state) == (Step.STEADY, "Passive")
    assert sorted(change.commands(0.0)) == [(0, UnlockState("c1")), (1, UnlockState("c1"))]


def test_it_waits_for_migrations_under_way_and_says_so() -> None:
    change = StateChange()
    change.drive(change_input(busy=2), "c1")
    assert change.step is Step.WAITING
    assert "2 migrations are under way" in change.reason
    assert not change.commands(0.0)
    change.drive(change_input(), "c1")
    assert change.step is Step.LOCKING


def test_a_refusal_rolls_back_with_its_reason_and_is_tried_again() -> None:
    change = locking()
    asked(change, 0)
    asked(change, 1, code="MIGRATION_ACTIVE")
    change.drive(change_input(now=LOCK_SECONDS + 1), "c2")
    assert (change.step, change.state) == (Step.WAITING, "Active")
    assert change.reason == "member 1: MIGRATION_ACTIVE: why"
    assert {order for _, order in change.commands(0.0)} == {UnlockState("c1")}
    change.drive(change_input(now=LOCK_SECONDS + 1.5), "c2")
    assert change.step is Step.WAITING
    change.drive(change_input(now=LOCK_SECONDS + 1 + RETRY_SECONDS), "c3")
    assert (change.step, change.id) == (Step.LOCKING, "c3")


def test_a_silent_member_is_waited_for_and_a_lost_one_is_not() -> None:
    change = locking()
    asked(change, 0)
    change.drive(change_input(now=1.0), "c2")
    assert change.step is Step.LOCKING
    change.drive(change_input(now=2.0, m0=1), "c2")
    assert change.step is Step.COMMITTING


@pytest.mark.parametrize(
    "later", [change_input(m0=2, m1=1), change_input(stamp=8), change_input(m0=1, m1=1, m2=1)]
)
def test_an_agreement_counts_for_one_process_and_one_table(later: ChangeInput) -> None:
    change = locking()
    asked(change, 0, 1)
    change.drive(later, "c2")
    assert change.step is Step.LOCKING


@pytest.mark.parametrize("desired", ["Active", "Frozen"])
def test_another_desired_state_undoes_what_is_not_committed(desired: str) -> None:
    change = locking()
    asked(change, 0)
    change.drive(change_input(desired), "c2")
    assert change.state == "Active"
    assert change.step is (Step.STEADY if desired == "Active" else Step.LOCKING)
    assert {order for _, order in change.commands(0.0) if isinstance(order, UnlockState)} == {
        UnlockState("c1")
    }


def test_answers_to_an_earlier_lock_count_for_nothing() -> None:
    change = locking()
    (_, old), *_ = change.commands(0.0)
    change.drive(change_input("Frozen"), "c2")
    assert isinstance(old, LockState)
    answer(change, 0, old, Result())
    assert not change.agreed


def test_an_unlocking_is_repeated_until_it_is_answered_or_its_member_is_gone() -> None:
    change = locking()
    change.drive(change_input("Active"), "c2")
    answer(change, 0, UnlockState("c1"), Result())
    assert change.commands(0.0) == [(1, UnlockState("c1"))]
    change.forget(frozenset({1}))
    assert change.commands(0.0) == []


@pytest.mark.parametrize(
    ("start", "to"), [(a, b) for a, b in itertools.product(Step, Step) if b not in TRANSITIONS[a]]
)
def test_other_steps_are_refused(start: Step, to: Step) -> None:
    change = StateChange(step=start)
    with pytest.raises(Refused, match=f"{start.value} does not lead to {to.value}"):
        change.go(to)
    assert change.step is start


async def moving() -> Harness:
    harness = Harness(members=3, partitions=12, parallel_per_member=1)
    await harness.until_quiet()
    harness.change_spec(members=4)
    while not any(volume.learners for volume in harness.world.volumes.values()):
        await harness.tick()
    return harness


@pytest.mark.parametrize("state", ["NoMigration", "Frozen", "Passive"])
async def test_migrations_under_way_end_before_the_state_is_in_force_and_none_begins(state: str) -> None:
    harness = await moving()
    assert harness.loop.state is not None
    under_way = {running.id for running in harness.loop.state.migrations.values()}
    assert len(harness.loop.state.rebalance.queues)
    before = {id for volume in harness.world.volumes.values() for id in volume.events.begun}
    harness.change_spec(state=state)
    await harness.tick()
    assert harness.head().state == "Active"
    assert "under way" in harness.loop.state.change.reason
    await harness.until_quiet()
    assert harness.head().state == state
    assert {each.state for each in harness.world.volumes.values()} == {state}
    later = {id for volume in harness.world.volumes.values() for id in volume.events.begun}
    assert later <= before | under_way
    assert under_way <= later
    rows = harness.table().partitions
    harness.change_spec(members=5)
    await harness.until_quiet()
    assert harness.table().partitions == rows


async def test_a_member_that_refuses_leaves_the_cluster_as_it_was() -> None:
    harness = Harness(members=3, partitions=3)
    await harness.until_quiet()
    refusing = harness.world.volumes[1]
    refusing._LockState = lambda c: Result("MIGRATION_ACTIVE", "m9-9 is not over here")  # type: ignore[method-assign]
    harness.change_spec(state="Passive")
    for _ in range(7):
        await harness.tick(1.0)
    assert harness.head().state == "Active"
    told = [each.message for each in harness.world.events if each.reason == "ClusterStateRefused"]
    assert "m9-9 is not over here" in told[0]
    del refusing._LockState
    for _ in range(4):
        await harness.tick(1.0)
    await harness.until_quiet()
    assert harness.head().state == "Passive"


async def test_a_member_that_is_lost_is_told_when_it_returns() -> None:
    harness = Harness(members=3, partitions=3)
    await harness.until_quiet()
    harness.kill(2)
    harness.change_spec(state="Frozen")
    await harness.until_quiet()
    assert harness.head().state == "Frozen"
    harness.revive(2)
    await harness.until_quiet()
    assert harness.world.volumes[2].state == "Frozen"


@pytest.mark.parametrize(("state", "joins"), [("NoMigration", True), ("Frozen", False), ("Passive", False)])
async def test_who_may_join(state: str, joins: bool) -> None:
    harness = Harness(members=3, partitions=3)
    await harness.until_quiet()
    harness.change_spec(state=state)
    await harness.until_quiet()
    harness.world.members[3] = True
    harness.world.start_pod(3)
    harness.change_spec(members=4)
    await harness.until_quiet()
    assert (3 in harness.table().members) is joins
    refusals = [each for each in harness.world.events if each.reason == "JoinRefused"]
    assert len(refusals) == (0 if joins else 1)
    assert harness.loop.state is not None
    assert joins or state in harness.loop.state.liveness[3].problem
