"""The NetworkPolicies of a cluster, on either API server, also when others or crashes interfere."""

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from stele.adapters.kubernetes.api import CLUSTERS, NETWORK_POLICIES, SERVICES, Kind
from stele.core.control.state import State
from stele.core.table.table import PartitionTable
from stele.errors import BadInput, Conflict, Refused, Unavailable
from stele.master.cache import Cache
from stele.master.children import RETRY_SECONDS
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.network_policies import LOOK_SECONDS
from stele.master.network_rules import names_of, network_policies
from stele.master.settings import Settings
from stele.model import TabletCluster
from tests.fakes.fused_api import FusedApi, Killed
from tests.fakes.objects import body
from tests.fakes.spec import opened
from tests.model.test_network_policy import PEERS

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
SETTINGS = Settings("member:1", "spark:1", (), "stele", "test")
SPEC = {
    "members": 1,
    "replicas": 1,
    "partitions": 2,
    "storage": {"size": "1Gi"},
    "migration": {"engine": "Direct"},
}
ASKED = {"enabled": True, "clients": PEERS, "metrics": PEERS[:2], "admins": PEERS[3:]}
UNASKED: tuple[dict[str, Any], ...] = ({}, {"networkPolicy": {}}, {"networkPolicy": {"enabled": False}})
NAMES = sorted(names_of("demo"))
FORBIDDEN = "POST /networkpolicies: 403 networkpolicies.networking.k8s.io is forbidden"


class Fused(FusedApi):
    """Counts writes of policies and of the cluster's status, and refuses policies where it `refuses`."""

    def __init__(self, api: Any) -> None:
        super().__init__(api, (NETWORK_POLICIES, CLUSTERS))
        self.asked = 0
        self.refuses = False

    async def find(self, kind: Kind, *rest: Any) -> Any:
        self.asked += kind is NETWORK_POLICIES
        return await self._api.find(kind, *rest)

    async def _write(self, kind: Kind, call: Any, rest: tuple[Any, ...]) -> Any:
        if kind is NETWORK_POLICIES and self.refuses:
            raise Refused(FORBIDDEN, "FORBIDDEN")
        return await super()._write(kind, call, rest)


class Scene:
    """A cluster without members, whose master takes rounds."""

    def __init__(self, api: Any, namespace: str) -> None:
        self.api, self.namespace, self.seconds = Fused(api), namespace, 0.0
        self.cache = Cache(lambda _kind, _stored: None)

    async def begin(self, **security: Any) -> None:
        made = body(CLUSTERS, "demo", opened(SPEC | {"security": security}))
        self.cache.put(CLUSTERS, await self.api.create(CLUSTERS, self.namespace, made))
        self.restart()

    def restart(self) -> None:
        """Another process takes over, which remembers nothing."""
        found = TabletCluster.read(self.cache.get(CLUSTERS, self.namespace, "demo"))
        assert isinstance(found, TabletCluster)
        self.state = State(1, PartitionTable.empty(2), 1, 0, 0.0, recovered=True)
        self.world = KubernetesClusterObjects(
            self.api,  # type: ignore[arg-type]
            self.cache,
            SETTINGS,
            found,
            lambda _seconds: NOON,
            now=lambda: self.seconds,
        )

    async def round(self) -> None:
        self.world.refresh()
        await self.world.ensure_shared()
        await self.world.write_status(self.state, 1.0)

    async def rounds(self) -> None:
        for _ in range(3):
            await self.round()

    async def change(self, **security: Any) -> None:
        """As a user does; the operator hears of it."""
        stored = await self.api.get(CLUSTERS, self.namespace, "demo")
        changed = {**stored, "spec": opened({**stored["spec"], "security": security})}
        self.cache.put(CLUSTERS, await self.api.replace(CLUSTERS, self.namespace, changed))

    async def policies(self) -> dict[str, dict[str, Any]]:
        listed = await self.api.list(NETWORK_POLICIES, self.namespace)
        return {each["metadata"]["name"]: each for each in listed}

    async def are_as_asked(self) -> None:
        cluster = self.world.cluster()
        found = await self.policies()
        assert sorted(found) == NAMES
        for each in network_policies(cluster, "stele"):
            stored = found[each["metadata"]["name"]]
            assert {key: value for key, value in stored["spec"].items() if value} == {
                key: value for key, value in each["spec"].items() if value
            }
            assert [owner["uid"] for owner in stored["metadata"]["ownerReferences"]] == [
                self.world.cluster_uid
            ]

    async def status(self) -> Mapping[str, Any]:
        status: Mapping[str, Any] = (await self.api.get(CLUSTERS, self.namespace, "demo"))["status"]
        return status

    async def noted(self) -> bool:
        return bool((await self.status()).get("security", {}).get("networkPolicies"))

    async def stalled(self) -> tuple[str, str]:
        """Reason and message."""
        conditions = (await self.status())["conditions"]
        found = next(each for each in conditions if each["type"] == "Stalled")
        assert found["status"] == "True"
        return found["reason"], found["message"]


