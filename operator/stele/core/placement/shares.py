"""Fills and balances a draft: owners first, then backups with what owners left of each share."""

from collections.abc import Mapping
from dataclasses import dataclass

from stele.core.placement.balancer import IndexBalancer
from stele.core.placement.draft import DraftAssignment, demotable_owners, partition_count
from stele.core.placement.members import MemberSets
from stele.core.placement.owners import even_owners
from stele.core.placement.quotas import Quota, QuotaBounds, member_quotas, quota_bounds, round_quotas
from stele.core.table.ids import MemberIndex


def balance(draft: DraftAssignment, sets: MemberSets, today: Mapping[MemberIndex, int]) -> int:
    """Balance owners, then backups with what owners left of each share. Return the lower bound of copies."""
    vacant, *holes = [partition_count(draft.open_slots(index)) for index in range(sets.replicas)]
    held = {member: draft.held[member] for member in sets.staying}
    owned = {member: draft.owned[member] for member in sets.eligible}
    owner_bounds = _owner_bounds(sets, sum(owned[member] for member in sets.owning) + vacant)
    copy_cost = _CopyCost(held, owned, demotable_owners(draft.groups.values()), owner_bounds)
    slots = sum(held.values()) + vacant + sum(holes)
    rows = draft.partitions
    total = member_quotas(sets.tree, slots, rows, copy_cost.of)
    fewest = member_quotas(
        sets.tree, slots, rows, lambda members, number: max(0, number - sum(today[m] for m in members))
    )
    _reserve(draft, sets, total)
    needed = sum(
        partition_count(slot for slot in draft.open_slots(index) if not slot.group.shrinks)
        for index in range(sets.replicas)
    )
    _balance_owners(draft, sets, copy_cost, total)
    backups = IndexBalancer(
        draft,
        owners=False,
        quota={member: total[member].minus(draft.owned[member]) for member in sets.eligible},
        total=total,
    )
    for index in range(1, sets.replicas):
        backups.fill(index)
    backups.level_out()
    backups.enforce()
    _even_owners(draft, sets)
    bound = max(needed, sum(max(0, fewest[member].number - today[member]) for member in sets.eligible))
    # Where rows do not allow the shares, the shares that were reached may need fewer copies.
    return min(bound, sum(max(0, draft.held[member] - today[member]) for member in sets.eligible))


def _reserve(draft: DraftAssignment, sets: MemberSets, total: Mapping[MemberIndex, Quota]) -> None:
    """Leave empty backup indexes open for members that are away, by counting them as held."""
    for member in sets.away:
        for index in range(1, sets.replicas):
            for slot in draft.open_slots(index):
                number = min(total[member].number - draft.held[member], len(slot.group.partitions))
                if number > 0 and not slot.group.occupied(index) and draft.fits(slot, member):
                    draft.assign(slot, member, number)


def _owner_bounds(sets: MemberSets, number: int) -> QuotaBounds:
    return quota_bounds(number, number, sets.owning)


def _balance_owners(
    draft: DraftAssignment, sets: MemberSets, copy_cost: "_CopyCost", total: dict[MemberIndex, Quota]
) -> None:
    number = sum(copy_cost.owned[member] for member in sets.owning) + partition_count(draft.open_slots(0))
    numbers = round_quotas(
        number, copy_cost.owners, lambda m, owners: copy_cost.copies(m, total[m].number, owners)
    )
    quota = {member: Quota(numbers[member], *copy_cost.owners[member]) for member in numbers}
    owners = IndexBalancer(draft, owners=True, quota=quota, total=total)
    owners.fill(0)
    owners.level_out()
    _even_owners(draft, sets)
    owners.recount()
    owners.enforce()


def _even_owners(draft: DraftAssignment, sets: MemberSets) -> None:
    """Even out owners by SWAPs; not while a member is away, which will get its share back."""
    if not sets.away:
        even_owners(draft, _owner_bounds(sets, sum(draft.owned[member] for member in sets.owning)))


@dataclass(frozen=True, slots=True)
class _CopyCost:
    """Copies that quotas cost, given what members hold and own before balancing.

    `demotable` counts owned rows with a free backup index: their owner can become a backup without a copy.
    """

    held: Mapping[MemberIndex, int]
    owned: Mapping[MemberIndex, int]
    demotable: Mapping[MemberIndex, int]
    owners: QuotaBounds

    def of(self, members: tuple[MemberIndex, ...], number: int) -> int:
        """Return the copies for a share of replicas, with the best matching share of owners."""
        if len(members) > 1 or members[0] not in self.owners:
            return 4 * self.fewest(members, number)
        member = members[0]
        copies = min(self.copies(member, number, owners) for owners in self.owners[member])
        # At equal cost, more replicas go to members that keep all that they own.
        return 4 * copies + number * max(0, min(self.owned[member] - self.owners[member][0], 3))

    def copies(self, member: MemberIndex, total: int, owners: int) -> int:
        """Return the copies that `member` needs to hold `total` replicas and own `owners` of them."""
        owned = self.owned[member]
        relieved = min(max(0, owned - owners), self.demotable.get(member, 0))
        backups = self.held[member] - owned + relieved
        return (
            max(0, owners - owned)
            + max(0, total - owners - backups)
            + len(self.owned) * max(0, owners - total)
        )

    def fewest(self, members: tuple[MemberIndex, ...], number: int) -> int:
        return max(0, number - sum(self.held[member] for member in members))
