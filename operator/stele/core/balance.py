"""Bringing a set of rows to quotas: the owners first, the backups after them.

A *level* is either all owners (index 0) or all backups (the other indexes). Its *under* members hold less
than their quota, its *over* members more. Levels fill empty slots with under members and then pass slots
from over to under members; the row decides who fits. What makes it fast: rows are looked at once, under
members stand in a ring, and each row's neighbour (its owner, or for owners its first backup) has its own
place in that ring, so that the pairs of members in rows stay evenly mixed without counting them. Evenly
mixed pairs are what keeps the next loss of a member balanced.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from stele.core.ids import MemberIndex, PartitionId
from stele.core.table import Replicas

Slots = Sequence[MemberIndex | None]
Place = tuple[PartitionId, int]

REROUTE_SLOTS_MAX = 200_000
"""Slots that one level may look at for detours over a third member before it accepts an imbalance."""


class Board:
    """The rows while they are decided, and the rules for one slot of them.

    `rows` are the rows as they should become (None: to be filled), `origin` as they are today.
    """

    def __init__(
        self,
        rows: list[Slots],
        origin: Sequence[Replicas],
        zones: Mapping[MemberIndex, str | None],
        pinned: frozenset[Place] = frozenset(),
    ) -> None:
        self.rows = rows
        self.origin = origin
        self.pinned = pinned
        apart = len(set(zones.values())) > 1
        self.zones: dict[MemberIndex | None, str | None] = {m: z for m, z in zones.items() if apart}
        self._zone_names = set(self.zones.values())

    def fits(self, partition: PartitionId, index: int, member: MemberIndex) -> bool:
        """Not in the row yet, and not today either, but for its own index: a permutation costs copies."""
        if member in self.rows[partition]:
            return False
        today = self.origin[partition]
        return member not in today or (index < len(today) and today[index] == member)

    def apart(self, partition: PartitionId, index: int, member: MemberIndex) -> bool:
        """Whether the row would have no zone twice while another zone is free."""
        if not self.zones:
            return True
        row = self.rows[partition]
        used = {self.zones[m] for i, m in enumerate(row) if i != index and m in self.zones}
        return self.zones[member] not in used or used == self._zone_names

    def crowded(self, partition: PartitionId) -> bool:
        """Whether the row has a zone twice while another zone is free."""
        used = [self.zones[m] for m in self.rows[partition] if m in self.zones]
        return len(set(used)) < min(len(used), len(self._zone_names))

    def zones_with(self, partition: PartitionId, index: int, member: MemberIndex | None) -> int:
        """In how many zones the row would be if `member` had the index."""
        row = self.rows[partition]
        holders = (member if i == index else m for i, m in enumerate(row))
        return len({self.zones[m] for m in holders if m in self.zones})

    def put(self, partition: PartitionId, index: int, member: MemberIndex | None) -> None:
        row = list(self.rows[partition])
        row[index] = member
        self.rows[partition] = row

    def hole(self, partition: PartitionId) -> int:
        """The hottest empty backup index that is empty today too (nobody has to leave it first); -1: none."""
        row, today = self.rows[partition], self.origin[partition]
        for index in range(1, len(row)):
            if row[index] is None and (index >= len(today) or today[index] is None or today[index] in row):
                return index
        return -1


class Level:
    """One pass over the owners or over the backups. `count` is kept up to date, `quota` is fixed.

    `tolerated` says between which numbers a member's count is good enough not to pay for more: a slot
    whose loss has to be made up for by a copy elsewhere is passed on only outside of them. `surplus` is
    how many replicas a member can lose without that; None: any number.
    """

    def __init__(
        self,
        board: Board,
        *,
        owners: bool,
        quota: Mapping[MemberIndex, int],
        count: Mapping[MemberIndex, int],
        tolerated: Mapping[MemberIndex, tuple[int, int]] | None = None,
        surplus: Mapping[MemberIndex, int] | None = None,
    ) -> None:
        self.board = board
        self.owners = owners
        self.quota = quota
        self.count = {member: count.get(member, 0) for member in quota}
        self.ring = sorted(member for member in quota if self.count[member] < quota[member])
        self._tolerated = tolerated or {member: (number, number) for member, number in quota.items()}
        self._surplus = None if surplus is None else dict(surplus)
        self._turns: dict[tuple[MemberIndex | None, int], int] = {}
        self._placed: dict[MemberIndex, list[Place]] = defaultdict(list)
        self._seen: dict[tuple[MemberIndex, MemberIndex], int] = {}
        self._held: dict[MemberIndex, list[Place]] | None = None

    def fill(self, places: Iterable[Place]) -> None:
        """Give every empty slot of `places` to somebody: an under member whenever one fits."""
        for partition, index in places:
            if self.board.rows[partition][index] is not None or self._take(partition, index):
                continue
            if not self._exchange(partition, index):
                self._spill(partition, index)

    def level_out(self) -> None:
        """Pass slots from over to under members: what was just placed first, what costs a copy last."""
        for source in self._over():
            for partition, index in self._spare(source):
                if self.count[source] <= self.quota[source] or not self.ring:
                    break
                if self._holds(source, partition, index) and self._worth_it(source, partition, index):
                    self._take(partition, index, source)
        self._reroute_all()

    def _over(self) -> list[MemberIndex]:
        """The fullest first. Without under members there is nothing to pass on."""
        over = [m for m in self.quota if self.count[m] > self.quota[m]] if self.ring else []
        return sorted(over, key=lambda member: (self.quota[member] - self.count[member], member))

    def _take(self, partition: PartitionId, index: int, source: MemberIndex | None = None) -> bool:
        """Give the slot to the next under member that fits, if there is one."""
        member = self._next(partition, index)
        if member is None:
            return False
        if source is not None:
            self._lose(source)
            self._step_down(partition, source)
        self._give(partition, index, member)
        return True

    def _worth_it(self, source: MemberIndex, partition: PartitionId, index: int) -> bool:
        """Whether the slot is free to pass on, or the imbalance too great to keep it."""
        return (
            self._surplus is None
            or self._surplus[source] > 0
            or source not in self.board.origin[partition]
            or self.board.hole(partition) != -1
            or self._intolerable(source)
        )

    def _intolerable(self, source: MemberIndex) -> bool:
        if self.count[source] > self._tolerated[source][1]:
            return True
        return any(self.count[member] < self._tolerated[member][0] for member in self.ring)

    def _step_down(self, partition: PartitionId, source: MemberIndex) -> None:
        """An owner that is relieved stays in the row when an index is empty: SHIFT_DOWN copies nothing to
        it.
        """
        hole = self.board.hole(partition) if self.owners else -1
        if hole != -1:
            self.board.put(partition, 0, None)
            self.board.put(partition, hole, source)
        elif self._surplus is not None:
            self._surplus[source] -= 1

    def _next(self, partition: PartitionId, index: int) -> MemberIndex | None:
        """The first in the ring that fits, from this row's own place on; crowding a zone is the second
        choice.
        """
        ring, board = self.ring, self.board
        if not ring:
            return None
        anchor = self._anchor(partition)
        start = self._turns.get((anchor, index))
        if start is None:
            start = 0 if anchor is None else bisect_right(ring, anchor)
        # An owner that steps down is not replaced: the new one has to be in another zone than it.
        replaced = -1 if self.owners and board.zones and board.hole(partition) != -1 else index
        crowding = -1
        for at in range(start, start + len(ring)):
            member = ring[at % len(ring)]
            if not board.fits(partition, index, member):
                continue
            if board.apart(partition, replaced, member):
                self._turns[anchor, index] = at % len(ring) + 1
                return member
            crowding = at if crowding == -1 else crowding
        return None if crowding == -1 else ring[crowding % len(ring)]

    def _anchor(self, partition: PartitionId) -> MemberIndex | None:
        row = self.board.rows[partition]
        if not self.owners:
            return row[0]
        return row[1] if len(row) > 1 else None

    def _give(self, partition: PartitionId, index: int, member: MemberIndex) -> None:
        self.board.put(partition, index, member)
        self._placed[member].append((partition, index))
        self.count[member] += 1
        if self.count[member] == self.quota[member]:
            self.ring.remove(member)

    def _lose(self, member: MemberIndex) -> None:
        self.count[member] -= 1
        if self.count[member] == self.quota[member] - 1:
            self.ring.insert(bisect_right(self.ring, member), member)

    def _holds(self, member: MemberIndex, partition: PartitionId, index: int) -> bool:
        return self.board.rows[partition][index] == member and (partition, index) not in self.board.pinned

    def _exchange(self, partition: PartitionId, index: int) -> bool:
        """No under member fits here: take somebody from where one does fit, among what was just placed."""
        for member in self.ring:
            for other in list(self._placed):
                if other == member or not self.board.fits(partition, index, other):
                    continue
                place = self._place_for(member, other)
                if place is not None:
                    self._lose(other)
                    self._give(*place, member)
                    self._give(partition, index, other)
                    return True
        return False

    def _place_for(self, member: MemberIndex, other: MemberIndex) -> Place | None:
        """A slot that `other` was just given and that `member` could take; what was passed by is not tried
        again.
        """
        places = self._placed[other]
        at = self._seen.get((member, other), 0)
        while at < len(places) and not self._passes(other, member, places[at]):
            at += 1
        self._seen[(member, other)] = at
        return places[at] if at < len(places) else None

    def _passes(self, source: MemberIndex, member: MemberIndex, place: Place) -> bool:
        return self._holds(source, *place) and self.board.fits(*place, member)

    def _spill(self, partition: PartitionId, index: int) -> None:
        """Somebody must hold the replica: the one that is least over its quota."""
        row = self.board.rows[partition]
        free = [member for member in self.quota if member not in row]
        free.sort(key=lambda m: (not self.board.fits(partition, index, m), self.count[m] - self.quota[m], m))
        self._give(partition, index, free[0])

    def _spare(self, source: MemberIndex) -> Iterator[Place]:
        """The slots of an over member in the order in which it should lose them."""
        yield from list(self._placed[source])
        by_neighbour: dict[MemberIndex | None, list[Place]] = defaultdict(list)
        stepping: list[Place] = []
        for place in self._all_held()[source]:
            if self.owners and self.board.hole(place[0]) != -1:
                stepping.append(place)
            else:
                by_neighbour[self._anchor(place[0])].append(place)
        yield from stepping
        yield from _alternating(list(by_neighbour.values()))

    def _all_held(self) -> dict[MemberIndex, list[Place]]:
        """The slots of each member as they were when this was first asked; `_holds` tells whether they
        still are.
        """
        if self._held is None:
            self._held = defaultdict(list)
            for partition, row in enumerate(self.board.rows):
                for index in range(1) if self.owners else range(1, len(row)):
                    member = row[index] if row else None
                    if member is not None:
                        self._held[member].append((partition, index))
        return self._held

    def _reroute_all(self) -> None:
        """Where no row of an over member takes an under member, a third one may pass the slot on."""
        budget = REROUTE_SLOTS_MAX
        for source in self._over():
            while self.count[source] > self.quota[source] and self._intolerable(source) and budget > 0:
                done, looked_at = self._reroute(source)
                budget -= looked_at
                if not done:
                    break

    def _reroute(self, source: MemberIndex) -> tuple[bool, int]:
        """One slot from `source` over one other member to an under member; and how many slots were looked
        at.
        """
        looked_at = 0
        for target in list(self.ring):
            for between in self.quota:
                if between in (source, target):
                    continue
                first, n = self._find(source, between)
                second, m = self._find(between, target) if first is not None else (None, 0)
                looked_at += n + m
                if first is not None and second is not None and first[0] != second[0]:
                    self._pass_on(source, between, target, first, second)
                    return True, looked_at
        return False, looked_at

    def _find(self, source: MemberIndex, member: MemberIndex) -> tuple[Place | None, int]:
        places = [*self._placed[source], *self._all_held()[source]]
        for number, place in enumerate(places):
            if self._passes(source, member, place):
                return place, number
        return None, len(places)

    def _pass_on(
        self, source: MemberIndex, between: MemberIndex, target: MemberIndex, first: Place, second: Place
    ) -> None:
        self._lose(source)
        self._step_down(first[0], source)
        self._give(*first, between)
        self._lose(between)
        self._step_down(second[0], between)
        self._give(*second, target)


def _alternating(groups: list[list[Place]]) -> Iterator[Place]:
    """One of each group in turn, so that no group is used up while others are whole."""
    while groups:
        for group in groups:
            yield group.pop()
        groups = [group for group in groups if group]