@pytest.fixture
def scene(place: tuple[Any, str]) -> Scene:
    return Scene(*place)


async def test_a_cluster_that_asks_for_none_gets_none_and_costs_nothing(scene: Scene) -> None:
    await scene.begin()
    await scene.rounds()
    assert await scene.policies() == {}
    assert not await scene.noted()
    assert scene.api.asked == 0


async def test_policies_are_made_changed_and_deleted_as_the_spec_asks(scene: Scene) -> None:
    await scene.begin(networkPolicy=ASKED)
    await scene.rounds()
    await scene.are_as_asked()
    assert await scene.noted()
    await scene.change(networkPolicy={"enabled": True, "metrics": PEERS[2:3]})
    await scene.rounds()
    await scene.are_as_asked()
    made = await scene.policies()
    assert not made["demo-bulk"]["spec"].get("ingress")
    scene.restart()
    await scene.rounds()
    assert await scene.policies() == made, "a new process writes what is there"
    await scene.change()
    await scene.rounds()
    assert await scene.policies() == {}
    assert not await scene.noted()
    await scene.change(networkPolicy=ASKED)
    await scene.rounds()
    await scene.are_as_asked()


@pytest.mark.parametrize("security", UNASKED, ids=str)
async def test_another_process_deletes_what_is_not_asked_for_any_more(
    scene: Scene, security: dict[str, Any]
) -> None:
    await scene.begin(networkPolicy=ASKED)
    await scene.rounds()
    await scene.change(**security)
    scene.restart()
    await scene.rounds()
    assert await scene.policies() == {}
    assert not await scene.noted()


async def killed_at(scene: Scene, number: int, *, before: bool) -> bool:
    """Take rounds until the operator is killed at that write; return whether it was."""
    scene.api.writes, scene.api.kill_at, scene.api.before = 0, number, before
    try:
        await scene.rounds()
    except Killed:
        return True
    finally:
        scene.api.kill_at = -1
    return False


async def reads_again(scene: Scene) -> None:
    """As the watch does for a new process."""
    scene.cache.put(CLUSTERS, await scene.api.get(CLUSTERS, scene.namespace, "demo"))
    scene.restart()


@pytest.mark.parametrize("before", [True, False])
async def test_no_crash_leaves_a_policy_behind(scene: Scene, before: bool) -> None:
    """Whatever the operator wrote last, the next one makes all of them, or none."""
    await scene.begin()
    number = 1
    while True:
        await scene.change(networkPolicy=ASKED)
        killed = await killed_at(scene, number, before=before)
        await reads_again(scene)
        await scene.change()
        await scene.rounds()
        assert await scene.policies() == {}, number
        assert not await scene.noted()
        await scene.change(networkPolicy=ASKED)
        await scene.rounds()
        await scene.change()
        killed |= await killed_at(scene, number, before=before)
        await reads_again(scene)
        await scene.rounds()
        assert await scene.policies() == {}, number
        assert not await scene.noted()
        if not killed:
            break
        number += 1
    assert number > len(NAMES), "both were killed at each write"


async def test_what_others_change_or_delete_comes_back(scene: Scene) -> None:
    await scene.begin(networkPolicy=ASKED)
    await scene.rounds()
    found = await scene.policies()
    edited = {**found["demo-members"], "spec": {**found["demo-members"]["spec"], "ingress": [{}]}}
    await scene.api.replace(NETWORK_POLICIES, scene.namespace, edited)
    uid = found["demo-bulk"]["metadata"]["uid"]
    await scene.api.delete(NETWORK_POLICIES, scene.namespace, "demo-bulk", uid)
    asked = scene.api.asked
    scene.seconds += LOOK_SECONDS - 1.0
    await scene.rounds()
    assert scene.api.asked == asked
    scene.seconds += 1.0
    await scene.round()
    await scene.are_as_asked()


