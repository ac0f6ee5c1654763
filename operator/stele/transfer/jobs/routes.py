"""HTTP of a job board: `POST <prefix>`, `GET` and `DELETE <prefix>/<session>`, and `GET /healthz`.

Bodies are JSON. An error is `{"code": ..., "detail": ...}` with status 400 (correct the request), 404 (no
such job: post it), 409 (the session has another job), 503 (busy: retry later).
"""

from collections.abc import AsyncIterator, Callable

import msgspec
from aiohttp import web

from stele.errors import BadInput, Conflict, SteleError
from stele.transfer.jobs.board import JobBoard
from stele.wire.copy.jobs import CopyJob, CopyJobStatus
from stele.wire.unreadable import UNREADABLE

JOB_BYTES_MAX = 16 * 1024 * 1024

_decode = msgspec.json.Decoder(CopyJob).decode
_encode = msgspec.json.Encoder().encode
_JSON = "application/json"


def add_job_routes(app: web.Application, prefix: str, make_board: Callable[[], JobBoard]) -> None:
    """Serve a board below `prefix` while the application runs."""
    handlers = _Handlers(make_board)
    app.router.add_post(prefix, handlers.post)
    app.router.add_get(f"{prefix}/{{session}}", handlers.get)
    app.router.add_delete(f"{prefix}/{{session}}", handlers.delete)
    app.router.add_get("/healthz", _healthz)
    app.cleanup_ctx.append(handlers.running)


async def _healthz(request: web.Request) -> web.Response:
    return web.Response(text="ok")


class _Handlers:
    def __init__(self, make_board: Callable[[], JobBoard]) -> None:
        self._make_board = make_board
        self._board: JobBoard | None = None

    async def running(self, app: web.Application) -> AsyncIterator[None]:
        """Run the board during the life of the application."""
        self._board = self._make_board()
        yield
        await self._board.close()

    def _get_board(self) -> JobBoard:
        assert self._board is not None
        return self._board

    async def post(self, request: web.Request) -> web.Response:
        """Submit a job."""
        board = self._get_board()
        try:
            job = _decode(await request.read())
        except UNREADABLE as wrong:
            return _answer(400, _error("BAD_INPUT", f"invalid copy job: {wrong}"))
        try:
            return _status(202, board.submit(job))
        except SteleError as error:
            status = {BadInput: 400, Conflict: 409}.get(type(error), 503)
            return _answer(status, _error(error.code, error.text))

    async def get(self, request: web.Request) -> web.Response:
        """Return a job's status."""
        session = request.match_info["session"]
        status = self._get_board().status(session)
        return _unknown(session) if status is None else _status(200, status)

    async def delete(self, request: web.Request) -> web.Response:
        """Stop and forget a job."""
        session = request.match_info["session"]
        known = await self._get_board().cancel(session)
        return web.Response(status=204) if known else _unknown(session)


def _answer(status: int, body: bytes) -> web.Response:
    return web.Response(status=status, body=body, content_type=_JSON)


def _status(code: int, status: CopyJobStatus) -> web.Response:
    return _answer(code, _encode(status))


def _unknown(session: str) -> web.Response:
    return _answer(404, _error("UNKNOWN_SESSION", f"session {session[:63]} has no job here"))


def _error(code: str, detail: object) -> bytes:
    return _encode({"code": code, "detail": str(detail)})
