"""A tiny kubelet for tests: every member Pod becomes a fake member behind a real HTTP port on a loopback
address.

Its volume is what outlives the pod: kept by the name of the claim.
"""

import asyncio
import contextlib
import itertools
import os
from typing import Any

from aiohttp import web

from stele.adapters.kubernetes.api import PODS, Api, NotFound
from stele.wire.messages import decode_request, encode
from tests.master.fake_members import FakeMember, FakeNet

ADMIN_PORT = 7001
POLL_SECONDS = 0.1

_networks = itertools.count(os.getpid() % 200)


class Kubelet:
    """Runs the members of one cluster in one namespace, until closed."""

    def __init__(self, api: Api, namespace: str, cluster_uid: str) -> None:
        self._api, self._namespace, self._cluster_uid = api, namespace, cluster_uid
        self.net = FakeNet()
        self.volumes: dict[str, FakeMember] = {}
        self._runners: dict[str, web.AppRunner] = {}
        self._pods: dict[str, str] = {}
        self._restarts: dict[str, int] = {}
        self._network = next(_networks)
        self._hosts = itertools.count(1)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Kubelet":
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for name in list(self._runners):
            await self._stop(name)

    async def _run(self) -> None:
        while True:
            await self.sync()
            await asyncio.sleep(POLL_SECONDS)

    async def sync(self) -> None:
        """Start what is new, end what is gone."""
        listed = await self._api.list(PODS, self._namespace, "stele.dev/component=member")
        found = {each["metadata"]["name"]: each for each in listed}
        for name in [name for name in self._runners if name not in found]:
            await self._stop(name)
        for name, pod in found.items():
            uid = pod["metadata"]["uid"]
            if pod["metadata"].get("deletionTimestamp"):
                await self._stop(name)
                with contextlib.suppress(NotFound):
                    await self._api.delete(PODS, self._namespace, name, uid, grace_seconds=0)
            elif self._pods.get(name) != uid:
                await self._stop(name)
                await self._start(name, pod)

    async def _start(self, name: str, pod: dict[str, Any]) -> None:
        address = f"127.77.{self._network}.{next(self._hosts)}"
        member = self.volumes.get(name)
        if member is None:
            member = FakeMember(self.net, address, f"uuid-of-{name}", self._cluster_uid)
            self.volumes[name] = member
        else:
            member.restart()
        member.address = address
        self.net.members[address] = member
        await self._serve(name, member)
        self._pods[name] = pod["metadata"]["uid"]
        await self._status(name, {"running": {}})

    async def _serve(self, name: str, member: FakeMember) -> None:
        async def exchange(request: web.Request) -> web.Response:
            return web.Response(body=encode(member.exchange(decode_request(await request.read()))))

        app = web.Application(client_max_size=64 << 20)
        app.add_routes([web.post("/v1/exchange", exchange)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, member.address, ADMIN_PORT, reuse_address=True).start()
        self._runners[name] = runner

    async def _status(self, name: str, state: dict[str, Any]) -> None:
        member, restarts = self.volumes[name], self._restarts.setdefault(name, 0)
        container = {
            "name": "member",
            "image": "x",
            "imageID": "x",
            "ready": "running" in state,
            "restartCount": restarts,
            "containerID": f"test://{name}-{restarts}",
            "state": state,
        }
        status = {"phase": "Running", "podIP": member.address, "containerStatuses": [container]}
        await self._api.patch_status(PODS, self._namespace, name, status)

    async def _stop(self, name: str) -> None:
        runner = self._runners.pop(name, None)
        self._pods.pop(name, None)
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
        member.restart()
        await self._serve(name, member)
        await self._status(name, {"running": {}})