async def test_policies_of_others_are_left_alone_and_named(scene: Scene) -> None:
    spec = {"podSelector": {"matchLabels": {"app": "postgres"}}, "policyTypes": ["Ingress"]}
    theirs = await scene.api.create(
        NETWORK_POLICIES, scene.namespace, body(NETWORK_POLICIES, "demo-members", spec)
    )
    await scene.begin(networkPolicy=ASKED)
    await scene.rounds()
    reason, message = await scene.stalled()
    assert (reason, "NetworkPolicy demo-members" in message) == ("NameTaken", True)
    found = await scene.policies()
    assert (sorted(found), found["demo-members"]) == (NAMES, theirs)
    await scene.change()
    await scene.rounds()
    assert await scene.policies() == {"demo-members": theirs}


async def test_without_the_right_everything_else_is_made(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.api.refuses = True
    await scene.begin(networkPolicy=ASKED)
    now = 100.0
    monkeypatch.setattr(scene.world, "_now", lambda: now)
    with pytest.raises(Refused):
        await scene.round()
    await scene.world.write_status(scene.state, 1.0)
    await scene.round()
    reason, message = await scene.stalled()
    assert reason == "CreationRefused"
    assert message == f"Kubernetes refuses NetworkPolicy demo-bulk and 3 more: {FORBIDDEN}"
    assert await scene.api.find(SERVICES, scene.namespace, "demo") is not None
    scene.api.refuses = False
    now += RETRY_SECONDS
    await scene.rounds()
    await scene.are_as_asked()


async def test_a_block_that_kubernetes_refuses_holds_up_no_other_policy(scene: Scene) -> None:
    block = {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}
    await scene.begin(networkPolicy={"enabled": True, "clients": [{"ipBlock": block}]})
    for _ in range(3):
        with contextlib.suppress(BadInput):
            await scene.round()
        await scene.world.write_status(scene.state, 1.0)
    _, message = await scene.stalled()
    assert "spec.security.networkPolicy.clients[0].ipBlock.except[0] is 11.0.0.0/16" in message
    assert {"demo-bulk", "demo-copier", "demo-executors"} <= (await scene.policies()).keys()


async def test_a_write_that_comes_too_late_is_done_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes between our read and our write: nothing of theirs is overwritten unseen."""
    await scene.begin(networkPolicy=ASKED)
    await scene.rounds()
    replace, late = scene.api.replace, True

    async def replaced(kind: Kind, namespace: str, given: dict[str, Any]) -> Any:
        nonlocal late
        if kind is NETWORK_POLICIES and late:
            late = False
            there = await scene.api.get(kind, namespace, given["metadata"]["name"])
            noted = {**there["metadata"], "annotations": {"by": "somebody"}}
            await replace(kind, namespace, {**there, "metadata": noted})
        return await replace(kind, namespace, given)

    monkeypatch.setattr(scene.api, "replace", replaced)
    await scene.change(networkPolicy={"enabled": True})
    with pytest.raises(Conflict):
        await scene.round()
    await scene.rounds()
    await scene.are_as_asked()
    annotated = [each for each in (await scene.policies()).values() if each["metadata"].get("annotations")]
    assert [each["metadata"]["annotations"] for each in annotated] == [{"by": "somebody"}]


async def test_nothing_is_made_before_the_status_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that cannot write the status, or whose view of the cluster is old, makes no policy."""
    await scene.begin(networkPolicy=ASKED)
    patch_status = scene.api.patch_status

    async def unanswered(*_: Any) -> Any:
        raise Unavailable("no answer")

    monkeypatch.setattr(scene.api, "patch_status", unanswered)
    scene.world.refresh()
    with pytest.raises(Unavailable):
        await scene.world.ensure_shared()
    assert await scene.policies() == {}
    monkeypatch.setattr(scene.api, "patch_status", patch_status)
    stored = await scene.api.get(CLUSTERS, scene.namespace, "demo")
    await scene.api.patch_status(CLUSTERS, scene.namespace, "demo", {"message": "by another master"})
    assert scene.cache.get(CLUSTERS, scene.namespace, "demo") == stored
    await scene.world.ensure_shared()
    assert await scene.policies() == {}
    await scene.world.ensure_shared()
    await scene.are_as_asked()
