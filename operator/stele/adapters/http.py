"""Settings that all HTTP servers of Stele share, and the checks of who sent a request."""

import asyncio
import hmac
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from stele.adapters.connections import CONNECTIONS, LOOPBACK, Connections

BODY_BYTES_MAX = 1024 * 1024
FILE_BYTES = 1024 * 1024
"""Largest piece of a file that is read at once."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(
    *,
    body_bytes_max: int = BODY_BYTES_MAX,
    middlewares: Sequence[Middleware] = (),
    short_requests: bool = False,
) -> web.Application:
    """Return an application that rejects compressed bodies, which could expand to a volume's size.

    Its connections are limited where `adapters.tls.http_site` listens (`Connections`).
    """
    logging.getLogger("aiohttp.server").addFilter(_is_ours)
    connections = Connections(short_requests=short_requests)
    app = web.Application(
        client_max_size=body_bytes_max,
        middlewares=[connections.watch, _only_plain_bodies, *middlewares],
        handler_args={"auto_decompress": False},
    )
    app[CONNECTIONS] = connections
    return app


def _is_ours(record: logging.LogRecord) -> bool:
    """Return whether a logged error is the server's: not bytes that are no HTTP, nor a client that is gone.

    Anyone could fill a log with their tracebacks.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


@web.middleware
async def _only_plain_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    encoding = request.headers.get("Content-Encoding")
    if encoding is not None:
        text = f"Content-Encoding is {encoding[:40]!r}; leave it out and send the body as it is\n"
        raise web.HTTPUnsupportedMediaType(text=text)
    return await handler(request)


async def send_file(request: web.Request, path: Path) -> web.StreamResponse:
    """Answer with a file, or 404. Raises OSError.

    `web.FileResponse` does not: the sendfile of asyncio's loop refuses a transport with our TLS, and sends
    past the protocol, which would not see that the client takes nothing.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return web.Response(status=HTTPStatus.NOT_FOUND, text=f"{path.name} is not there\n")
    with file:
        answer = web.StreamResponse(headers={"Content-Length": str(os.fstat(file.fileno()).st_size)})
        await answer.prepare(request)
        while request.method == "GET" and (data := await asyncio.to_thread(file.read, FILE_BYTES)):
            await answer.write(data)
        await answer.write_eof()
    return answer


def is_local(request: web.Request) -> bool:
    """Return whether a request comes from inside the pod, or from a port that somebody forwards."""
    return request.remote in LOOPBACK


def bears(request: web.Request, token: str) -> bool:
    """Return whether the request has `Authorization: Bearer TOKEN`, in constant time."""
    # aiohttp decodes invalid UTF-8 to surrogates, which only this error handler encodes back.
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, b"Bearer " + token.encode())


def route_of(request: web.Request) -> str:
    """Return the pattern that the path fits; nothing for a path that no route has."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical
