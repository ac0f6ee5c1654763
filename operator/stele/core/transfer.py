"""How the tablets of one copy job are shared out among the workers that run side by side."""

from collections.abc import Sequence

SLICES_PER_SLOT_MAX = 2


def slices(sizes: Sequence[int], slots: int) -> list[list[int]]:
    """Places of `sizes` (bytes) in lists of nearly equal sums, none empty, a few per slot at most.

    Few slices with many items each, because every Spark task costs about 15 ms (design 50-copy, "Who moves
    the bytes"); two per slot, so that a slow one does not hold up the end. Largest first onto the smallest
    slice; the same input gives the same slices. ValueError for less than one slot.
    """
    if slots < 1:
        raise ValueError(f"slots: {slots}, expected 1 or more")
    count = min(SLICES_PER_SLOT_MAX * slots, len(sizes))
    made: list[list[int]] = [[] for _ in range(count)]
    sums = [(0, 0)] * count
    for place in sorted(range(len(sizes)), key=lambda at: (-sizes[at], at)):
        least = min(range(count), key=lambda at: (sums[at], at))
        made[least].append(place)
        sums[least] = (sums[least][0] + sizes[place], len(made[least]))
    return made
