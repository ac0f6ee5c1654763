"""Plans that users make, against a real API server: each says in its condition Ready how it stands."""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CLUSTERS, REBALANCES, Api
from stele.core.control.progress import RebalancePhase, RebalanceProgress
from stele.core.control.state import State
from stele.core.placement.plan import Plan
from stele.core.table.table import PartitionTable
from stele.master import manifests, status
from stele.master.cache import Cache
from stele.master.children import Children
from stele.master.plans import PLAN_LABEL, RebalanceRequests, fail_ownerless, show_plans
from stele.model import TabletCluster, TabletRebalance
from stele.model.conditions import find_condition
from tests.fakes.objects import body
from tests.fakes.spec import desired_spec
from tests.operator.test_operator import Stage, cluster

pytestmark = pytest.mark.control_plane

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


async def create(api: Api, cache: Cache, namespace: str, name: str, mode: str, **spec: object) -> None:
    plan = body(REBALANCES, name, {"cluster": "demo", "mode": mode, **spec})
    cache.put(REBALANCES, await api.create(REBALANCES, namespace, plan))


async def ready(api: Api, namespace: str, name: str) -> tuple[str, str, str]:
    found = TabletRebalance.read(await api.get(REBALANCES, namespace, name))
    assert isinstance(found, TabletRebalance)
    condition = find_condition(found.status.conditions, "Ready")
    assert condition is not None
    assert found.status.observed_generation == condition.observed_generation == found.metadata.generation
    return str(found.status.phase), condition.status.value, condition.reason


async def test_a_plan_waits_for_its_cluster_and_is_answered_when_that_is_there(
    api: Api, namespace: str, control_plane: ControlPlane
) -> None:
    cache = Cache(lambda _kind, _stored: None)
    await create(api, cache, namespace, "look", "DryRun")
    await create(api, cache, namespace, "run", "Execute")
    await fail_ownerless(api, cache, NOON)
    for name in ("look", "run"):
        assert await ready(api, namespace, name) == ("Pending", "False", "ClusterNotFound")

    spec = {"members": 3, "storage": {"size": "1Gi"}}
    made = await api.create(CLUSTERS, namespace, body(CLUSTERS, "demo", spec))
    cache.put(CLUSTERS, made)
    found = TabletCluster.read(made)
    assert isinstance(found, TabletCluster)
    state = State(1, PartitionTable.empty(8), 1, 0, 0.0)
    await create(api, cache, namespace, "four", "DryRun", changes={"members": 4})
    view = status.View(state, desired_spec(3, 2), 0.0, NOON)
    await show_plans(api, cache, Children(api, cache, namespace), found, view)
    await fail_ownerless(api, cache, NOON)
    assert await ready(api, namespace, "look") == ("Proposed", "True", "AsDesired")
    assert await ready(api, namespace, "four") == ("Proposed", "True", "AsDesired")
    assert await ready(api, namespace, "run") == ("Failed", "False", "MigrationFailed")
    waited = control_plane.kubectl(
        "wait", "--for=condition=Ready", "tabletrebalance/look", "-n", namespace, "--timeout=5s"
    )
    assert "condition met" in waited


def formed(plans: int) -> State:
    """A master that finished plans for one situation, which was approved, and is at the last of them."""
    state = State(1, PartitionTable.empty(8), 1, 0, 0.0)
    state.rebalance.plan_number, state.rebalance.approved = plans, "situation"
    records = [RebalanceProgress(n, Plan(), "what is left", 0.0, 0, Counter()) for n in range(1, plans + 1)]
    for each in records:
        each.situation = "situation"
    for each in records[:-1]:
        each.enter(RebalancePhase.DONE, 0.0)
    state.rebalance.finished.extend(records[:-1])
    state.rebalance.progress = records[-1]
    return state


async def made_cluster(api: Api, namespace: str, **spec: Any) -> TabletCluster:
    found = TabletCluster.read(await api.create(CLUSTERS, namespace, cluster("demo", 3, **spec)))
    assert isinstance(found, TabletCluster)
    return found


