"""How fast the connections of one user to this member may send and receive."""


class ByteRate:
    """Counts the bytes of all connections of a user; who has used more than its share waits, and nobody else.

    What one second allows may be used at once. Times are seconds of the event loop.
    """

    __slots__ = ("_bytes_per_second", "_paid_until")

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._paid_until = float("-inf")

    def take(self, size: int, now: float) -> float:
        """Count bytes that were sent or received; return for how long the user has to wait now."""
        self._paid_until = max(self._paid_until, now - 1.0) + size / self._bytes_per_second
        return max(0.0, self._paid_until - now)
