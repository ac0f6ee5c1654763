"""What one connection wrote and was answered before it was committed, so that WAIT can ask for it."""

from collections.abc import Sequence

OpId = tuple[int, int]
"""(term, index) of an operation."""

HELD = b"STELE.HELD"
"""Internal command with operations of a partition, each as term and index: who holds all of them.

The reply is [number of backups, 1 if they are committed, else 0], or None if the log lacks one of them.
"""

WRITTEN_MAX = 1024
WRITTEN_TOTAL_MAX = 200_000
"""Partitions, with their owners, of which a connection, or all of a member, remember what was written."""


def held_command(operations: Sequence[OpId]) -> list[bytes]:
    """Return the command that asks for these operations."""
    return [HELD, *(b"%d" % number for operation in operations for number in operation)]


def operations_of(command: Sequence[bytes]) -> list[OpId]:
    """Return the operations that a command asks for."""
    numbers = [int(word) for word in command[1:]]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


class WrittenTotal:
    """How many of them all connections of a member remember."""

    def __init__(self) -> None:
        self.partitions = 0


class WrittenOperations:
    """The last operation of each partition and term; `forgotten`: there were more than it may remember.

    One of an earlier term may be lost although there are later ones, so each term's is kept until it is known
    to be committed.
    """

    __slots__ = ("_last", "_total", "forgotten")

    def __init__(self, total: WrittenTotal) -> None:
        self._total = total
        self._last: dict[int, dict[int, int]] = {}
        self.forgotten = False

    def __len__(self) -> int:
        return sum(map(len, self._last.values()))

    def add(self, partition: int, operation: OpId | None) -> None:
        """Remember an operation; None is one that was committed before it was answered."""
        if operation is None:
            return
        term, index = operation
        terms = self._last.get(partition, {})
        if term not in terms:
            if len(self) >= WRITTEN_MAX or self._total.partitions >= WRITTEN_TOTAL_MAX:
                self.forgotten = True
                return
            self._total.partitions += 1
        self._last.setdefault(partition, terms)[term] = max(index, terms.get(term, 0))

    def operations(self) -> dict[int, list[OpId]]:
        """Return them by partition."""
        return {partition: list(terms.items()) for partition, terms in self._last.items()}

    def committed(self, partition: int, operations: Sequence[OpId]) -> None:
        """Forget these operations, unless there are later ones of their term."""
        terms = self._last.get(partition, {})
        for term, index in operations:
            if terms.get(term, index + 1) <= index:
                del terms[term]
                self._total.partitions -= 1
        if not terms:
            self._last.pop(partition, None)

    def release(self) -> None:
        """Forget everything, for the end of the connection."""
        self._total.partitions -= len(self)
        self._last.clear()