async def test_plans_of_others_with_our_names_are_neither_obeyed_written_nor_deleted(
    api: Api, namespace: str
) -> None:
    cache, desired = Cache(lambda _kind, _stored: None), desired_spec(3, 2)
    ours = await made_cluster(api, namespace)
    owner = manifests.owned_by_cluster(ours) | {"name": "another", "uid": "of-another-cluster"}
    before = {}
    for number in range(1, 13):
        name = f"demo-1-{number}" if number < 3 else f"demo-0-{number}"
        spec = {"cluster": "demo", "mode": "Execute", "approved": True}
        plan = body(REBALANCES, name, spec, labels={PLAN_LABEL: name}, ownerReferences=[owner])
        if number == 2:
            del plan["metadata"]["labels"], plan["metadata"]["ownerReferences"]
            plan["spec"]["moves"] = [{"partition": 1, "from": "demo-0", "to": "demo-1"}]
        await api.create(REBALANCES, namespace, plan)
        if number != 2:
            await api.patch_status(REBALANCES, namespace, name, {"phase": "Done"})
        before[name] = await api.get(REBALANCES, namespace, name)
        cache.put(REBALANCES, before[name])
    asked = RebalanceRequests().read(cache, namespace, "demo", ours.metadata.uid)
    assert [(each.name, each.plan) for each in asked] == [("demo-1-2", "")], "one of a user"
    children, state = Children(api, cache, namespace), formed(plans=2)
    await show_plans(api, cache, children, ours, status.View(state, desired, 0.0, NOON, requests=asked))
    for name, stored in before.items():
        assert await api.get(REBALANCES, namespace, name) == stored
    assert children.taken() == ("TabletRebalance demo-1-1", "TabletRebalance demo-1-2")


async def own_plans(
    api: Api, cache: Cache, namespace: str, ours: TabletCluster, *, cancelled: int | None = None
) -> None:
    """Twelve plans of earlier masters that are done, and one that was cancelled."""
    for number in range(1, 13):
        name, spec = f"demo-0-{number}", {"cluster": "demo", "mode": "Execute"}
        spec |= {"cancel": True} if number == cancelled else {}
        owner = manifests.owned_by_cluster(ours)
        await api.create(
            REBALANCES,
            namespace,
            body(REBALANCES, name, spec, labels={PLAN_LABEL: name}, ownerReferences=[owner]),
        )
        cache.put(REBALANCES, await api.patch_status(REBALANCES, namespace, name, {"phase": "Done"}))


async def kept(api: Api, namespace: str) -> set[str]:
    return {each["metadata"]["name"] for each in await api.list(REBALANCES, namespace)}


@pytest.mark.parametrize(
    ("limit", "cancelled", "left"),
    [(None, None, range(3, 13)), (3, None, (10, 11, 12)), (0, None, ()), (0, 12, (12,)), (1, 5, (12,))],
)
async def test_as_many_finished_plans_are_kept_as_the_spec_says(
    api: Api, namespace: str, limit: int | None, cancelled: int | None, left: Iterable[int]
) -> None:
    """A new master reads at the last one that it was cancelled."""
    cache, desired = Cache(lambda _kind, _stored: None), desired_spec(3, 2)
    migration = {} if limit is None else {"migration": {"historyLimit": limit}}
    ours = await made_cluster(api, namespace, **migration)
    await own_plans(api, cache, namespace, ours, cancelled=cancelled)
    children, state = Children(api, cache, namespace), State(1, PartitionTable.empty(8), 1, 0, 0.0)
    await show_plans(api, cache, children, ours, status.View(state, desired, 0.0, NOON))
    assert await kept(api, namespace) == {f"demo-0-{number}" for number in left}


async def test_plans_that_finished_a_moment_ago_are_shown_and_count_later(api: Api, namespace: str) -> None:
    cache, desired = Cache(lambda _kind, _stored: None), desired_spec(3, 2)
    ours = await made_cluster(api, namespace, migration={"historyLimit": 1})
    children, state = Children(api, cache, namespace), formed(plans=4)
    for seconds, names in (
        (60.0, {"demo-1-1", "demo-1-2", "demo-1-3", "demo-1-4"}),
        (61.0, {"demo-1-3", "demo-1-4"}),
    ):
        await show_plans(api, cache, children, ours, status.View(state, desired, seconds, NOON))
        assert await kept(api, namespace) == names


