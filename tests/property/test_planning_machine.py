"""Any history of one table: members join, drain, crash and return, the number of replicas changes, migrations
succeed in any order or fail, plans are made anew at any time.

After every step: no partition has fewer replicas than min(before, wanted), versions have only grown, the
stamp that was kept is the stamp of all versions, every row keeps the rules of a table. Whenever failures
stop, what is left is planned and done in few rounds; then the table is balanced and the plan is empty.
"""

from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stele.core.placement.assignment import assign_rows
from stele.core.placement.members import DataMember
from stele.core.placement.migration import Migration, Type, clear, copy, step
from stele.core.placement.plan import Plan, plan
from stele.core.placement.quotas import quota_bounds
from stele.core.table.table import (
    Member,
    Partition,
    PartitionTable,
    Replicas,
    Stamp,
    check_changes,
    check_invariants,
    stamp_of,
    trimmed,
    version_sum,
)
from stele.errors import Corrupt

ROUNDS = 4
MEMBERS_MAX = 8
CHOICE = st.integers(0, 1_000)


def count(row: Replicas) -> int:
    return sum(member is not None for member in row)


class Planning(RuleBasedStateMachine):
    """What a master does with one table, without members behind it."""

    @initialize(partitions=st.integers(1, 24), members=st.integers(1, 5), replicas=st.integers(1, 3))
    def form(self, partitions: int, members: int, replicas: int) -> None:
        self.replicas = replicas
        self.members = {index: DataMember(index) for index in range(members)}
        self.crashed: dict[int, DataMember] = {}
        self.next_index = members
        self.queues: dict[int, deque[Migration]] = {}
        self.table = PartitionTable((Partition(0, ()),) * partitions, {})
        self.stamp = Stamp([0] * partitions)
        self.floor = [0] * partitions
        self.versions = [0] * partitions
        self.sum = 0
        rows = assign_rows([()] * partitions, list(self.members.values()), replicas).rows
        for number, row in enumerate(rows):
            self.change(number, Partition(1, row))

    # -- what a broken master is made of: the tests below replace these one by one

    def planned(self) -> Plan:
        return plan(self.table, list(self.members.values()), self.replicas)

    def note_version(self, number: int, version: int) -> None:
        self.stamp.set(number, version)

    def after_failure(self, version: int) -> int:
        return version + 2

    # -- changes

    def dictionary(self) -> dict[int, Member]:
        return {index: Member(index, f"m-{index}", f"u-{index}", "") for index in range(self.next_index)}

    def change(self, number: int, row: Partition) -> None:
        check_changes(self.table, {number: row}, self.dictionary())
        rows = list(self.table.partitions)
        rows[number] = row
        self.table = PartitionTable(tuple(rows), self.dictionary())
        self.note_version(number, row.version)

    def row(self, number: int) -> Partition:
        return self.table.partitions[number]

    @rule()
    def plan_again(self) -> None:
        """Everything that waited is void; from here on a partition keeps what it has or what is wanted."""
        made = self.planned()
        self.queues = {number: deque(some) for number, some in made.by_partition().items()}
        for number, target in enumerate(made.targets):
            self.floor[number] = min(self.live(number), count(target))

    def live(self, number: int) -> int:
        return len(self.row(number).members & self.members.keys())

    @precondition(lambda self: self.queues)
    @rule(choice=CHOICE)
    def succeed(self, choice: int) -> None:
        number = sorted(self.queues)[choice % len(self.queues)]
        migration, row = self.queues[number].popleft(), self.row(number)
        if not self.queues[number]:
            del self.queues[number]
        if not migration.participants <= self.members.keys():
            self.queues.pop(number, None)
            return
        self.change(number, Partition(row.version + 1, step(row.replicas, migration)))

    @precondition(lambda self: self.queues)
    @rule(choice=CHOICE)
    def fail(self, choice: int) -> None:
        """The row stays, its version skips the one that somebody may have accepted, what followed is void."""
        number = sorted(self.queues)[choice % len(self.queues)]
        del self.queues[number]
        row = self.row(number)
        self.change(number, Partition(self.after_failure(row.version), row.replicas))

    @precondition(lambda self: len(self.members) + len(self.crashed) < MEMBERS_MAX)
    @rule()
    def join(self) -> None:
        self.members[self.next_index] = DataMember(self.next_index)
        self.next_index += 1

    @rule(choice=CHOICE)
    def drain(self, choice: int) -> None:
        index = sorted(self.members)[choice % len(self.members)]
        self.members[index] = replace(self.members[index], leaving=not self.members[index].leaving)

    @rule()
    def leave(self) -> None:
        """Members that are drained and hold nothing go."""
        held = {member for row in self.table.partitions for member in row.members}
        for index, member in list(self.members.items()):
            if member.leaving and index not in held and len(self.members) > 1:
                del self.members[index]

    @precondition(lambda self: len(self.members) > 1)
    @rule(choice=CHOICE)
    def crash(self, choice: int) -> None:
        """Its rows are repaired; those that nobody else is in wait for it."""
        lost = sorted(self.members)[choice % len(self.members)]
        self.crashed[lost] = self.members.pop(lost)
        for number, row in enumerate(self.table.partitions):
            if lost not in row.members:
                continue
            self.queues.pop(number, None)
            self.floor[number] = max(0, self.floor[number] - 1)
            if row.members & self.members.keys():
                self.change(number, self.repaired(row))

    def repaired(self, row: Partition) -> Partition:
        """Without members that are gone; when the owner is, the hottest backup takes its place."""
        slots = [member if member in self.members else None for member in row.replicas]
        if slots[0] is None:
            hottest = next(index for index, member in enumerate(slots) if member is not None)
            slots[0], slots[hottest] = slots[hottest], None
        return Partition(row.version + 2, trimmed(slots))

    @precondition(lambda self: self.crashed)
    @rule(choice=CHOICE)
    def come_back(self, choice: int) -> None:
        index = sorted(self.crashed)[choice % len(self.crashed)]
        self.members[index] = self.crashed.pop(index)
        for number, row in enumerate(self.table.partitions):
            if index in row.members and not row.members <= self.members.keys():
                self.change(number, self.repaired(row))

    @rule(replicas=st.integers(1, 4))
    def ask_for_replicas(self, replicas: int) -> None:
        self.replicas = replicas

    @rule()
    def failures_stop(self) -> None:
        """Who is the last to hold something returns; then a few plans lead to the end."""
        while needed := [
            i for i in sorted(self.crashed) if any(i in row.members for row in self.table.partitions)
        ]:
            self.come_back(sorted(self.crashed).index(needed[0]))
        for _ in range(ROUNDS):
            self.plan_again()
            while self.queues:
                self.succeed(0)
                self.rules_hold()
        assert self.planned().migrations == (), "plans go on for ever"
        self.check_balanced()

    def check_balanced(self) -> None:
        """Replicas and owners are within one of the fair share."""
        staying = {index: 1 for index, member in self.members.items() if not member.leaving}
        if len(staying) < self.replicas:
            return
        found = [row.replicas for row in self.table.partitions]
        assert all(len(row) == self.replicas and None not in row for row in found), "replicas are missing"
        held = Counter(member for row in found for member in row)
        assert held.keys() <= staying.keys(), "a leaving member is left alone"
        check_shares(held, len(found) * self.replicas, len(found), staying)
        check_shares(Counter(row[0] for row in found), len(found), len(found), staying)

    # -- what holds at any time

    @invariant()
    def rules_hold(self) -> None:
        if not hasattr(self, "table"):
            return
        check_invariants(self.table)
        versions = [row.version for row in self.table.partitions]
        assert all(new >= old for old, new in zip(self.versions, versions, strict=True)), "versions only grow"
        assert version_sum(self.table) >= self.sum
        self.versions, self.sum = versions, version_sum(self.table)
        assert self.stamp.value == stamp_of(versions), "the stamp was not kept"
        for number, least in enumerate(self.floor):
            assert self.live(number) >= least, f"partition {number} has fewer replicas than before and wanted"

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.failures_stop()


