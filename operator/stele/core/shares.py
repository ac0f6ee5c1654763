"""How many replicas each member should hold: its fair share, rounded so that little has to move."""

from collections.abc import Callable, Mapping

from stele.core.ids import MemberIndex

Shares = Mapping[MemberIndex, tuple[int, int]]
"""The fair share rounded down and rounded up, per member (equal when it is a whole number)."""


def fair_shares(total: int, cap: int, weights: Mapping[MemberIndex, int]) -> Shares:
    """What each member's weight gives it of `total`, at most `cap`; needs `total <= cap * len(weights)`."""
    shares = _capped(total, cap, weights)
    return {member: (whole, whole + fraction) for member, (whole, fraction) in shares.items()}


def quotas(total: int, shares: Shares, cost: Callable[[MemberIndex, int], int]) -> dict[MemberIndex, int]:
    """Whole numbers that sum up to `total`, each the fair share rounded down or up.

    Who is rounded up is free to choose, so it is whoever needs the fewest more copies for it:
    `cost(member, number)` says how many copies a quota of `number` takes. A balanced table keeps exactly what
    it has.
    """
    missing = total - sum(down for down, _ in shares.values())
    candidates = [
        (cost(member, up) - cost(member, down), member) for member, (down, up) in shares.items() if down < up
    ]
    rounded_up = {member for _, member in sorted(candidates)[:missing]}
    return {member: down + (member in rounded_up) for member, (down, _) in shares.items()}


def within_one(shares: Shares) -> Shares:
    """The fewest and the most that are within 1 of the fair share."""
    return {m: (down, up) if down < up else (down - 1, up + 1) for m, (down, up) in shares.items()}


def _capped(total: int, cap: int, weights: Mapping[MemberIndex, int]) -> dict[MemberIndex, tuple[int, bool]]:
    """Share rounded down, and whether something was cut off; what is above the cap goes to the others."""
    shares: dict[MemberIndex, tuple[int, bool]] = {}
    open_weights = dict(weights)
    while open_weights:
        sum_of_weights = sum(open_weights.values())
        full = [m for m, weight in open_weights.items() if total * weight >= cap * sum_of_weights]
        if not full:
            parts = {m: divmod(total * weight, sum_of_weights) for m, weight in open_weights.items()}
            return shares | {m: (whole, rest > 0) for m, (whole, rest) in parts.items()}
        for member in full:
            shares[member] = (cap, False)
            total -= cap
            del open_weights[member]
    return shares
