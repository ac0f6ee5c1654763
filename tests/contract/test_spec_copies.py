"""The copies of the spec on volume claims, from which a deleted cluster is recovered."""

from typing import Any

import pytest

from stele.adapters.kubernetes.api import CLAIMS, CLUSTERS
from stele.cli.recover import spec_of_claims
from stele.errors import BadInput
from stele.master import manifests
from stele.model.cluster import Bootstrap
from tests.contract.test_outdated import SPEC, Scene
from tests.master.test_statuses import cluster

UID = "6f0e0d0c-0000-4000-8000-000000000000"


async def test_a_cluster_that_is_deleted_right_after_its_claims_were_made_can_be_recovered(
    place: tuple[Any, str],
) -> None:
    scene = Scene(*place)
    await scene.begin(logLevel="DEBUG")
    stored = await scene.api.get(CLUSTERS, scene.namespace, "demo")
    await scene.api.delete(CLUSTERS, scene.namespace, "demo", stored["metadata"]["uid"])
    for index in (0, 1):
        spec = spec_of_claims([await scene.api.get(CLAIMS, scene.namespace, f"demo-{index}")])
        assert (spec["members"], spec["logLevel"]) == (SPEC["members"], "DEBUG")


def test_a_recovered_cluster_replaces_the_copies_once_its_table_exists() -> None:
    """Its spec may be wrong until then. Both objects have generation 1."""
    deleted = cluster(uid="first", members=3)
    claim = manifests.kept_claim(manifests.claim(deleted, 0), deleted)
    bootstrap = Bootstrap.model_validate({"volumes": {"clusterUID": UID}})
    recovered = cluster(uid="second", members=5)
    recovered = recovered.model_copy(
        update={"spec": recovered.spec.model_copy(update={"bootstrap": bootstrap})}
    )
    assert spec_of_claims([manifests.kept_claim(claim, recovered)])["members"] == 3
    status = recovered.status.model_copy(update={"version_sum": 1})
    claim = manifests.kept_claim(claim, recovered.model_copy(update={"status": status}))
    assert spec_of_claims([claim])["members"] == 5
    assert "bootstrap" not in spec_of_claims([claim])


def test_claims_without_a_copy_are_refused_with_what_to_do() -> None:
    with pytest.raises(BadInput, match="give it with -f FILE"):
        spec_of_claims([{"metadata": {}}])
