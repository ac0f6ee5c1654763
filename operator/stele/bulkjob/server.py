"""Server side of `kubectl stele load` and `dump` in a pod: PUT /file, POST /job, GET /job, GET /file.

With the certificate of administrators it takes their requests alone, with TLS alone; without one, those of
every client that can reach the pod: the API server, for users with access to `pods/proxy`. A pod is used for
one job.
"""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

from stele.adapters import environment, http, logs
from stele.adapters.logs import LogSettings
from stele.adapters.tls.identity import TlsIdentity
from stele.adapters.tls.role_callers import RoleCallers
from stele.core.security.identity import Role
from stele.core.security.rotation import GRACE_SECONDS
from stele.errors import BadInput
from stele.transfer import program

log = logging.getLogger(__name__)

CHUNK_BYTES = 1024 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024
HEALTH = "/healthz"
PROGRAM = (sys.executable, "-m", "stele.bulkjob")


class Job:
    """The only job of this pod; `last` is the last line that it reported."""

    def __init__(self, folder: Path, program: tuple[str, ...] = PROGRAM) -> None:
        self._program, self.file = program, folder / "data.parquet"
        self.last: dict[str, Any] = {"step": "waiting", "done": 0, "all": 0}
        self._running: asyncio.Task[None] | None = None

    def start(self, command: str, arguments: list[str]) -> None:
        """Start the job, unless it was started before."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(command, str(self.file), *arguments))

    async def _run(self, *arguments: str) -> None:
        try:
            await self._follow(*arguments)
        except (OSError, ValueError) as error:
            # An argument has a NUL or is too long, or a line of the program is.
            self.last = {"error": {"code": "FAILED", "detail": f"the job cannot be run: {error}"}}

    async def _follow(self, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._program, *arguments, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES_MAX
        )
        assert process.stdout is not None
        async for text in process.stdout:
            log.info("%s", text.decode(errors="replace").rstrip())
            try:
                facts = json.loads(text)
            except ValueError:
                continue
            if isinstance(facts, dict):
                self.last = facts
        code = await process.wait()
        if not self.last.keys() & {"result", "error"}:
            detail = f"the job ended with exit code {code}; see the log of its pod"
            self.last = {"error": {"code": "FAILED", "detail": detail}}


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def application(job: Job, callers: RoleCallers | None = None) -> web.Application:
    """Return the pod's HTTP application."""

    async def put_file(request: web.Request) -> web.Response:
        size = request.content_length
        try:
            with job.file.open("wb") as file:
                async for data in request.content.iter_chunked(CHUNK_BYTES):
                    file.write(data)
        except OSError as error:
            job.file.unlink(missing_ok=True)
            text = f"the pod cannot store the {size} bytes of the file: {error}; its node needs free space"
            return web.json_response({"code": "NO_SPACE", "detail": text}, status=507)
        return web.json_response({"bytes": size})

    async def start(request: web.Request) -> web.Response:
        try:
            # Not `request.json`, which fails with a charset that does not exist.
            order = json.loads(await request.read())
            command, arguments = str(order["command"]), [str(argument) for argument in order["arguments"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise web.HTTPBadRequest(text="expected POST /job with command and arguments") from None
        if command not in ("load", "dump"):
            raise web.HTTPBadRequest(text=f"command is {command[:40]!r}; expected load or dump")
        job.start(command, arguments)
        return web.json_response(job.last)

    async def progress(_: web.Request) -> web.Response:
        return web.json_response(job.last)

    async def get_file(request: web.Request) -> web.StreamResponse:
        if "result" not in job.last or not job.file.exists():
            raise web.HTTPNotFound(text="the file does not exist")
        return await http.send_file(request, job.file)

    app = http.application(middlewares=() if callers is None else (callers.check,))
    if callers is not None:
        app.cleanup_ctx.append(callers.watching)
    app.router.add_get(HEALTH, _healthy)
    app.router.add_put("/file", put_file)
    app.router.add_get("/file", get_file)
    app.router.add_post("/job", start)
    app.router.add_get("/job", progress)
    return app


def callers_of(tls_folder: Path) -> RoleCallers:
    """Return who is taken by a pod with this certificate: administrators."""
    return RoleCallers(TlsIdentity(tls_folder, GRACE_SECONDS), Role.ADMIN, (HEALTH,))


def serve(port: int, folder: Path, tls_folder: str) -> int:
    """Serve until the process is terminated."""
    try:
        logs.start(environment.read(LogSettings, os.environ))
    except BadInput as wrong:
        logs.fail("stele-bulk", wrong)
        return program.SETTINGS_WRONG
    callers = callers_of(Path(tls_folder)) if tls_folder else None
    acceptor = None if callers is None else callers.acceptor
    return program.serve("stele-bulk", application(Job(folder), callers), "", port, acceptor=acceptor)
