"""Pods run without root, and write to volumes instead of to their image."""

from typing import Any

import pytest

from stele.adapters.kubernetes import bulk_job
from stele.master.manifests import copier_pod, member_pod
from tests.master.test_copier_pod import SETTINGS
from tests.master.test_secret_volumes import CLUSTER, MEMBER

PODS = {
    "member": member_pod(CLUSTER, MEMBER, SETTINGS.members)["spec"],
    "copier": copier_pod(CLUSTER, SETTINGS.copier)["spec"],
    "bulk": bulk_job.manifest(
        {"apiVersion": "v1", "metadata": {"name": "demo", "uid": "u"}}, "1Gi", {"image": "sql:1"}
    )["spec"]["template"]["spec"],
}


@pytest.mark.parametrize("name", PODS)
def test_a_pod_is_no_root_and_cannot_write_to_its_image(name: str) -> None:
    spec: dict[str, Any] = PODS[name]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]
