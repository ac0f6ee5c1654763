"""What is made of objects of Kubernetes once for each version of them, however often a round needs it.

A version that was read is one object, and is never changed, so identity says whether it is another one.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class OncePerVersion(Generic[A, T]):
    """Call it with an object, or a tuple of the cache."""

    def __init__(self, make: Callable[[A], T]) -> None:
        self._make = make
        self._made: tuple[A, T] | None = None

    def __call__(self, version: A) -> T:
        if self._made is None or self._made[0] is not version:
            self._made = version, self._make(version)
        return self._made[1]


def are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether both are the same versions of the same objects, in order."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
