"""HTTP applications of tests, on a port of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.http_site import site_of


@asynccontextmanager
async def serving(
    app: web.Application, port: int = 0, acceptor: TlsAcceptor | None = None
) -> AsyncIterator[str]:
    """The URL at which the application answers within the block; it has no scheme for TLS either."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await site_of(runner, "127.0.0.1", port, acceptor).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
