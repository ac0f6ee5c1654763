"""Both engines copy to members that join, where members take nothing but TLS."""

from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from stele.adapters.kubernetes.api import REBALANCES, Api
from tests.operator.copyfaults.kubelet import FaultKubelet
from tests.operator.copyfaults.wire import Wire
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_client_security import MountingKubelet
from tests.operator.test_operator import Operator, with_processes

pytestmark = pytest.mark.control_plane

SPEC: dict[str, Any] = {
    "security": {"clients": {"tls": "Off", "auth": "Off"}, "members": {"tls": "Required"}},
    "migration": {"engine": "Spark"},
    "spark": {"executors": 1, "cores": 1, "idleSeconds": 60},
    # A busy machine is no fault.
    "failureDetection": {"heartbeatSeconds": 0.5, "leaseSeconds": 6, "rejoinGracePeriodSeconds": 120},
}
KEYS, VALUE = [b"key-%d" % number for number in range(600)], bytes(16_384)


class SecuredKubelet(MountingKubelet, FaultKubelet):
    """Mounts Secrets, and runs the copier; nothing is between transfer processes."""

    def _environment(self, name: str, container: dict[str, Any]) -> dict[str, str]:
        return super()._environment(name, container) | {"STELE_BIND": self.addresses[name]}

    async def _start(self, name: str, container: dict[str, Any]) -> None:
        await RealKubelet._start(self, name, container)


async def test_members_that_join_are_copied_to_with_tls_by_spark_and_by_themselves(
    api: Api, namespace: str, operator: Operator, tmp_path: Path
) -> None:
    wire = Wire(7002)
    kubelet = SecuredKubelet(api, namespace, tmp_path, wire)
    async with with_processes(api, namespace, operator, kubelet, 2, **SPEC) as stage:
        assert (await stage.cluster())["status"]["security"]["members"] == "Required"
        async with redis.asyncio.Redis(host=next(iter(kubelet.addresses.values()))) as client:
            for key in KEYS:
                await client.set(key, VALUE)
        engines: dict[str, str] = {}
        for members, engine in ((3, "Spark"), (4, "Direct")):
            await stage.change_spec(members=members, migration={"engine": engine})
            await stage.until_converged(members)
            for plan in await api.list(REBALANCES, namespace):
                engines.setdefault(plan["metadata"]["name"], plan["status"].get("engine", ""))
            assert engine in engines.values(), engines
        for address in kubelet.addresses.values():
            async with redis.asyncio.Redis(host=address) as client:
                assert await client.mget(KEYS) == [VALUE] * len(KEYS)
    await wire.close()
