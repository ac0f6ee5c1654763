"""HTTP applications of tests, on a port of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.http_site import HttpSite


@asynccontextmanager
async def serving(
    app: web.Application, port: int = 0, acceptor: TlsAcceptor | None = None
) -> AsyncIterator[str]:
    """The URL at which the application answers within the block; it has no scheme for TLS either."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    place = "127.0.0.1", port
    site = web.TCPSite(runner, *place) if acceptor is None else HttpSite(runner, acceptor, *place)
    try:
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
