"""How many replicas each member should hold: its fair share, rounded so that little has to move.

Members stand in a tree of domains (zone, rack, ...: see `topology`), and each domain has limits: a row has at
most one replica on a member, and its replicas are spread over the domains as evenly as their sizes allow. A
share is proportional to the weight within these limits, so a table that keeps zones apart and meets all
quotas always exists.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from stele.core.table.ids import MemberIndex

QuotaBounds = Mapping[MemberIndex, tuple[int, int]]
"""The fair share rounded down and rounded up, per member (equal when it is a whole number)."""

Cost = Callable[[tuple[MemberIndex, ...], int], int]
"""Copies that these members need to hold a number of replicas."""

Key = TypeVar("Key", bound=Hashable)


class Quota(NamedTuple):
    """What a member should have, and the fewest and the most that are as good."""

    number: int
    low: int
    high: int

    def minus(self, number: int) -> "Quota":
        return Quota(self.number - number, self.low - number, self.high - number)


@dataclass(frozen=True, slots=True)
class Domain:
    """Members whose replicas count together; without `parts` it is one member."""

    weight: int
    members: tuple[MemberIndex, ...]
    parts: tuple["Domain", ...] = ()


def quota_bounds(total: int, cap: int, weights: Mapping[MemberIndex, int]) -> QuotaBounds:
    """What each member's weight gives it of `total`, at most `cap`; needs `total <= cap * len(weights)`."""
    return _proportional_bounds(total, weights, dict.fromkeys(weights, (0, cap)))


def round_quotas(
    total: int, bounds: Mapping[Key, tuple[int, int]], cost: Callable[[Key, int], int]
) -> dict[Key, int]:
    """Whole numbers that sum up to `total`, each the share rounded down or up.

    Those that need the fewest more copies for it are rounded up:
    `cost(key, number)` says how many copies `number` takes. A balanced table keeps exactly what it has.
    """
    open_keys = [key for key, (down, up) in bounds.items() if down < up]
    missing = total - sum(down for down, _ in bounds.values())
    open_keys.sort(key=lambda key: cost(key, bounds[key][1]) - cost(key, bounds[key][0]))
    rounded_up = set(open_keys[:missing])
    return {key: down + (key in rounded_up) for key, (down, _) in bounds.items()}


def member_quotas(domain: Domain, total: int, rows: int, cost: Cost) -> dict[MemberIndex, Quota]:
    """How many of `total` replicas of `rows` partitions each member of the domain should hold."""
    if not domain.parts:
        return {domain.members[0]: Quota(total, total, total)}
    weights = {number: part.weight for number, part in enumerate(domain.parts)}
    bounds = _proportional_bounds(
        total, weights, _part_limits([len(part.members) for part in domain.parts], total, rows)
    )
    numbers = round_quotas(total, bounds, lambda part, count: cost(domain.parts[part].members, count))
    numbers_of: dict[MemberIndex, Quota] = {}
    for number, part in enumerate(domain.parts):
        if part.parts:
            numbers_of.update(member_quotas(part, numbers[number], rows, cost))
        else:
            numbers_of[part.members[0]] = Quota(numbers[number], *bounds[number])
    return numbers_of


def _part_limits(sizes: Sequence[int], total: int, rows: int) -> dict[int, tuple[int, int]]:
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


def _proportional_bounds(
    total: int, weights: Mapping[Key, int], limits: Mapping[Key, tuple[int, int]]
) -> dict[Key, tuple[int, int]]:
    """Shares in proportion to the weights and within limits, each rounded down and up.

    What a limit takes from some goes to or comes from the others. Each turn fixes those that are out of their
    limits on the side that is out by more, so what was fixed stays right.
    """
    bounds: dict[Key, tuple[int, int]] = {}
    left = dict(weights)
    while left:
        weight = sum(left.values())
        above = {key: total * left[key] - limits[key][1] * weight for key in left}
        below = {key: limits[key][0] * weight - total * left[key] for key in left}
        over = sum(excess for excess in above.values() if excess > 0)
        under = sum(excess for excess in below.values() if excess > 0)
        if not over and not under:
            parts = {key: divmod(total * each, weight) for key, each in left.items()}
            return bounds | {key: (down, down + (rest > 0)) for key, (down, rest) in parts.items()}
        side, out = (1, above) if over >= under else (0, below)
        for key in [key for key, excess in out.items() if excess > 0]:
            bounds[key] = (limits[key][side],) * 2
            total -= limits[key][side]
            del left[key]
    return bounds
