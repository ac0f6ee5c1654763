"""Operations of a tablet that are answered and not committed yet (`replication: Async`)."""

from collections import deque


class Acknowledged:
    """They are lost if the owner is lost before another member holds them. `bytes` is their memory."""

    __slots__ = ("_runs", "bytes", "operations")

    def __init__(self) -> None:
        self._runs: deque[tuple[int, int, int]] = deque()
        self.operations = self.bytes = 0

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def last(self) -> int:
        """The index of the last one; 0 without any."""
        return self._runs[-1][0] if self._runs else 0

    def add(self, last: int, operations: int, size: int) -> None:
        """Add operations that end with index `last`, after all others."""
        self._runs.append((last, operations, size))
        self.operations += operations
        self.bytes += size

    def committed(self, index: int) -> int:
        """Forget those up to `index`; return their bytes."""
        before = self.bytes
        while self._runs and self._runs[0][0] <= index:
            self._forget(*self._runs.popleft()[1:])
        return before - self.bytes

    def cut(self, index: int) -> tuple[int, int]:
        """Forget those after `index`; return how many, and the bytes that are free now."""
        operations, size = self.operations, self.bytes
        while self._runs and self._runs[-1][0] > index:
            last, count, bytes_ = self._runs.pop()
            self._forget(count, bytes_)
            if (kept := count - (last - index)) > 0:
                self.add(index, kept, bytes_)
        return operations - self.operations, size - self.bytes

    def _forget(self, operations: int, size: int) -> None:
        self.operations -= operations
        self.bytes -= size
