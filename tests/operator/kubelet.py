"""A tiny kubelet for tests: every member Pod becomes a fake member behind a real HTTP port on a loopback
address.

Its volume is what outlives the pod: kept by the name of the claim.
"""

import asyncio
import itertools
import time
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from stele.adapters.kubernetes.api import Api
from stele.wire.control import decode_request, encode
from tests.fakes.members import FakeMember, FakeNet
from tests.operator.pods import PodWatch
from tests.worker import networks

ADMIN_PORT = 7001

_networks = networks(77)


class Kubelet(PodWatch):
    """Runs the members of one cluster in one namespace, until closed."""

    def __init__(self, api: Api, namespace: str, cluster_uid: str) -> None:
        super().__init__(api, namespace)
        self._cluster_uid = cluster_uid
        self.net = FakeNet()
        self.volumes: dict[str, FakeMember] = {}
        self._runners: dict[str, web.AppRunner] = {}
        self._network = next(_networks)
        self._hosts = itertools.count(1)

    async def _start_pod(self, name: str, pod: dict[str, Any]) -> None:
        address = f"{self._network}.{next(self._hosts)}"
        member = self.volumes.get(name)
        if member is None:
            member = FakeMember(self.net, address, f"uuid-of-{name}", self._cluster_uid)
            self.volumes[name] = member
        else:
            member.restart()
        member.address = address
        member.runs_in(pod["metadata"]["uid"], time.time())
        self.net.members[address] = member
        await self._serve(name, member)

    async def _serve(self, name: str, member: FakeMember) -> None:
        async def exchange(request: web.Request) -> web.Response:
            return web.Response(body=encode(member.exchange(decode_request(await request.read()))))

        app = web.Application(client_max_size=64 << 20)
        app.add_routes([web.post("/v1/exchange", exchange)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, member.address, ADMIN_PORT, reuse_address=True).start()
        self._runners[name] = runner

    def _address(self, name: str) -> str:
        return self.volumes[name].address

    async def _end(self, name: str, *, politely: bool = False) -> None:
        runner = self._runners.pop(name, None)
        if runner is not None:
            member = self.volumes[name]
            member.alive = False
            self.net.members.pop(member.address, None)
            await runner.cleanup()

    async def kill(self, name: str, back_after_seconds: float) -> None:
        """SIGKILL of the container; it is started again on the same pod, address and volume."""
        member, runner = self.volumes[name], self._runners.pop(name)
        member.alive = False
        await runner.cleanup()
        await self._status(name, {"terminated": {"exitCode": 137}})
        await asyncio.sleep(back_after_seconds)
        self._restarts[name] += 1
        self._began[name] = datetime.now(UTC)
        member.restart()
        member.runs_in(self._pods[name]["metadata"]["uid"], time.time())
        await self._serve(name, member)
        await self._status(name, {"running": {}})
