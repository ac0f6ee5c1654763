"""What the spec says and is not yet true of pods and volumes is told, on either API server."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from stele.adapters import logs
from stele.adapters.kubernetes.api import CLAIMS, CLUSTERS, MEMBERS, PODS, Kind
from stele.core.control.failure_detector import MemberLiveness, MemberObject
from stele.core.control.state import State
from stele.core.table.table import Member, Partition, PartitionTable
from stele.errors import BadInput, Refused
from stele.master import manifests
from stele.master.cache import Cache
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.manifests import Setup
from stele.master.revision import REVISION
from stele.master.settings import Settings
from stele.model import TabletCluster
from tests.fakes.objects import body
from tests.fakes.spec import OPEN

STORAGE_CLASSES = Kind("storage.k8s.io/v1", "storageclasses", "StorageClass")
NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings("member:1", "spark:1", (), "", "test")
SPEC = {
    "members": 2,
    "replicas": 2,
    "partitions": 2,
    "storage": {"size": "1Gi"},
    "migration": {"engine": "Direct"},
    "security": OPEN,
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
        stored = await self.api.create(CLUSTERS, self.namespace, body(CLUSTERS, "demo", SPEC | spec))
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
        changed = {**stored, "spec": {**stored["spec"], **spec}}
        self.cache.put(CLUSTERS, await self.api.replace(CLUSTERS, self.namespace, changed))

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


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
TAINT = {"key": "stele", "operator": "Exists"}
SECRET_VARIABLE = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}

CHANGES: Mapping[str, tuple[dict[str, Any], str]] = {
    "resources": ({"resources": {"limits": {"memory": "1Gi"}}}, "Pod demo-{} (resources)"),
    "image": ({"images": {"member": "member:2"}}, "Pod demo-{} (image)"),
    "fsync": ({"storage": {"size": "1Gi", "fsync": "Never"}}, "Pod demo-{} (STELE_FSYNC)"),
    "placement": ({"placement": {"topologyKeys": ["zone"]}}, "Pod demo-{} (affinity)"),
    "labels": ({"podTemplate": {"labels": {"team": "shop"}}}, "Pod demo-{} (labels)"),
    "annotations": ({"podTemplate": {"annotations": {"a.b/c": "d"}}}, "Pod demo-{} (annotations)"),
    "nodes": ({"podTemplate": {"nodeSelector": {"disk": "fast"}}}, "Pod demo-{} (nodeSelector)"),
    "taints": ({"podTemplate": {"tolerations": [TAINT]}}, "Pod demo-{} (tolerations)"),
    "spread": ({"podTemplate": {"topologySpreadConstraints": [SPREAD]}}, "(topologySpreadConstraints)"),
    "pull secrets": ({"podTemplate": {"imagePullSecrets": [{"name": "a"}]}}, "(imagePullSecrets)"),
    "security": ({"podTemplate": {"securityContext": {"runAsUser": 7}}}, "Pod demo-{} (securityContext)"),
    "no security": ({"podTemplate": {"securityContext": {}}}, "Pod demo-{} (revision)"),
    "env": ({"podTemplate": {"env": [{"name": "TZ", "value": "UTC"}]}}, "Pod demo-{} (TZ)"),
    "env of a Secret": ({"podTemplate": {"env": [SECRET_VARIABLE]}}, "Pod demo-{} (TOKEN)"),
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


async def bind(scene: Scene, capacity: str) -> None:
    """Show claims as a storage driver does that made them volumes of this size."""
    for index in (0, 1):
        status = {"phase": "Bound", "capacity": {"storage": capacity}}
        bound = await scene.api.patch_status(CLAIMS, scene.namespace, f"demo-{index}", status)
        scene.cache.put(CLAIMS, bound)


async def test_claims_grow_with_the_spec_and_the_cluster_is_not_ready_until_volumes_have_grown(
    place: tuple[Any, str],
) -> None:
    api, namespace = place
    name = f"growing-{namespace}"
    growing = {"provisioner": "example.com/none", "allowVolumeExpansion": True}
    meta = {"apiVersion": STORAGE_CLASSES.api, "kind": STORAGE_CLASSES.kind, "metadata": {"name": name}}
    await api.create(STORAGE_CLASSES, "", meta | growing)
    scene = Scene(api, namespace)
    await scene.begin(storage={"size": "1Gi", "storageClassName": name})
    await bind(scene, "1Gi")
    await scene.change(storage={"size": "2Gi", "storageClassName": name})
    await scene.round()
    status, reason, message, updated, _ = await scene.ready()
    assert (status, reason, updated) == ("False", "VolumesResizing", 0)
    assert "PersistentVolumeClaim demo-0 (1Gi of 2Gi)" in message
    claim = await api.get(CLAIMS, namespace, "demo-1")
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    pending = {"type": "FileSystemResizePending", "status": "True", "message": "waits for a pod"}
    status = {"phase": "Bound", "capacity": {"storage": "1Gi"}, "conditions": [pending]}
    scene.cache.put(CLAIMS, await api.patch_status(CLAIMS, namespace, "demo-0", status))
    await scene.round()
    assert "demo-0 (1Gi of 2Gi, FileSystemResizePending: waits for a pod)" in (await scene.ready())[2]
    await bind(scene, "2Gi")
    await scene.round()
    assert (await scene.ready())[1:4:2] == ("AsDesired", 2)


async def test_a_volume_that_cannot_grow_stalls_the_cluster(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size that was refused is not asked for again."""
    await bind(scene, "1Gi")
    replace = scene.api.replace
    tried: list[str] = []

    async def refusing(kind: Any, namespace: str, body: Any) -> Any:
        if kind is not CLAIMS or body["spec"]["resources"]["requests"]["storage"] == "1Gi":
            return await replace(kind, namespace, body)
        tried.append(body["metadata"]["name"])
        raise Refused("only dynamically provisioned pvc can be resized\n@@ -6,7 @@", "FORBIDDEN")

    monkeypatch.setattr(scene.api, "replace", refusing)
    await scene.change(storage={"size": "2Gi"})
    for _ in range(3):
        await scene.round()
    status, reason, message, _, _ = await scene.ready()
    assert (status, reason, tried) == ("False", "VolumeCannotGrow", ["demo-0", "demo-1"])
    assert "volume claim demo-0 cannot grow: only dynamically provisioned pvc can be resized; use" in message


