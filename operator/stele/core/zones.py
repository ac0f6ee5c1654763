"""Keeping the replicas of one partition in different zones, without changing how many replicas anybody
holds.
"""

from collections import defaultdict

from stele.core.balance import Board, Place
from stele.core.ids import MemberIndex, PartitionId

EXCHANGE_SLOTS_MAX = 400_000
"""Slots that one plan may look at for exchanges before it accepts crowded rows."""


def separate(board: Board) -> tuple[PartitionId, ...]:
    """Exchange members between crowded rows and others of the same level; returns the rows that stay crowded.

    Each exchange brings one row into more zones and none into fewer, so repeated plans come to an end.
    Both rows keep their number of replicas and both members theirs, so balance is not touched. Slots that
    are new in this plan are exchanged before others, since these cost no copy.
    """
    if not board.zones:
        return ()
    crowded = [partition for partition in range(len(board.rows)) if board.crowded(partition)]
    if crowded:
        search = _Search(board)
        for partition in crowded:
            search.relieve(partition)
    return tuple(partition for partition in crowded if board.crowded(partition))


class _Search:
    """Slots by level and member, new ones first."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._budget = EXCHANGE_SLOTS_MAX
        self._places: dict[tuple[bool, MemberIndex], list[Place]] = defaultdict(list)
        old: dict[tuple[bool, MemberIndex], list[Place]] = defaultdict(list)
        for partition, row in enumerate(board.rows):
            today = board.origin[partition]
            for index, member in enumerate(row):
                if member in board.zones and member is not None:
                    group = old if member in today else self._places
                    group[(index == 0, member)].append((partition, index))
        for key, places in old.items():
            self._places[key].extend(places)

    def relieve(self, partition: PartitionId) -> None:
        """Exchange one replica of the row, the coldest that can be, until it is not crowded."""
        for index in reversed(range(len(self._board.rows[partition]))):
            if not self._board.crowded(partition):
                return
            self._exchange(partition, index)

    def _exchange(self, partition: PartitionId, index: int) -> None:
        member = self._board.rows[partition][index]
        if member is None or member not in self._board.zones or (partition, index) in self._board.pinned:
            return
        for other in self._board.zones:
            if (
                other is None
                or other == member
                or not self._gains((partition, index), member, other, least=1)
            ):
                continue
            for place in self._places[(index == 0, other)]:
                self._budget -= 1
                if self._budget < 0:
                    return
                if self._swaps(member, other, place):
                    self._swap(partition, index, member, other, place)
                    return

    def _gains(self, place: Place, present: MemberIndex, other: MemberIndex, least: int) -> bool:
        """Whether `other` fits in place of `present` and brings the row into `least` zones more."""
        board = self._board
        more = board.zones_with(*place, other) - board.zones_with(*place, present)
        return more >= least and board.fits(*place, other)

    def _swaps(self, member: MemberIndex, other: MemberIndex, place: Place) -> bool:
        board = self._board
        if board.rows[place[0]][place[1]] != other or place in board.pinned:
            return False
        return self._gains(place, other, member, least=0)

    def _swap(
        self, partition: PartitionId, index: int, member: MemberIndex, other: MemberIndex, place: Place
    ) -> None:
        self._board.put(partition, index, other)
        self._board.put(*place, member)
        self._places[(index == 0, other)].append((partition, index))
        self._places[(index == 0, member)].append(place)
