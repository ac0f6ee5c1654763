"""Numbers out of measured seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from statistics import median
from time import perf_counter, thread_time

__all__ = ["Sample", "exponent", "median", "ratio", "timed"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: by the wall clock, and of the processor by the thread that worked.

    The second is disturbed little by other programs; what other threads did for it (a JVM's collector) is
    not in it.
    """

    seconds: float
    cpu_seconds: float


def timed(work: Callable[[], object]) -> Sample:
    """Do it on this thread."""
    cpu, start = thread_time(), perf_counter()
    work()
    return Sample(perf_counter() - start, thread_time() - cpu)


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """`ours / theirs`: below 1 is better than they; None when one was not measured."""
    return ours / theirs if ours is not None and theirs else None


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The power of the size that the seconds grow with, between the first and the last (size, seconds).

    1.0 is linear. None for fewer than two sizes.
    """
    measured = [point for point in points if point[1] > 0]
    if len(measured) < 2 or measured[0][0] == measured[-1][0]:
        return None
    (size, seconds), (last_size, last_seconds) = measured[0], measured[-1]
    return log(last_seconds / seconds) / log(last_size / size)