async def test_a_claim_grows_once_it_has_a_volume(scene: Scene) -> None:
    """Kubernetes refuses to change one before; that says nothing about its class."""
    await scene.change(storage={"size": "2Gi"})
    await scene.round()
    assert (await scene.ready())[1] == "VolumesResizing"
    claim = await scene.api.get(CLAIMS, scene.namespace, "demo-0")
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"


@pytest.mark.parametrize("which", ["members", "copier"])
async def test_an_image_of_the_installation_is_compared_too(scene: Scene, which: str) -> None:
    stored = await scene.api.get(CLUSTERS, scene.namespace, "demo")
    images = ("member:2", "spark:1") if which == "members" else ("member:1", "spark:2")
    scene.world = scene.new_world(stored, Settings(*images, (), "", "test"))
    await scene.round()
    assert (await scene.ready())[:2] == (
        ("False", "MembersOutdated") if which == "members" else ("True", "AsDesired")
    )


async def test_the_revision_is_computed_once_for_each_version_of_a_cluster(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hashes a whole pod, and every round compares the pods of all members with it."""
    computed, plainly = list[TabletCluster](), manifests.member_revision

    def counted(cluster: TabletCluster, setup: Setup) -> str:
        computed.append(cluster)
        return plainly(cluster, setup)

    monkeypatch.setattr(manifests, "member_revision", counted)
    for present in (1, 2):
        await scene.change(logLevel=("DEBUG", "WARNING")[present - 1])
        scene.world.refresh()
        for _ in range(3):
            assert len(scene.world.member_objects()) == 2
        assert len(computed) == present


async def test_lines_about_a_cluster_have_the_level_of_its_spec_from_the_next_look_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[tuple[str, ...]] = []
    monkeypatch.setattr(logs, "follow_cluster", lambda *given: followed.append(given))
    await scene.change(logLevel="DEBUG")
    scene.world.refresh()
    assert followed == [(scene.namespace, "demo", "DEBUG")]


async def test_nothing_else_of_the_spec_makes_members_outdated(scene: Scene) -> None:
    detection = {"rejoinGracePeriodSeconds": 60, "heartbeatSeconds": 2, "leaseSeconds": 9}
    migration = {"engine": "Direct", "paused": False, "logSpacePerMember": "64Mi"}
    storage = {"size": "1Gi", "quarantineRetentionSeconds": 60}
    await scene.change(migration=migration, failureDetection=detection, storage=storage, logLevel="DEBUG")
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


async def test_a_claim_of_an_earlier_operator_gets_the_metadata_of_a_new_one(scene: Scene) -> None:
    made = await scene.api.get(CLAIMS, scene.namespace, "demo-0")
    old = {**made["metadata"], "annotations": {"by": "somebody"}}
    old["labels"] = made["metadata"]["labels"] | {"app.kubernetes.io/instance": "demo", "team": "shop"}
    scene.cache.put(CLAIMS, await scene.api.replace(CLAIMS, scene.namespace, {**made, "metadata": old}))
    await scene.round()
    found = await scene.api.get(CLAIMS, scene.namespace, "demo-0")
    assert found["metadata"]["labels"] == made["metadata"]["labels"] | {"team": "shop"}
    assert found["metadata"]["annotations"].keys() == {
        "by",
        "argocd.argoproj.io/sync-options",
        "stele.dev/cluster-spec",
    }
    assert found["spec"] == made["spec"]
    await scene.round()
    again = await scene.api.get(CLAIMS, scene.namespace, "demo-0")
    assert again["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]


REFUSAL = "POST /pods: 422 Pod demo-1 is invalid: spec.tolerations"


async def test_a_pod_that_kubernetes_refuses_stalls_the_cluster_until_it_is_made(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = await scene.api.get(PODS, scene.namespace, "demo-1")
    await scene.api.delete(PODS, scene.namespace, "demo-1", pod["metadata"]["uid"], 0)
    scene.cache.remove(PODS, pod)
    create = scene.api.create

    async def refusing(kind: Any, namespace: str, body: Any) -> Any:
        if kind is PODS:
            raise BadInput(REFUSAL)
        return await create(kind, namespace, body)

    monkeypatch.setattr(scene.api, "create", refusing)
    with pytest.raises(BadInput):
        await scene.round()
    await scene.world.write_status(scene.state, 2.0)
    status = (await scene.api.get(CLUSTERS, scene.namespace, "demo"))["status"]
    for condition in status["conditions"]:
        if condition["type"] in ("Ready", "Stalled"):
            assert condition["reason"] == "CreationRefused"
            assert condition["message"] == f"Kubernetes refuses Pod demo-1: {REFUSAL}"
            assert condition["status"] == ("True" if condition["type"] == "Stalled" else "False")
    monkeypatch.setattr(scene.api, "create", create)
    for _ in range(2):
        await scene.world.ensure_shared()
    await scene.round()
    assert (await scene.ready())[:2] == ("True", "AsDesired")


async def test_a_status_is_about_the_generation_that_was_decided_on(scene: Scene) -> None:
    """Between the decision and the report a user asks for less: the report does not answer that."""
    scene.world.refresh()
    decided = scene.world.desired()
    scene.world.member_objects()
    await scene.change(members=1)
    member = await scene.api.get(MEMBERS, scene.namespace, "demo-0")
    drained = {**member, "spec": {**member["spec"], "drain": True}}
    scene.cache.put(MEMBERS, await scene.api.replace(MEMBERS, scene.namespace, drained))
    assert scene.world.desired() == decided
    await scene.world.write_status(scene.state, 2.0)
    assert (await scene.ready())[4] == 1
    shown = await scene.api.get(MEMBERS, scene.namespace, "demo-0")
    assert (shown["metadata"]["generation"], shown["status"]["observedGeneration"]) == (2, 1)
    scene.world.refresh()
    assert scene.world.desired().members == 1
    await scene.world.write_status(scene.state, 3.0)
    assert (await scene.ready())[4] == 2
