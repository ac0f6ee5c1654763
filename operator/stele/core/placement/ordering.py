"""From the current row C to the target row T in steps that never lower the number of replicas
(docs/design/migrations.md, "The order of migrations").

Each index that changes belongs to exactly one *chain* `i0 <- i1 <- ... <- ik`: the member that T wants at
i0 sits at i1 today, the one that T wants at i1 sits at i2, and so on; T[ik] is a member that is new to the
row, or nobody. What today's member of i0 does ends the chain on the other side: it leaves the row, or i0
is empty. (A chain that bites its own tail is a cycle and is taken out first.) Chains share neither indexes
nor members, so each can be ordered by itself and they can follow each other in any order:

| i0 today | T[ik]  | replicas | steps                                                                      |
|----------|--------|----------|----------------------------------------------------------------------------|
| leaves   | new    | same     | MOVEs from ik to i0: each frees the member that the next one needs         |
| empty    | new    | one more | SHIFT_UPs while they go hotter, then COPY; or MOVEs, then SHIFT_DOWN       |
| empty    | nobody | same     | SHIFT_UPs                                                                  |
| leaves   | nobody | one less | CLEAR; or SHIFT_UP in place of the next member, then MOVEs                 |

`without_cycles`, `order` and `prioritise` are sections 3.2.1, 3.2.2 and 3.2.3 of Hazelcast's design "Avoid
Data Loss on Migration"; chains take the place of its loop over the indexes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter

from stele.core.placement.migration import Migration, Type, clear, copy, move, shift_down, shift_up
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Replicas, trimmed
from stele.errors import BadInput

Chain = tuple[int, ...]
Slots = Sequence[MemberIndex | None]


def order(partition: PartitionId, current: Replicas, target: Replicas) -> tuple[Migration, ...]:
    """The migrations that turn `current` into `without_cycles(current, target)`, in a safe order.

    After each prefix the row has at least min(replicas before, replicas wanted) replicas. Raises BadInput
    for a target with an empty index before a set one: hotter indexes are filled first, so no such row is
    ever a target.
    """
    if None in target:
        raise BadInput(f"partition {partition}: the target {target} has an empty replica index in the middle")
    return order_acyclic(partition, current, without_cycles(current, target))


def order_acyclic(partition: PartitionId, current: Replicas, target: Replicas) -> tuple[Migration, ...]:
    """As `order`, for a target that `without_cycles` returned."""
    old, new = _padded(current, target)
    chains = tuple(_chains(old, new))
    if len(chains) == 1:
        return tuple(_steps(partition, old, new, chains[0]))
    fills: list[tuple[int, Migration]] = []
    ranked: list[tuple[tuple[bool, int], Migration]] = []
    for chain in chains:
        steps = list(_steps(partition, old, new, chain))
        if old[chain[0]] is None:
            fills.extend(_filled(steps))
        else:
            ranked.extend(_ranked(steps))
    ranked.extend(_ranked([migration for _, migration in sorted(fills, key=itemgetter(0))]))
    return tuple(prioritise(migration for _, migration in sorted(ranked, key=itemgetter(0))))


def without_cycles(current: Replicas, target: Replicas) -> Replicas:
    """The target with everything that cannot run taken back: what is in a cycle stays at its index (seed
    000, 3.2.1).

    A cycle is a permutation of members inside the row. One that goes over an empty index cannot run either
    when a member would go colder without a new one in its place; there the members keep their order and
    close the gap.
    """
    old, new = _padded(current, target)
    changed = False
    for cycle in _cycles(old, new):
        changed = True
        for index in cycle:
            new[index] = old[index]
    for chain in _chains(old, new):
        if old[chain[0]] is None and new[chain[-1]] is None and any(a > b for a, b in pairwise(chain)):
            changed = True
            _close_gap(old, new, chain)
    return trimmed(new) if changed else target


def prioritise(steps: Iterable[Migration]) -> list[Migration]:
    """Bring forward what makes replicas available.

    A COPY, and a SHIFT_UP to an empty index, goes before a MOVE of a hotter index and a SHIFT_DOWN to a
    colder one when the two share no participant.
    """
    done: list[Migration] = []
    for step in steps:
        place = len(done)
        while place and _goes_before(step, done[place - 1]):
            place -= 1
        done.insert(place, step)
    return done


def _goes_before(step: Migration, other: Migration) -> bool:
    if step.source is not None or step.participants & other.participants:
        return False
    if other.type is Type.MOVE:
        return other.destination_new_index < step.destination_new_index
    return other.type is Type.SHIFT_DOWN and other.source_new_index > step.destination_new_index


def _padded(current: Slots, target: Slots) -> tuple[list[MemberIndex | None], list[MemberIndex | None]]:
    length = max(len(current), len(target))
    old, new = list(current), list(target)
    return old + [None] * (length - len(old)), new + [None] * (length - len(new))


def _chains(old: Slots, new: Slots) -> Iterator[Chain]:
    """Each chain from the index whose present member is wanted nowhere in the row (or that is empty)."""
    for first, member in enumerate(old):
        if member == new[first] or (member is not None and member in new):
            continue
        yield _follow(old, new, first)


def _follow(old: Slots, new: Slots, first: int) -> Chain:
    chain = [first]
    while (wanted := new[chain[-1]]) is not None and wanted in old:
        chain.append(old.index(wanted))
    return tuple(chain)


def _cycles(old: Slots, new: Slots) -> Iterator[Chain]:
    """Each permutation of two or more members among their own indexes, once."""
    seen: set[int] = set()
    for first, member in enumerate(old):
        if first in seen or member is None or member == new[first]:
            continue
        chain = [first]
        while (wanted := new[chain[-1]]) is not None and wanted in old and (at := old.index(wanted)) != first:
            chain.append(at)
        if wanted == member:
            seen.update(chain)
            yield tuple(chain)


def _close_gap(old: Slots, new: list[MemberIndex | None], chain: Chain) -> None:
    places = sorted(chain[:-1])
    members = [old[index] for index in sorted(chain[1:])]
    for place, member in zip(places, members, strict=True):
        new[place] = member


def _filled(steps: Sequence[Migration]) -> list[tuple[int, Migration]]:
    """The steps of a chain that begins with an empty index, each with the one that it fills.

    MOVEs fill none: they come with the SHIFT_DOWN that they prepare. The indexes never go down in a chain, so
    all chains of a row can be sorted into each other by them: hotter indexes are filled before colder ones.
    """
    found: list[tuple[int, Migration]] = []
    index = 0
    for migration in reversed(steps):
        if migration.type is Type.SHIFT_DOWN:
            index = migration.source_new_index
        elif migration.type is not Type.MOVE:
            index = migration.destination_new_index
        found.append((index, migration))
    return found[::-1]


def _ranked(steps: Sequence[Migration]) -> list[tuple[tuple[bool, int], Migration]]:
    """Each step with the hottest index that it and what follows it serve: hotter indexes come first.

    A chain that lowers the number of replicas comes after all others, and of several the one that gives up
    the coldest index first. The ranks never go down, so the steps keep their order when they are sorted
    among those of other chains.
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
    elif incoming is not None:
        yield from _moves(partition, old, chain, incoming)
    else:
        yield from _shrink(partition, old, chain)


