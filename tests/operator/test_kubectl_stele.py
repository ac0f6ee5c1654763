"""`kubectl stele` with a real API server: what it says of clusters, members, rows and plans."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CLUSTERS, MEMBERS, REBALANCES, Api
from stele.adapters.kubernetes.login import log_in
from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.core.table.table import Member, Partition
from stele.wire.configmap import Head
from tests.cli.conftest import Ran, Run, run  # noqa: F401  (a fixture)
from tests.cli.replaying import replayed
from tests.fakes.objects import body

pytestmark = pytest.mark.control_plane

PARTITIONS = 600
CLUSTER = body(
    CLUSTERS, "demo", {"members": 3, "partitions": PARTITIONS, "replicas": 2, "storage": {"size": "1Gi"}}
)
CLUSTER_STATUS = {
    "phase": "Rebalancing",
    "message": "moving partitions",
    "epoch": 4,
    "members": {"desired": 3, "current": 4, "ready": 3},
    "partitions": {"total": PARTITIONS, "safe": PARTITIONS - 1, "underReplicated": 1},
    "migrations": {"active": 2, "waiting": 4, "done": 6},
    "rebalance": "demo-4-1",
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "AsDesired",
            "message": "3 of 3 members ready, 271 of 271 partitions fully replicated",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}
STATES = ["Active", "Active", "Active", "Unreachable", "Joining"]
REBALANCE = body(REBALANCES, "demo-4-1", {"cluster": "demo"})
REBALANCE_STATUS = {
    "phase": "Running",
    "refusals": [{"partition": 1, "reason": "COPY_FAILED", "message": "no room on demo-2"}],
}


def rows() -> list[Partition]:
    """Over members 0, 1 and 3; the last row has one copy."""
    pairs = [(0, 1), (1, 3), (3, 0)]
    return [Partition(1, pairs[number % 3]) for number in range(PARTITIONS - 1)] + [Partition(2, (1,))]


@pytest.fixture
def stored(control_plane: ControlPlane, namespace: str) -> str:
    """A namespace with a cluster, its members and its table, as an operator leaves them behind."""
    asyncio.run(_store(control_plane, namespace))
    return namespace


async def _store(plane: ControlPlane, namespace: str) -> None:
    async with Api(await log_in(str(plane.kubeconfig))) as api:
        made = await api.create(CLUSTERS, namespace, CLUSTER)
        await api.patch_status(CLUSTERS, namespace, "demo", CLUSTER_STATUS)
        for index, state in enumerate(STATES):
            await _store_member(api, namespace, index, state)
        await api.create(REBALANCES, namespace, REBALANCE)
        await api.patch_status(REBALANCES, namespace, "demo-4-1", REBALANCE_STATUS)
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": made["metadata"]["uid"]}
        store = KubernetesTableStore(api, namespace, "demo", owner, {})
        members = tuple(Member(i, f"demo-{i}", f"uuid-{i}", f"10.0.0.{i}") for i in range(4))
        await store.take_over(Head(0, "Active", PARTITIONS, 2, 4, 4, 0, 0, members))
        await store.write_shard(0, rows()[:512])
        await store.write_shard(1, rows()[512:])


async def _store_member(api: Api, namespace: str, index: int, state: str) -> None:
    await api.create(MEMBERS, namespace, body(MEMBERS, f"demo-{index}", {"cluster": "demo", "index": index}))
    status: dict[str, Any] = {"state": state, "owned": 200, "backups": 200, "bytes": 1_500_000}
    await api.patch_status(MEMBERS, namespace, f"demo-{index}", status)


@pytest.fixture
def ask(run: Run, control_plane: ControlPlane) -> Iterator[Run]:  # noqa: F811
    def asked(*arguments: str, **rest: Any) -> Ran:
        return run(*arguments, "--kubeconfig", str(control_plane.kubeconfig), **rest)

    return asked


def test_status(ask: Run, stored: str) -> None:
    listed = ask("status", "-n", stored).out.splitlines()
    assert listed[1].split() == ["demo", "Rebalancing", "3/3", "600", "599", "1", "0", "6"]
    shown = ask("status", "demo", "-n", stored).out
    assert "Phase       Rebalancing: moving partitions" in shown
    assert "6 of 12" in shown
    assert "AsDesired  3 of 3 members ready, 271 of 271 partitions fully replicated" in shown
    (facts,) = ask("status", "demo", "-n", stored, "-o", "json").json["clusters"]
    assert facts["partitions"] == {"total": 600, "safe": 599, "under_replicated": 1, "lost": 0}
    assert facts["conditions"][0]["last_transition_time"] == "2026-01-01T00:00:00Z"


def test_members(ask: Run, stored: str) -> None:
    listed = ask("members", "demo", "-n", stored).out.splitlines()
    assert listed[4].split() == ["demo-3", "demo", "Unreachable", "200", "200", "1.5", "MB", "-", "no", "-"]
    found = ask("members", "-n", stored, "-o", "json").json["members"]
    assert [each["name"] for each in found] == ["demo-0", "demo-1", "demo-2", "demo-3", "demo-4"]
    assert found[3]["state"] == "Unreachable"


def test_partitions(ask: Run, stored: str) -> None:
    everything = ask("partitions", "demo", "-n", stored).out.splitlines()
    assert len(everything) == PARTITIONS + 1
    assert everything[2].split() == ["1", "1", "demo-1", "demo-3"]
    assert everything[-1].split() == ["599", "2", "demo-1", "-"]
    mine = ask("partitions", "demo", "-n", stored, "--member", "demo-3", "-o", "json").json
    assert (mine["replicas"], len(mine["partitions"])) == (2, 399)
    assert all("demo-3" in each["replicas"] for each in mine["partitions"])
    thin = ask("partitions", "demo", "-n", stored, "--under-replicated", "-o", "json").json["partitions"]
    assert thin == [{"partition": 599, "version": 2, "replicas": ["demo-1"]}]
    assert ask("partitions", "demo", "-n", stored, "--member", "demo-2").out.count("\n") == 1
    wrong = ask("partitions", "demo", "-n", stored, "--member", "demo-9")
    assert (wrong.code, "demo-0, demo-1, demo-2, demo-3" in wrong.err) == (2, True)


def test_a_plan_of_what_the_operator_would_do(ask: Run, stored: str) -> None:
    """The unreachable member counts as one too many and is replaced by the one that holds nothing."""
    answer = ask("plan", "demo", "-n", stored, "-o", "json").json
    alive = ["demo-0", "demo-1", "demo-2"]
    current = [[None if i is None else f"demo-{i}" for i in row.replicas] for row in rows()]
    assert replayed(current, alive, answer) == answer["target"]
    assert all(len(row) == 2 and set(row) <= set(alive) for row in answer["target"])
    assert answer["stats"]["replica_spread"] <= 1
    shown = ask("plan", "demo", "-n", stored).out
    assert "gone" in shown
    assert "Not executed" not in shown


def test_a_plan_says_when_it_would_not_be_carried_out(
    ask: Run, stored: str, control_plane: ControlPlane
) -> None:
    change = '{"metadata":{"annotations":{"stele.dev/paused":"true"}},"spec":{"state":"Frozen"}}'
    control_plane.kubectl("patch", "-n", stored, "tabletcluster", "demo", "--type=merge", "-p", change)
    found = ask("plan", "demo", "-n", stored).out
    assert "Not executed now: annotation stele.dev/paused is true, spec.state is Frozen" in found


@pytest.mark.parametrize("command", ["partitions", "plan", "why"])
def test_a_cluster_that_no_operator_has_seen(
    ask: Run, control_plane: ControlPlane, namespace: str, command: str
) -> None:
    control_plane.apply(namespace, CLUSTER)
    ran = ask(command, "demo", "-n", namespace)
    assert (ran.code, '"demo" has no partition table yet' in ran.err) == (1, True)
    assert "not reconciled by the operator yet" in ask("status", "demo", "-n", namespace).out


def test_a_plan_for_a_table_without_members(ask: Run, control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply(namespace, CLUSTER)
    asyncio.run(_store_empty(control_plane, namespace))
    assert "TOO_FEW_MEMBERS" in ask("plan", "demo", "-n", namespace).out
    assert "nothing is planned" in ask("why", "demo", "-n", namespace).out


async def _store_empty(plane: ControlPlane, namespace: str) -> None:
    async with Api(await log_in(str(plane.kubeconfig))) as api:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}
        store = KubernetesTableStore(api, namespace, "demo", owner, {})
        await store.take_over(Head(0, "Active", PARTITIONS, 2, 0, 0, 0, 0, ()))


@pytest.mark.parametrize("command", ["status", "members", "partitions", "plan"])
def test_a_cluster_that_is_not_there_is_named_with_those_that_are(
    ask: Run, stored: str, command: str
) -> None:
    ran = ask(command, "other", "-n", stored)
    assert ran.code == 1
    assert f'there is no TabletCluster "other" in namespace "{stored}"; existing are: demo' in ran.err


def test_a_pod_that_is_not_there(ask: Run, stored: str) -> None:
    ran = ask("tablet", "demo-0", "-n", stored)
    assert (ran.code, 'pods "demo-0" not found' in ran.err) == (1, True)


def test_a_context_that_is_not_there(ask: Run, stored: str) -> None:
    ran = ask("status", "--context", "none")
    assert (ran.code, "none" in ran.err) == (2, True)


def test_kubectl_runs_it(control_plane: ControlPlane, stored: str) -> None:
    here = Path(sys.executable).parent
    done = subprocess.run(
        ["kubectl", "stele", "status", "-n", stored],
        env=control_plane.environment | {"PATH": f"{control_plane.bin}:{here}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Rebalancing" in done.stdout


def test_why_a_partition_waits(ask: Run, stored: str) -> None:
    facts = ask("why", "demo/1", "-n", stored, "-o", "json").json["facts"]
    assert facts[:2] == [
        "version 1, held by demo-1 (owner, Active), demo-3 (backup 1, Unreachable)",
        "1 of 2 copies are on live members",
    ]
    added = ("planned: COPY: demo-", "planned: SHIFT_DOWN: demo-")
    assert any(fact.startswith(added) and " takes index " in fact for fact in facts)
    assert "demo-4-1: COPY_FAILED: no room on demo-2" in facts
    shown = ask("why", "demo/1", "-n", stored).out
    assert "- version 1, held by demo-1" in shown
    others = ask("why", "demo/0", "-n", stored, "-o", "json").json["facts"]
    assert not any("COPY_FAILED" in fact for fact in others)


def test_why_a_cluster_is_as_it_is(ask: Run, stored: str, control_plane: ControlPlane) -> None:
    facts = ask("why", "demo", "-n", stored, "-o", "json").json["facts"]
    assert facts[0] == "phase Rebalancing: moving partitions"
    assert not any("AsDesired" in fact for fact in facts)
    assert any(
        fact.startswith("fewer than 2 copies on live members: 400 partitions: 1, 2, 4") for fact in facts
    )
    assert any(fact.startswith("planned: ") for fact in facts)
    paused = '{"spec":{"migration":{"paused":true}}}'
    control_plane.kubectl("patch", "-n", stored, "tabletcluster", "demo", "--type=merge", "-p", paused)
    assert "migrations are blocked: spec.migration.paused is true" in ask("why", "demo", "-n", stored).out


def test_why_a_state_is_not_in_force(ask: Run, stored: str, control_plane: ControlPlane) -> None:
    def patch(body: dict[str, Any], *more: str) -> None:
        arguments = ("patch", "-n", stored, "tabletcluster", "demo", "--type=merge", *more, "-p")
        control_plane.kubectl(*arguments, json.dumps(body))

    waits = "Passive is not in force yet: 3 migrations are under way and end first"
    paused = {
        "type": "Paused",
        "status": "True",
        "reason": "ClusterState",
        "message": waits,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    patch({"spec": {"state": "Passive"}})
    patch({"status": {"state": "Active", "conditions": [paused]}}, "--subresource=status")
    fact = f"migrations are blocked: spec.state is Passive and Active is still in force ({waits})"
    for about in ("demo", "demo/1", "demo-1"):
        assert fact in ask("why", about, "-n", stored, "-o", "json").json["facts"]
    patch({"status": {"state": "Passive", "conditions": []}}, "--subresource=status")
    facts = ask("why", "demo", "-n", stored, "-o", "json").json["facts"]
    assert "migrations are blocked: spec.state is Passive" in facts


def test_why_a_member_may_not_go(ask: Run, stored: str, control_plane: ControlPlane) -> None:
    control_plane.kubectl(
        "patch", "-n", stored, "tabletmember", "demo-1", "--type=merge", "-p", '{"spec":{"drain":true}}'
    )
    facts = ask("why", "demo-1", "-n", stored, "-o", "json").json["facts"]
    assert "it is being drained: spec.drain is true" in facts
    assert any(fact.startswith("no other live member holds 201 partitions: 1, 4, 7") for fact in facts)
    assert "planned: it receives 0 replicas, and holds 0 afterwards" in facts
    joining = ask("why", "demo-4", "-n", stored, "-o", "json").json["facts"]
    assert "it has not joined: the partition table does not name it" in joining


@pytest.mark.parametrize(
    ("about", "code", "said"),
    [
        ("other", 1, '"other" is neither a TabletCluster nor a TabletMember'),
        ("other/1", 1, 'there is no TabletCluster "other"'),
        ("demo/600", 2, 'PARTITION is "600"; expected a whole number from 0 to 599'),
        ("demo/x", 2, 'PARTITION is "x"'),
        ("demo/", 2, 'PARTITION is ""'),
    ],
)
def test_why_of_what_is_not_there(ask: Run, stored: str, about: str, code: int, said: str) -> None:
    ran = ask("why", about, "-n", stored)
    assert (ran.code, said in ran.err) == (code, True)


def test_options_may_stand_before_the_command(run: Run, control_plane: ControlPlane, stored: str) -> None:  # noqa: F811
    ran = run(f"--kubeconfig={control_plane.kubeconfig}", "-n", stored, "status")
    assert (ran.code, "Rebalancing" in ran.out) == (0, True)


@pytest.fixture
def ask_as(run: Run, control_plane: ControlPlane, stored: str, tmp_path: Path) -> Run:  # noqa: F811
    """Ask with the kubeconfig of the admin, whose user has more fields."""

    def asked(**fields: Any) -> Ran:
        found = yaml.safe_load(control_plane.kubeconfig.read_text())
        found["users"][0]["user"] |= fields
        (tmp_path / "acting").write_text(yaml.safe_dump(found))
        return run("status", "-n", stored, "--kubeconfig", str(tmp_path / "acting"))

    return asked


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"as": "anna"}, 1, 'User "anna" cannot list resource "tabletclusters"'),
        ({"as": "anna", "as-groups": ["system:masters"]}, 0, ""),
        (
            {"as": "anna", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"X/Y": ["1", "2"]}},
            1,
            'User "anna" cannot list',
        ),
        ({"as-groups": ["a"]}, 2, "expected `as` beside them: add it"),
        ({"as": "a\nb"}, 2, r"Impersonate-User would be 'a\nb', expected printable characters"),
        ({"as": "anna", "as-groups": "a"}, 2, "Expected `array`, got `str` - at `$.as-groups`"),
    ],
)
def test_a_kubeconfig_may_say_whom_it_acts_as(
    ask_as: Run, fields: dict[str, Any], code: int, said: str
) -> None:
    ran = ask_as(**fields)
    assert (ran.code, said in ran.err) == (code, True), ran.err


def test_a_damaged_table_is_told_and_not_half_shown(
    ask: Run, stored: str, control_plane: ControlPlane
) -> None:
    damage = '{"data":{"rows":"0 1:0,0\\n"}}'
    control_plane.kubectl("patch", "-n", stored, "configmap", "demo-table-1", "--type=merge", "-p", damage)
    ran = ask("partitions", "demo", "-n", stored)
    assert (ran.code, ran.out, ran.err.startswith("kubectl stele: CORRUPT: shard 1: ")) == (1, "", True)


def test_recover_takes_the_claims_of_one_cluster_and_names_the_others(
    ask: Run, control_plane: ControlPlane, namespace: str
) -> None:
    """Volumes of two clusters have names of one: the UID says which are meant."""
    uids = {
        "demo-0": "6f0e0d0c-0000-4000-8000-00000000000a",
        "demo-1": "6f0e0d0c-0000-4000-8000-00000000000b",
    }
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    copy = json.dumps({"generation": 1, "spec": {"members": 2, "storage": {"size": "1Gi"}}})
    for name, uid in uids.items():
        labels = {"stele.dev/cluster-uid": uid, "stele.dev/cluster": "demo"}
        meta = {"name": name, "labels": labels, "annotations": {"stele.dev/cluster-spec": copy}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
        control_plane.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(claim))

    def recovered(cluster: str, uid: str) -> Ran:
        return ask("recover", cluster, "--from-uid", uid, "--dry-run", "-n", namespace)

    shown = recovered("demo", uids["demo-0"])
    assert shown.code == 0, shown.err
    assert "demo-0" in shown.out
    assert "demo-1" not in shown.out
    wrong = recovered("demo", "6f0e0d0c-0000-4000-8000-00000000000c")
    assert (wrong.code, f"its claims have: {', '.join(uids.values())}" in wrong.err) == (1, True), wrong.err
    other = recovered("shop", uids["demo-1"])
    assert other.code == 1
    assert "its claims have: none; the claims with this UID are of demo" in other.err
