"""The page at a free port of loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from e2e.page.facts import Known
from stele.adapters.tls.http_site import HttpSite
from stele.web.server import Page


@asynccontextmanager
async def served(source: Known) -> AsyncIterator[str]:
    """Yield its address, without a slash."""
    runner = web.AppRunner(
        Page(source, now=lambda: source.seconds).application(), access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    try:
        await HttpSite(runner, None, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
