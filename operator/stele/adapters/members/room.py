"""Memory for replies of members that are being read: of all clusters together, and a share for each."""

from collections.abc import Iterator
from contextlib import contextmanager

from stele.errors import Unavailable

READING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of the replies of all members of all clusters that are being read, but for FREE_BYTES of each."""

READING_SHARE_BYTES_MAX = 32 * 1024 * 1024
"""The same of one cluster, so that its members do not keep the operator from those of others."""

FREE_BYTES = 64 * 1024
"""Of each reply, not counted: usual ones are shorter."""


class Room:
    """What is left of a number of bytes, which is also taken from the room that this one is a share of."""

    def __init__(self, bytes_max: int = READING_BYTES_MAX, whole: "Room | None" = None) -> None:
        self._bytes_max, self._whole, self.held_bytes = bytes_max, whole, 0

    def share(self) -> "Room":
        """Return the room of one cluster."""
        return Room(READING_SHARE_BYTES_MAX, self)

    def take(self, size: int) -> None:
        """Take bytes. Raises Unavailable, and takes none, when fewer are left."""
        if self.held_bytes + size > self._bytes_max:
            whose = "all clusters" if self._whole is None else "this cluster"
            raise Unavailable(
                f"replies of members of {whose} take {self.held_bytes} of {self._bytes_max} bytes; "
                "the member is asked again"
            )
        if self._whole is not None:
            self._whole.take(size)
        self.held_bytes += size

    def give(self, size: int) -> None:
        """Give bytes back that were taken."""
        self.held_bytes -= size
        if self._whole is not None:
            self._whole.give(size)

    @contextmanager
    def reply(self) -> "Iterator[Held]":
        """Yield what one reply holds, and give it back at the end of the block."""
        held = Held(self)
        try:
            yield held
        finally:
            self.give(held.taken_bytes)


class Held:
    """What one reply takes of a room."""

    def __init__(self, room: Room) -> None:
        self._room, self._size, self.taken_bytes = room, 0, 0

    def add(self, size: int) -> None:
        """Count bytes that have arrived. Raises Unavailable when there is no room for them."""
        self._size += size
        counted = max(0, self._size - FREE_BYTES) - self.taken_bytes
        self._room.take(counted)
        self.taken_bytes += counted
