"""The copier's pod follows the image that is desired for, and no copy is interrupted for it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from stele.adapters.kubernetes.api import CLUSTERS, PODS, AlreadyExists, Kind
from stele.core.control.operations.copy_session import CopySession, Engine, Stage
from stele.core.control.state import State
from stele.core.table.table import PartitionTable
from stele.master.cache import Cache
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.settings import Settings
from stele.wire.pods import SPARK_SECRET_FILE
from tests.master.test_statuses import cluster

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings("member:1", "spark:1", (), "", "test")
NAME = "demo-copier"
Object = dict[str, Any]


class Api:
    """Pods of an API server; deletion takes until `gone`."""

    def __init__(self) -> None:
        self.pods: dict[str, Object] = {}
        self.deletions: list[str] = []
        self.version = 0
        self.cache = Cache(lambda _kind, _stored: None)

    def stored(self, kind: Kind, body: Object, **meta: Any) -> Object:
        self.version += 1
        fixed = {"namespace": "ns", "resourceVersion": str(self.version)}
        stored = {**body, "metadata": {"uid": f"u{self.version}", **body["metadata"], **fixed, **meta}}
        self.cache.put(kind, stored)
        return stored

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        if kind is not PODS:
            return self.stored(kind, body)
        if body["metadata"]["name"] in self.pods:
            raise AlreadyExists(body["metadata"]["name"])
        made = self.pods[body["metadata"]["name"]] = self.stored(kind, body)
        return made

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        return self.pods[name]

    async def list(self, kind: Kind, namespace: str, selector: str) -> list[Object]:
        return []

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self.deletions.append(name)
        pod = self.pods.get(name)
        if pod is not None and pod["metadata"]["uid"] == uid:
            self.pods[name] = self.stored(kind, pod, deletionTimestamp="2030-01-01T12:00:00Z")

    def gone(self) -> None:
        self.cache.remove(PODS, self.pods.pop(NAME))

    async def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self.cache.get(kind, namespace, name)

    async def replace(self, kind: Kind, namespace: str, body: Object) -> Object:
        return self.stored(kind, body)

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Object, version: str) -> Any:
        return self.cache.get(kind, namespace, name)

    def desired(self, image: str) -> None:
        wanted = cluster().to_dict()
        wanted["spec"]["images"] = {"spark": image}
        self.stored(CLUSTERS, {"apiVersion": "stele.dev/v1", **wanted})

    def world(self, settings: Settings = SETTINGS) -> KubernetesClusterObjects:
        return KubernetesClusterObjects(self, self.cache, settings, cluster(), lambda _seconds: NOON)  # type: ignore[arg-type]


def leadership(wave: CopySession | None = None) -> State:
    state = State(1, PartitionTable.empty(8), 1, 0, 0.0, recovered=True)
    if wave is not None:
        state.operations.begin(wave)
    return state


def spark_wave(stage: Stage = Stage.COPY) -> CopySession:
    made = CopySession("s-1", 0, 1, {0: "m1"}, {0: 2}, 0.0)
    made.stage, made.engine = stage, Engine.SPARK
    return made


async def until_quiet(api: Api, world: KubernetesClusterObjects) -> str:
    """The image of the pod after the master looked a few times, and the kubelet did what it was told."""
    world.refresh()
    for _ in range(2):
        await world.ensure_shared()
    if NAME in api.pods and api.pods[NAME]["metadata"].get("deletionTimestamp"):
        api.gone()
    for _ in range(2):
        await world.ensure_shared()
    return settings_of(api.pods[NAME])["STELE_SPARK_IMAGE"]


def settings_of(pod: Object) -> dict[str, str]:
    return {each["name"]: str(each.get("value")) for each in pod["spec"]["containers"][0]["env"]}


@pytest.mark.parametrize("how", ["spec", "operator"])
async def test_another_image_replaces_the_pod_once(how: str) -> None:
    api = Api()
    world = api.world()
    await world.write_status(leadership(), 0.0)
    assert await until_quiet(api, world) == "spark:1"
    before = api.pods[NAME]["metadata"]["uid"]
    if how == "spec":
        api.desired("spark:2")
    else:
        world = api.world(replace(SETTINGS, spark_image="spark:2"))
        assert await until_quiet(api, world) == "spark:1", "it does not know yet what is copied"
        await world.write_status(leadership(), 0.0)
    assert await until_quiet(api, world) == "spark:2"
    assert api.deletions == [NAME]
    assert await until_quiet(api, world) == "spark:2"
    assert (api.deletions, api.pods[NAME]["metadata"]["uid"] == before) == ([NAME], False)


@pytest.mark.parametrize("setting", ["spark_secret", "executor_account"])
async def test_other_settings_of_the_operator_replace_the_pod_too(setting: str) -> None:
    """As an upgrade of the chart brings them, with the same image."""
    api = Api()
    world = api.world()
    await world.write_status(leadership(), 0.0)
    await until_quiet(api, world)
    world = api.world(replace(SETTINGS, **{setting: "another"}))  # type: ignore[arg-type]
    await world.write_status(leadership(), 0.0)
    for _ in range(2):
        await until_quiet(api, world)
    assert "another" in settings_of(api.pods[NAME]).values()
    assert api.deletions == [NAME]


async def test_executors_have_an_account_without_rights_and_the_secret_s_name_only() -> None:
    api = Api()
    world = api.world()
    await world.write_status(leadership(), 0.0)
    await until_quiet(api, world)
    spec = api.pods[NAME]["spec"]
    told = settings_of(api.pods[NAME])
    assert (spec["serviceAccountName"], told["STELE_EXECUTOR_SERVICE_ACCOUNT"]) == (
        "stele-spark",
        "stele-executor",
    )
    secrets = [each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each]
    assert secrets == [told["STELE_SPARK_SECRET"]] == ["stele-spark-auth"]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "spark-secret"]
    assert f"{mount['mountPath']}/secret" == SPARK_SECRET_FILE


async def test_a_copy_under_way_ends_before_the_pod_is_replaced() -> None:
    api = Api()
    world = api.world()
    await world.write_status(leadership(spark_wave()), 0.0)
    assert await until_quiet(api, world) == "spark:1"
    api.desired("spark:2")
    assert await until_quiet(api, world) == "spark:1"
    await world.write_status(leadership(spark_wave(Stage.INGEST)), 1.0)
    assert await until_quiet(api, world) == "spark:2"


async def test_what_a_webhook_rewrote_is_left_alone() -> None:
    api = Api()
    world = api.world()
    await world.write_status(leadership(), 0.0)
    await until_quiet(api, world)
    container = api.pods[NAME]["spec"]["containers"][0]
    container["image"] = "mirror.example/spark:1"
    container["env"] = [*container["env"], {"name": "HTTP_PROXY", "value": "http://proxy:1"}]
    assert await until_quiet(api, world) == "spark:1"
    assert api.deletions == []
