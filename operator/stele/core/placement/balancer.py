"""Bringing rows to quotas: the owners first, the backups after them.

What makes it fast: partitions with the same row are interchangeable, so rows are decided by *cell*: all
partitions that have one row today and get one row. Ten members with two replicas make 90 rows out of 20,000
partitions; rows that do not change are never looked at one by one. With so many members that each row is
another (1,000 members), a cell is one partition, and the cost is that of the slots that change: candidates
are taken from a ring where the last one left off, and searches meet each member once.

A *level* is either all owners (index 0) or all backups (the other indexes). Its *under* members hold less
than their quota, its *over* members more. A level fills empty slots with under members and then passes slots
from over to under members. Each neighbour of a slot (its owner, or for owners its first backup) has its own
place in the ring of under members, so that the pairs of members in rows stay evenly mixed without counting
them. Evenly mixed pairs are what keeps the next loss of a member balanced.

Where nobody under fits, a *chain* is looked for: A takes the slot and passes on one of its own to B, and so
on to somebody under. Chains that pass on what is new in this plan anyway cost nothing and are tried first.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from stele.core.placement.quotas import Quota
from stele.core.placement.topology import Topology
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Replicas

Row = tuple[MemberIndex | None, ...]

DETOURS_MAX = 2
"""Copies beyond the needed one that a chain may cost when balance cannot be had otherwise."""

KEYS_MAX = 16
"""In how many parts of the greatest want others are measured: nearly equal ones get exactly the same."""

SEARCHES_MAX = 100_000
"""Slots that one level may look at for chains before it accepts an imbalance."""


@dataclass(eq=False, slots=True)
class Cell:
    """Partitions with one row `today` and one `row` to become; None: to be filled. `fixed` indexes stay."""

    today: Replicas
    row: Row
    fixed: frozenset[int]
    partitions: list[PartitionId]

    def hole(self) -> int:
        """The hottest empty backup index that is empty today too (nobody has to leave it first); -1: none."""
        if None not in self.row or self.row[0] is None:
            return -1
        for index in range(1, len(self.row)):
            if self.row[index] is None and not self.occupied(index):
                return index
        return -1

    def occupied(self, index: int) -> bool:
        """Whether the index has a member today that has to leave it."""
        present = self.today[index] if index < len(self.today) else None
        return present is not None and present not in self.row


class Slot(NamedTuple):
    """The index `at` of a cell's rows, for somebody new. Who has it leaves, or as owner steps `down`."""

    cell: Cell
    at: int
    down: int = -1

    @property
    def holder(self) -> MemberIndex | None:
        return self.cell.row[self.at]


