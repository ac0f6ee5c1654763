"""Number of members: which to create, which to empty, which may be removed.

Level-triggered: everything is computed from the spec and the present members, so that a change of the spec is
no special case. A leaving member stays a full member until no row names it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stele.core.table.ids import MemberIndex

MEMBERS_MADE_AT_ONCE = 64
"""Maximum number of members that one decision creates."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One existing member, as seen by scaling.

    `lost`: its volume came back with another member's identity, or another member takes its place.
    """

    index: MemberIndex
    drain: bool
    reachable: bool
    lost: bool = False
    deleting: bool = False


def leaving(candidates: Sequence[Candidate], wanted: int) -> frozenset[MemberIndex]:
    """Return surplus members: marked ones first, then unreachable ones, then the highest index.

    Lost members and those being deleted always leave and are not counted.
    """
    staying = [each for each in candidates if not (each.lost or each.deleting)]
    surplus = max(0, len(staying) - wanted)
    ranked = sorted(staying, key=lambda each: (not each.drain, each.reachable, -each.index))
    gone = {each.index for each in candidates if each.lost or each.deleting}
    return frozenset(gone | {each.index for each in ranked[:surplus]})


def missing(candidates: Sequence[Candidate], wanted: int, next_index: int) -> tuple[MemberIndex, ...]:
    """Return the indexes of the members to create, which were never used before."""
    staying = sum(not (each.lost or each.deleting) for each in candidates)
    number = min(max(0, wanted - staying), MEMBERS_MADE_AT_ONCE)
    return tuple(range(next_index, next_index + number))


def next_index(used: Iterable[MemberIndex], reserved: MemberIndex) -> MemberIndex:
    """Return the first index above all that were ever used."""
    return max([reserved, *(index + 1 for index in used)])
