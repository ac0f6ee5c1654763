"""A log of changes by key, read with a cursor.

A member's report covers thousands of tablets, of which nearly all are unchanged. Every `update` has a number.
A reader that presents the number of its last read gets only later changes; one that presents none, or a
number of another process, gets all values.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class DeltaLog(Generic[K, V]):
    """Numbers start above `first`, which differs between any two processes that a reader could confuse.

    Invariant: `_changed` is ordered by last change, so the newest keys are at its end.
    """

    __slots__ = ("_changed", "_first", "_values", "number")

    def __init__(self, first: int = 0) -> None:
        self._values: dict[K, V] = {}
        self._changed: dict[K, int] = {}
        self._first = self.number = first

    def update(self, changed: Mapping[K, V], gone: Iterable[K] = ()) -> None:
        """Record new values, and keys that were removed."""
        self.number += 1
        for key, value in changed.items():
            if self._values.get(key) != value:
                self._values[key] = value
                self._note(key)
        for key in gone:
            if self._values.pop(key, None) is not None:
                self._note(key)

    def _note(self, key: K) -> None:
        self._changed.pop(key, None)
        self._changed[key] = self.number

    def since(self, number: int) -> tuple[int, list[V], list[K]]:
        """Return the changes after update `number`: the number they build on (0: a full read), values,
        removed keys."""
        if not self._first < number <= self.number:
            return 0, list(self._values.values()), []
        values: list[V] = []
        gone: list[K] = []
        for key in reversed(self._changed):
            if self._changed[key] <= number:
                break
            if key in self._values:
                values.append(self._values[key])
            else:
                gone.append(key)
        return number, values, gone