def _fill(
    partition: PartitionId, old: Slots, chain: Chain, incoming: MemberIndex | None
) -> Iterator[Migration]:
    """The chain begins with an empty index."""
    empty, rest = chain[0], list(chain[1:])
    while rest and rest[0] > empty:
        yield shift_up(partition, _member(old, rest[0]), rest[0], empty)
        empty = rest.pop(0)
    if rest:
        assert incoming is not None, "without_cycles closes gaps that nobody new enters"
        yield from _moves(partition, old, rest[1:], incoming)
        last = incoming if len(rest) == 1 else _member(old, rest[1])
        yield shift_down(partition, _member(old, rest[0]), rest[0], empty, last)
    elif incoming is not None:
        yield copy(partition, empty, incoming)


def _moves(
    partition: PartitionId, old: Slots, chain: Sequence[int], incoming: MemberIndex
) -> Iterator[Migration]:
    """From the far end: each MOVE takes a member out of the row that the next one brings back where it is
    wanted.
    """
    for index in reversed(chain):
        present = _member(old, index)
        yield move(partition, index, present, incoming)
        incoming = present


def _shrink(partition: PartitionId, old: Slots, chain: Chain) -> Iterator[Migration]:
    """Nobody new comes. The colder index is given up, so that hotter ones never have a gap (sixth worked
    example).
    """
    if len(chain) == 1:
        yield clear(partition, chain[0], _member(old, chain[0]))
        return
    colder, hotter = chain[-1], chain[-2]
    replaced = _member(old, hotter)
    yield shift_up(partition, _member(old, colder), colder, hotter, replaced)
    yield from _moves(partition, old, chain[:-2], replaced)


def _member(slots: Slots, index: int) -> MemberIndex:
    member = slots[index]
    assert member is not None, "chains go over set indexes but for their first"
    return member
