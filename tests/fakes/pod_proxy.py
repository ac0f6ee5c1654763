"""As much of an API server as passes requests on to pods: `pods/NAME:PORT/proxy`, with its own errors."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.fakes.http import serving

NAMESPACE = "ns"


@asynccontextmanager
async def fake_api(folder: Path, pods: Mapping[str, str]) -> AsyncIterator[Path]:
    """A kubeconfig of a server that knows these pods: what a client names (`demo-0:7001`), and its URL."""

    async def passed_on(request: web.Request) -> web.Response:
        pod = request.match_info["pod"]
        if pod not in pods:
            return _refusal(404, "NotFound", f'pods "{pod.partition(":")[0]}" not found')
        url = f"{pods[pod]}/{request.match_info['path']}"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.request(request.method, url, params=request.query) as answer,
            ):
                return web.Response(status=answer.status, body=await answer.read())
        except aiohttp.ClientError as error:
            return _refusal(503, "ServiceUnavailable", f"error trying to reach service: {error}")

    app = web.Application()
    app.router.add_route("*", f"/api/v1/namespaces/{NAMESPACE}/pods/{{pod}}/proxy/{{path:.*}}", passed_on)
    async with serving(app) as url:
        yield kubeconfig(folder, url)


def kubeconfig(folder: Path, server: str) -> Path:
    """A kubeconfig without credentials."""
    made = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(made))
    return path


def _refusal(status: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status}
    return web.json_response(body, status=status)
