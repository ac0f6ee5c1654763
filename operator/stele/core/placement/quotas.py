"""How many replicas each member should hold: its fair share, rounded so that little has to move.

Members stand in a tree of domains (zone, rack, ...: see `zones`), and each domain has bounds: a row has at
most one replica on a member, and its replicas are spread over the domains as evenly as their sizes allow. A
share is proportional to the weight within these bounds, so a table that keeps zones apart and meets all
quotas always exists.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from stele.core.table.ids import MemberIndex

Shares = Mapping[MemberIndex, tuple[int, int]]
"""The fair share rounded down and rounded up, per member (equal when it is a whole number)."""

Cost = Callable[[tuple[MemberIndex, ...], int], int]
"""Copies that these members need to hold a number of replicas."""

Key = TypeVar("Key", bound=Hashable)


class Quota(NamedTuple):
    """What a member should have, and the fewest and the most that are as good."""

    number: int
    low: int
    high: int

    def less(self, number: int) -> "Quota":
        return Quota(self.number - number, self.low - number, self.high - number)


@dataclass(frozen=True, slots=True)
class Domain:
    """Members whose replicas count together; without `parts` it is one member."""

    weight: int
    members: tuple[MemberIndex, ...]
    parts: tuple["Domain", ...] = ()


def fair_shares(total: int, cap: int, weights: Mapping[MemberIndex, int]) -> Shares:
    """What each member's weight gives it of `total`, at most `cap`; needs `total <= cap * len(weights)`."""
    return _clamped(total, weights, dict.fromkeys(weights, (0, cap)))


def rounded(
    total: int, shares: Mapping[Key, tuple[int, int]], cost: Callable[[Key, int], int]
) -> dict[Key, int]:
    """Whole numbers that sum up to `total`, each the share rounded down or up.

    Who is rounded up is free to choose, so it is whoever needs the fewest more copies for it:
    `cost(key, number)` says how many copies `number` takes. A balanced table keeps exactly what it has.
    """
    open_keys = [key for key, (down, up) in shares.items() if down < up]
    missing = total - sum(down for down, _ in shares.values())
    open_keys.sort(key=lambda key: cost(key, shares[key][1]) - cost(key, shares[key][0]))
    raised = set(open_keys[:missing])
    return {key: down + (key in raised) for key, (down, _) in shares.items()}


def quotas(domain: Domain, total: int, rows: int, cost: Cost) -> dict[MemberIndex, Quota]:
    """How many of `total` replicas of `rows` partitions each member of the domain should hold."""
    if not domain.parts:
        return {domain.members[0]: Quota(total, total, total)}
    weights = {number: part.weight for number, part in enumerate(domain.parts)}
    shares = _clamped(total, weights, _bounds([len(part.members) for part in domain.parts], total, rows))
    numbers = rounded(total, shares, lambda part, count: cost(domain.parts[part].members, count))
    found: dict[MemberIndex, Quota] = {}
    for number, part in enumerate(domain.parts):
        if part.parts:
            found.update(quotas(part, numbers[number], rows, cost))
        else:
            found[part.members[0]] = Quota(numbers[number], *shares[number])
    return found


def _bounds(sizes: Sequence[int], total: int, rows: int) -> dict[int, tuple[int, int]]:
    """The fewest and the most replicas in each part, when each row spreads its own over the parts evenly.

    Rows have as many replicas in the domain as `total` gives each, `more` of them have one more.
    """
    each, more = divmod(total, rows) if rows else (0, 0)
    low, high = _spread(sizes, each), _spread(sizes, each + 1 if more else each)
    return {
        part: (few * (rows - more) + high[part][0] * more, much * (rows - more) + high[part][1] * more)
        for part, (few, much) in low.items()
    }


def _spread(sizes: Sequence[int], count: int) -> dict[int, tuple[int, int]]:
    """The fewest and the most replicas of one row in each part, when the row has `count` of them."""
    most = 0
    while sum(min(size, most) for size in sizes) < count and most < max(sizes):
        most += 1
    exact = sum(min(size, most) for size in sizes) <= count
    return {part: (min(size, most - (not exact)), min(size, most)) for part, size in enumerate(sizes)}


def _clamped(
    total: int, weights: Mapping[Key, int], bounds: Mapping[Key, tuple[int, int]]
) -> dict[Key, tuple[int, int]]:
    """Shares in proportion to the weights and within bounds, each rounded down and up.

    What a bound takes from some goes to or comes from the others. Each turn settles those that are out of
    bounds on the side that is out by more, so what was settled stays right.
    """
    shares: dict[Key, tuple[int, int]] = {}
    left = dict(weights)
    while left:
        weight = sum(left.values())
        above = {key: total * left[key] - bounds[key][1] * weight for key in left}
        below = {key: bounds[key][0] * weight - total * left[key] for key in left}
        over = sum(excess for excess in above.values() if excess > 0)
        under = sum(excess for excess in below.values() if excess > 0)
        if not over and not under:
            parts = {key: divmod(total * each, weight) for key, each in left.items()}
            return shares | {key: (down, down + (rest > 0)) for key, (down, rest) in parts.items()}
        side, out = (1, above) if over >= under else (0, below)
        for key in [key for key, excess in out.items() if excess > 0]:
            shares[key] = (bounds[key][side],) * 2
            total -= bounds[key][side]
            del left[key]
    return shares
