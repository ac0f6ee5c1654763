"""`PUT /v1/log-level`: changes the level of this process' log without a restart."""

import msgspec
from aiohttp import web

from stele.adapters import logs
from stele.core.control.member_settings import LogLevel
from stele.wire.unreadable import UNREADABLE
from stele.wire.urls import LOG_LEVEL

_decode = msgspec.json.Decoder(LogLevel).decode


def add_log_route(app: web.Application) -> None:
    """Take the level from those whom the application lets in."""
    app.router.add_put(LOG_LEVEL, _put)


async def _put(request: web.Request) -> web.Response:
    try:
        level = _decode(await request.read())
    except UNREADABLE as wrong:
        return web.Response(status=400, text=f"invalid level of the log: {wrong}")
    logs.follow(level)
    return web.Response(status=204)
