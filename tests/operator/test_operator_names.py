"""A cluster that is named like somebody else's objects: they stay as they are, byte for byte."""

import asyncio
from typing import Any

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    EVENTS,
    MEMBERS,
    PODS,
    SERVICES,
    Api,
    Kind,
)
from stele.model.ownership import leaves
from tests.operator.test_operator import Operator, Stage, staged

pytestmark = pytest.mark.control_plane

CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
PORTS = [{"name": "sql", "port": 5432}]
OTHERS = {"app": "postgres"}
TABLE: dict[str, Any] = {"data": {"postgresql.conf": "fsync = on"}}
LABELS = {"app": "postgres", "stele.dev/cluster": "demo"}
"""Labels of ours on an object of somebody else do not make it ours."""

Named = tuple[Kind, str, dict[str, str], dict[str, Any]]
FOREIGN: tuple[Named, ...] = (
    (CLAIMS, "demo-0", OTHERS, {"spec": CLAIM}),
    (CLAIMS, "demo-2", LABELS, {"spec": CLAIM}),
    (PODS, "demo-1", OTHERS, {"spec": {"containers": [{"name": "c", "image": "postgres"}]}}),
    (PODS, "demo-copier", LABELS, {"spec": {"containers": [{"name": "c", "image": "postgres"}]}}),
    (SERVICES, "demo", OTHERS, {"spec": {"selector": OTHERS, "ports": PORTS}}),
    (SERVICES, "demo-members", OTHERS, {"spec": {"selector": OTHERS, "ports": PORTS}}),
    (BUDGETS, "demo", OTHERS, {"spec": {"minAvailable": 1, "selector": {"matchLabels": OTHERS}}}),
)
TABLES = (
    (CONFIG_MAPS, "demo-table", OTHERS, TABLE),
    (CONFIG_MAPS, "demo-table-0", OTHERS, TABLE),
)


class Others:
    """What is of somebody else in the namespace."""

    def __init__(self, plane: ControlPlane, api: Api, namespace: str) -> None:
        self._plane, self._api, self._namespace = plane, api, namespace
        self._made: dict[tuple[Kind, str], dict[str, Any]] = {}

    async def make(self, some: tuple[Named, ...], **owner: str) -> None:
        """`owner`: kind and UID of what owned them, of the name that ours have."""
        for kind, name, labels, rest in some:
            meta: dict[str, Any] = {"name": name, "labels": labels}
            if owner:
                owned = {"apiVersion": "stele.dev/v1alpha1", "name": name if kind is PODS else "demo"}
                meta["ownerReferences"] = [{**owned, **owner}]
            body = {"apiVersion": kind.api, "kind": kind.kind, "metadata": meta}
            self._made[kind, name] = await self._api.create(kind, self._namespace, {**body, **rest})

    async def delete_slowly(self, kind: Kind, name: str) -> None:
        """Somebody's finalizer keeps it."""
        patch = '{"metadata":{"finalizers":["test.example/kept"],"ownerReferences":null}}'
        self._plane.kubectl("patch", kind.plural, name, "-n", self._namespace, "--type=merge", "-p", patch)
        await self._api.delete(kind, self._namespace, name, None)
        self._made[kind, name] = await self._api.get(kind, self._namespace, name)

    def names(self) -> list[str]:
        return sorted(f"{kind.kind} {name}" for kind, name in self._made)

    async def are_as_before(self) -> None:
        for (kind, name), stored in self._made.items():
            assert await self._api.get(kind, self._namespace, name) == stored

    async def go(self, kind: Kind, name: str) -> None:
        if self._made[kind, name]["metadata"].get("finalizers"):
            # Nobody here takes the finalizers away that claims get.
            patch = '{"metadata":{"finalizers":null}}'
            self._plane.kubectl(
                "patch", kind.plural, name, "-n", self._namespace, "--type=merge", "-p", patch
            )
        uid = self._made.pop((kind, name))["metadata"]["uid"]
        await self._api.delete(kind, self._namespace, name, uid)


@pytest.fixture
def others(control_plane: ControlPlane, api: Api, namespace: str) -> Others:
    return Others(control_plane, api, namespace)


async def are_waited_for(stage: Stage, names: list[str]) -> None:
    """Ready is False for these names and no others, and Stalled is not True."""

    async def check() -> bool:
        conditions = ((await stage.cluster()).get("status") or {}).get("conditions", [])
        found = {each["type"]: each for each in conditions}
        ready = found.get("Ready", {"reason": "", "message": ""})
        assert "NameTaken" not in {each["reason"] for each in conditions}
        return (
            ready["reason"] == "WaitsForRemoval"
            and ready["message"]
            == f"waiting for the objects of the deleted cluster to be removed: {', '.join(names)}"
            and found["Stalled"]["status"] == "False"
        )

    await stage.until(f"Ready WaitsForRemoval with {names}", check)


async def are_told(stage: Stage, names: list[str]) -> None:
    """Ready is False and Stalled True, for these names and no others."""

    async def check() -> bool:
        conditions = ((await stage.cluster()).get("status") or {}).get("conditions", [])
        found = {each["type"]: each for each in conditions if each["reason"] == "NameTaken"}
        return {type_: each["status"] for type_, each in found.items()} == {
            "Ready": "False",
            "Reconciling": "False",
            "Stalled": "True",
        } and found["Stalled"]["message"].partition(":")[0].split(", ") == names

    await stage.until(f"Stalled NameTaken with {names}", check)


async def names_of(stage: Stage, kind: Kind) -> set[str]:
    return {each["metadata"]["name"] for each in await stage.api.list(kind, stage.namespace)}


