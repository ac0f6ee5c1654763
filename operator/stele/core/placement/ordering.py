"""Orders the steps from a current row C to a target row T so that the number of replicas never drops.

Each index that changes belongs to exactly one *chain* `i0 <- i1 <- ... <- ik`: the member that T puts at i0
is at i1 today, the one that T puts at i1 is at i2, and so on; T[ik] is a member that is new to the row, or
none. At the other end, the present member of i0 leaves the row, or i0 is empty. A chain that closes on itself
is a cycle: one of the owner and one backup is a SWAP, any other is removed first. Chains share neither
indexes nor members, so each can be ordered by itself and they can follow each other in any order:

| i0 today | T[ik] | replicas | steps                                                                      |
|----------|-------|----------|----------------------------------------------------------------------------|
| leaves   | new   | same     | MOVEs from ik to i0: each frees the member that the next one needs (*)     |
| empty    | new   | one more | SHIFT_UPs while they go hotter, then COPY; or MOVEs, then SHIFT_DOWN       |
| empty    | none  | same     | SHIFT_UPs                                                                  |
| leaves   | none  | one less | CLEAR; or SHIFT_UP in place of the next member, then MOVEs (*)             |

(*) A backup that becomes the owner of such a row first changes places with the present one by a SWAP, which
saves a copy. In a row that shrinks, only the member at ik does; another one gets there by a MOVE.

This is equivalent to the loop over indexes in Hazelcast's Avoid Data Loss on Migration, 3.2:
`without_cycles`, `order` and `prioritise` are its sections 3.2.1, 3.2.2 and 3.2.3.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter

from stele.core.placement.migration import Migration, Type, clear, copy, move, shift_down, shift_up, swap
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Replicas, trimmed
from stele.errors import BadInput

Chain = tuple[int, ...]
Slots = Sequence[MemberIndex | None]


def order(partition: PartitionId, current: Replicas, target: Replicas) -> tuple[Migration, ...]:
    """Return the migrations that turn `current` into `without_cycles(current, target)`, in a safe order.

    After each prefix the row has at least min(replicas before, target replicas) replicas. Raises BadInput for
    a target with an empty index before a set one: hotter indexes are filled first, so no valid target has
    one.
    """
    if None in target:
        raise BadInput(f"partition {partition}: the target {target} has an empty replica index in the middle")
    return order_acyclic(partition, current, without_cycles(current, target))


def order_acyclic(partition: PartitionId, current: Replicas, target: Replicas) -> tuple[Migration, ...]:
    """Run `order` for a target that `without_cycles` returned."""
    old, new = _padded(current, target)
    swapped = _swapped(old, new)
    chains = tuple(_chains(old, new))
    if len(chains) == 1 and not swapped:
        return tuple(_steps(partition, old, new, chains[0]))
    fills: list[tuple[int, Migration]] = []
    ranked: list[tuple[tuple[bool, int], Migration]] = []
    if swapped:
        ranked.append(((False, 0), swap(partition, _member(old, 0), _member(new, 0), swapped)))
    for chain in chains:
        steps = list(_steps(partition, old, new, chain))
        if old[chain[0]] is None:
            fills.extend(_filled(steps))
        else:
            ranked.extend(_ranked(steps))
    ranked.extend(_ranked([migration for _, migration in sorted(fills, key=itemgetter(0))]))
    return tuple(prioritise(migration for _, migration in sorted(ranked, key=itemgetter(0))))


def without_cycles(current: Replicas, target: Replicas) -> Replicas:
    """Return the target without changes that cannot run: members of a cycle keep their index.

    A cycle is a permutation of members inside the row, other than a SWAP. A chain through an empty index
    cannot run either when a member would go colder with no new member in its place; its members keep their
    order and close the gap.
    Source: Hazelcast, Avoid Data Loss on Migration, 3.2.1.
    """
    old, new = _padded(current, target)
    changed = False
    swapped = (0, _swapped(old, new))
    for cycle in _cycles(old, new):
        if cycle == swapped:
            continue
        changed = True
        for index in cycle:
            new[index] = old[index]
    for chain in _chains(old, new):
        if old[chain[0]] is None and new[chain[-1]] is None and any(a > b for a, b in pairwise(chain)):
            changed = True
            _close_gap(old, new, chain)
    return trimmed(new) if changed else target


def prioritise(steps: Iterable[Migration]) -> list[Migration]:
    """Move steps that add availability forward (Hazelcast, Avoid Data Loss on Migration, 3.2.3).

    A COPY, and a SHIFT_UP to an empty index, precedes a MOVE of a hotter index, a SWAP, and a SHIFT_DOWN to a
    colder one when the two share no participant.
    """
    ordered: list[Migration] = []
    for step in steps:
        position = len(ordered)
        while position and _goes_before(step, ordered[position - 1]):
            position -= 1
        ordered.insert(position, step)
    return ordered


def _goes_before(step: Migration, other: Migration) -> bool:
    if step.source is not None or step.participants & other.participants:
        return False
    if other.type in (Type.MOVE, Type.SWAP):
        return other.destination_new_index < step.destination_new_index
    return other.type is Type.SHIFT_DOWN and other.source_new_index > step.destination_new_index


def _padded(current: Slots, target: Slots) -> tuple[list[MemberIndex | None], list[MemberIndex | None]]:
    length = max(len(current), len(target))
    old, new = list(current), list(target)
    return old + [None] * (length - len(old)), new + [None] * (length - len(new))


def _swapped(old: Slots, new: Slots) -> int:
    """Return the index of the backup that the owner changes places with, 0 for none."""
    owner, taker = old[0] if old else None, new[0] if new else None
    if owner is None or taker is None or owner == taker or taker not in old:
        return 0
    index = old.index(taker)
    return index if new[index] == owner else 0


def _chains(old: Slots, new: Slots) -> Iterator[Chain]:
    """Iterate the chains, each from an index that is empty or whose member has no index in the target."""
    for first, member in enumerate(old):
        if member == new[first] or (member is not None and member in new):
            continue
        yield _follow(old, new, first)


def _follow(old: Slots, new: Slots, first: int) -> Chain:
    chain = [first]
    while (member := new[chain[-1]]) is not None and member in old:
        chain.append(old.index(member))
    return tuple(chain)


def _cycles(old: Slots, new: Slots) -> Iterator[Chain]:
    """Iterate the permutations of two or more members among their own indexes, each once."""
    seen: set[int] = set()
    for first, member in enumerate(old):
        if first in seen or member is None or member == new[first]:
            continue
        chain = [first]
        while (
            (target := new[chain[-1]]) is not None
            and target in old
            and (holder := old.index(target)) != first
        ):
            chain.append(holder)
        if target == member:
            seen.update(chain)
            yield tuple(chain)


def _close_gap(old: Slots, new: list[MemberIndex | None], chain: Chain) -> None:
    indexes = sorted(chain[:-1])
    members = [old[index] for index in sorted(chain[1:])]
    for index_to, member in zip(indexes, members, strict=True):
        new[index_to] = member


def _filled(steps: Sequence[Migration]) -> list[tuple[int, Migration]]:
    """Return the steps of a chain that begins with an empty index, each with the index that it fills.

    MOVEs fill none and get that of the SHIFT_DOWN that they prepare. Indexes never decrease within a chain,
    so the chains of a row can be merge-sorted by them: hotter indexes are filled before colder ones.
    """
    filled: list[tuple[int, Migration]] = []
    index = 0
    for migration in reversed(steps):
        if migration.type is Type.SHIFT_DOWN:
            index = migration.source_new_index
        elif migration.type is not Type.MOVE:
            index = migration.destination_new_index
        filled.append((index, migration))
    return filled[::-1]


def _ranked(steps: Sequence[Migration]) -> list[tuple[tuple[bool, int], Migration]]:
    """Return each step with the hottest index that it and its successors serve; hotter indexes come first.

    Chains that remove replicas come last, the one that drops the coldest index first. Ranks never decrease
    within a chain, so sorting keeps the order of its steps.
    """
    hottest = list(accumulate((migration.index for migration in reversed(steps)), min))
    ranks = [(False, index) for index in reversed(hottest)]
    if any(migration.removes for migration in steps):
        ranks = [(True, -hottest[-1])] * len(steps)
    return list(zip(ranks, steps, strict=True))


def _steps(partition: PartitionId, old: Slots, new: Slots, chain: Chain) -> Iterator[Migration]:
    incoming = new[chain[-1]]
    if old[chain[0]] is None:
        yield from _fill(partition, old, chain, incoming)
        return
    if index := _swap_first(chain, incoming):
        owner, backup = _member(old, 0), _member(old, index)
        yield swap(partition, owner, backup, index)
        old = [backup, *old[1:index], owner, *old[index + 1 :]]
        chain = tuple(each for each in chain if each)
    if incoming is not None:
        yield from _moves(partition, old, chain, incoming)
    else:
        yield from _shrink(partition, old, chain)


def _swap_first(chain: Chain, incoming: MemberIndex | None) -> int:
    """Return the index of the backup that becomes the owner by a SWAP, 0 for none."""
    place = chain.index(0) + 1 if 0 in chain else len(chain)
    last = len(chain) - 1
    return chain[place] if place == last or (place < last and incoming is not None) else 0


def _fill(
    partition: PartitionId, old: Slots, chain: Chain, incoming: MemberIndex | None
) -> Iterator[Migration]:
    """Iterate the steps of a chain that begins with an empty index."""
    empty, left = chain[0], list(chain[1:])
    while left and left[0] > empty:
        yield shift_up(partition, _member(old, left[0]), left[0], empty)
        empty = left.pop(0)
    if left:
        assert incoming is not None, "without_cycles closes gaps that no new member fills"
        yield from _moves(partition, old, left[1:], incoming)
        last = incoming if len(left) == 1 else _member(old, left[1])
        yield shift_down(partition, _member(old, left[0]), left[0], empty, last)
    elif incoming is not None:
        yield copy(partition, empty, incoming)


def _moves(
    partition: PartitionId, old: Slots, chain: Sequence[int], incoming: MemberIndex
) -> Iterator[Migration]:
    """Iterate MOVEs from the far end: each frees the member that the next one needs."""
    for index in reversed(chain):
        present = _member(old, index)
        yield move(partition, index, present, incoming)
        incoming = present


def _shrink(partition: PartitionId, old: Slots, chain: Chain) -> Iterator[Migration]:
    """Iterate the steps of a chain without a new member; the colder index is dropped, so no gap remains."""
    if len(chain) == 1:
        yield clear(partition, chain[0], _member(old, chain[0]))
        return
    colder, hotter = chain[-1], chain[-2]
    replaced = _member(old, hotter)
    yield shift_up(partition, _member(old, colder), colder, hotter, replaced)
    yield from _moves(partition, old, chain[:-2], replaced)


def _member(slots: Slots, index: int) -> MemberIndex:
    member = slots[index]
    assert member is not None, "only the first index of a chain can be empty"
    return member
