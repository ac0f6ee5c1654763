"""How the pods of a cluster log: what they are told, and that it restarts none of them."""

from dataclasses import replace
from typing import Any

from stele.adapters.environment import read
from stele.adapters.logs import LogFormat, LogSettings
from stele.master.manifests import copier_pod, member_pod, member_revision
from stele.master.revision import has_revision, outdated_pod
from tests.master.test_secret_volumes import CLUSTER, MEMBER, SETTINGS

JSON = replace(SETTINGS, log_format=LogFormat.JSON)


def told(container: dict[str, Any]) -> LogSettings:
    return read(LogSettings, {each["name"]: each.get("value", "") for each in container["env"]})


def test_each_container_logs_as_the_operator_does_and_names_what_it_belongs_to() -> None:
    namespace = CLUSTER.metadata.namespace
    for container in member_pod(CLUSTER, MEMBER, JSON.members)["spec"]["containers"]:
        found = told(container)
        assert found.format is LogFormat.JSON
        assert (found.namespace, found.cluster, found.member) == (namespace, "demo", "demo-3")
    (copier,) = copier_pod(CLUSTER, JSON.copier, with_tls=False)["spec"]["containers"]
    found = told(copier)
    assert (found.format, found.cluster, found.member) == (LogFormat.JSON, "demo", "")
    (copier,) = copier_pod(CLUSTER, SETTINGS.copier, with_tls=False)["spec"]["containers"]
    assert told(copier).format is LogFormat.TEXT


def test_no_pod_is_restarted_for_its_log() -> None:
    """Neither for another format, nor because an earlier operator told it nothing of it."""
    revision = member_revision(CLUSTER, SETTINGS.members)
    wanted = member_pod(CLUSTER, MEMBER, JSON.members)
    assert has_revision(wanted, revision)
    before = member_pod(CLUSTER, MEMBER, SETTINGS.members)
    for container in before["spec"]["containers"]:
        container["env"] = [each for each in container["env"] if "STELE_LOG" not in each["name"]]
    assert outdated_pod(before, wanted) == ()
    del before["metadata"]["annotations"]["stele.dev/revision"]
    assert outdated_pod(before, wanted) == ()
