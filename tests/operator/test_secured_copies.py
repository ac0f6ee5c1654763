"""Both engines copy to members that join. Where members take nothing but TLS, the network has nothing of what
is stored, and no token of a copy.
"""

import secrets
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from stele.adapters.kubernetes.api import PODS, REBALANCES, Api
from stele.master.manifests import TLS_DIR, takes_tls
from tests.operator.copyfaults.kubelet import COPIER, FaultKubelet
from tests.operator.copyfaults.wire import Wire
from tests.operator.real_kubelet import RealKubelet
from tests.operator.recorder import COPIES, RecordedKubelet
from tests.operator.test_operator import Operator, with_processes
from tests.sampled import sampled

pytestmark = pytest.mark.control_plane

JOBS = 7010
SPEC: dict[str, Any] = {
    "migration": {"engine": "Spark"},
    "spark": {"executors": 1, "cores": 1, "idleSeconds": 60},
    # A busy machine is no fault.
    "failureDetection": {"heartbeatSeconds": 0.5, "leaseSeconds": 6, "rejoinGracePeriodSeconds": 120},
}
MARKER_BYTES = 48
KEYS, VALUE_BYTES = [b"key-%d" % number for number in range(600)], 16_384
ORDER, TOKEN = b"POST /v1/jobs", b'"token"'
"""The operator's request to copy, and what lets Spark's executors read a session."""


def asking(tls: str) -> dict[str, Any]:
    return {"clients": {"tls": "Off", "auth": "Off"}, "members": {"tls": tls}}


class SecuredKubelet(RecordedKubelet, FaultKubelet):
    """Mounts Secrets, and runs the copier; a relay is before each process, and nothing else."""

    async def _start(self, name: str, container: dict[str, Any]) -> None:
        await self._relay(name, container)
        await RealKubelet._start(self, name, container)

    async def _sync(self) -> None:
        await super()._sync()
        await self._mount_secret(f"{COPIER}-tls", self.secret_folder(f"{COPIER}-tls"))

    async def _copier_environment(self, address: str) -> dict[str, str]:
        inner = address.replace(self._network, self._inner_network)
        await self.recorder.relay(address, inner, JOBS)
        pod = await self._api.get(PODS, self._namespace, COPIER)
        tls = {TLS_DIR: str(self.secret_folder(f"{COPIER}-tls"))} if takes_tls(pod) else {}
        return {"STELE_BIND": inner, **tls}


@pytest.mark.parametrize("tls", [sampled("Required", kept=True), sampled("Off", kept=False)])
async def test_members_that_join_are_copied_to_by_spark_and_by_themselves(
    api: Api, namespace: str, operator: Operator, tmp_path: Path, tls: str
) -> None:
    wire, value = Wire(COPIES), secrets.token_bytes(VALUE_BYTES)
    kubelet = SecuredKubelet(api, namespace, tmp_path, wire)
    async with with_processes(api, namespace, operator, kubelet, 2, security=asking(tls), **SPEC) as stage:
        assert (await stage.cluster())["status"]["security"]["members"] == tls
        async with redis.asyncio.Redis(host=next(iter(kubelet.addresses.values()))) as client:
            for key in KEYS:
                await client.set(key, value)
        engines: dict[str, str] = {}
        for members, engine in ((3, "Spark"), (4, "Direct")):
            await stage.change_spec(members=members, migration={"engine": engine})
            await stage.until_converged(members)
            for plan in await api.list(REBALANCES, namespace):
                engines.setdefault(plan["metadata"]["name"], plan["status"].get("engine", ""))
            assert engine in engines.values(), engines
        for address in kubelet.addresses.values():
            async with redis.asyncio.Redis(host=address) as client:
                assert await client.mget(KEYS) == [value] * len(KEYS)
        assert list(kubelet.spark_folder.glob("executor.demo-2.*")), "no executor was started"
    await wire.close()
    recorder = kubelet.recorder
    assert recorder.busy_ports() >= {COPIES, JOBS}
    copied = {COPIES} & recorder.ports_with(value[:MARKER_BYTES])
    ordered = [{JOBS} & recorder.ports_with(text) for text in (ORDER, TOKEN)]
    assert (copied, *ordered) == ((set(),) * 3 if tls == "Required" else ({COPIES}, {JOBS}, {JOBS}))
