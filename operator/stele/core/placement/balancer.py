"""Brings rows to their quotas: owners first, then backups.

Rows are decided by group (see `draft`). With 1,000 members, where nearly every row is distinct, a group is
one partition and the cost is that of the slots that change: candidates come from a ring, starting where the
last search ended, and a search visits each member once.

An `IndexBalancer` balances either all owners (index 0) or all backups (the other indexes). Its *under*
members hold less than their quota, its *over* members more. It fills empty slots with under members and then
passes slots from over to under members. Each neighbour of a slot (its owner, or for owners its first backup)
has its own position in the ring of under members, so that pairs of members in rows stay evenly mixed without
being counted. Evenly mixed pairs keep the cluster balanced after the next loss of a member.

Where no under member fits, the balancer searches a *chain*: A takes the slot and passes one of its own on to
B, and so on to an under member. Chains that pass on slots that are new in this plan cost nothing and are
tried first.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from stele.core.placement.draft import DraftAssignment, RowGroup, Slot, partition_count
from stele.core.placement.quotas import Quota
from stele.core.table.ids import MemberIndex

DETOURS_MAX = 2
"""Copies beyond the necessary one that a chain may cost when there is no other way to balance."""

KEYS_MAX = 16
"""Resolution of demands, as parts of the greatest one: nearly equal demands get exactly the same."""

SEARCHES_MAX = 100_000
"""Slots that one balancer may visit in searches for chains before it accepts an imbalance."""


class IndexBalancer:
    """One pass over the owners or over the backups.

    `quota` is the number of these that each member should have, `total` the number of both. *Within total*,
    no member takes more than its total or gives away a replica that it would have to regain elsewhere; *up to
    high*, members take up to the highest number that is as good as their quota. From members in `dead_ends`
    no free chain leads to an under member at present; members in `no_free_slots` have no slot to pass on for
    free until they gain one.
    """

    def __init__(
        self,
        draft: DraftAssignment,
        *,
        owners: bool,
        quota: dict[MemberIndex, Quota],
        total: dict[MemberIndex, Quota],
    ) -> None:
        self.draft = draft
        self.owners = owners
        self._quota = quota
        self._total = total
        self.deficit = self._deficits()
        self._ring: list[MemberIndex] = []
        self._turns: dict[MemberIndex | None, MemberIndex] = {}
        self.searches_left = SEARCHES_MAX
        self.dead_ends: set[MemberIndex] = set()
        self.no_free_slots: dict[MemberIndex, tuple[int, bool, bool, bool]] = {}
        self._set_mode(within_total=True, up_to_high=False)

    def _deficits(self) -> dict[MemberIndex, int]:
        held, owned = self.draft.held, self.draft.owned
        count = owned if self.owners else {member: held[member] - owned[member] for member in self._quota}
        return {member: quota.number - count[member] for member, quota in self._quota.items()}

    def recount(self) -> None:
        """Take in what changed outside of this balancer."""
        self.deficit = self._deficits()
        self._set_mode(within_total=self._within_total, up_to_high=self._up_to_high)

    def fill(self, index: int) -> None:
        """Assign every empty slot at this index, to an under member whenever one fits."""
        for slot in self.draft.open_slots(index):
            self._distribute(slot, len(slot.group.partitions))
        before = None
        # A chain can pass through another open slot of a row, which moves that row to another group.
        while (slots := self.draft.open_slots(index)) and partition_count(slots) != before:
            before = partition_count(slots)
            self._fill_rest(slots)
        self._set_mode(within_total=True, up_to_high=False)

    def _fill_rest(self, slots: Sequence[Slot]) -> None:
        for within_total, up_to_high in ((True, False), (True, True), (False, True)):
            self._set_mode(within_total, up_to_high)
            for slot in slots:
                while slot.group.partitions and (
                    self._distribute(slot, len(slot.group.partitions)) or self._assign_along_chain(slot, 0)
                ):
                    pass
        for slot in slots:
            while slot.group.partitions and self._assign_anyway(slot):
                pass
        self._accept_slack()

    def _accept_slack(self) -> None:
        """Let members keep what they took above their quota if that is as good, and round others down for
        it."""
        held, quota, total = self.draft.held, self._quota, self._total
        count = {member: quota[member].number - deficit for member, deficit in self.deficit.items()}
        _reround(total, held)
        _reround(quota, count)
        self.deficit = {member: quota[member].number - count[member] for member in count}

    def level_out(self) -> None:
        """Pass slots from over to under members, those that cost no copy first."""
        for source in self._over():
            self._shed(source)
        for source in self._over():
            while self.deficit[source] < 0 and self._assign_along_chain(source, 0):
                pass

    def enforce(self) -> None:
        """Bring members within their quotas at the cost of copies."""
        self._set_mode(within_total=False, up_to_high=False)
        self.draft.strict = False
        for source in self._over():
            while self.deficit[source] < 0 and self._out_of_bounds(source):
                if not self._assign_along_chain(source, DETOURS_MAX, self._excess(source)):
                    break
        self.draft.strict = True

    def _out_of_bounds(self, source: MemberIndex) -> bool:
        """Return whether a member is outside the range that is as good as its quota."""
        quota = self._quota
        if -self.deficit[source] > quota[source].high - quota[source].number:
            return True
        return any(self.deficit[member] > quota[member].number - quota[member].low for member in self._ring)

    def _excess(self, source: MemberIndex) -> int:
        """Return how many slots `source` has to pass on to members that are below their range."""
        quota = self._quota
        above = -self.deficit[source] - (quota[source].high - quota[source].number)
        below = [self.deficit[member] - (quota[member].number - quota[member].low) for member in self._ring]
        return max(1, above, *below)

    def _over(self) -> list[MemberIndex]:
        """Return the over members, fullest first; none while there is no under member."""
        over = [member for member, deficit in self.deficit.items() if deficit < 0] if self._ring else []
        return sorted(over, key=lambda member: (self.deficit[member], member))

    def _set_mode(self, within_total: bool, up_to_high: bool) -> None:
        self._within_total, self._up_to_high = within_total, up_to_high
        self.dead_ends.clear()
        self._ring = sorted(member for member in self.deficit if self.demand(member) > 0)
        most = max(map(self.demand, self._ring), default=1)
        self._keys = {m: max(1, round(KEYS_MAX * self.demand(m) / most)) for m in self._ring}

    def demand(self, member: MemberIndex) -> int:
        """Return how many partitions the member would take."""
        quota, total = self._quota[member], self._total[member]
        demand = self.deficit[member] + (quota.high - quota.number if self._up_to_high else 0)
        if not self._within_total:
            return demand
        return min(demand, (total.high if self._up_to_high else total.number) - self.draft.held[member])

    def _distribute(self, slot: Slot, number: int) -> int:
        """Assign up to `number` partitions to under members, in proportion to demand; return how many."""
        if len(self._ring) == 1:
            return self._distribute_to_one(slot, number, self._ring[0])
        row = slot.group.row
        anchor = (row[1] if len(row) > 1 else None) if self.owners else row[0]
        turn = self._turns.get(anchor, anchor)
        start = 0 if turn is None else bisect_right(self._ring, turn)
        ring = self._ring[start:] + self._ring[:start]
        takers = list(islice((member for member in ring if self.draft.fits(slot, member)), number))
        if not takers:
            return 0
        keys = [self._keys.get(member, 1) for member in takers]
        portions, last = _portions([self.demand(member) for member in takers], keys, number)
        self._turns[anchor] = takers[last]
        for member, portion in zip(takers, portions, strict=True):
            if portion:
                self._assign(slot, member, portion)
        return sum(portions)

    def _distribute_to_one(self, slot: Slot, number: int, member: MemberIndex) -> int:
        """Run `_distribute` with the only under member."""
        given = min(number, self.demand(member)) if self.draft.fits(slot, member) else 0
        if given:
            self._assign(slot, member, given)
        return given

    def _assign(self, slot: Slot, member: MemberIndex, number: int) -> None:
        source = slot.holder
        self.dead_ends.clear()
        self.draft.assign(slot, member, number)
        self.deficit[member] -= number
        if source is not None:
            self.deficit[source] += number
            self._update_ring(source)
        self._update_ring(member)

    def _update_ring(self, member: MemberIndex) -> None:
        """Keep the ring sorted, with exactly the members that have a demand."""
        ring = self._ring
        at = bisect_left(ring, member)
        listed = at < len(ring) and ring[at] == member
        belongs = self.demand(member) > 0
        if belongs and not listed:
            ring.insert(at, member)
        elif listed and not belongs:
            del ring[at]

    def _shed(self, source: MemberIndex) -> None:
        """Pass slots directly to under members: new ones, then those it can step down from, then others."""
        slots: dict[bool, list[Slot]] = {True: [], False: []}
        for slot, free in self.slots(source):
            slots[free].append(slot)
        self._spread(slots[True], -self.deficit[source])
        surplus = self.draft.held[source] - self._total[source].number
        self._spread(slots[False], min(-self.deficit[source], surplus))

    def _spread(self, slots: Sequence[Slot], excess: int) -> None:
        """Take `excess` partitions evenly from all slots, as far as under members fit."""
        given = 1
        while excess > 0 and given:
            slots = self._wanted(slots)
            total = sum(len(slot.group.partitions) for slot in slots)
            before = given = 0
            portion = min(excess, total)
            for slot in slots:
                after = before + len(slot.group.partitions)
                number = after * portion // total - before * portion // total
                given += self._distribute(slot, number) if number else 0
                before = after
            excess -= given

    def _wanted(self, slots: Sequence[Slot]) -> list[Slot]:
        """Return the slots that fit an under member."""
        fits, ring = self.draft.fits, self._ring
        if len(ring) == 1:
            (only,) = ring
            return [slot for slot in slots if slot.group.partitions and fits(slot, only)]
        return [slot for slot in slots if slot.group.partitions and any(fits(slot, each) for each in ring)]

    def slots(self, member: MemberIndex) -> Iterator[tuple[Slot, bool]]:
        """Iterate the member's slots, each with whether it can be passed on for free.

        It can when the slot is new in this plan, or when the member steps down to an empty index.
        """
        for group in self.draft.groups_of(member, self.owners):
            index = 0 if self.owners else group.row.index(member)
            if index in group.fixed:
                continue
            free = member not in group.today or group.shrinks
            if self.owners and (free_backup_index := group.free_backup_index()) != -1:
                yield Slot(group, index, free_backup_index), True
            elif free or self._within_total or not self.owners:
                yield Slot(group, index), free
            else:
                yield from ((slot, False) for slot in self._paid_slots(member, group))

    def _paid_slots(self, owner: MemberIndex, group: RowGroup) -> Iterator[Slot]:
        """Iterate the ways to replace an owner at the cost of a copy.

        It takes the index of a backup that leaves anyway or has a surplus; or it leaves the row, if there are
        rows without it in which it can get another replica.
        """
        for index, member in enumerate(group.row):
            vacated = member is None and group.occupied(index)
            surplus = member in self.deficit and self.draft.held[member] > self._total[member].number
            if index and (vacated or surplus) and index not in group.fixed:
                yield Slot(group, 0, index)
        if self._total[owner].high < self.draft.partitions:
            yield Slot(group, 0)

    def _assign_along_chain(self, start: Slot | MemberIndex, detours: int, most: int | None = None) -> bool:
        """Find a chain from an empty slot or an over member to an under member, and carry it out."""
        if self.searches_left <= 0 or not self._ring:
            return False
        chain = self._find_chain(start, detours)
        if chain is None:
            return False
        uses = Counter(id(slot.group) for slot, _ in chain)
        number = min(len(slot.group.partitions) // uses[id(slot.group)] for slot, _ in chain)
        number = min(number, self.demand(chain[0][1]), *(self._passes_max(slot) for slot, _ in chain))
        if isinstance(start, int):
            number = min(number, -self.deficit[start])
        number = number if most is None else min(number, most)
        for slot, member in chain if number else ():
            self._assign(slot, member, number)
        return number > 0

    def _passes_max(self, slot: Slot) -> int:
        """Return how often the slot can be passed on before the backup that leaves for it is below its
        total."""
        lost = slot.group.row[slot.down] if slot.down != -1 else None
        if lost is None or lost not in self.deficit:
            return len(slot.group.partitions)
        return max(1, self.draft.held[lost] - self._total[lost].number)

    def _find_chain(self, start: Slot | MemberIndex, detours: int) -> list[tuple[Slot, MemberIndex]] | None:
        """Return the slots to pass on and their takers, the under member first, with up to `detours`
        detours."""
        search = _Search(self, start, detours)
        for _ in range(detours):
            if search.found is None:
                search.detour()
        if search.found is None:
            if not detours:
                self.dead_ends.update(search.visited)
            return None
        return search.trace(search.found)

    def free_slots_key(self, member: MemberIndex, source: bool) -> tuple[int, bool, bool, bool]:
        """Return a key: members of `no_free_slots` stay there while it is the same, since groups only
        disappear."""
        surplus = self.draft.held[member] - self._total[member].number
        may = surplus > 0 if source else surplus < 0
        return self.draft.gains(member, self.owners), self._within_total, source, may

    def costs_nothing(self, slot: Slot, free: bool, source: bool) -> bool:
        """Return whether the slot can be passed on with no copy but the one to its taker."""
        holder = slot.holder
        assert holder is not None, "only held slots are passed on"
        surplus = self.draft.held[holder] - self._total[holder].number
        if source:
            return free or (surplus > 0 and slot.down == -1)
        return free and (slot.down == -1 or surplus < 0)

    def _assign_anyway(self, slot: Slot) -> bool:
        """Assign the slot to the member with the least surplus: some member has to hold the replica."""
        free = [member for member in self.deficit if member not in slot.group.row]
        if not free:
            return False
        chosen = min(free, key=lambda m: (not self.draft.fits(slot, m), -self.demand(m), m))
        self._assign(slot, chosen, -(-len(slot.group.partitions) // len(free)))
        return True


class _Search:
    """Breadth-first search over members, from those that could take a slot to an under member.

    Each member is visited once.
    """

    def __init__(self, balancer: IndexBalancer, start: Slot | MemberIndex, detours: int) -> None:
        self._balancer = balancer
        self._source = start if isinstance(start, int) else None
        self._reached_by: dict[MemberIndex, Slot] = {}
        dead_ends = balancer.dead_ends if detours == 0 else ()
        self._unvisited = [
            member for member in balancer.deficit if member != self._source and member not in dead_ends
        ]
        self.visited: list[MemberIndex] = []
        self.found: MemberIndex | None = None
        if isinstance(start, int):
            self.visited.append(start)
        else:
            self._visit(start)
        self._search_on(0)

    def trace(self, member: MemberIndex) -> list[tuple[Slot, MemberIndex]]:
        """Return the chain that ends at this member, last step first."""
        chain = []
        holder: MemberIndex | None = member
        while holder is not None and holder != self._source:
            slot = self._reached_by[holder]
            chain.append((slot, holder))
            holder = slot.holder
        return chain

    def detour(self) -> None:
        """Search one step further, over slots whose holder needs another copy in exchange."""
        before = len(self.visited)
        for member in self.visited[:before]:
            self._expand(member, free=False)
        self._search_on(before)

    def _search_on(self, at: int) -> None:
        while at < len(self.visited) and self.found is None:
            self._expand(self.visited[at], free=True)
            at += 1

    def _expand(self, member: MemberIndex, free: bool) -> None:
        balancer, source, no_free_slots = self._balancer, member == self._source, free
        free_slots_key = balancer.free_slots_key(member, source)
        if free and balancer.no_free_slots.get(member) == free_slots_key:
            return
        for slot, surplus in balancer.slots(member):
            if self.found is not None or not self._unvisited:
                return
            if balancer.costs_nothing(slot, surplus, source) == free:
                no_free_slots = False
                self._visit(slot)
        if no_free_slots:
            balancer.no_free_slots[member] = free_slots_key

    def _visit(self, slot: Slot) -> None:
        fits = self._balancer.draft.fits
        self._balancer.searches_left -= 1
        fitting = [member for member in self._unvisited if fits(slot, member)]
        if not fitting:
            return
        self._reached_by.update(dict.fromkeys(fitting, slot))
        self.visited.extend(fitting)
        self._unvisited = [member for member in self._unvisited if member not in self._reached_by]
        self.found = next((member for member in fitting if self._balancer.demand(member) > 0), None)


def _reround(quota: dict[MemberIndex, Quota], count: Mapping[MemberIndex, int]) -> None:
    over = [
        m
        for m, member_quota in quota.items()
        if m in count and member_quota.number < member_quota.high and count[m] > member_quota.number
    ]
    under = [
        m
        for m, member_quota in quota.items()
        if m in count and member_quota.low < member_quota.number and count[m] < member_quota.number
    ]
    for more, less in zip(over, under, strict=False):
        quota[more] = quota[more]._replace(number=quota[more].number + 1)
        quota[less] = quota[less]._replace(number=quota[less].number - 1)


def _portions(demands: Sequence[int], keys: Sequence[int], number: int) -> tuple[list[int], int]:
    """Divide `number` in proportion to `keys`, within the demands; return also who got the last remainder."""
    portions, last = [0] * len(demands), len(demands) - 1
    remaining = min(number, sum(demands))
    while remaining:
        open_ones = [at for at, demand in enumerate(demands) if portions[at] < demand]
        all_keys, to_share = sum(keys[at] for at in open_ones), remaining
        for at in open_ones:
            share = min(to_share * keys[at] // all_keys, demands[at] - portions[at])
            portions[at] += share
            remaining -= share
        open_ones.sort(key=lambda at: -(to_share * keys[at] % all_keys))
        for at in open_ones if remaining < len(open_ones) else ():
            if remaining and portions[at] < demands[at]:
                portions[at] += 1
                remaining -= 1
                last = at
    return portions, last