class Board:
    """The cells while they are decided, and what each member holds in them."""

    def __init__(self, able: Collection[MemberIndex], topology: Topology | None) -> None:
        self.cells: dict[tuple[Replicas, Row, frozenset[int]], Cell] = {}
        self.held: Counter[MemberIndex] = Counter()
        self.owned: Counter[MemberIndex] = Counter()
        self.strict = True
        self.partitions = 0
        self._able = able
        self._topology = topology
        self._unfilled: list[Cell] = []
        self._by_holder: dict[tuple[MemberIndex | None, bool], list[Cell]] = {}
        self._gains: Counter[tuple[MemberIndex | None, bool]] = Counter()

    def add(
        self, today: Replicas, row: Row, partitions: list[PartitionId], fixed: frozenset[int] = frozenset()
    ) -> Cell:
        """Partitions to their cell, counted for who holds them."""
        self._count(row, len(partitions))
        return self._put(today, row, partitions, fixed)

    def _put(self, today: Replicas, row: Row, partitions: list[PartitionId], fixed: frozenset[int]) -> Cell:
        cell = self.cells.get((today, row, fixed))
        if cell is not None:
            if not cell.partitions:
                self._gains.update((member, index == 0) for index, member in enumerate(row))
            cell.partitions.extend(partitions)
            return cell
        cell = self.cells[today, row, fixed] = Cell(today, row, fixed, partitions)
        if None in row:
            self._unfilled.append(cell)
        if self._by_holder:
            self._list(cell)
        return cell

    def give(self, slot: Slot, member: MemberIndex, number: int) -> None:
        """Put `member` into that many of the cell's partitions."""
        cell, at, down = slot
        slots = list(cell.row)
        before, replaced = slots[at], slots[at if down == -1 else down]
        if down != -1:
            slots[down] = before
        slots[at] = member
        for counts, left in ((self.held, replaced), (self.owned, before))[: 1 if at else 2]:
            counts[member] += number
            if left is not None:
                counts[left] -= number
        self._put(cell.today, tuple(slots), _taken(cell.partitions, number), cell.fixed)

    def fix(self, slot: Slot, member: MemberIndex, partition: PartitionId) -> Cell:
        """Put `member` into one partition of the cell for good."""
        cell, index, _ = slot
        self._count(cell.row, -1)
        cell.partitions.remove(partition)
        row = (*cell.row[:index], member, *cell.row[index + 1 :])
        return self.add(cell.today, row, [partition], cell.fixed | {index})

    def fits(self, slot: Slot, member: MemberIndex) -> bool:
        """Not in the row yet, and apart from the others; nor in the row today at another index, since no
        permutation runs. Rows that shrink take nobody new, and their backups of today in any order: an owner
        of today would leave and be copied again.
        """
        cell, index, down = slot
        row, today = cell.row, cell.today
        if member in row:
            return False
        shrinks = self.spares(cell)
        if member in today:
            was = today.index(member)
            if down != -1 or (was < len(row) and was != index and not (shrinks and index and was)):
                return False
        elif shrinks and self.strict:
            return False
        if self._topology is None:
            return True
        others = row if down != -1 else (*row[:index], *row[index + 1 :])
        return self._topology.apart(others, member)

    def spares(self, cell: Cell) -> bool:
        """Whether the rows shrink: there are more replicas today, so that nothing has to be copied."""
        return len(cell.today) > len(cell.row) and sum(member in self._able for member in cell.today) >= len(
            cell.row
        )

    def open_slots(self, index: int) -> list[Slot]:
        """The slots at this index that are empty."""
        return [
            Slot(cell, index)
            for cell in self._unfilled
            if cell.partitions and index < len(cell.row) and cell.row[index] is None
        ]

    def cells_of(self, member: MemberIndex, owned: bool) -> Iterator[Cell]:
        """The cells that the member owns, or those in which it is a backup. Give nothing while it is used."""
        if not self._by_holder:
            self._by_holder = defaultdict(list)
            for cell in self.cells.values():
                self._list(cell)
        return (cell for cell in self._by_holder[member, owned] if cell.partitions)

    def gains(self, member: MemberIndex, owned: bool) -> int:
        """Grows whenever `cells_of` gets a cell that it did not have just before."""
        return self._gains[member, owned]

    def _list(self, cell: Cell) -> None:
        for index, member in enumerate(cell.row):
            self._by_holder[member, index == 0].append(cell)
            self._gains[member, index == 0] += 1

    def _count(self, row: Row, number: int) -> None:
        self.partitions += number
        held = self.held
        for member in row:
            if member is not None:
                held[member] += number
        if row and row[0] is not None:
            self.owned[row[0]] += number


