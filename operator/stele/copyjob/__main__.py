"""`stele-copier`: accepts copy jobs over HTTP and runs them with Spark. `settings.py` has its environment."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

from aiohttp import web

from stele.adapters import http
from stele.adapters.environment import parser_of
from stele.copyjob.messages import decode_slice
from stele.copyjob.pods import sweep_leftovers
from stele.copyjob.runner import SparkRunner
from stele.copyjob.settings import Settings, read_settings
from stele.transfer.jobs.board import JobBoard
from stele.transfer.jobs.routes import JOB_BYTES_MAX, add_job_routes
from stele.transfer.program import SETTINGS_WRONG, begin, serve
from stele.wire.unreadable import UNREADABLE

JOBS_PARALLEL = 16


def make_app(settings: Settings, runner: SparkRunner) -> web.Application:
    """Return the copier's HTTP application, which owns the runner."""

    async def running(app: web.Application) -> AsyncIterator[None]:
        sweeping = asyncio.get_running_loop().create_task(sweep_leftovers(settings))
        runner.open()
        yield
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)
        await runner.close()

    async def progress(request: web.Request) -> web.Response:
        """Receive the progress of a task; 404 means that its job was cancelled."""
        session = request.match_info["session"]
        token = runner.token_of(session)
        if token is None:
            return web.Response(status=404)
        if not http.bears(request, token):
            text = f"session {session[:63]} requires its token: Authorization: Bearer TOKEN"
            return web.Response(status=401, text=text)
        try:
            reported = decode_slice(await request.read())
        except UNREADABLE as wrong:
            return web.Response(status=400, text=f"invalid progress of a slice: {wrong}")
        return web.Response(status=204 if runner.progress(session, reported) else 404)

    app = http.application(body_bytes_max=JOB_BYTES_MAX)
    # Contexts are cleaned up in reverse order: jobs are cancelled before their drivers end.
    app.cleanup_ctx.append(running)
    add_job_routes(app, "/v1/jobs", lambda: JobBoard(runner, JOBS_PARALLEL))
    app.router.add_post("/v1/jobs/{session}/progress", progress)
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM. Return 2 for an invalid setting or argument, 1 when it cannot listen."""
    parser = parser_of("stele-copier", "Run the copy jobs of a Stele cluster with Spark.", Settings)
    settings = begin(parser, arguments, read_settings)
    if settings is None:
        return SETTINGS_WRONG
    settings = replace(settings, start=secrets.token_hex(4))
    app = make_app(settings, SparkRunner(settings))
    return serve(parser.prog, app, settings.bind, settings.port)


if __name__ == "__main__":
    sys.exit(main())
