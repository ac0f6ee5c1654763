"""Python's collector of cycles, in processes that keep many objects and make few cycles."""

import gc

GC_ALLOCATIONS = 20_000
"""Allocations between two runs of the collector, whose default is 700.

With that it takes 8 % of a member's time, and most of a plan's for tens of thousands of partitions.
"""


def tune_gc() -> None:
    """Collect garbage rarely, and only among objects that are made from now on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_ALLOCATIONS)
