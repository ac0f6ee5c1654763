"""Planning over random tables and long random histories: it converges, stays balanced and never drops a
replica.
"""

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from stele.core.assignment import DataMember, assign_rows
from stele.core.migration import replay, step
from stele.core.plan import Plan, plan
from stele.core.shares import fair_shares
from stele.core.table import Member, Partition, PartitionTable, Replicas, check_invariants, trimmed

SLOTS = 7
MEMBERS = {index: Member(index, f"m-{index}", f"uuid-{index}", "") for index in range(40)}
CONVERGED_AFTER_PLANS = 3


def rows(slots: int = SLOTS, members: int = 10) -> st.SearchStrategy[Replicas]:
    def with_gaps(row: list[int], holes: list[bool]) -> Replicas:
        return trimmed(None if hole else member for member, hole in zip(row, holes, strict=False))

    named = st.lists(st.integers(0, members - 1), unique=True, max_size=slots)
    return st.builds(with_gaps, named, st.lists(st.booleans(), min_size=slots, max_size=slots))


def count(row: Replicas) -> int:
    return sum(member is not None for member in row)


def data_members(draw: st.DrawFn, zoned: bool) -> list[DataMember]:
    chosen = draw(st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=8))
    weights = st.integers(1, 4) if draw(st.booleans()) else st.just(1)
    zones = st.sampled_from("abc") if zoned else st.none()
    return [DataMember(i, draw(weights), draw(zones), draw(st.integers(0, 4)) == 0) for i in chosen]


@st.composite
def situations(draw: st.DrawFn) -> tuple[PartitionTable, list[DataMember], int]:
    """Any table, any members, any number of replicas: nothing of it needs to fit together."""
    found = draw(st.lists(rows(slots=4), min_size=1, max_size=40))
    table = PartitionTable(tuple(Partition(1, row) if row else Partition(0, ()) for row in found), MEMBERS)
    return table, data_members(draw, draw(st.booleans())), draw(st.integers(1, 4))


def after(table: PartitionTable, planned: Plan) -> PartitionTable:
    grown = tuple(
        Partition(row.version + 1 if row.replicas != target else row.version, target)
        for row, target in zip(table.partitions, planned.targets, strict=True)
    )
    return PartitionTable(grown, table.members)


def live(row: Replicas, members: Sequence[DataMember]) -> Replicas:
    here = {member.index for member in members}
    return trimmed(member if member in here else None for member in row)


@given(situations())
@settings(max_examples=300, deadline=None)
def test_any_situation_is_planned_safely_and_converges(
    situation: tuple[PartitionTable, list[DataMember], int],
) -> None:
    table, members, replicas = situation
    for _ in range(CONVERGED_AFTER_PLANS):
        planned = plan(table, members, replicas)
        migrations = planned.by_partition()
        for number, row in enumerate(table.partitions):
            current, target = live(row.replicas, members), planned.targets[number]
            assert replay(current, migrations.get(number, ())) == target
            assert count(target) >= min(count(current), replicas), (
                "only a lowered replica count takes copies away"
            )
        table = after(table, planned)
    assert plan(table, members, replicas).migrations == ()


EVENTS = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "crash", "fail", "run"]), st.integers(0, 1_000)),
    min_size=1,
    max_size=12,
)


