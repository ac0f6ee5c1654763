"""What changed since a reader last looked: values by key, each with the number of the look that found it new.

A member tells the master of thousands of tablets in every report; nearly all are as before. Every look at
the values has a number; a reader who names the last number that it has gets only what changed after it, and a
reader who names another process' number, or none, gets everything.
"""

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class DeltaLog(Generic[K, V]):
    """Numbers are above `first`, which no two processes that a reader may take for one another share.

    Invariant: `_changed` holds the keys in the order of their last change, so the newest are at its end.
    """

    __slots__ = ("_changed", "_first", "_values", "number")

    def __init__(self, first: int = 0) -> None:
        self._values: dict[K, V] = {}
        self._changed: dict[K, int] = {}
        self._first = self.number = first

    def update(self, changed: Mapping[K, V], gone: Iterable[K] = ()) -> None:
        """A look found these new or other values, and that these keys are gone."""
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
        """What a reader needs who has look `number`: the number that this builds on (0: on nothing), values,
        keys that are gone.
        """
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
