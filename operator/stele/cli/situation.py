"""What a plan is made from and what came of it, with names for member indexes."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stele.core.placement.migration import Migration
from stele.core.placement.plan import DataMember, Move, Plan, plan
from stele.core.table.ids import MemberIndex
from stele.core.table.table import PartitionTable, Replicas

SPREAD_DIGITS = 3


@dataclass(frozen=True)
class Situation:
    """`names` has all members that are alive, and all that rows name."""

    names: Mapping[MemberIndex, str]
    table: PartitionTable
    members: tuple[DataMember, ...]
    lite: frozenset[MemberIndex]
    replicas: int
    moves: tuple[Move, ...] = ()

    @property
    def staying(self) -> dict[MemberIndex, int]:
        """Weights of the members that hold data for good, those that are away too."""
        return {member.index: member.weight for member in self.members if not member.leaving}

    @property
    def rows(self) -> list[Replicas]:
        return [partition.replicas for partition in self.table.partitions]


@dataclass(frozen=True)
class Outcome:
    """A plan and how long it took to make, reading and printing left out."""

    situation: Situation
    plan: Plan
    seconds: float

    @property
    def owner_spread(self) -> float:
        return spread((row[0] for row in self.plan.targets if row), self.situation)

    @property
    def replica_spread(self) -> float:
        return spread((member for row in self.plan.targets for member in row), self.situation)


def planned(situation: Situation) -> Outcome:
    """Plan; raises BadInput for what the planner refuses as a whole."""
    begin = time.perf_counter()
    made = plan(situation.table, situation.members, situation.replicas, situation.moves, first=True)
    return Outcome(situation, made, time.perf_counter() - begin)


def spread(holders: Iterable[MemberIndex | None], situation: Situation) -> float:
    """The most that a member holds above its fair share, plus the most that one holds below.

    With equal weights that is the most minus the fewest. Fair is what the weights give each of all replicas
    that members which stay hold, at most one of each partition. Leaving and lite members do not count.
    """
    weights = situation.staying
    held = Counter(dict.fromkeys(weights, 0))
    held.update(member for member in holders if member in weights)
    if not held:
        return 0
    shares = _fair(held.total(), len(situation.table.partitions), weights)
    apart = [held[member] - shares[member] for member in weights]
    found = max(apart) - min(apart)
    return int(found) if found.denominator == 1 else round(float(found), SPREAD_DIGITS)


def _fair(total: int, cap: int, weights: Mapping[MemberIndex, int]) -> dict[MemberIndex, Fraction]:
    """Exact shares; what a heavy member cannot hold goes to the others."""
    shares: dict[MemberIndex, Fraction] = {}
    rest = dict(weights)
    while rest:
        each = Fraction(total, sum(rest.values()))
        full = [member for member, weight in rest.items() if each * weight > cap]
        if not full:
            return shares | {member: each * weight for member, weight in rest.items()}
        for member in full:
            shares[member] = Fraction(cap)
            total -= cap
            del rest[member]
    return shares


def document(outcome: Outcome) -> dict[str, Any]:
    """What `-o json` prints; docs/reference/kubectl-stele.md says what each key means."""
    names = outcome.situation.names
    made = outcome.plan
    return {
        "target": [_named(row, names) for row in made.targets],
        "migrations": [_migration(each, names) for each in made.migrations],
        "refusals": [
            {"partition": each.partition, "reason": f"{each.reason}: {each.detail}"} for each in made.refusals
        ],
        "stats": {
            "copies": made.copies,
            "lower_bound": made.lower_bound,
            "owner_spread": outcome.owner_spread,
            "replica_spread": outcome.replica_spread,
            "seconds": round(outcome.seconds, 6),
        },
    }


def _named(row: Replicas, names: Mapping[MemberIndex, str]) -> list[str | None]:
    return [None if member is None else names[member] for member in row]


def _migration(each: Migration, names: Mapping[MemberIndex, str]) -> dict[str, Any]:
    return {
        "partition": each.partition,
        "type": each.type.value,
        "source": None if each.source is None else names[each.source],
        "source_current_index": each.source_current_index,
        "source_new_index": each.source_new_index,
        "destination": None if each.destination is None else names[each.destination],
        "destination_current_index": each.destination_current_index,
        "destination_new_index": each.destination_new_index,
    }
