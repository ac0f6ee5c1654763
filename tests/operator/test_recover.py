"""Against a real API server, with real members: a cluster is deleted and recovered from its volumes."""

import asyncio
import shutil
from pathlib import Path

import pytest

from stele.adapters.kubernetes.api import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    CONFIG_MAPS,
    EVENTS,
    MEMBERS,
    PODS,
    REVISIONS,
    SERVICES,
    Api,
)
from stele.core.kv.keyslot import partition_of
from stele.errors import BadInput
from stele.model.ownership import CLUSTER_UID_LABEL
from tests.operator.real_kubelet import RealKubelet
from tests.operator.test_operator import Operator, Stage, with_processes
from tests.operator.test_operator_keyspaces import Scene, keyspace
from tests.operator.test_operator_loss import KEYS, PARTITIONS, client_of, condition, until_condition

pytestmark = pytest.mark.control_plane

OWNED = (MEMBERS, PODS, CONFIG_MAPS, SERVICES, BUDGETS, REVISIONS)


async def delete_by_mistake(stage: Stage) -> str:
    """Delete the TabletCluster, and as the garbage collector does, all that it owns. Return its UID."""
    uid: str = (await stage.cluster())["metadata"]["uid"]
    await stage.api.delete(CLUSTERS, stage.namespace, "demo", uid)
    for kind in OWNED:
        for each in await stage.api.list(kind, stage.namespace, "stele.dev/cluster=demo"):
            meta = each["metadata"]
            await stage.api.delete(kind, stage.namespace, meta["name"], meta["uid"])

    for _ in range(300):
        if not await stage.api.list(PODS, stage.namespace, "stele.dev/component=member"):
            break
        await asyncio.sleep(0.1)
    return uid


async def fill_and_delete(stage: Stage, kubelet: RealKubelet) -> str:
    """Write `kept`, and delete the cluster by mistake. Return its UID."""
    await write(kubelet, "demo-0", b"kept")
    return await delete_by_mistake(stage)


async def write(kubelet: RealKubelet, name: str, value: bytes) -> None:
    async with client_of(kubelet, name) as client:
        for key in KEYS:
            await client.set(key, value)


async def read(kubelet: RealKubelet, name: str) -> set[bytes | None]:
    async with client_of(kubelet, name) as client:
        return {await client.get(key) for key in KEYS}


async def lose_volume(stage: Stage, kubelet: RealKubelet, name: str) -> None:
    """Its claim and its files are gone."""
    claim = await stage.api.get(CLAIMS, stage.namespace, name)
    claim["metadata"]["finalizers"] = []
    await stage.api.replace(CLAIMS, stage.namespace, claim)
    await stage.api.delete(CLAIMS, stage.namespace, name, claim["metadata"]["uid"])
    shutil.rmtree(kubelet.folder(name))


async def until_refused(stage: Stage) -> str:
    """Wait until the recovery is refused. Return why; nothing was stored."""
    await until_condition(stage, "Stalled", "True", "RecoveryIncomplete")
    status = (await stage.cluster())["status"]
    assert status["versionSum"] == 0
    return next(each["message"] for each in status["conditions"] if each["type"] == "Stalled")


