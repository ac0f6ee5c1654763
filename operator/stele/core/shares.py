"""How many replicas each member should hold: its fair share, rounded so that little has to move."""

from collections.abc import Mapping

from stele.core.ids import MemberIndex


def quotas(
    total: int, cap: int, weights: Mapping[MemberIndex, int], present: Mapping[MemberIndex, int]
) -> dict[MemberIndex, int]:
    """Whole numbers that sum up to `total`, each the weighted fair share rounded down or up and at most
    `cap`.

    Who is rounded up is free to choose, so it is whoever holds more than the rounded-down share already: a
    balanced table keeps exactly what it has. Needs `total <= cap * len(weights)`.
    """
    shares = _capped(total, cap, weights)
    missing = total - sum(whole for whole, _ in shares.values())
    candidates = [member for member, (_, fraction) in shares.items() if fraction]
    candidates.sort(key=lambda member: (shares[member][0] >= present.get(member, 0), member))
    rounded_up = set(candidates[:missing])
    return {member: whole + (member in rounded_up) for member, (whole, _) in shares.items()}


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
