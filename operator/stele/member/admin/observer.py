"""HTTP of a member on port 7004: probes and metrics, which change nothing and show no key."""

from aiohttp import web

from stele.adapters import http
from stele.member.admin.metrics import Metrics
from stele.member.node import Node


class Observer:
    """Handlers for the kubelet and Prometheus, which have no credentials."""

    def __init__(self, node: Node) -> None:
        self._node, self._metrics = node, Metrics(node)

    def application(self) -> web.Application:
        app = http.application(short_requests=True)
        app.router.add_get("/healthz", self._on_health)
        app.router.add_get("/readyz", self._on_ready)
        app.router.add_get("/metrics", self._on_metrics)
        return app

    async def _on_health(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _on_ready(self, request: web.Request) -> web.Response:
        """Ready when the volume is loaded and every partition owned by the table, if there is one, serves."""
        if not self._node.exchange.started:
            return web.Response(status=503, text="loading the volume\n")
        waiting = self._node.roles.unserved()
        if waiting:
            return web.Response(status=503, text=f"{len(waiting)} owned partitions do not serve yet\n")
        return web.Response(text="ok\n")

    async def _on_metrics(self, request: web.Request) -> web.Response:
        node = self._node
        volumes = await node.background.in_thread(node.volume.quarantined_volumes)
        text = self._metrics.text(sum(volume.bytes for volume in volumes))
        return web.Response(body=text, headers={"Content-Type": self._metrics.content_type})
