"""No pod of ours runs as root or writes to its image; where it does write there are volumes."""

import json
from typing import Any

import pytest

from stele.adapters.kubernetes import bulk_job
from stele.copyjob.conf import pod_template
from stele.copyjob.drivers import _environment
from stele.copyjob.settings import read_settings
from stele.master.manifests import copier_pod, member_pod
from tests.copyjob.test_conf import JOB, POD
from tests.master.test_copier_pod import SETTINGS
from tests.master.test_secret_volumes import CLUSTER, MEMBER

EXECUTOR = read_settings(POD)
PODS = {
    "member": member_pod(CLUSTER, MEMBER, SETTINGS.members)["spec"],
    "copier": copier_pod(CLUSTER, SETTINGS.copier, with_tls=False)["spec"],
    "executor": json.loads(pod_template(JOB, EXECUTOR))["spec"],
    "bulk": bulk_job.manifest(
        {"apiVersion": "v1", "metadata": {"name": "demo", "uid": "u"}},
        "1Gi",
        {"image": "sql:1"},
        with_tls=True,
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


@pytest.mark.parametrize("name", ["member", "copier", "bulk"])
def test_a_pod_has_a_volume_for_files_that_pass(name: str) -> None:
    for container in PODS[name]["containers"]:
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_spark_gives_executors_a_volume_at_the_folder_where_they_work() -> None:
    assert _environment({}, EXECUTOR.scratch)["SPARK_LOCAL_DIRS"] == "/tmp"
    assert "/tmp" not in [mount["mountPath"] for mount in PODS["executor"]["containers"][0]["volumeMounts"]]
