"""Quotas: each member's fair share of replicas, rounded so that little has to move.

Members form a tree of domains (zone, rack, ...: see `topology`) with limits: a row has at most one replica on
a member, and its replicas are spread over domains as evenly as their sizes allow. Shares are proportional to
weights within these limits, so a table that keeps zones apart and meets all quotas always exists.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from stele.core.table.ids import MemberIndex

QuotaBounds = Mapping[MemberIndex, tuple[int, int]]
"""Fair share per member, rounded down and up (equal when it is a whole number)."""

Cost = Callable[[tuple[MemberIndex, ...], int], int]
"""Copies that these members need to hold a number of replicas."""

Key = TypeVar("Key", bound=Hashable)


class Quota(NamedTuple):
    """The number a member should have, and the range that is as good."""

    number: int
    low: int
    high: int

    def minus(self, number: int) -> "Quota":
        return Quota(self.number - number, self.low - number, self.high - number)


@dataclass(frozen=True, slots=True)
class Domain:
    """Members whose replicas count together; a domain without `parts` is one member."""

    weight: int
    members: tuple[MemberIndex, ...]
    parts: tuple["Domain", ...] = ()


def quota_bounds(total: int, cap: int, weights: Mapping[MemberIndex, int]) -> QuotaBounds:
    """Return each member's share of `total` by weight, at most `cap`. Needs `total <= cap * len(weights)`."""
    return _proportional_bounds(total, weights, dict.fromkeys(weights, (0, cap)))


def round_quotas(
    total: int, bounds: Mapping[Key, tuple[int, int]], cost: Callable[[Key, int], int]
) -> dict[Key, int]:
    """Return whole numbers that add up to `total`, each the share rounded down or up.

    Keys for which rounding up needs the fewest extra copies, by `cost(key, number)`, are rounded up. A
    balanced table therefore keeps exactly what it has.
    """
    open_keys = [key for key, (down, up) in bounds.items() if down < up]
    missing = total - sum(down for down, _ in bounds.values())
    open_keys.sort(key=lambda key: cost(key, bounds[key][1]) - cost(key, bounds[key][0]))
    rounded_up = set(open_keys[:missing])
    return {key: down + (key in rounded_up) for key, (down, _) in bounds.items()}


def member_quotas(domain: Domain, total: int, rows: int, cost: Cost) -> dict[MemberIndex, Quota]:
    """Return how many of `total` replicas of `rows` partitions each member of the domain should hold."""
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
    """Return the fewest and the most replicas in each part when each row spreads its own evenly.

    Every row has `total // rows` replicas in the domain, and `more` of the rows have one more.
    """
    base, more = divmod(total, rows) if rows else (0, 0)
    low, high = _spread(sizes, base), _spread(sizes, base + 1 if more else base)
    return {
        part: (few * (rows - more) + high[part][0] * more, much * (rows - more) + high[part][1] * more)
        for part, (few, much) in low.items()
    }


def _spread(sizes: Sequence[int], count: int) -> dict[int, tuple[int, int]]:
    """Return the fewest and the most replicas in each part for one row with `count` of them."""
    most = 0
    while sum(min(size, most) for size in sizes) < count and most < max(sizes):
        most += 1
    exact = sum(min(size, most) for size in sizes) <= count
    return {part: (min(size, most - (not exact)), min(size, most)) for part, size in enumerate(sizes)}


def _proportional_bounds(
    total: int, weights: Mapping[Key, int], limits: Mapping[Key, tuple[int, int]]
) -> dict[Key, tuple[int, int]]:
    """Return shares in proportion to weights and within limits, each rounded down and up.

    What a limit takes from one key is divided among the others. Each round fixes the keys that violate their
    limits on the side with the greater total, so fixed shares stay valid.
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
            parts = {key: divmod(total * key_weight, weight) for key, key_weight in left.items()}
            return bounds | {key: (down, down + (rest > 0)) for key, (down, rest) in parts.items()}
        side, out = (1, above) if over >= under else (0, below)
        for key in [key for key, excess in out.items() if excess > 0]:
            bounds[key] = (limits[key][side],) * 2
            total -= limits[key][side]
            del left[key]
    return bounds
