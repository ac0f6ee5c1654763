"""HTTP applications of tests, on a port of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from e2e.bench.light_members import serve


@asynccontextmanager
async def serving(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """The URL at which the application answers within the block."""
    runner = await serve(app, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
