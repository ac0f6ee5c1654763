"""The Job of a bulk load on a real API server, where a test does what the Job controller would do."""

import asyncio

import pytest

from stele.adapters.kubernetes import bulk_job
from stele.adapters.kubernetes.api import CLUSTERS, EVENTS, JOBS, PODS, Api, Object
from stele.adapters.kubernetes.bulk_job import running
from stele.errors import Refused
from tests.fakes.objects import body

pytestmark = pytest.mark.control_plane

CLUSTER = body(CLUSTERS, "demo", {"members": 1, "replicas": 1, "partitions": 8, "storage": {"size": "1Gi"}})


async def job_of(api: Api, namespace: str) -> Object:
    for _ in range(1000):
        if jobs := await api.list(JOBS, namespace):
            return jobs[0]
        await asyncio.sleep(0.01)
    raise AssertionError("no Job was made")


async def start_pod(api: Api, namespace: str) -> None:
    """As the Job controller and a kubelet do it."""
    job = await job_of(api, namespace)
    labels = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    pod = body(PODS, "bulk", job["spec"]["template"]["spec"], labels=labels)
    await api.create(PODS, namespace, pod)
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    await api.patch_status(PODS, namespace, "bulk", ready)


async def refuse_pod(api: Api, namespace: str) -> None:
    meta = (await job_of(api, namespace))["metadata"]
    involved = {"kind": "Job", "namespace": namespace, "name": meta["name"], "uid": meta["uid"]}
    for number, reason in enumerate(("Other", "FailedCreate")):
        event = {"apiVersion": "v1", "kind": "Event", "involvedObject": involved, "reason": reason}
        event |= {"metadata": {"name": f"event-{number}"}, "message": f"{reason}: exceeded quota"}
        await api.create(EVENTS, namespace, event)


async def test_a_job_runs_or_says_why_it_may_not_and_is_deleted(
    api: Api, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_job, "ASK_SECONDS", 0.05)
    await api.create(CLUSTERS, namespace, CLUSTER)
    refusing = asyncio.create_task(refuse_pod(api, namespace))
    with pytest.raises(Refused, match="may not start: FailedCreate: exceeded quota"):
        async with running(api, namespace, "demo", "image:1", "1Gi"):
            pass
    await refusing
    assert await api.list(JOBS, namespace) == []
    starting = asyncio.create_task(start_pod(api, namespace))
    async with running(api, namespace, "demo", "image:1", "1Gi"):
        await starting
    assert await api.list(JOBS, namespace) == []