async def test_a_deleted_cluster_comes_back_with_its_data(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    kubelet = real_kubelet
    async with with_processes(api, namespace, operator, kubelet) as stage:
        uid = await fill_and_delete(stage, kubelet)
        claims = {each["metadata"]["uid"] for each in await api.list(CLAIMS, namespace)}

        shown = await stage.stele("recover", "demo", "--from-uid", uid, "--dry-run")
        assert all(f"demo-{index}" in shown for index in range(3))
        assert await api.find(CLUSTERS, namespace, "demo") is None
        assert "demo is created" in await stage.stele("recover", "demo", "--from-uid", uid)

        await stage.until_converged(3)
        assert await read(kubelet, "demo-2") == {b"kept"}
        found = await stage.cluster()
        assert found["metadata"]["uid"] != uid
        assert found["spec"]["partitions"] == 31
        assert {each["metadata"]["uid"] for each in await api.list(CLAIMS, namespace)} == claims
        reasons = {each["reason"] for each in await api.list(EVENTS, namespace)}
        assert "TableRecovered" in reasons
        await write(kubelet, "demo-1", b"more")

        # It happens again: the volumes still have the UID of the first.
        await delete_by_mistake(stage)
        await stage.stele("recover", "demo", "--from-uid", uid)
        await stage.until_converged(3)
        assert await read(kubelet, "demo-0") == {b"more"}


@pytest.mark.long
async def test_partitions_of_a_keyspace_come_back_with_their_cluster(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    kubelet, names = real_kubelet, [f"key-{number}" for number in range(50)]
    async with with_processes(api, namespace, operator, kubelet) as stage:
        scene = Scene(stage, kubelet)
        await scene.kubectl("apply", manifest=keyspace(placement={"partitions": 5, "replicas": 3}))
        await scene.ready()
        async with await scene.client() as client:
            for name in names:
                assert await client.set(name, name)
        uid = await fill_and_delete(stage, kubelet)

        await stage.stele("recover", "demo", "--from-uid", uid)
        await stage.until("three members", lambda: stage.ready(3))
        await scene.ready()
        rows = (await stage.rows(PARTITIONS + 5)).rows
        assert [len(row.members) for row in rows[PARTITIONS:]] == [3] * 5
        assert await read(kubelet, "demo-0") == {b"kept"}
        async with await scene.client() as client:
            assert await client.mget(names) == [name.encode() for name in names]
            assert await client.dbsize() == len(names)


async def test_a_missing_volume_has_to_be_given_up_by_name(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    kubelet = real_kubelet
    async with with_processes(api, namespace, operator, kubelet) as stage:
        uid = await fill_and_delete(stage, kubelet)
        await lose_volume(stage, kubelet, "demo-1")

        await stage.stele("recover", "demo", "--from-uid", uid)
        assert "demo-1 (no claim)" in await until_refused(stage)

        await stage.stele("recover", "demo", "--from-uid", uid, "--accept-loss", "demo-1")
        await stage.until_converged(3)
        assert await condition(stage, "DataLoss") == ("False", "AsDesired")
        assert await read(kubelet, "demo-0") == {b"kept"}


@pytest.mark.long
async def test_copies_of_volumes_that_were_made_while_passive_are_recovered(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet, tmp_path: Path
) -> None:
    """As snapshots of volumes, one made after the other."""
    kubelet, names = real_kubelet, [f"demo-{index}" for index in range(3)]
    async with with_processes(api, namespace, operator, kubelet) as stage:
        await write(kubelet, "demo-0", b"kept")
        await stage.stele("state", "demo", "Passive", "--wait")
        for name in names:
            await asyncio.to_thread(shutil.copytree, kubelet.folder(name), tmp_path / f"copy-{name}")
        await stage.stele("state", "demo", "Active", "--wait")
        await write(kubelet, "demo-0", b"later")
        await stage.stele("handover", "demo-1", "--wait")
        await stage.stele("handover", "demo-1", "--undo")
        await stage.until_converged(3)

        uid = await delete_by_mistake(stage)
        for name in names:
            shutil.rmtree(kubelet.folder(name))
            shutil.move(tmp_path / f"copy-{name}", kubelet.folder(name))
        await stage.stele("recover", "demo", "--from-uid", uid)
        await stage.until_converged(3)
        assert await read(kubelet, "demo-1") == {b"kept"}
        await write(kubelet, "demo-2", b"more")


@pytest.mark.long
async def test_what_only_the_volumes_held_that_are_given_up_is_lost_and_nothing_else(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet
) -> None:
    kubelet = real_kubelet
    async with with_processes(api, namespace, operator, kubelet) as stage:
        rows = (await stage.rows()).rows
        lost = {number for number, row in enumerate(rows) if 0 not in row.members}
        lost_keys = {key for key in KEYS if partition_of(key.encode(), PARTITIONS) in lost}
        assert 0 < len(lost_keys) < len(KEYS)
        uid = await fill_and_delete(stage, kubelet)
        for name in ("demo-1", "demo-2"):
            await lose_volume(stage, kubelet, name)

        await stage.stele("recover", "demo", "--from-uid", uid, "--accept-loss", "demo-1")
        message = await until_refused(stage)
        assert "demo-2 (no claim)" in message
        assert "demo-1 (no claim)" not in message

        both = ("--accept-loss", "demo-1", "--accept-loss", "demo-2")
        await stage.stele("recover", "demo", "--from-uid", uid, *both)
        await until_condition(stage, "DataLoss", "True", "AllReplicasLost")
        assert (await stage.cluster())["status"]["partitions"]["lost"] == len(lost)
        async with client_of(kubelet, "demo-0") as client:
            assert {await client.get(key) for key in KEYS if key not in lost_keys} == {b"kept"}

        await stage.change_spec(onPartitionLoss="ResetToEmpty")
        await stage.until_converged(3)
        async with client_of(kubelet, "demo-0") as client:
            assert {key for key in KEYS if await client.get(key) is None} == lost_keys


async def test_what_a_cluster_began_with_cannot_change(api: Api, namespace: str) -> None:
    uid = "6f0e0d0c-0000-4000-8000-000000000000"
    body = {
        "apiVersion": "stele.dev/v1alpha1",
        "kind": "TabletCluster",
        "metadata": {"name": "demo"},
        "spec": {"members": 1, "storage": {"size": "1Gi"}, "bootstrap": {"volumes": {"clusterUID": "demo"}}},
    }
    with pytest.raises(BadInput, match="clusterUID must be a UID"):
        await api.create(CLUSTERS, namespace, body)
    body["spec"] = {"members": 1, "storage": {"size": "1Gi"}}
    await api.create(CLUSTERS, namespace, body)
    volumes = {"bootstrap": {"volumes": {"clusterUID": uid}}}
    with pytest.raises(BadInput, match="bootstrap cannot be added or removed"):
        await api.patch_spec(CLUSTERS, namespace, "demo", volumes)
    other = {**body, "metadata": {"name": "other"}, "spec": {**body["spec"], **volumes}}  # type: ignore[dict-item]
    await api.create(CLUSTERS, namespace, other)
    changed = {"bootstrap": {"volumes": {"clusterUID": uid.replace("6", "7")}}}
    with pytest.raises(BadInput, match="clusterUID cannot change"):
        await api.patch_spec(CLUSTERS, namespace, "other", changed)
    await api.patch_spec(
        CLUSTERS, namespace, "other", {"bootstrap": {"volumes": {"acceptLoss": ["other-0"]}}}
    )


@pytest.mark.long
async def test_a_volume_that_cannot_be_used_is_left_out_and_kept(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet, tmp_path: Path
) -> None:
    kubelet = real_kubelet
    async with with_processes(api, namespace, operator, kubelet) as stage:
        uid = await fill_and_delete(stage, kubelet)
        instance = tmp_path / "demo-1" / "instance"
        instance.write_bytes(instance.read_bytes().replace(uid.encode(), b"x" * len(uid)))
        await stage.stele("recover", "demo", "--from-uid", uid)
        await asyncio.sleep(5)
        assert (await stage.cluster())["status"]["versionSum"] == 0, "demo-1 is waited for"

        shown = await stage.stele("recover", "demo", "--from-uid", uid, "--accept-loss", "demo-1")
        assert "demo-1 is left out" in shown
        await until_condition(stage, "Stalled", "True", "ForeignVolume")
        assert await read(kubelet, "demo-0") == {b"kept"}
        claim = await api.get(CLAIMS, namespace, "demo-1")
        assert claim["metadata"]["labels"]["stele.dev/cluster-uid"] == f"{uid}-left-out"
        assert {row.members for row in (await stage.rows()).rows} <= {
            frozenset({0, 2}),
            frozenset({0}),
            frozenset({2}),
        }


@pytest.mark.long
async def test_volumes_of_two_clusters_are_not_mixed(
    api: Api, namespace: str, operator: Operator, real_kubelet: RealKubelet, tmp_path: Path
) -> None:
    kubelet = real_kubelet
    async with with_processes(api, namespace, operator, kubelet) as stage:
        uid = await fill_and_delete(stage, kubelet)
        claim = await api.get(CLAIMS, namespace, "demo-1")
        claim["metadata"]["labels"][CLUSTER_UID_LABEL] = other = ("7" if uid[0] != "7" else "8") + uid[1:]
        claim = await api.replace(CLAIMS, namespace, claim)
        instance = tmp_path / "demo-1" / "instance"
        instance.write_bytes(instance.read_bytes().replace(uid.encode(), other.encode()))

        for asked, named in ((uid, {"demo-0", "demo-2"}), (other, {"demo-1"})):
            shown = await stage.stele("recover", "demo", "--from-uid", asked, "--dry-run")
            assert {f"demo-{index}" for index in range(3) if f"demo-{index}" in shown} == named

        await stage.stele("recover", "demo", "--from-uid", uid)
        message = await until_refused(stage)
        assert "demo-1 (no claim)" in message
        assert "demo-0 (" not in message

        await stage.stele("recover", "demo", "--from-uid", uid, "--accept-loss", "demo-1")
        await until_condition(stage, "Stalled", "True", "ForeignVolume")
        assert await read(kubelet, "demo-0") == {b"kept"}
        assert (await api.get(CLAIMS, namespace, "demo-1"))["metadata"] == claim["metadata"], (
            "it is left alone"
        )
