"""Numbers out of measured seconds."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import median

__all__ = ["exponent", "median", "ratio"]


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
