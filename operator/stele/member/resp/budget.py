"""Memory of replies between a partition's owner and the client's socket."""

import asyncio
from collections import deque
from contextlib import suppress

from stele.errors import Unavailable
from stele.member import limits


class TooManyRepliesError(Exception):
    """Too many reply bytes are held; the connection that exceeded the limit is closed."""

    def __init__(self) -> None:
        super().__init__(
            f"replies of more than {limits.REPLIES_BYTES_MAX} bytes wait at this member: reconnect later"
        )


class ReplyBytes:
    """Reply bytes of all connections of a member: held, and reserved for requests that need more room."""

    def __init__(self) -> None:
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def scarce(self) -> bool:
        """Whether a request waits for room."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return self.held > limits.REPLIES_BYTES_MAX

    def add(self, size: int) -> None:
        """Add to the held bytes, or subtract."""
        self.held += size
        while size < 0 and self._waiting and self._has_room(self._waiting[0][0]):
            size_wanted, future = self._waiting.popleft()
            if not future.done():
                self.held += size_wanted
                future.set_result(None)

    def _has_room(self, size: int) -> bool:
        return self.held + size <= limits.LARGE_REPLIES_BYTES_MAX

    async def take(self, size: int, seconds: float) -> None:
        """Wait for room and reserve it. Raises Unavailable after `seconds`."""
        if not self._waiting and self._has_room(size):
            self.held += size
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            if future.done() and not future.cancelled():
                return
            with suppress(ValueError):
                self._waiting.remove((size, future))
            text = f"replies of {self.held} bytes wait for clients of this member to read them; retry"
            raise Unavailable(text) from None
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.add(-size)
            raise
