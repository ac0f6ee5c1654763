"""The memory that replies take between the owner of a partition and the socket of the client."""

import asyncio
from collections import deque
from contextlib import suppress

from stele.errors import Unavailable
from stele.member import limits


class TooManyRepliesError(Exception):
    """The connection that made it too much is closed."""

    def __init__(self) -> None:
        super().__init__(
            f"replies of more than {limits.REPLIES_BYTES_MAX} bytes wait at this member: connect again later"
        )


class ReplyBytes:
    """Of all connections of a member: `held` is what is there, and what was promised to who asks for more."""

    def __init__(self) -> None:
        self.held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def scarce(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return self.held > limits.REPLIES_BYTES_MAX

    def add(self, size: int) -> None:
        """So much more is held, or less."""
        self.held += size
        while size < 0 and self._waiting and self._has_room(self._waiting[0][0]):
            wanted, future = self._waiting.popleft()
            if not future.done():
                self.held += wanted
                future.set_result(None)

    def _has_room(self, size: int) -> bool:
        return self.held + size <= limits.LARGE_REPLIES_BYTES_MAX

    async def take(self, size: int, seconds: float) -> None:
        """Wait until there is room for so much, and hold it. Raise Unavailable when it takes longer."""
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
            text = f"replies of {self.held} bytes wait for clients of this member to read them; try again"
            raise Unavailable(text) from None
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.add(-size)
            raise
