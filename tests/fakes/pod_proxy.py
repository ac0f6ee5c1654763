"""As much of an API server as passes requests on to pods: `proxy` and `portforward`, with its own errors."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from tests.fakes.http import serving

NAMESPACE = "ns"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CHANNELS = "v4.channel.k8s.io"


@asynccontextmanager
async def fake_api(
    folder: Path,
    pods: Mapping[str, str],
    objects: Mapping[str, dict[str, Any] | None] | None = None,
    *,
    forbidden: Collection[str] = (),
) -> AsyncIterator[Path]:
    """A kubeconfig of a server that knows these pods: what a client names (`demo-0:7001`), and its URL.

    It has these objects too, by path below the namespace (`secrets/demo`); None is one that may not be read.
    Nobody has the `forbidden` ones of the rights to `proxy` and `portforward`.
    """
    known = objects or {}

    async def passed_on(request: web.Request) -> web.Response:
        pod = request.match_info["pod"]
        if "proxy" in forbidden:
            return _refusal(403, "Forbidden", "pods/proxy is forbidden")
        if pod not in pods:
            return _refusal(404, "NotFound", f'pods "{pod.partition(":")[0]}" not found')
        url = f"{pods[pod]}/{request.match_info['path']}"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.request(request.method, url, params=request.query, allow_redirects=False) as answer,
            ):
                led = {"Location": place} if (place := answer.headers.get("Location")) else {}
                return web.Response(status=answer.status, body=await answer.read(), headers=led)
        except aiohttp.ClientError as error:
            return _refusal(503, "ServiceUnavailable", f"error trying to reach service: {error}")

    async def forward(request: web.Request) -> web.StreamResponse:
        if "portforward" in forbidden:
            return _refusal(403, "Forbidden", "pods/portforward is forbidden")
        port = int(request.query["ports"])
        place = pods.get(f"{request.match_info['pod']}:{port}")
        if place is None:
            return _refusal(404, "NotFound", "pods not found")
        target = urlsplit(place)
        assert target.hostname is not None
        assert target.port is not None
        return await forward_port(request, port, target.hostname, target.port)

    async def get(request: web.Request) -> web.Response:
        path = request.match_info["path"]
        found = known.get(path)
        if path in known and found is None:
            return _refusal(403, "Forbidden", f"{path} is forbidden")
        return _refusal(404, "NotFound", f"{path} not found") if found is None else web.json_response(found)

    app = web.Application()
    app.router.add_get(f"{PODS}/{{pod}}/portforward", forward)
    app.router.add_route("*", f"{PODS}/{{pod}}/proxy/{{path:.*}}", passed_on)
    app.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/{{path:.*}}", get)
    for group in ("stele.dev/v1alpha1", "coordination.k8s.io/v1"):
        app.router.add_get(f"/apis/{group}/namespaces/{NAMESPACE}/{{path:.*}}", get)
    async with serving(app) as url:
        yield kubeconfig(folder, url)


async def forward_port(request: web.Request, of_pod: int, host: str, port: int) -> web.WebSocketResponse:
    """Carry what kubelets do: each channel begins with the pod's port; 0 has the bytes, 1 an error."""
    socket = web.WebSocketResponse(protocols=(CHANNELS,))
    await socket.prepare(request)
    for channel in (b"\0", b"\1"):
        await socket.send_bytes(channel + of_pod.to_bytes(2, "little"))
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        await socket.send_bytes(b"\1" + f"error forwarding port {of_pod}: {error}".encode())
        return socket

    async def back() -> None:
        while piece := await reader.read(1 << 16):
            await socket.send_bytes(b"\0" + piece)
        await socket.close()

    carrying = asyncio.create_task(back())
    try:
        with suppress(ConnectionError):
            async for message in socket:
                assert message.data[0] == 0
                writer.write(message.data[1:])
                await writer.drain()
    finally:
        # Also when the server ends: a transport left open is a warning in a later test.
        carrying.cancel()
        writer.close()
        await asyncio.gather(carrying, writer.wait_closed(), return_exceptions=True)
    return socket


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
