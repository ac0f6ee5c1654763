"""HTTP of bulk loads and exports at a member's transfer process.

    PUT    /v1/bulk/loads/<load>/pieces/<piece>         upload a piece (`wire.copy.bulk`)
    POST   /v1/bulk/loads/<load>/partitions/<p>         build one tablet's run and SST file (`BuildOrder`)
    GET    /v1/bulk/loads/<load>/partitions/<p>         download the run with ?crc32c=
    DELETE /v1/bulk/loads/<load>                        end the load: pieces are deleted
    GET    /v1/bulk/sessions/<session>/partitions/<p>   one keyspace of a checkpoint, as blocks

An error is `{"code": ..., "detail": ...}`: 400 (correct the request), 401, 404, 409 (refused), 507 (no
space), 503 (retry).
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web

from stele.adapters.http import bears, send_file
from stele.core.control.commands import SessionTablet
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import BadInput, Conflict, Corrupt, Refused, Stale, SteleError
from stele.transfer.bulk.files import LoadFiles, disk_error
from stele.transfer.server.checkpoint import Checkpoint, find_tablet
from stele.transfer.server.open_checkpoints import OpenCheckpoints
from stele.wire.copy.blocks import End, encode_stream
from stele.wire.copy.bulk import (
    HEAD_BYTES,
    INDEX_BYTES_MAX,
    PIECE_BYTES_MAX,
    BuildOrder,
    LoadManifest,
    check_load_id,
)
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX, after_prefix, user_prefix
from stele.wire.unreadable import UNREADABLE

CHUNK_BYTES = 1024 * 1024
THREADS = 2
"""Threads that merge pieces: they hold the GIL, and streams of copies must continue meanwhile."""
STREAMS_MAX = 16
_PIECE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,99}")
_order = msgspec.json.Decoder(BuildOrder).decode
_encode = msgspec.json.Encoder().encode
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")


class Bulk:
    """Handlers. Concurrent requests to build the same file share one build."""

    def __init__(self, files: LoadFiles, sessions: OpenCheckpoints) -> None:
        self._files, self._sessions = files, sessions
        self._threads = ThreadPoolExecutor(THREADS, "bulk")
        self._readers = ThreadPoolExecutor(STREAMS_MAX, "export")
        self._builds: dict[tuple[str, int, BuildOrder], asyncio.Task[LoadManifest]] = {}
        self._streams = 0

    def add_routes(self, app: web.Application) -> None:
        """Add the routes."""
        load = "/v1/bulk/loads/{load}"
        app.router.add_put(load + "/pieces/{piece}", self._answering(self.put_piece))
        app.router.add_post(load + "/partitions/{partition}", self._answering(self.build))
        app.router.add_get(load + "/partitions/{partition}", self._answering(self.get_run))
        app.router.add_delete(load, self._answering(self.end))
        export = "/v1/bulk/sessions/{session}/partitions/{partition}"
        app.router.add_get(export, self._answering(self.export))

    @staticmethod
    def _answering(handler: Handler) -> Handler:
        async def answered(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except OSError as error:
                if isinstance(error, ConnectionError):
                    raise
                return _refusal(disk_error(error))
            except SteleError as error:
                return _refusal(error)

        return answered

    async def _threaded(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # -- loads

    async def put_piece(self, request: web.Request) -> web.Response:
        """Receive a piece. A repetition replaces it with the same content."""
        load, piece = _load(request), request.match_info["piece"]
        if not _PIECE.fullmatch(piece):
            raise BadInput(f"piece is {piece[:80]!r}; expected 1 to 100 letters, digits, _ and -")
        size, most = request.content_length or 0, PIECE_BYTES_MAX + INDEX_BYTES_MAX + HEAD_BYTES
        if not 1 <= size <= most:
            raise BadInput(f"the piece has {size} bytes; expected 1 to {most}, with Content-Length")
        receiving = self._files.receiving(load, piece, size)
        file = await self._threaded(receiving.__enter__)
        try:
            async for chunk in request.content.iter_chunked(CHUNK_BYTES):
                await self._threaded(partial(file.write, chunk))
        except BaseException as error:
            # Not in a thread: a cancelled request must not leave the file behind.
            receiving.__exit__(type(error), error, error.__traceback__)
            raise
        await self._threaded(lambda: receiving.__exit__(None, None, None))
        return web.json_response({"bytes": size})

    async def build(self, request: web.Request) -> web.Response:
        """Build a file, unless it exists."""
        load, number = _load(request), _partition(request)
        try:
            order = _order(await request.read())
        except UNREADABLE as error:
            raise BadInput(f"invalid build request: {error}") from None
        for piece in order.pieces:
            if not _PIECE.fullmatch(piece):
                raise BadInput(f"piece is {piece[:80]!r}; expected 1 to 100 letters, digits, _ and -")
        key = (load, number, order)
        task = self._builds.get(key)
        if task is None:
            work = partial(self._files.build, load, number, order)
            task = self._builds[key] = asyncio.create_task(self._threaded(work))
            task.add_done_callback(lambda _: self._builds.pop(key, None))
        # The build continues if the client disconnects: its retry finds the file.
        manifest = await asyncio.shield(task)
        return web.Response(body=_encode(manifest), content_type="application/json")

    async def get_run(self, request: web.Request) -> web.StreamResponse:
        """Send the run, for a member that lacks it."""
        crc = request.query.get("crc32c", "")
        if not crc.isascii() or not crc.isdigit() or len(crc) > 10:
            raise BadInput(f"crc32c is {crc[:40]!r}; expected that of the run")
        path = self._files.run_path(_load(request), _partition(request), int(crc))
        return await send_file(request, path) if path.exists() else _missing(path)

    async def end(self, request: web.Request) -> web.Response:
        """Delete the pieces of a load."""
        await self._threaded(partial(self._files.drop_pieces, _load(request)))
        return web.Response(status=204)

    # -- exports

    async def export(self, request: web.Request) -> web.StreamResponse:
        """Send one keyspace of a tablet, from a session's checkpoint."""
        tablet, keyspace = self._tablet(request), request.query.get("keyspace", "").encode()
        if not 1 <= len(keyspace) <= KEYSPACE_BYTES_MAX:
            raise BadInput(f"keyspace has {len(keyspace)} bytes; expected 1 to {KEYSPACE_BYTES_MAX}")
        if self._streams >= STREAMS_MAX:
            raise Refused(f"{STREAMS_MAX} exports are active at this member: retry later", "BUSY")
        self._streams += 1
        try:
            with self._sessions.reading(request.match_info["session"]) as checkpoint:
                if not isinstance(checkpoint, Checkpoint):
                    raise Refused("the session is that of a copy, not of an export", "NOT_FOUND")
                return await self._stream(request, checkpoint, tablet, keyspace)
        finally:
            self._streams -= 1

    def _tablet(self, request: web.Request) -> SessionTablet:
        name, number = request.match_info["session"], _partition(request)
        session = self._sessions.describe(name) if re.fullmatch(r"[a-z0-9-]{1,63}", name) else None
        if session is None:
            raise Refused(f"session {name[:80]} does not exist at this member", "NOT_FOUND")
        if not bears(request, session.token):
            raise Refused(f"session {name} requires its token: Authorization: Bearer TOKEN", "UNAUTHORIZED")
        generation = next((t.generation for t in session.tablets if t.partition == number), -1)
        tablet = find_tablet(session, number, generation)
        if tablet is None:
            raise Refused(f"session {name} holds no partition {number}", "NOT_FOUND")
        return tablet

    async def _stream(
        self, request: web.Request, checkpoint: Checkpoint, tablet: SessionTablet, keyspace: bytes
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-stele-blocks"})
        await response.prepare(request)
        blocks = _export_blocks(checkpoint, tablet, keyspace)
        loop = asyncio.get_running_loop()
        try:
            while (block := await loop.run_in_executor(self._readers, next, blocks, None)) is not None:
                await response.write(block)
            await response.write_eof()
        except (ConnectionError, Corrupt):
            # The reader gets a stream without its last block, and discards it.
            if request.transport is not None:
                request.transport.abort()
        return response


def _export_blocks(checkpoint: Checkpoint, tablet: SessionTablet, keyspace: bytes) -> Iterator[bytearray]:
    prefix = user_prefix(tablet.partition, tablet.generation, keyspace)
    cut = len(prefix)
    stored = checkpoint.range(prefix, after_prefix(prefix))
    entries = ((key[cut:], value) for key, value in stored)

    def end(count: int, size: int) -> End:
        return End(tablet.partition, tablet.generation, tablet.applied, count, size)

    return encode_stream(entries, end)


def _refusal(error: SteleError) -> web.Response:
    body = {"code": error.code, "detail": error.text}
    return web.json_response(body, status=_status(error))


def _load(request: web.Request) -> str:
    return check_load_id(request.match_info["load"])


def _partition(request: web.Request) -> int:
    text = request.match_info["partition"]
    if not text.isascii() or not text.isdigit() or len(text) > 6 or int(text) >= PARTITIONS_MAX:
        raise BadInput(f"partition is {text[:40]!r}; expected 0 to {PARTITIONS_MAX - 1}")
    return int(text)


def _missing(path: Path) -> web.Response:
    body = {"code": "NOT_FOUND", "detail": f"{path.parent.name}/{path.name} is not at this member"}
    return web.json_response(body, status=404)


def _status(error: SteleError) -> int:
    special = {"NO_SPACE": 507, "NOT_FOUND": 404, "UNAUTHORIZED": 401, "BUSY": 503}
    if error.code in special:
        return special[error.code]
    if isinstance(error, BadInput):
        return 400
    return 409 if isinstance(error, Conflict | Refused | Stale) else 503
