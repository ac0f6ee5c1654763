"""A claim of an earlier cluster is neither used nor deleted, and the cluster says what to do."""

from dataclasses import replace

from stele.core.control.state import State
from stele.core.table.table import PartitionTable
from stele.master import manifests
from stele.master import status as facts
from stele.master.view import View
from stele.model.ownership import belongs_to
from tests.fakes.spec import desired_spec
from tests.master.test_statuses import NOON, cluster, condition

FIRST, SECOND = cluster(uid="first"), cluster(uid="second")


def test_a_claim_of_the_same_name_but_another_cluster_is_foreign() -> None:
    claim = manifests.claim(FIRST, 0)
    assert not manifests.is_foreign(claim, FIRST)
    assert manifests.is_foreign(claim, SECOND)


def test_a_claim_that_says_nothing_is_of_no_earlier_cluster() -> None:
    claim = {"metadata": {"name": "demo-0"}}
    assert not manifests.is_foreign(claim, SECOND)
    assert not belongs_to(claim, "second")


def test_ready_names_the_claims_and_what_to_do() -> None:
    forming = View(State(1, PartitionTable.empty(8), 1, 0, 0.0), desired_spec(3, 2), 0.0, NOON)
    status = facts.cluster_status(SECOND, replace(forming, foreign_claims=("demo-0", "demo-1")), "")
    ready, stalled = condition(status, "Ready"), condition(status, "Stalled")
    assert (ready.status.value, ready.reason) == ("False", "ForeignVolume")
    assert (stalled.status.value, stalled.message) == ("True", ready.message)
    assert "kubectl delete pvc demo-0 demo-1" in ready.message
    assert condition(facts.cluster_status(SECOND, forming, ""), "Ready").reason == "Forming"
