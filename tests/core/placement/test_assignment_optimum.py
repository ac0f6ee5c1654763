"""Fewest copies: plans of small clusters against all balanced tables, found by trying every row."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import permutations
from random import Random

from stele.core.placement.assignment import assign_rows
from stele.core.placement.members import DataMember
from stele.core.placement.ordering import order, without_cycles
from stele.core.placement.plan import Plan, plan
from stele.core.placement.quotas import quota_bounds
from stele.core.table.table import Partition, PartitionTable, Replicas
from tests.core.placement.test_assignment import crashed

Case = tuple[list[Replicas], list[DataMember], int]
HISTORIES = 60
SUBOPTIMAL_MAX = 0.01
"""The part of plans that may take one copy more than needed: owners are decided before backups."""


@cache
def reachable(row: Replicas, able: tuple[int, ...], replicas: int) -> dict[tuple[int, frozenset[int]], int]:
    """The fewest copies for each owner and set of members that migrations can make of the row."""
    found: dict[tuple[int, frozenset[int]], int] = {}
    for target in permutations(able, min(replicas, len(able))):
        if without_cycles(row, target) == target:
            copies = sum(migration.copies for migration in order(0, row, target))
            key = target[0], frozenset(target)
            found[key] = min(copies, found.get(key, copies))
    return found


def fewest_copies(rows: Sequence[Replicas], members: Sequence[DataMember], replicas: int) -> int | None:
    """The fewest copies to any table with fair shares, rounded down and up."""
    weights = {member.index: member.weight for member in members if not member.leaving}
    able = tuple(sorted(weights))
    owners = quota_bounds(len(rows), len(rows), weights)
    held = quota_bounds(len(rows) * min(replicas, len(able)), len(rows), weights)
    bounds = [shares[member] for shares in (owners, held) for member in able]
    states = {(0,) * len(bounds): 0}
    for row in rows:
        grown: dict[tuple[int, ...], int] = {}
        for (owner, holders), copies in reachable(row, able, replicas).items():
            plus = [m == owner for m in able] + [m in holders for m in able]
            for state, before in states.items():
                after = tuple(map(int.__add__, state, plus))
                if all(number <= high for number, (_, high) in zip(after, bounds, strict=True)):
                    grown[after] = min(before + copies, grown.get(after, before + copies))
        states = grown
    ends = [
        copies
        for state, copies in states.items()
        if all(number >= low for number, (low, _) in zip(state, bounds, strict=True))
    ]
    return min(ends, default=None)


def planned(rows: Sequence[Replicas], members: Sequence[DataMember], replicas: int) -> Plan:
    table = PartitionTable(tuple(Partition(1 if row else 0, row) for row in rows), {})
    return plan(table, members, replicas)


def history(seed: int) -> Iterator[Case]:
    """Joins, leaves, crashes and other numbers of replicas, each on the table of the plan before."""
    random = Random(seed)
    replicas = random.choice([1, 2, 2, 3])
    members = [DataMember(index) for index in range(random.randint(max(2, replicas), 4))]
    rows = list(assign_rows([()] * random.randint(1, 5), members, replicas).rows)
    for index in range(10, 14):
        event = random.choice(["join", "leave", "crash", "replicas"])
        chosen = random.choice(members).index
        if event == "join" and len(members) < 5:
            members = [*members, DataMember(index)]
        elif event == "leave" and len(members) > max(replicas, 2):
            members = [DataMember(m.index, leaving=m.index == chosen) for m in members]
        elif event == "crash" and len(members) > max(replicas, 2) and replicas > 1:
            members = [member for member in members if member.index != chosen]
            rows = crashed(rows, chosen)
        elif event == "replicas":
            replicas = min(len(members), random.choice([1, 2, 3]))
        yield list(rows), list(members), replicas
        rows = list(planned(rows, members, replicas).targets)
        members = [member for member in members if not member.leaving]


def test_plans_of_small_clusters_take_the_fewest_copies() -> None:
    tried = worse = 0
    for seed in range(HISTORIES):
        for rows, members, replicas in history(seed):
            optimum = fewest_copies(rows, members, replicas)
            found = planned(rows, members, replicas)
            assert found.lower_bound <= found.copies
            if optimum is None:
                continue
            check_even(found, members)
            assert found.lower_bound <= optimum <= found.copies <= optimum + 1, (rows, members, replicas)
            tried += 1
            worse += found.copies > optimum
    assert tried > HISTORIES
    assert worse <= tried * SUBOPTIMAL_MAX


def check_even(found: Plan, members: Sequence[DataMember]) -> None:
    weights = {member.index: member.weight for member in members if not member.leaving}
    owned = Counter(row[0] for row in found.targets if row)
    bounds = quota_bounds(owned.total(), owned.total(), weights)
    assert all(low <= owned[member] <= high for member, (low, high) in bounds.items()), (owned, bounds)


def test_balanced_owners_need_no_copies_of_their_own() -> None:
    """Two copies replace the leaving member; SWAPs balance the owners."""
    rows: list[Replicas] = [(0, 1, 4), (1, 2, 0), (2, 3, 5), (3, 4, 5)]
    members = [DataMember(index, leaving=index == 3) for index in range(6)]
    found = planned(rows, members, 3)
    assert found.lower_bound == 2
    assert fewest_copies(rows, members, 3) == 2
    assert found.copies == 2
