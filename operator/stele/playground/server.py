"""The Unix socket of a playground: Kubernetes' paths for objects, and what Kubernetes has no path for."""

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from aiohttp import web

from stele.adapters.http import application
from stele.adapters.kubernetes.api import NotFound
from stele.errors import BadInput
from stele.playground.api import OWN, answer
from stele.playground.kubelet import Kubelet
from stele.playground.limits import AWAY_SECONDS_MAX, REQUEST_BYTES_MAX
from stele.playground.objects import ObjectFiles
from stele.playground.ports import Ports

SHUTDOWN_SECONDS = 1.0


class Server:
    """`stop` ends the playground."""

    def __init__(self, files: ObjectFiles, kubelet: Kubelet, ports: Ports, stop: Callable[[], None]) -> None:
        self._files, self._kubelet, self._ports, self._stop = files, kubelet, ports, stop

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Listen for this user alone."""
        app = application(body_bytes_max=REQUEST_BYTES_MAX)
        app.router.add_get(f"{OWN}/ports", self._say_ports)
        app.router.add_post(f"{OWN}/kill", self._kill)
        app.router.add_post(f"{OWN}/stop", self._end)
        app.router.add_route("*", "/{path:apis?/.*}", self._object)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        path.unlink(missing_ok=True)
        # Who may not write to a socket cannot connect; between its creation and a chmod, others could.
        before = os.umask(0o177)
        try:
            await web.UnixSite(runner, str(path)).start()
        finally:
            os.umask(before)
        try:
            yield
        finally:
            await runner.cleanup()
            path.unlink(missing_ok=True)

    async def _object(self, request: web.Request) -> web.Response:
        try:
            body = await _body(request)
        except BadInput as error:
            return _problem(422, error.text)
        status, found = answer(self._files, request.method, request.path, request.query, body)
        return web.json_response(found, status=status)

    async def _say_ports(self, request: web.Request) -> web.Response:
        return web.json_response(asdict(self._ports))

    async def _kill(self, request: web.Request) -> web.Response:
        try:
            body = await _body(request)
            name, seconds = _kill_of(body)
            self._kubelet.kill(name, seconds)
        except BadInput as error:
            return _problem(422, error.text)
        except NotFound as error:
            return _problem(404, error.text)
        return web.json_response({})

    async def _end(self, request: web.Request) -> web.Response:
        asyncio.get_running_loop().call_soon(self._stop)
        return web.json_response({})


async def _body(request: web.Request) -> object:
    """Return the JSON of a request. Raises BadInput."""
    # Not `request.text`, which fails with a charset that does not exist.
    data = await request.read()
    try:
        return json.loads(data) if data else None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the body is not JSON: {error}") from error


def _kill_of(body: object) -> tuple[str, float]:
    """Return whom to kill, and for how long. Raises BadInput."""
    given = body if isinstance(body, dict) else {}
    name, seconds = given.get("member"), given.get("awaySeconds", 0.0)
    if not isinstance(name, str):
        raise BadInput("member is missing; expected the name of a member, such as demo-0")
    good = isinstance(seconds, int | float) and math.isfinite(seconds) and 0 <= seconds <= AWAY_SECONDS_MAX
    if not good:
        raise BadInput(f"awaySeconds is {str(seconds)[:80]}; expected 0 to {AWAY_SECONDS_MAX:g}")
    return name, float(seconds)


def _problem(status: int, text: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": text}, status=status)
