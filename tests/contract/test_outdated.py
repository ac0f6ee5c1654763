"""What the spec says and is not yet true of pods and volumes is told, on either API server."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from stele.adapters.kubernetes.api import CLAIMS, CLUSTERS, MEMBERS, PODS
from stele.core.control.failure_detector import MemberLiveness, MemberObject
from stele.core.control.state import State
from stele.core.table.table import Member, Partition, PartitionTable
from stele.master.cache import Cache
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.revision import REVISION
from stele.master.settings import Settings
from stele.model import TabletCluster

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings("member:1", "spark:1", (), "", "test")
BODY: dict[str, Any] = {
    "apiVersion": CLUSTERS.api,
    "kind": CLUSTERS.kind,
    "metadata": {"name": "demo"},
    "spec": {
        "members": 2,
        "replicas": 2,
        "partitions": 2,
        "storage": {"size": "1Gi"},
        "migration": {"engine": "Direct"},
    },
}


class Scene:
    """A cluster of two members that want for nothing."""

    def __init__(self, api: Any, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.cache = Cache(lambda _kind, _stored: None)
        entries = {i: Member(i, f"demo-{i}", f"uuid-{i}", "10.0.0.1") for i in (0, 1)}
        table = PartitionTable((Partition(1, (0, 1)), Partition(1, (1, 0))), entries)
        self.state = State(1, table, 1, 2, 0.0, recovered=True)
        for index, entry in entries.items():
            liveness = self.state.membership.liveness[index] = MemberLiveness(
                index, 0.0, answered_seconds=1.0
            )
            liveness.member_object = MemberObject(index, entry.name)

    async def begin(self, **spec: Any) -> None:
        body = {**BODY, "spec": {**BODY["spec"], **spec}}
        stored = await self.api.create(CLUSTERS, self.namespace, body)
        self.cache.put(CLUSTERS, stored)
        self.world = self.new_world(stored)
        await self.round()

    def new_world(self, stored: Any, settings: Settings = SETTINGS) -> KubernetesClusterObjects:
        found = TabletCluster.read(stored)
        assert isinstance(found, TabletCluster)
        return KubernetesClusterObjects(self.api, self.cache, settings, found, lambda _seconds: NOON)

    async def round(self) -> None:
        self.world.refresh()
        for index in (0, 1):
            await self.world.ensure_member(index)
        self.world.member_objects()
        await self.world.write_status(self.state, 1.0)

    async def change(self, **spec: Any) -> None:
        """As a user does; the operator hears of it."""
        stored = await self.api.get(CLUSTERS, self.namespace, "demo")
        body = {**stored, "spec": {**stored["spec"], **spec}}
        self.cache.put(CLUSTERS, await self.api.replace(CLUSTERS, self.namespace, body))

    async def ready(self) -> tuple[str, str, str, int, int]:
        status = (await self.api.get(CLUSTERS, self.namespace, "demo"))["status"]
        found = next(each for each in status["conditions"] if each["type"] == "Ready")
        return (
            found["status"],
            found["reason"],
            found["message"],
            status["members"]["updated"],
            status["observedGeneration"],
        )


@pytest.fixture
async def scene(place: tuple[Any, str]) -> Scene:
    found = Scene(*place)
    await found.begin()
    assert (await found.ready())[1:4:2] == ("AsDesired", 2)
    return found


CHANGES: Mapping[str, tuple[dict[str, Any], str]] = {
    "resources": ({"resources": {"limits": {"memory": "1Gi"}}}, "Pod demo-{} (resources)"),
    "image": ({"images": {"member": "member:2"}}, "Pod demo-{} (image)"),
    "fsync": ({"storage": {"size": "1Gi", "fsync": "Never"}}, "Pod demo-{} (STELE_FSYNC)"),
    "lease": ({"failureDetection": {"leaseSeconds": 9}}, "Pod demo-{} (STELE_LEASE_MS)"),
    "placement": ({"placement": {"topologyKeys": ["zone"]}}, "Pod demo-{} (placement)"),
    "size": ({"storage": {"size": "2Gi"}}, "PersistentVolumeClaim demo-{} (1Gi of 2Gi)"),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_a_cluster_is_not_ready_while_its_pods_and_volumes_are_older_than_its_spec(
    scene: Scene, what: str
) -> None:
    spec, text = CHANGES[what]
    await scene.change(**spec)
    await scene.round()
    status, reason, message, updated, generation = await scene.ready()
    assert (status, reason, updated, generation) == ("False", "MembersOutdated", 0, 2)
    for index in (0, 1):
        assert text.format(index) in message


@pytest.mark.parametrize("which", ["members", "copier"])
async def test_an_image_of_the_installation_is_compared_too(scene: Scene, which: str) -> None:
    stored = await scene.api.get(CLUSTERS, scene.namespace, "demo")
    images = ("member:2", "spark:1") if which == "members" else ("member:1", "spark:2")
    scene.world = scene.new_world(stored, Settings(*images, (), "", "test"))
    await scene.round()
    assert (await scene.ready())[:2] == (
        ("False", "MembersOutdated") if which == "members" else ("True", "AsDesired")
    )


async def test_nothing_else_of_the_spec_makes_members_outdated(scene: Scene) -> None:
    detection = {"rejoinGracePeriodSeconds": 60}
    await scene.change(migration={"engine": "Direct", "paused": False}, failureDetection=detection)
    await scene.round()
    assert (await scene.ready())[1:4:2] == ("AsDesired", 2)


SAME: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other units": (
        {"limits": {"cpu": "1", "memory": "1Gi"}},
        {"limits": {"memory": "1024Mi", "cpu": "1000m"}, "requests": {}},
    ),
    "a number": ({"requests": {"cpu": "2000m"}}, {"requests": {"cpu": 2}}),
    "the defaults": ({}, {"requests": {"cpu": "0.1", "memory": "196608Ki"}}),
}


@pytest.mark.parametrize("what", SAME)
async def test_the_same_amounts_in_other_words_make_no_member_outdated(
    place: tuple[Any, str], what: str
) -> None:
    before, after = SAME[what]
    scene = Scene(*place)
    await scene.begin(resources=before)
    await scene.change(resources=after)
    await scene.round()
    assert (await scene.ready())[1:4:2] == ("AsDesired", 2)
    await scene.change(resources={**after, "requests": {"cpu": "300m"}})
    await scene.round()
    assert (await scene.ready())[1:4:2] == ("MembersOutdated", 0)


async def test_a_pod_without_a_revision_is_judged_by_what_it_has(scene: Scene) -> None:
    """It was made by an operator that wrote none; the API server added to it what is not in its manifest."""
    for kind in (PODS, CLAIMS):
        for index in (0, 1):
            made = await scene.api.get(kind, scene.namespace, f"demo-{index}")
            assert made["metadata"]["annotations"].pop(REVISION)
            scene.cache.put(kind, await scene.api.replace(kind, scene.namespace, made))
    await scene.round()
    assert (await scene.ready())[1:4:2] == ("AsDesired", 2)
    await scene.change(resources={"requests": {"cpu": "1000m"}})
    await scene.round()
    status, reason, message, updated, _ = await scene.ready()
    assert (status, reason, updated) == ("False", "MembersOutdated", 0)
    assert "Pod demo-0 (resources), Pod demo-1 (resources)" in message


async def test_a_status_is_about_the_generation_that_was_decided_on(scene: Scene) -> None:
    """Between the decision and the report a user asks for less: the report does not answer that."""
    scene.world.refresh()
    decided = scene.world.desired()
    scene.world.member_objects()
    await scene.change(members=1)
    member = await scene.api.get(MEMBERS, scene.namespace, "demo-0")
    body = {**member, "spec": {**member["spec"], "drain": True}}
    scene.cache.put(MEMBERS, await scene.api.replace(MEMBERS, scene.namespace, body))
    assert scene.world.desired() == decided
    await scene.world.write_status(scene.state, 2.0)
    assert (await scene.ready())[4] == 1
    shown = await scene.api.get(MEMBERS, scene.namespace, "demo-0")
    assert (shown["metadata"]["generation"], shown["status"]["observedGeneration"]) == (2, 1)
    scene.world.refresh()
    assert scene.world.desired().members == 1
    await scene.world.write_status(scene.state, 3.0)
    assert (await scene.ready())[4] == 2