class Level:
    """One pass over the owners or over the backups.

    `quota` is what each member should have in this level, `total` what in both. While the level is *thrifty*
    nobody takes more than its total, nor gives away a replica that it would have to be given back elsewhere;
    while it is *loose*, members take up to the highest number that is as good as their quota. From `dead`
    members no chain that costs nothing leads to an under one, as things are; `barren` ones have no slot that
    costs nothing, as long as they gain none.
    """

    def __init__(
        self,
        board: Board,
        *,
        owners: bool,
        quota: dict[MemberIndex, Quota],
        total: dict[MemberIndex, Quota],
    ) -> None:
        self.board = board
        self.owners = owners
        held, owned = board.held, board.owned
        count = owned if owners else {member: held[member] - owned[member] for member in quota}
        self.short = {member: quota[member].number - count[member] for member in quota}
        self._quota = quota
        self._total = total
        self._ring: list[MemberIndex] = []
        self._turns: dict[MemberIndex | None, MemberIndex] = {}
        self.searches_left = SEARCHES_MAX
        self.dead: set[MemberIndex] = set()
        self.barren: dict[MemberIndex, tuple[int, bool, bool, bool]] = {}
        self._set(thrifty=True, loose=False)

    def fill(self, index: int) -> None:
        """Give every empty slot at this index to somebody: an under member whenever one fits."""
        for slot in self.board.open_slots(index):
            self._deal(slot, len(slot.cell.partitions))
        before = None
        # A chain can go over another slot of a row that waits here, which makes it another cell.
        while (slots := self.board.open_slots(index)) and places(slots) != before:
            before = places(slots)
            self._fill_rest(slots)
        self._set(thrifty=True, loose=False)

    def _fill_rest(self, slots: Sequence[Slot]) -> None:
        for thrifty, loose in ((True, False), (True, True), (False, True)):
            self._set(thrifty, loose)
            for slot in slots:
                while slot.cell.partitions and (
                    self._deal(slot, len(slot.cell.partitions)) or self._chained(slot, 0)
                ):
                    pass
        for slot in slots:
            while slot.cell.partitions and self._spill(slot):
                pass
        self._settle_slack()

    def _settle_slack(self) -> None:
        """Who took more than its quota keeps it, if that is as good; another one is rounded down for it."""
        held, quota, total = self.board.held, self._quota, self._total
        count = {member: quota[member].number - short for member, short in self.short.items()}
        _reround(total, held)
        _reround(quota, count)
        self.short = {member: quota[member].number - count[member] for member in count}

    def level_out(self) -> None:
        """Pass slots from over to under members: what costs no copy first."""
        for source in self._over():
            self._shed(source)
        for source in self._over():
            while self.short[source] < 0 and self._chained(source, 0):
                pass

    def insist(self) -> None:
        """Pay for what is left beyond the slack."""
        self._set(thrifty=False, loose=False)
        self.board.strict = False
        for source in self._over():
            while self.short[source] < 0 and self._must(source):
                if not self._chained(source, DETOURS_MAX, self._excess(source)):
                    break
        self.board.strict = True

    def _must(self, source: MemberIndex) -> bool:
        """Whether somebody has more or less than what is as good as the quota."""
        quota = self._quota
        if -self.short[source] > quota[source].high - quota[source].number:
            return True
        return any(self.short[member] > quota[member].number - quota[member].low for member in self._ring)

    def _excess(self, source: MemberIndex) -> int:
        """How many slots have to go from it to others that are as much too low."""
        quota = self._quota
        above = -self.short[source] - (quota[source].high - quota[source].number)
        below = [self.short[member] - (quota[member].number - quota[member].low) for member in self._ring]
        return max(1, above, *below)

    def _over(self) -> list[MemberIndex]:
        """The fullest first. Without under members there is nothing to pass on."""
        over = [member for member, short in self.short.items() if short < 0] if self._ring else []
        return sorted(over, key=lambda member: (self.short[member], member))

    def _set(self, thrifty: bool, loose: bool) -> None:
        self._thrifty, self._loose = thrifty, loose
        self.dead.clear()
        self._ring = sorted(member for member in self.short if self.want(member) > 0)
        most = max(map(self.want, self._ring), default=1)
        self._keys = {m: max(1, round(KEYS_MAX * self.want(m) / most)) for m in self._ring}

    def want(self, member: MemberIndex) -> int:
        """How many it would take."""
        quota, total = self._quota[member], self._total[member]
        want = self.short[member] + (quota.high - quota.number if self._loose else 0)
        if not self._thrifty:
            return want
        return min(want, (total.high if self._loose else total.number) - self.board.held[member])

    def _deal(self, slot: Slot, number: int) -> int:
        """Give up to `number` partitions to under members, as evenly as these want; returns how many."""
        if len(self._ring) == 1:
            return self._deal_all(slot, number, self._ring[0])
        row = slot.cell.row
        anchor = (row[1] if len(row) > 1 else None) if self.owners else row[0]
        turn = self._turns.get(anchor, anchor)
        start = 0 if turn is None else bisect_right(self._ring, turn)
        ring = self._ring[start:] + self._ring[:start]
        takers = list(islice((member for member in ring if self.board.fits(slot, member)), number))
        if not takers:
            return 0
        keys = [self._keys.get(member, 1) for member in takers]
        portions, last = _portions([self.want(member) for member in takers], keys, number)
        self._turns[anchor] = takers[last]
        for member, portion in zip(takers, portions, strict=True):
            if portion:
                self._give(slot, member, portion)
        return sum(portions)

    def _deal_all(self, slot: Slot, number: int, member: MemberIndex) -> int:
        """As `_deal`, when only one member is under."""
        given = min(number, self.want(member)) if self.board.fits(slot, member) else 0
        if given:
            self._give(slot, member, given)
        return given

    def _give(self, slot: Slot, member: MemberIndex, number: int) -> None:
        source = slot.holder
        self.dead.clear()
        self.board.give(slot, member, number)
        self.short[member] -= number
        if source is not None:
            self.short[source] += number
            self._note(source)
        self._note(member)

    def _note(self, member: MemberIndex) -> None:
        """Keep the ring right: sorted, exactly those that want something."""
        ring = self._ring
        at = bisect_left(ring, member)
        listed = at < len(ring) and ring[at] == member
        wants = self.want(member) > 0
        if wants and not listed:
            ring.insert(at, member)
        elif listed and not wants:
            del ring[at]

    def _shed(self, source: MemberIndex) -> None:
        """Hand over slots to under members directly: new ones, those that it can step down from, others."""
        slots: dict[bool, list[Slot]] = {True: [], False: []}
        for slot, free in self.slots(source):
            slots[free].append(slot)
        self._spread(slots[True], -self.short[source])
        spare = self.board.held[source] - self._total[source].number
        self._spread(slots[False], min(-self.short[source], spare))

    def _spread(self, slots: Sequence[Slot], excess: int) -> None:
        """Take `excess` partitions from all slots alike, as far as under members fit."""
        given = 1
        while excess > 0 and given:
            slots = [slot for slot in slots if slot.cell.partitions and self._fits_any(slot)]
            total = sum(len(slot.cell.partitions) for slot in slots)
            before = given = 0
            portion = min(excess, total)
            for slot in slots:
                after = before + len(slot.cell.partitions)
                number = after * portion // total - before * portion // total
                given += self._deal(slot, number) if number else 0
                before = after
            excess -= given

    def _fits_any(self, slot: Slot) -> bool:
        return any(self.board.fits(slot, member) for member in self._ring)

    def slots(self, member: MemberIndex) -> Iterator[tuple[Slot, bool]]:
        """What it has in this level, and whether it can do without at no cost: because the slot is new in
        this plan, or because it steps down to an index that is empty.
        """
        for cell in self.board.cells_of(member, self.owners):
            index = 0 if self.owners else cell.row.index(member)
            if index in cell.fixed:
                continue
            free = member not in cell.today or self.board.spares(cell)
            if self.owners and (hole := cell.hole()) != -1:
                yield Slot(cell, index, hole), True
            elif free or self._thrifty or not self.owners:
                yield Slot(cell, index), free
            else:
                yield from ((slot, False) for slot in self._paid(member, cell))

    def _paid(self, owner: MemberIndex, cell: Cell) -> Iterator[Slot]:
        """How an owner is replaced at the cost of a copy: it takes the index of a backup that leaves anyway
        or has too much; or it leaves, when there are rows without it in which it gets another replica.
        """
        for index, member in enumerate(cell.row):
            vacated = member is None and cell.occupied(index)
            spare = member in self.short and self.board.held[member] > self._total[member].number
            if index and (vacated or spare) and index not in cell.fixed:
                yield Slot(cell, 0, index)
        if self._total[owner].high < self.board.partitions:
            yield Slot(cell, 0)

    def _chained(self, start: Slot | MemberIndex, detours: int, most: int | None = None) -> bool:
        """Find a chain from an empty slot or an over member to an under member, and carry it out."""
        if self.searches_left <= 0 or not self._ring:
            return False
        chain = self._chain(start, detours)
        if chain is None:
            return False
        uses = Counter(id(slot.cell) for slot, _ in chain)
        room = min(len(slot.cell.partitions) // uses[id(slot.cell)] for slot, _ in chain)
        room = min(room, self.want(chain[0][1]), *(self._spare(slot) for slot, _ in chain))
        if isinstance(start, int):
            room = min(room, -self.short[start])
        room = room if most is None else min(room, most)
        for slot, member in chain if room else ():
            self._give(slot, member, room)
        return room > 0

    def _spare(self, slot: Slot) -> int:
        """How often it can be passed on before the backup that leaves for it has less than its total."""
        lost = slot.cell.row[slot.down] if slot.down != -1 else None
        if lost is None or lost not in self.short:
            return len(slot.cell.partitions)
        return max(1, self.board.held[lost] - self._total[lost].number)

    def _chain(self, start: Slot | MemberIndex, detours: int) -> list[tuple[Slot, MemberIndex]] | None:
        """The slots to pass on and who takes each, beginning at the under member; with that many detours."""
        search = _Search(self, start, detours)
        for _ in range(detours):
            if search.found is None:
                search.detour()
        if search.found is None:
            if not detours:
                self.dead.update(search.met)
            return None
        return search.trace(search.found)

    def fertility(self, member: MemberIndex, source: bool) -> tuple[int, bool, bool, bool]:
        """While this is the same for a barren member it is barren: its cells do not change, they only go."""
        spare = self.board.held[member] - self._total[member].number
        may = spare > 0 if source else spare < 0
        return self.board.gains(member, self.owners), self._thrifty, source, may

    def costs_nothing(self, slot: Slot, free: bool, source: bool) -> bool:
        """Whether its holder can pass the slot on without another copy than the one to who takes it."""
        holder = slot.holder
        assert holder is not None, "only slots that are held are passed on"
        spare = self.board.held[holder] - self._total[holder].number
        if source:
            return free or (spare > 0 and slot.down == -1)
        return free and (slot.down == -1 or spare < 0)

    def _spill(self, slot: Slot) -> bool:
        """Somebody must hold the replica: the one that is least over what it may have."""
        free = [member for member in self.short if member not in slot.cell.row]
        if not free:
            return False
        chosen = min(free, key=lambda m: (not self.board.fits(slot, m), -self.want(m), m))
        self._give(slot, chosen, -(-len(slot.cell.partitions) // len(free)))
        return True


class _Search:
    """Breadth first over members, from who could take a slot to who is under; each member is met once."""

    def __init__(self, level: Level, start: Slot | MemberIndex, detours: int) -> None:
        self._level = level
        self._source = start if isinstance(start, int) else None
        self._came: dict[MemberIndex, Slot] = {}
        known = level.dead if detours == 0 else ()
        self._unseen = [member for member in level.short if member != self._source and member not in known]
        self.met: list[MemberIndex] = []
        self.found: MemberIndex | None = None
        if isinstance(start, int):
            self.met.append(start)
        else:
            self._meet(start)
        self._go_on(0)

    def trace(self, member: MemberIndex) -> list[tuple[Slot, MemberIndex]]:
        """The chain that ends at this member, from there back."""
        chain = []
        holder: MemberIndex | None = member
        while holder is not None and holder != self._source:
            slot = self._came[holder]
            chain.append((slot, holder))
            holder = slot.holder
        return chain

    def detour(self) -> None:
        """One step further, over slots whose holder has to be given another copy."""
        before = len(self.met)
        for member in self.met[:before]:
            self._pass_on(member, free=False)
        self._go_on(before)

    def _go_on(self, at: int) -> None:
        while at < len(self.met) and self.found is None:
            self._pass_on(self.met[at], free=True)
            at += 1

    def _pass_on(self, member: MemberIndex, free: bool) -> None:
        level, source, barren = self._level, member == self._source, free
        fertility = level.fertility(member, source)
        if free and level.barren.get(member) == fertility:
            return
        for slot, spare in level.slots(member):
            if self.found is not None or not self._unseen:
                return
            if level.costs_nothing(slot, spare, source) == free:
                barren = False
                self._meet(slot)
        if barren:
            level.barren[member] = fertility

    def _meet(self, slot: Slot) -> None:
        fits = self._level.board.fits
        self._level.searches_left -= 1
        new = [member for member in self._unseen if fits(slot, member)]
        if not new:
            return
        self._came.update(dict.fromkeys(new, slot))
        self.met.extend(new)
        self._unseen = [member for member in self._unseen if member not in self._came]
        self.found = next((member for member in new if self._level.want(member) > 0), None)


def _reround(quota: dict[MemberIndex, Quota], count: Mapping[MemberIndex, int]) -> None:
    over = [
        m for m, each in quota.items() if m in count and each.number < each.high and count[m] > each.number
    ]
    under = [
        m for m, each in quota.items() if m in count and each.low < each.number and count[m] < each.number
    ]
    for more, less in zip(over, under, strict=False):
        quota[more] = quota[more]._replace(number=quota[more].number + 1)
        quota[less] = quota[less]._replace(number=quota[less].number - 1)


def _portions(wants: Sequence[int], keys: Sequence[int], number: int) -> tuple[list[int], int]:
    """`number` divided in proportion to `keys`, at most what is wanted; and who got the last of the rest."""
    portions, last = [0] * len(wants), len(wants) - 1
    rest = min(number, sum(wants))
    while rest:
        open_ones = [at for at, want in enumerate(wants) if portions[at] < want]
        all_keys, now = sum(keys[at] for at in open_ones), rest
        for at in open_ones:
            part = min(now * keys[at] // all_keys, wants[at] - portions[at])
            portions[at] += part
            rest -= part
        open_ones.sort(key=lambda at: -(now * keys[at] % all_keys))
        for at in open_ones if rest < len(open_ones) else ():
            if rest and portions[at] < wants[at]:
                portions[at] += 1
                rest -= 1
                last = at
    return portions, last


def _taken(partitions: list[PartitionId], number: int) -> list[PartitionId]:
    """Take so many out of the list, spread over it."""
    if number == len(partitions):
        taken = partitions[:]
        partitions.clear()
        return taken
    step = len(partitions) // number
    taken = partitions[: number * step : step]
    del partitions[: number * step : step]
    return taken


def places(slots: Iterable[Slot]) -> int:
    """In how many partitions."""
    return sum(len(slot.cell.partitions) for slot in slots)


def relievable(cells: Iterable[Cell]) -> Counter[MemberIndex]:
    """Owned partitions with a hole, per owner: their owner can become a backup without a copy."""
    found: Counter[MemberIndex] = Counter()
    for cell in cells:
        if cell.hole() != -1 and cell.row[0] is not None:
            found[cell.row[0]] += len(cell.partitions)
    return found
