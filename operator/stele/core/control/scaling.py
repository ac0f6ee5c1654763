"""How many members there should be: which to make, which to empty, which may go.

Level-triggered: everything is computed anew from the spec and from who is there, so that a changed mind is
no special case. A member that is chosen to leave stays a full member until no row names it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stele.core.table.ids import MemberIndex

MEMBERS_MADE_AT_ONCE = 64
"""Members that one decision makes at most."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One member that exists, as scaling sees it. `lost`: its volume came back as another member's."""

    index: MemberIndex
    drain: bool
    reachable: bool
    lost: bool = False
    deleting: bool = False


def leaving(candidates: Sequence[Candidate], wanted: int) -> frozenset[MemberIndex]:
    """Who goes when there are too many: marked ones first, then unreachable ones, then the highest number.

    Lost members and those that are being deleted always go and are not counted.
    """
    staying = [each for each in candidates if not (each.lost or each.deleting)]
    surplus = max(0, len(staying) - wanted)
    ranked = sorted(staying, key=lambda each: (not each.drain, each.reachable, -each.index))
    gone = {each.index for each in candidates if each.lost or each.deleting}
    return frozenset(gone | {each.index for each in ranked[:surplus]})


def missing(candidates: Sequence[Candidate], wanted: int, next_index: int) -> tuple[MemberIndex, ...]:
    """Indexes of the members to make; they were never used before."""
    staying = sum(not (each.lost or each.deleting) for each in candidates)
    number = min(max(0, wanted - staying), MEMBERS_MADE_AT_ONCE)
    return tuple(range(next_index, next_index + number))


def next_index(used: Iterable[MemberIndex], reserved: MemberIndex) -> MemberIndex:
    """The first index above all that were ever used."""
    return max([reserved, *(index + 1 for index in used)])