async def test_a_plan_that_follows_an_approved_one_is_stored_as_approved(api: Api, namespace: str) -> None:
    cache, desired = Cache(lambda _kind, _stored: None), desired_spec(3, 2)
    ours = await made_cluster(api, namespace)
    children, state = Children(api, cache, namespace), formed(plans=1)
    await show_plans(api, cache, children, ours, status.View(state, desired, 0.0, NOON))
    (ask,) = RebalanceRequests().read(cache, namespace, "demo", ours.metadata.uid)
    assert (ask.plan, ask.approved, ask.situation, ask.final) == ("1-1", True, "situation", False)


async def plans(stage: Stage) -> dict[str, TabletRebalance]:
    found = [TabletRebalance.read(each) for each in await stage.api.list(REBALANCES, stage.namespace)]
    return {each.metadata.name: each for each in found if isinstance(each, TabletRebalance)}


async def until_phase(stage: Stage, name: str, phase: str) -> None:
    async def there() -> bool:
        return (await plans(stage))[name].status.phase == phase

    await stage.until(f"{name} that is {phase}", there)


async def in_phase(stage: Stage, phase: str) -> str:
    """The name of a plan in that phase, once there is one."""
    names: list[str] = []

    async def there() -> bool:
        names[:] = [name for name, each in (await plans(stage)).items() if each.status.phase == phase]
        return bool(names)

    await stage.until(f"a plan that is {phase}", there)
    return names[0]


async def test_plans_are_approved_moved_and_cancelled_with_the_command_line(
    stage: Stage, namespace: str
) -> None:
    await stage.until_converged(3)
    await stage.change_spec(members=4, migration={"engine": "Direct", "approval": "Manual"})
    name = await in_phase(stage, "Proposed")
    plan = (await plans(stage))[name]
    assert plan.status.planned.total > 0
    assert plan.status.started_at is None
    assert await ready(stage.api, namespace, name) == ("Proposed", "False", "WaitsForApproval")
    assert all(3 not in row.members for row in (await stage.rows()).rows)
    assert await stage.stele("approve", name) == f"{name} is approved"
    await stage.until_converged(4)
    number, row = next((n, r) for n, r in enumerate((await stage.rows()).rows) if 3 not in r.members)
    giver = f"demo-{row.replicas[1]}"
    moved = await stage.stele("move", "demo", str(number), "--from", giver, "--to", "demo-3")

    await until_phase(stage, moved, "Done")
    assert await ready(stage.api, namespace, moved) == ("Done", "True", "AsDesired")
    assert 3 in (await stage.rows()).rows[number].members
    await stage.stele("drain", "demo-0")
    name = await in_phase(stage, "Proposed")
    await stage.stele("cancel", name)

    await until_phase(stage, name, "Superseded")
    assert await ready(stage.api, namespace, name) == ("Superseded", "True", "Cancelled")
    assert any(0 in row.members for row in (await stage.rows()).rows)


async def test_a_member_is_handed_over_and_back_with_the_command_line(stage: Stage, namespace: str) -> None:
    await stage.until_converged(3)

    async def owned() -> int:
        return sum(row.owner == 0 for row in (await stage.rows()).rows)

    before = await owned()
    said = (await stage.stele("handover", "demo-0", "--wait")).splitlines()
    assert said[0].startswith(f"demo-0 hands over {before} partitions: ")
    assert said[-1] == f"demo-0 owns nothing, {before} partitions are handed over"
    assert await owned() == 0
    (name,) = [name for name, each in (await plans(stage)).items() if each.spec.handover is not None]
    assert await ready(stage.api, namespace, name) == ("Done", "True", "AsDesired")
    assert "it is to own nothing" in await stage.stele("why", "demo-0")
    await stage.stele("handover", "demo-0", "--undo")

    async def back() -> bool:
        return await owned() >= before - 1

    await stage.until("its share again", back)
