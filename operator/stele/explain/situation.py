"""Input and outcome of a plan, with names for member indexes."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    """Input of a plan. `names` has all live members, and all that rows name."""

    names: Mapping[MemberIndex, str]
    table: PartitionTable
    members: tuple[DataMember, ...]
    lite: frozenset[MemberIndex]
    replicas: int
    moves: tuple[Move, ...] = ()

    @property
    def staying(self) -> dict[MemberIndex, int]:
        """Weights of the members that keep data, including those that are away."""
        return {member.index: member.weight for member in self.members if not member.leaving}

    @property
    def rows(self) -> list[Replicas]:
        return [partition.replicas for partition in self.table.partitions]


@dataclass(frozen=True)
class Outcome:
    """A plan, and the seconds it took, without reading and printing."""

    situation: Situation
    plan: Plan
    seconds: float

    @property
    def owner_spread(self) -> float:
        return max(spread((row[0] for row in rows if row), self.situation, len(rows)) for rows in self._parts)

    @property
    def replica_spread(self) -> float:
        return max(
            spread((member for row in rows for member in row), self.situation, len(rows))
            for rows in self._parts
        )

    @property
    def _parts(self) -> list[Sequence[Replicas]]:
        """The target rows of what is balanced by itself: those outside of groups, and each group."""
        targets, table = self.plan.targets, self.situation.table
        parts = table.groups.parts(len(table.partitions), self.situation.replicas)
        return [targets[part.first : part.end] for part in parts]


def planned(situation: Situation) -> Outcome:
    """Compute the plan. Raises BadInput for invalid input."""
    begin = time.perf_counter()
    new_plan = plan(situation.table, situation.members, situation.replicas, situation.moves, first=True)
    return Outcome(situation, new_plan, time.perf_counter() - begin)


def spread(holders: Iterable[MemberIndex | None], situation: Situation, partitions: int) -> float:
    """Return the greatest excess over a member's fair share of `partitions` plus the greatest deficit.

    With equal weights that is the maximum minus the minimum. The fair share is a member's part, by weight, of
    all replicas on staying members, at most one per partition. Leaving and lite members do not count.
    """
    weights = situation.staying
    held = Counter(dict.fromkeys(weights, 0))
    held.update(member for member in holders if member in weights)
    if not held:
        return 0
    shares = _fair(held.total(), partitions, weights)
    excess = [held[member] - shares[member] for member in weights]
    difference = max(excess) - min(excess)
    return int(difference) if difference.denominator == 1 else round(float(difference), SPREAD_DIGITS)


def _fair(total: int, cap: int, weights: Mapping[MemberIndex, int]) -> dict[MemberIndex, Fraction]:
    """Return exact shares; the excess of members at the cap goes to the others."""
    shares: dict[MemberIndex, Fraction] = {}
    left = dict(weights)
    while left:
        per_weight = Fraction(total, sum(left.values()))
        full = [member for member, weight in left.items() if per_weight * weight > cap]
        if not full:
            return shares | {member: per_weight * weight for member, weight in left.items()}
        for member in full:
            shares[member] = Fraction(cap)
            total -= cap
            del left[member]
    return shares


def document(outcome: Outcome) -> dict[str, Any]:
    """Return the document of `-o json`; docs/reference/kubectl-stele.md explains its keys."""
    names = outcome.situation.names
    plan = outcome.plan
    return {
        "target": [_named(row, names) for row in plan.targets],
        "migrations": [_migration(each, names) for each in plan.migrations],
        "refusals": [
            {"partition": each.partition, "reason": f"{each.reason}: {each.detail}"} for each in plan.refusals
        ],
        "stats": {
            "copies": plan.copies,
            "lower_bound": plan.lower_bound,
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
