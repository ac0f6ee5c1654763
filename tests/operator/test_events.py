"""Events on a real API server, as `kubectl describe` shows them for the cluster, a member and a plan."""

import pytest

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import REBALANCES
from tests.operator.test_operator import Stage

pytestmark = pytest.mark.control_plane


def described(control_plane: ControlPlane, namespace: str, kind: str, name: str) -> str:
    """The Events that `kubectl describe` prints."""
    return control_plane.kubectl("describe", kind, name, "-n", namespace).partition("\nEvents:")[2]


async def test_members_and_plans_are_described_with_their_events_and_the_cluster_with_all(
    stage: Stage, control_plane: ControlPlane, namespace: str
) -> None:
    await stage.until_converged(3)
    await stage.scale(4)
    await stage.until_converged(4)

    async def told() -> bool:
        plans = [each["metadata"]["name"] for each in await stage.api.list(REBALANCES, namespace)]
        shown = [described(control_plane, namespace, "str", name) for name in plans]
        return any("RebalanceStarted" in text and "RebalanceFinished" in text for text in shown)

    await stage.until("a plan with its Events", told)
    member = described(control_plane, namespace, "stm", "demo-3")
    assert "MemberJoined" in member
    assert "Rebalance" not in member
    whole = described(control_plane, namespace, "stc", "demo")
    for number in range(4):
        assert f"demo-{number} joined as member {number}" in whole
    assert "RebalanceStarted" in whole
