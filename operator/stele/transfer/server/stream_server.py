"""HTTP of the source: `GET /v1/sessions/<session>/partitions/<p>?generation=<g>&at=<position>`.

The response is a stream of blocks: one fragment from that position (`wire.copy.fragments`); its last block
names the next position. Without `at`, or in a session without fragments, it is the whole tablet.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from aiohttp import web

from stele.adapters.http import bears
from stele.core.control.commands import SessionTablet
from stele.core.copy.pacing import piece_bytes
from stele.errors import BadInput, Corrupt, Stale, SteleError
from stele.transfer.server.checkpoint import find_tablet
from stele.transfer.server.open_checkpoints import OpenCheckpoints
from stele.wire.copy.blocks import BLOCK_BYTES

log = logging.getLogger(__name__)

STREAMS_MAX = 16
BLOCKS = "application/x-stele-blocks"
CLOSE_ENDED_SECONDS = 5.0
SESSION_ID = re.compile(r"[a-z0-9-]{1,63}")
R = TypeVar("R")
_NUMBER = re.compile(r"[0-9]{1,10}")


class StreamServer:
    """Serves streams, at most `STREAMS_MAX` at a time, each read in its own thread."""

    def __init__(self, sessions: OpenCheckpoints) -> None:
        self._sessions = sessions
        self._threads = ThreadPoolExecutor(STREAMS_MAX, thread_name_prefix="stream")
        self._streams = 0
        self.sent_bytes = 0

    def add_routes(self, app: web.Application) -> None:
        """Add the routes, and close ended sessions while the application runs."""
        app.router.add_get("/v1/sessions/{session}/partitions/{partition}", self._get)
        app.cleanup_ctx.append(self._closing_ended)

    async def _closing_ended(self, app: web.Application) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self._close_ended())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._sessions.close()

    async def _close_ended(self) -> None:
        while True:
            await asyncio.sleep(CLOSE_ENDED_SECONDS)
            self._sessions.close_ended()

    async def _get(self, request: web.Request) -> web.StreamResponse:
        try:
            tablet, at = self._find(request)
        except _HttpError as wrong:
            return web.Response(status=wrong.status, text=wrong.text)
        except Corrupt as error:
            return web.Response(status=503, text=f"{error}; open a new session")
        if self._streams >= STREAMS_MAX:
            text = f"{STREAMS_MAX} streams are active at this member: retry later"
            return web.Response(status=503, text=text)
        self._streams += 1
        try:
            with self._sessions.reading(request.match_info["session"]) as checkpoint:
                name = request.match_info["session"]
                rate = self._sessions.rate(name)
                pieces = _pieces(checkpoint.blocks(tablet, at, piece_bytes(rate)))
                first = await self._in_executor(partial(next, pieces, b""))
                if len(first) < BLOCK_BYTES and not rate:
                    self.sent_bytes += len(first)
                    self._sessions.note_sent(name, len(first))
                    return web.Response(body=first, content_type=BLOCKS)
                return await self._stream(request, first, pieces, tablet)
        except BadInput as error:
            return web.Response(status=400, text=str(error))
        except Corrupt as error:
            self._note_damage(request, tablet, error)
            return web.Response(status=503, text=str(error))
        except SteleError as error:
            return web.Response(status=503, text=str(error))
        finally:
            self._streams -= 1

    def _find(self, request: web.Request) -> tuple[SessionTablet, str]:
        """Return the requested tablet and position. Raises _HttpError."""
        name, partition = request.match_info["session"], request.match_info["partition"]
        generation = request.query.get("generation", "")
        numbers = _NUMBER.fullmatch(partition) and _NUMBER.fullmatch(generation)
        if not (SESSION_ID.fullmatch(name) and numbers):
            text = "expected /v1/sessions/[a-z0-9-]{1,63}/partitions/NUMBER?generation=NUMBER"
            raise _HttpError(400, text)
        session = self._sessions.describe(name)
        if session is None:
            raise _HttpError(404, f"session {name} does not exist at this member")
        if not bears(request, session.token):
            raise _HttpError(401, f"session {name} requires its token: Authorization: Bearer TOKEN")
        try:
            tablet = find_tablet(session, int(partition), int(generation))
        except Stale as error:
            raise _HttpError(409, str(error)) from None
        if tablet is None:
            raise _HttpError(404, f"session {name} holds no partition {partition}")
        return tablet, request.query.get("at", "") if session.fragments else ""

    async def _stream(
        self, request: web.Request, first: bytes, pieces: Iterator[bytes | bytearray], tablet: SessionTablet
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": BLOCKS})
        await response.prepare(request)
        piece: bytes | None = first
        try:
            while piece is not None:
                following = asyncio.create_task(self._in_executor(partial(next, pieces, None)))
                try:
                    await self._sessions.send(request.match_info["session"], piece, response.write)
                finally:
                    await asyncio.wait([following])  # No thread may read after this returns.
                self.sent_bytes += len(piece)
                piece = await following
        except ConnectionError:
            return response  # The reader disconnected; it retries if it still needs the tablet.
        except Corrupt as error:
            # The reader gets a stream without its last block, and discards it.
            self._note_damage(request, tablet, error)
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
        return response

    def _note_damage(self, request: web.Request, tablet: SessionTablet, error: Corrupt) -> None:
        log.error("stream of partition %d ended early: %s", tablet.partition, error)
        self._sessions.note_damage(request.match_info["session"], tablet, str(error))

    async def _in_executor(self, work: Callable[[], R]) -> R:
        """Run work in a thread; when cancelled, wait until the thread has finished it."""
        step = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise


def _pieces(blocks: Iterator[bytearray]) -> Iterator[bytearray]:
    """Iterate the stream in chunks of at least BLOCK_BYTES, since each costs a switch of threads."""
    waiting: list[bytearray] = []
    size = 0
    for block in blocks:
        waiting.append(block)
        size += len(block)
        if size >= BLOCK_BYTES:
            yield bytearray().join(waiting) if len(waiting) > 1 else block
            waiting, size = [], 0
    if waiting:
        yield bytearray().join(waiting)


class _HttpError(Exception):
    """A request that is rejected before anything is read."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
