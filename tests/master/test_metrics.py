"""Numbers of the operator's process that no status shows."""

import pytest

from stele.adapters.kubernetes.api import _verb_and_kind
from stele.core.placement.migration import Type
from stele.errors import Refused
from stele.master.loop import LOGGED_SECONDS
from stele.master.metrics import RECONCILE_ERRORS, forget_cluster, migration_metric
from tests.master.harness import formed


@pytest.mark.parametrize(
    ("method", "path", "verb", "kind"),
    [
        ("GET", "/api/v1/namespaces/shop/pods", "list", "pods"),
        ("GET", "/api/v1/pods", "list", "pods"),
        ("GET", "/api/v1/nodes/n1", "get", "nodes"),
        ("GET", "/api/v1/namespaces/shop", "get", "namespaces"),
        (
            "PATCH",
            "/apis/stele.dev/v1alpha1/namespaces/shop/tabletclusters/demo/status",
            "patch",
            "tabletclusters",
        ),
        (
            "PUT",
            "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/demo",
            "update",
            "poddisruptionbudgets",
        ),
        ("DELETE", "/api/v1/namespaces/shop/pods", "deletecollection", "pods"),
        ("DELETE", "/api/v1/namespaces/shop/pods/demo-0", "delete", "pods"),
        ("POST", "/api/v1/namespaces/shop/configmaps", "create", "configmaps"),
    ],
)
def test_requests_are_named_as_in_rules_of_access(method: str, path: str, verb: str, kind: str) -> None:
    assert _verb_and_kind(method, path) == (verb, kind)


async def test_migrations_that_ended_are_counted_by_type_and_result() -> None:
    harness = await formed()
    harness.change_spec(members=4)
    await harness.until_quiet()
    found = {
        (sample.labels["type"], sample.labels["result"]): sample.value
        for sample in migration_metric({("ns", "demo"): harness.state}).samples
    }
    assert len(found) == 2 * len(Type)
    assert sum(number for (_, result), number in found.items() if result == "done") > 0
    assert sum(number for (_, result), number in found.items() if result == "rolled_back") == 0


async def test_a_failure_that_each_round_meets_is_logged_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harness = await formed()

    async def refused() -> None:
        raise Refused("the node port is taken")

    monkeypatch.setattr(harness.world, "ensure_shared", refused)
    for _ in range(10):
        await harness.tick(2.0)
    assert [each for each in caplog.messages if "node port" in each] == [
        "shared objects: REFUSED: the node port is taken"
    ]
    await harness.tick(LOGGED_SECONDS)
    await harness.tick()
    assert len([each for each in caplog.messages if "node port" in each]) == 2


def test_a_deleted_cluster_leaves_no_series() -> None:
    for cluster in ("gone", "stays"):
        RECONCILE_ERRORS.labels("ns", cluster, "CONFLICT").inc()
    forget_cluster("ns", "gone")
    (family,) = RECONCILE_ERRORS.collect()
    clusters = {sample.labels["cluster"] for sample in family.samples if sample.labels["namespace"] == "ns"}
    assert "stays" in clusters
    assert "gone" not in clusters
