"""How many replicas each member should hold: its fair share, rounded so that little has to move."""

from collections.abc import Callable, Mapping

from stele.core.ids import MemberIndex


def quotas(
    total: int, cap: int, weights: Mapping[MemberIndex, int], cost: Callable[[MemberIndex, int], int]
) -> dict[MemberIndex, int]:
    """Whole numbers that sum up to `total`, each the weighted fair share rounded down or up and at most
    `cap`.

    Who is rounded up is free to choose, so it is whoever needs the fewest more copies for it:
    `cost(member, number)` says how many copies a quota of `number` takes. A balanced table keeps exactly
    what it has. Needs `total <= cap * len(weights)`.
    """
    shares = _capped(total, cap, weights)
    missing = total - sum(whole for whole, _ in shares.values())
    candidates = [
        (cost(member, whole + 1) - cost(member, whole), member)
        for member, (whole, fraction) in shares.items()
        if fraction
    ]
    rounded_up = {member for _, member in sorted(candidates)[:missing]}
    return {member: whole + (member in rounded_up) for member, (whole, _) in shares.items()}


def tolerated(total: int, cap: int, weights: Mapping[MemberIndex, int]) -> dict[MemberIndex, tuple[int, int]]:
    """The fewest and the most that are within 1 of the fair share."""
    shares = _capped(total, cap, weights)
    return {member: (whole - (not fraction), whole + 1) for member, (whole, fraction) in shares.items()}


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
