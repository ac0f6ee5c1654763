"""How Kubernetes may stop members: what the disruption budget allows, and how long a pod may take."""

from typing import Any

import pytest

from stele.master.manifests import budget, member_pod
from stele.master.settings import Settings
from stele.model import TabletCluster, TabletMember

SETTINGS = Settings("member:1", "spark:1", (), "", "test")


def cluster(**fields: object) -> TabletCluster:
    spec = {"members": 3, "storage": {"size": "1Gi"}, **fields}
    found = TabletCluster.read({"metadata": {"name": "demo", "uid": "u"}, "spec": spec})
    assert isinstance(found, TabletCluster), found
    return found


@pytest.mark.parametrize(
    ("members", "all_safe", "least"),
    [(3, True, 2), (3, False, 3), (1, True, 0), (1, False, 1), (0, True, 0)],
)
def test_the_budget_lets_one_member_go_unless_a_partition_lacks_a_copy(
    members: int, all_safe: bool, least: int
) -> None:
    found = budget(cluster(), members, all_safe)
    assert (found["apiVersion"], found["kind"]) == ("policy/v1", "PodDisruptionBudget")
    assert found["metadata"]["name"] == "demo"
    assert [each["uid"] for each in found["metadata"]["ownerReferences"]] == ["u"]
    assert found["spec"] == {
        "minAvailable": least,
        "selector": {"matchLabels": {"stele.dev/cluster": "demo", "stele.dev/component": "member"}},
    }


def test_the_budget_counts_pods_of_members_and_no_others() -> None:
    wanted = budget(cluster(), 3, True)["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= pod()["metadata"]["labels"].items()


def pod(**spec: object) -> dict[str, Any]:
    stored = {"metadata": {"name": "demo-0", "uid": "m"}, "spec": {"cluster": "demo", "index": 0}}
    member = TabletMember.read(stored)
    assert isinstance(member, TabletMember)
    return member_pod(cluster(**spec), member, SETTINGS.members)


def test_a_member_has_a_minute_to_be_emptied_and_two_until_it_is_killed() -> None:
    spec = pod()["spec"]
    assert spec["terminationGracePeriodSeconds"] == 120
    member, transfer = spec["containers"]
    assert member["lifecycle"] == {
        "preStop": {"exec": {"command": ["stele-member", "leave", "--seconds", "60"]}}
    }
    assert "lifecycle" not in transfer


def test_a_member_of_many_partitions_has_longer_to_be_emptied() -> None:
    spec = pod(partitions=16_384)["spec"]
    (*_, seconds) = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert (seconds, spec["terminationGracePeriodSeconds"]) == ("409", 469)