async def test_a_cluster_whose_table_has_no_name_says_so_and_begins_when_it_has(
    api: Api, namespace: str, operator: Operator, others: Others
) -> None:
    await others.make(TABLES)
    async with staged(api, namespace, operator) as stage:
        await are_told(stage, others.names())
        await others.are_as_before()
        assert await names_of(stage, MEMBERS) == set()
        await others.go(CONFIG_MAPS, "demo-table")
        await are_told(stage, others.names())
        await others.are_as_before()
        await others.go(CONFIG_MAPS, "demo-table-0")
        await stage.until_converged(3)


async def test_objects_of_others_are_never_mounted_written_owned_or_deleted(
    api: Api, namespace: str, operator: Operator, others: Others
) -> None:
    await others.make(FOREIGN)
    spec = {"storage": {"size": "1Gi", "keepVolumes": "Delete"}, "migration": {"engine": "Auto"}}
    async with staged(api, namespace, operator, **spec) as stage:
        await are_told(stage, others.names())
        await others.are_as_before()
        assert await names_of(stage, MEMBERS) == {"demo-0", "demo-1", "demo-2"}
        assert await names_of(stage, PODS) == {"demo-1", "demo-copier"}

        # Members go whose claim and whose pod are somebody else's, and so does the copier.
        for name in ("demo-0", "demo-1"):
            await api.patch_spec(MEMBERS, namespace, name, {"drain": True})
        fewer = {"members": 1, "replicas": 1, "migration": {"engine": "Direct"}}
        await api.patch_spec(CLUSTERS, namespace, "demo", fewer)

        async def gone() -> bool:
            return await names_of(stage, MEMBERS) == {"demo-2"}

        await stage.until("the removal of members 0 and 1", gone)
        await others.are_as_before()

        await others.go(CLAIMS, "demo-2")
        await are_told(stage, ["PodDisruptionBudget demo", "Service demo", "Service demo-members"])
        for kind, name in ((BUDGETS, "demo"), (SERVICES, "demo"), (SERVICES, "demo-members")):
            await others.are_as_before()
            await others.go(kind, name)

        async def ready() -> bool:
            return await stage.ready(1)

        await stage.until("a cluster of the member that has a claim of its own", ready)
        await others.are_as_before()
        assert "Traceback" not in stage.operator.log.read_text(encoding="utf-8")


async def test_the_objects_of_a_deleted_cluster_of_the_same_name_are_waited_for(
    api: Api, namespace: str, operator: Operator, others: Others
) -> None:
    """No garbage collector runs here: they go when the test removes them."""
    await others.make(TABLES, kind="TabletCluster", uid="of-the-one-before")
    await others.delete_slowly(CONFIG_MAPS, "demo-table")
    async with staged(api, namespace, operator) as stage:
        await are_waited_for(stage, others.names())
        await others.are_as_before()
        assert await names_of(stage, MEMBERS) == set()
        assert await names_of(stage, EVENTS) == set(), "nobody is called"

        services = tuple(each for each in FOREIGN if each[0] in (SERVICES, BUDGETS))
        await others.make(services, kind="TabletCluster", uid="of-the-one-before")
        pods = tuple(each for each in FOREIGN if each[:2] == (PODS, "demo-1"))
        await others.make(pods, kind="TabletMember", uid="of-the-one-before")
        for name in ("demo-table", "demo-table-0"):
            await others.go(CONFIG_MAPS, name)
        await are_waited_for(stage, others.names())
        await others.are_as_before()
        for kind, name, _, _ in (*services, *pods):
            await others.go(kind, name)
        await stage.until_converged(3)


def test_what_has_an_owner_that_may_live_does_not_go_by_itself() -> None:
    ours = {"apiVersion": "stele.dev/v1alpha1", "kind": "TabletCluster", "name": "demo", "uid": "new"}
    before = ours | {"uid": "old"}
    also = ours | {"name": "other", "uid": "old"}
    group = before | {"apiVersion": "example.dev/v1"}
    for owners, expected in (([before], True), ([before, also], False), ([group], False), ([], False)):
        assert leaves({"metadata": {"name": "demo-table", "ownerReferences": owners}}, [ours]) is expected


COUNTED = """
from stele.adapters.kubernetes.api import Api
from stele.master import supervisor
supervisor.LIST_SECONDS = 1.0
done = Api._exchange
async def counted(self, method, path, *rest):
    print(method, path, flush=True)
    return await done(self, method, path, *rest)
Api._exchange = counted
"""


async def test_a_claim_with_the_uid_of_its_cluster_alone_is_watched_and_not_asked_for_again_and_again(
    stage: Stage, control_plane: ControlPlane, namespace: str
) -> None:
    await stage.until_converged(3)
    await stage.operator.end()
    for label in ("stele.dev/cluster-", "stele.dev/component-", "stele.dev/member-"):
        control_plane.kubectl("label", "pvc", "demo-0", "-n", namespace, label)
    await stage.operator.start(f"exec({COUNTED!r})")
    await stage.table_snapshot(2)
    await stage.until_converged(3)
    # The lists say what there is by now, and the watches, which tell what they missed.
    await asyncio.sleep(3.0)
    text = stage.operator.log.read_text(encoding="utf-8")
    await asyncio.sleep(5.0)
    later = stage.operator.log.read_text(encoding="utf-8")[len(text) :].splitlines()
    claims = [line for line in later if "/persistentvolumeclaims" in line]
    assert len(claims) >= 2, "they are listed"
    asked = f"/namespaces/{namespace}/persistentvolumeclaims"
    assert [line for line in claims if line != f"GET /api/v1{asked}"] == []
