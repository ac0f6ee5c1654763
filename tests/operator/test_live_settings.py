"""Settings that change without a restart, from the spec to the processes of members."""

import pytest

from stele.adapters.kubernetes.api import PODS, Api
from stele.member.storage.volume import LEASE
from stele.wire.storage.volume import LeaseFile, decode_file
from tests.member.harness.load import Load, Service
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, Stage, with_processes
from tests.operator.test_planned_stops import RESP_PORT

pytestmark = pytest.mark.control_plane


async def pods_of(stage: Stage) -> dict[str, str]:
    listed = await stage.api.list(PODS, stage.namespace, "stele.dev/component=member")
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in listed}


async def test_leases_change_while_clients_count_and_no_pod_restarts(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    async with with_processes(api, namespace, operator, real_kubelet) as stage:
        before = await pods_of(stage)
        load = Load(Service(list(real_kubelet.addresses.values()), RESP_PORT), [b"a", b"b", b"c"])
        for heartbeat, lease in ((1, 12), (0.5, 1.5)):
            detection = {"heartbeatSeconds": heartbeat, "leaseSeconds": lease}
            await stage.change_spec(failureDetection=detection | {"rejoinGracePeriodSeconds": 30})

            async def in_force(lease: float = lease) -> bool:
                paths = [real_kubelet.folder(name) / LEASE for name in before]
                files = [decode_file(LeaseFile, path.read_bytes(), str(path)) for path in paths]
                return {each.current_ms for each in files} == {lease * 1000} and await stage.ready(3)

            await stage.until(f"a lease of {lease} s", in_force)
        await load.end()
        assert load.failures == []
        assert await pods_of(stage) == before
        assert (await stage.cluster())["status"]["members"]["updated"] == 3