def check_shares(held: Counter[int | None], number: int, cap: int, weights: dict[int, int]) -> None:
    for index, (down, up) in quota_bounds(number, cap, weights).items():
        assert down <= held[index] <= up, f"uneven: {held}"


Planning.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestPlanning = Planning.TestCase


class ClearsFirst(Planning):
    """Makes room before the new replica is there, as the old way of changing backups did."""

    def planned(self) -> Plan:
        made = super().planned()
        steps: list[Migration] = []
        for each in made.migrations:
            if each.type is Type.MOVE and each.source is not None and each.destination is not None:
                index = each.destination_new_index
                steps += [
                    clear(each.partition, index, each.source),
                    copy(each.partition, index, each.destination),
                ]
            else:
                steps.append(each)
        return replace(made, migrations=tuple(steps))


class ForgetsTheStamp(Planning):
    def note_version(self, number: int, version: int) -> None:
        if version != 2:
            super().note_version(number, version)


class KeepsTheVersion(Planning):
    def after_failure(self, version: int) -> int:
        return version


class DoesNothing(Planning):
    def planned(self) -> Plan:
        return Plan(targets=tuple(row.replicas for row in self.table.partitions))


class NeverEnds(Planning):
    """Plans for other weights each time."""

    calls = 0

    def planned(self) -> Plan:
        self.calls += 1
        members = [
            replace(each, weight=1 + self.calls % 2 * index)
            for index, each in enumerate(self.members.values())
        ]
        return plan(self.table, members, self.replicas)


def generated(examples: int, steps: int) -> settings:
    """The same examples in each run, none of them shrunk or kept."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        derandomize=True,
    )


@pytest.mark.parametrize(
    ("broken", "error", "reason"),
    [
        (ClearsFirst, AssertionError, "fewer replicas than before and wanted"),
        (ForgetsTheStamp, AssertionError, "the stamp was not kept"),
        (KeepsTheVersion, Corrupt, "versions only grow"),
        (DoesNothing, AssertionError, "uneven|missing|left alone"),
        (NeverEnds, AssertionError, "plans go on for ever|uneven"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_master_is_seen(broken: type[Planning], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        run_state_machine_as_test(broken, settings=generated(300, 30))
