"""One exchange at a time with one member: a slow member delays no other."""

import asyncio
from collections.abc import Callable

from stele.core.control.commands import ExchangeRequest
from stele.core.control.state import Answer, TableCursor
from stele.core.table.ids import MemberIndex
from stele.errors import SteleError
from stele.ports.control_loop import Members


class Channel:
    """Sends one request and keeps the answer until the loop takes it.

    `sent_seconds` is when the last request was sent, `answer_seconds` how long the last answer took.
    """

    def __init__(
        self, index: MemberIndex, members: Members, now: Callable[[], float], wake: Callable[[], None]
    ) -> None:
        self._index, self._members, self._now, self._wake = index, members, now, wake
        self._task: asyncio.Task[None] | None = None
        self._answer: Answer | None = None
        self.sent_seconds = float("-inf")
        self.answer_seconds = 0.0
        self.address = ""
        self._sends_table = False

    @property
    def sends_table(self) -> bool:
        """Return whether a request with the whole table is on its way."""
        return self._sends_table and self._task is not None

    @property
    def free(self) -> bool:
        return self._task is None and self._answer is None

    @property
    def answered(self) -> bool:
        """Return whether no request is on its way."""
        return self._task is None

    def send(
        self,
        address: str,
        request: ExchangeRequest,
        published: TableCursor | None,
        deadline_seconds: float,
    ) -> None:
        """Start an exchange. The channel must be free."""
        assert self.free, "one exchange at a time"
        self.sent_seconds, self.address, self._sends_table = self._now(), address, request.full
        work = self._exchange(address, request, published, deadline_seconds)
        self._task = asyncio.get_running_loop().create_task(work)

    async def _exchange(
        self,
        address: str,
        request: ExchangeRequest,
        published: TableCursor | None,
        deadline_seconds: float,
    ) -> None:
        sent = self.sent_seconds
        try:
            reply = await self._members.exchange(address, request, deadline_seconds)
            self._answer = Answer(self._index, sent, request.commands, published, reply)
        except SteleError as error:
            self._answer = Answer(self._index, sent, request.commands, None, None, str(error))
        finally:
            if self._task is asyncio.current_task():
                self._task = None
                self.answer_seconds = self._now() - sent
            self._wake()

    def take(self) -> Answer | None:
        """Return the answer that arrived since the last call, if any."""
        answer, self._answer = self._answer, None
        return answer

    def abandon(self) -> None:
        """Stop waiting for an answer, because the member has moved to another address."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
