"""What a round reads grows with members and changes, not with their product: in calls, not in seconds."""

from collections.abc import Callable
from typing import Any

import pytest

from stele.adapters.kubernetes.api import CLUSTERS
from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.publication import exchange_request
from stele.core.table.table import Member, Partition
from stele.master import kubernetes
from stele.master.cache import Cache
from stele.master.desired import desired_spec_of
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.member_status import member_status
from stele.master.once_per_version import OncePerVersion
from stele.model import TabletCluster
from tests.fakes.spec import OPEN
from tests.master.harness import formed
from tests.master.test_statuses import NOON, cluster, member, view
from tests.simulation.master import SETTINGS


def calls(monkeypatch: pytest.MonkeyPatch, of: type, name: str, work: Callable[[], object]) -> int:
    """How often a method is called meanwhile."""
    real, number = getattr(of, name), 0

    def counted(*words: Any) -> Any:
        nonlocal number
        number += 1
        return real(*words)

    with monkeypatch.context() as patched:
        patched.setattr(of, name, counted)
        work()
    return number


def test_statuses_of_all_members_look_at_each_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number in (10, 40):
        entries = {i: Member(i, f"demo-{i}", f"uuid-{i}", "10.0.0.1") for i in range(number)}
        seen = view((0, 1), entries=entries)

        def write(seen: Any = seen, number: int = number) -> None:
            for index in range(number):
                member_status(member(index), seen, 0)

        found.append(calls(monkeypatch, MemberLiveness, "gone", write))
    assert found[1] <= 4 * found[0]


async def test_the_list_of_members_is_made_once_for_each_change_of_it() -> None:
    harness = await formed(members=4, partitions=4)
    state = harness.state
    for liveness in state.membership.liveness.values():
        liveness.note_published(0)
    requests = [exchange_request(state, index, (), cluster="c", replicas=2)[0] for index in range(4)]
    assert all(each.members is requests[0].members for each in requests)
    assert {each.uuid for each in requests[0].members} == {each.uuid for each in state.table.members.values()}
    await harness.apply(members=5)
    assert [each.index for each in harness.state.table.member_list] == [0, 1, 2, 3, 4]


async def test_the_sum_of_versions_follows_each_change() -> None:
    harness = await formed(members=3, partitions=6)
    table = harness.state.table
    assert table.formed
    assert table.version_sum == sum(row.version for row in table.partitions)
    await harness.apply(members=4)
    table = harness.state.table
    assert table.version_sum == sum(row.version for row in table.partitions) > 6
    table.store({2: Partition(table.partitions[2].version + 40, table.partitions[2].replicas)})
    assert table.version_sum == sum(row.version for row in table.partitions)


def test_what_is_made_of_a_version_is_made_once() -> None:
    made: list[int] = []

    def make(each: TabletCluster) -> int:
        made.append(each.spec.members)
        return len(made)

    once = OncePerVersion(make)
    one, other = cluster(members=3), cluster(members=4)
    assert [once(one), once(one), once(other), once(other), once(one)] == [1, 1, 2, 2, 3]
    assert made == [3, 4, 3]


def test_the_spec_is_read_once_for_each_version(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(cluster: TabletCluster) -> Any:
        made.append(cluster.spec.members)
        return desired_spec_of(cluster)

    monkeypatch.setattr(kubernetes, "desired_spec_of", counted)
    spec = {"members": 3, "replicas": 2, "storage": {"size": "1Gi"}, "security": OPEN}
    meta = {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1, "resourceVersion": "1"}
    stored = {"kind": "TabletCluster", "metadata": meta, "spec": spec}
    model = TabletCluster.read(stored)
    assert isinstance(model, TabletCluster)
    cache = Cache(lambda kind, stored: None)
    world = KubernetesClusterObjects(None, cache, SETTINGS, model, lambda now: NOON)  # type: ignore[arg-type]
    for _ in range(8):
        world.refresh()
        assert world.desired().members == 3
    cache.put(CLUSTERS, {**stored, "metadata": {**meta, "resourceVersion": "2"}})
    for _ in range(8):
        world.refresh()
        world.desired()
    assert made == [3, 3]
