"""Objects of a cluster as an API server has them, and a server that lists them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.fakes.http import serving
from tests.fakes.pod_proxy import kubeconfig

Stored = dict[str, Any]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def cluster(name: str = "demo", namespace: str = "ns", spec: Stored | None = None, **status: Any) -> Stored:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"members": 2, "storage": {"size": "1Gi"}, **(spec or {})},
        "status": {"phase": "Running", **status},
    }


def member(index: int, of: str = "demo", namespace: str = "ns", **status: Any) -> Stored:
    return {
        "metadata": {"name": f"{of}-{index}", "namespace": namespace},
        "spec": {"cluster": of, "index": index},
        "status": {"state": "Active", **status},
    }


def plan(name: str = "demo-4-1", of: str = "demo", **status: Any) -> Stored:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"cluster": of}, "status": status}


def pod(name: str, *containers: str, of: str = "demo", start: str = "1", restarts: int = 0) -> Stored:
    """A pod whose containers run; without a `start` they have not begun."""
    statuses = [
        {"name": each, "containerID": start and f"{name}-{each}-{start}", "restartCount": restarts}
        for each in containers
    ]
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": {"stele.dev/cluster": of}},
        "spec": {"containers": [{"name": each} for each in containers]},
        "status": {"containerStatuses": statuses},
    }


@asynccontextmanager
async def listing(
    folder: Path,
    stored: Callable[[], dict[str, list[Stored]]],
    *,
    log: Handler | None = None,
    proxied: Handler | None = None,
    forbidden: Collection[str] = (),
) -> AsyncIterator[Path]:
    """A kubeconfig of a server with the objects that `stored` has at that moment, by plural.

    It takes merge patches. `log` answers for logs of pods, `proxied` for what is passed on to pods.
    Nobody may list the kinds that are `forbidden`.
    """

    def found(request: web.Request) -> list[Stored]:
        namespace = request.match_info.get("namespace")
        objects = stored().get(request.match_info["plural"], [])
        wanted = (
            dict([request.query["labelSelector"].split("=")]) if request.query.get("labelSelector") else {}
        )
        return [
            each
            for each in objects
            if namespace in (None, each["metadata"]["namespace"])
            and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]

    async def listed(request: web.Request) -> web.Response:
        if request.match_info["plural"] in forbidden:
            message = f"{request.match_info['plural']} is forbidden"
            return web.json_response({"kind": "Status", "message": message}, status=403)
        return web.json_response({"items": found(request), "metadata": {}})

    async def one(request: web.Request) -> web.Response:
        for each in found(request):
            if each["metadata"]["name"] == request.match_info["name"]:
                if request.method == "PATCH":
                    _merge(each, await request.json())
                return web.json_response(each)
        return web.json_response({"kind": "Status", "message": f"{request.path} not found"}, status=404)

    async def version(_: web.Request) -> web.Response:
        return web.json_response({"gitVersion": "v1.34.1"})

    app, pods = web.Application(), "/api/v1/namespaces/{namespace}/pods/{pod}"
    if log is not None:
        app.router.add_get(pods + "/log", log)
    if proxied is not None:
        app.router.add_get(pods + "/proxy/{path:.*}", proxied)
    app.router.add_get("/version", version)
    for root in ("/api/v1", "/apis/{group}/{version}"):
        app.router.add_get(root + "/{plural}", listed)
        app.router.add_get(root + "/namespaces/{namespace}/{plural}", listed)
        app.router.add_route("*", root + "/namespaces/{namespace}/{plural}/{name}", one)
    async with serving(app) as url:
        yield kubeconfig(folder, url)


def _merge(stored: Stored, patch: Stored) -> None:
    for key, value in patch.items():
        if isinstance(value, dict):
            _merge(stored.setdefault(key, {}), value)
        elif value is None:
            stored.pop(key, None)
        else:
            stored[key] = value
