"""`stele-copier`: accepts copy jobs over HTTP and runs them with Spark. `settings.py` has its environment."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from stele.adapters import http
from stele.adapters.environment import parser_of
from stele.adapters.logs import LogSettings
from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.identity import TlsIdentity
from stele.adapters.tls.role_callers import RoleCallers
from stele.copyjob.messages import decode_slice
from stele.copyjob.pods import sweep_leftovers
from stele.copyjob.runner import SparkRunner
from stele.copyjob.settings import Settings, read_settings
from stele.core.security.identity import Role
from stele.core.security.rotation import GRACE_SECONDS
from stele.transfer.jobs.board import JobBoard
from stele.transfer.jobs.routes import JOB_BYTES_MAX, add_job_routes
from stele.transfer.log_level import add_log_route
from stele.transfer.program import SETTINGS_WRONG, begin, serve
from stele.wire.unreadable import UNREADABLE

JOBS_PARALLEL = 16
PROGRESS = "/v1/jobs/{session}/progress"
OPEN_ROUTES = (PROGRESS, "/healthz")
"""For Spark's tasks, by the token of their session, and for the kubelet: neither has a certificate."""


def make_app(settings: Settings, runner: SparkRunner) -> tuple[web.Application, TlsAcceptor | None]:
    """Return the copier's HTTP application, which owns the runner, and what takes its connections.

    With a certificate that is TLS alone, and jobs are the master's; without one, plain ones of anybody.
    """
    callers = None
    if settings.tls_dir:
        callers = RoleCallers(TlsIdentity(Path(settings.tls_dir), GRACE_SECONDS), Role.MASTER, OPEN_ROUTES)

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

    middlewares = () if callers is None else (callers.check,)
    app = http.application(body_bytes_max=JOB_BYTES_MAX, middlewares=middlewares)
    if callers is not None:
        app.cleanup_ctx.append(callers.watching)
    # Contexts are cleaned up in reverse order: jobs are cancelled before their drivers end.
    app.cleanup_ctx.append(running)
    add_job_routes(app, "/v1/jobs", lambda: JobBoard(runner, JOBS_PARALLEL))
    app.router.add_post(PROGRESS, progress)
    add_log_route(app)
    return app, None if callers is None else callers.acceptor


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM. Return 2 for an invalid setting or argument, 1 when it cannot listen."""
    parser = parser_of(
        "stele-copier", "Run the copy jobs of a Stele cluster with Spark.", Settings, LogSettings
    )
    settings = begin(parser, arguments, read_settings)
    if settings is None:
        return SETTINGS_WRONG
    settings = replace(settings, start=secrets.token_hex(4))
    app, acceptor = make_app(settings, SparkRunner(settings))
    return serve(parser.prog, app, settings.bind, settings.port, acceptor=acceptor)


if __name__ == "__main__":
    sys.exit(main())
