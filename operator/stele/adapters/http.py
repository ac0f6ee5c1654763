"""What holds for every HTTP application of Stele, and for every token that one asks for."""

import hmac
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from aiohttp.typedefs import Middleware

BODY_BYTES_MAX = 1024 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    *, body_bytes_max: int = BODY_BYTES_MAX, middlewares: Sequence[Middleware] = ()
) -> web.Application:
    """Bodies are taken as they are sent: a few bytes that unpack to a volume's worth are refused."""
    return web.Application(
        client_max_size=body_bytes_max,
        middlewares=[_only_plain_bodies, *middlewares],
        handler_args={"auto_decompress": False},
    )


@web.middleware
async def _only_plain_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    encoding = request.headers.get("Content-Encoding")
    if encoding is not None:
        text = f"Content-Encoding is {encoding[:40]!r}; leave it out and send the body as it is\n"
        raise web.HTTPUnsupportedMediaType(text=text)
    return await handler(request)


def bears(request: web.Request, token: str) -> bool:
    """Whether the request has this token: `Authorization: Bearer TOKEN`. It takes as long for a wrong one."""
    # aiohttp gives bytes that are no UTF-8 as surrogates, which only this way back makes bytes of.
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, b"Bearer " + token.encode())
