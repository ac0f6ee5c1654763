"""A claim of an earlier cluster is neither used nor deleted, and the cluster says what to do."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from stele.core.control.state import State
from stele.core.table.table import PartitionTable
from stele.master import manifests
from stele.master import status as facts
from stele.model import TabletCluster
from stele.model.ownership import belongs_to
from tests.fakes.spec import desired_spec


def _cluster(uid: str) -> TabletCluster:
    found = TabletCluster.read(
        {
            "apiVersion": "stele.dev/v1alpha1",
            "kind": "TabletCluster",
            "metadata": {"name": "demo", "namespace": "ns", "uid": uid, "generation": 1},
            "spec": {"members": 3, "storage": {"size": "1Gi"}},
        }
    )
    assert isinstance(found, TabletCluster)
    return found


def test_a_claim_of_the_same_name_but_another_cluster_is_foreign() -> None:
    claim = manifests.claim(_cluster("first"), 0)
    assert not manifests.is_foreign(claim, _cluster("first"))
    assert manifests.is_foreign(claim, _cluster("second"))


def test_a_claim_that_says_nothing_is_of_no_earlier_cluster() -> None:
    claim: dict[str, Any] = {"metadata": {"name": "demo-0"}}
    assert not manifests.is_foreign(claim, _cluster("second"))
    assert not belongs_to(claim, "second")


def test_ready_names_the_claims_and_what_to_do() -> None:
    cluster = _cluster("second")
    state = State(1, PartitionTable.empty(8), 1, 0, 0.0)
    desired = desired_spec(3, 2)
    view = facts.View(state, desired, 0.0, datetime.now(UTC), ("demo-0", "demo-1"))
    ready = _ready(cluster, view)
    assert (ready.status.value, ready.reason) == ("False", "ForeignVolume")
    stalled = _condition(cluster, view, "Stalled")
    assert (stalled.status.value, stalled.message) == ("True", ready.message)
    assert "kubectl delete pvc demo-0 demo-1" in ready.message
    assert _ready(cluster, replace(view, foreign_claims=())).reason == "Forming"


def _ready(cluster: TabletCluster, view: facts.View) -> Any:
    return _condition(cluster, view, "Ready")


def _condition(cluster: TabletCluster, view: facts.View, type_: str) -> Any:
    status = facts.cluster_status(cluster, view, "")
    return next(each for each in status.conditions if each.type == type_)