class Cluster:
    """A table with its members, changed row by row with versions that only grow, as a master does it."""

    def __init__(self, partitions: int, members: int, replicas: int) -> None:
        self.replicas = replicas
        self.next_index = members
        self.members = {index: DataMember(index) for index in range(members)}
        self.table = PartitionTable((Partition(0, ()),) * partitions, MEMBERS)
        targets = plan_targets(partitions, list(self.members.values()), replicas)
        for number, target in enumerate(targets):
            self.change(number, Partition(1, trimmed(target)))

    def change(self, number: int, row: Partition) -> None:
        rows = list(self.table.partitions)
        assert row.version > rows[number].version
        rows[number] = row
        self.table = PartitionTable(tuple(rows), self.table.members)
        check_invariants(self.table)

    def planned(self) -> Plan:
        return plan(self.table, list(self.members.values()), self.replicas)

    def run(self, steps: int | None) -> None:
        """Commit the first migrations of a plan, checking that none takes a copy that is still wanted."""
        planned = self.planned()
        for migration in planned.migrations[:steps]:
            row = self.table.partitions[migration.partition]
            self.change(
                migration.partition, Partition(row.version + 1, trimmed(step(row.replicas, migration)))
            )
            now = self.table.partitions[migration.partition].replicas
            assert count(now) >= min(count(row.replicas), self.replicas)

    def fail(self, choice: int) -> None:
        """One migration of the plan fails at its commit; what was before it went well."""
        migrations = self.planned().migrations
        if migrations:
            failed = choice % len(migrations)
            self.run(failed)
            number = migrations[failed].partition
            row = self.table.partitions[number]
            self.change(number, Partition(row.version + 2, row.replicas))

    def join(self) -> None:
        if len(self.members) < 9:
            self.members[self.next_index] = DataMember(self.next_index)
            self.next_index += 1

    def leave(self, choice: int) -> None:
        staying = sorted(index for index, member in self.members.items() if not member.leaving)
        if len(staying) > self.replicas:
            index = staying[choice % len(staying)]
            self.members[index] = DataMember(index, leaving=True)

    def crash(self, choice: int) -> None:
        if len(self.members) <= self.replicas:
            return
        lost = sorted(self.members)[choice % len(self.members)]
        if any(row.members == {lost} for row in self.table.partitions):
            return
        del self.members[lost]
        for number, row in enumerate(self.table.partitions):
            if lost in row.replicas:
                self.change(number, self._repaired(row, lost))

    @staticmethod
    def _repaired(row: Partition, lost: int) -> Partition:
        """Without the lost member; when it was the owner, the first backup takes its place."""
        slots = [None if member == lost else member for member in row.replicas]
        if slots[0] is None:
            hottest = next(index for index, member in enumerate(slots) if member is not None)
            slots[0], slots[hottest] = slots[hottest], None
        return Partition(row.version + 2, trimmed(slots))


def plan_targets(partitions: int, members: list[DataMember], replicas: int) -> Sequence[Replicas]:
    return assign_rows([()] * partitions, members, replicas).rows


@given(
    partitions=st.integers(1, 60),
    members=st.integers(2, 6),
    replicas=st.integers(1, 3),
    events=EVENTS,
)
@settings(max_examples=120, deadline=None)
def test_long_histories_end_balanced(
    partitions: int, members: int, replicas: int, events: list[tuple[str, int]]
) -> None:
    cluster = Cluster(partitions, members, min(replicas, members))
    for event, choice in events:
        if event == "join":
            cluster.join()
        elif event == "run":
            cluster.run(choice % 40)
        else:
            getattr(cluster, event)(choice)
    for _ in range(CONVERGED_AFTER_PLANS):
        cluster.run(None)
    assert cluster.planned().migrations == ()
    check_balanced(cluster)


def check_balanced(cluster: Cluster) -> None:
    """Replicas are always balanced when more members than replicas are there; owners may need room to
    move.
    """
    staying = {index: 1 for index, member in cluster.members.items() if not member.leaving}
    if len(staying) < cluster.replicas:
        return
    found = [row.replicas for row in cluster.table.partitions]
    assert all(len(row) == cluster.replicas and None not in row for row in found)
    held = Counter(member for row in found for member in row)
    assert held.keys() <= staying.keys()
    for index, (down, up) in fair_shares(len(found) * cluster.replicas, len(found), staying).items():
        assert down - (down == up) <= held[index] <= up + (down == up), held
    if len(staying) > cluster.replicas:
        owned = Counter(row[0] for row in found)
        for index, (down, up) in fair_shares(len(found), len(found), staying).items():
            assert down - (down == up) <= owned[index] <= up + (down == up), owned


@given(st.integers(2, 30), st.integers(100, 3_000), st.integers(2, 4), st.integers(0, 1_000))
@settings(max_examples=60, deadline=None)
def test_join_leave_and_crash_from_a_balanced_table_cost_the_lower_bound(
    members: int, partitions: int, replicas: int, choice: int
) -> None:
    """Rounding owners and replicas together can cost a copy for each member, no more."""
    replicas = min(replicas, members - 1)
    everyone = [DataMember(index) for index in range(members + 1)]
    start = plan_targets(partitions, everyone[:members], replicas)
    table = PartitionTable(tuple(Partition(1, row) for row in start), MEMBERS)
    joined = plan(table, everyone, replicas)
    assert joined.lower_bound <= joined.copies <= joined.lower_bound + members
    chosen = choice % (members + 1)
    parting = [DataMember(m.index, leaving=m.index == chosen) for m in everyone]
    left = plan(after(table, joined), parting, replicas)
    assert left.lower_bound <= left.copies <= left.lower_bound + members
    assert all(chosen not in row for row in left.targets)
