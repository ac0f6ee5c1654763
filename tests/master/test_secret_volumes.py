"""How pods of members get certificates and users."""

import pytest

from stele.core.security.level import InternalTls
from stele.master.manifests import member_pod, member_revision
from stele.master.revision import outdated_pod
from stele.master.settings import Settings
from stele.model import TabletCluster, TabletMember

SETTINGS = Settings("member:1", "spark:1", (), "", "test")
CLUSTER = TabletCluster.model_validate(
    {"metadata": {"name": "demo", "uid": "u"}, "spec": {"members": 1, "storage": {"size": "1Gi"}}}
)
MEMBER = TabletMember.model_validate(
    {"metadata": {"name": "demo-3", "uid": "m"}, "spec": {"cluster": "demo", "index": 3}}
)
POD = member_pod(CLUSTER, MEMBER, SETTINGS.members)


def test_a_pod_starts_without_the_secrets_of_its_member_and_its_cluster() -> None:
    volumes = {each["name"]: each["secret"] for each in POD["spec"]["volumes"] if "secret" in each}
    assert {name: each["secretName"] for name, each in volumes.items()} == {
        "tls": "demo-3-tls",
        "users": "demo-users",
    }
    assert all(each["optional"] and each["defaultMode"] == 0o440 for each in volumes.values())


@pytest.mark.parametrize(
    ("container", "found"),
    [
        (0, {"STELE_TLS_DIR": "/etc/stele/tls", "STELE_USERS_FILE": "/etc/stele/users/users"}),
        (1, {"STELE_TLS_DIR": "/etc/stele/tls"}),
    ],
    ids=["member", "transfer"],
)
def test_each_container_finds_what_it_mounts(container: int, found: dict[str, str]) -> None:
    spec = POD["spec"]["containers"][container]
    named = {each["name"]: each.get("value", "") for each in spec["env"]}
    mounts = {each["name"]: each for each in spec["volumeMounts"] if each.get("readOnly")}
    assert {name: value for name, value in named.items() if value.startswith("/etc")} == found
    assert {each["mountPath"] for each in mounts.values()} == {
        path.removesuffix("/users") if path.endswith("users/users") else path for path in found.values()
    }


@pytest.mark.parametrize("level", InternalTls)
def test_a_pod_is_told_the_first_level_and_none_restarts_when_it_changes(level: InternalTls) -> None:
    told = member_pod(CLUSTER, MEMBER, SETTINGS.members, level)
    for container in told["spec"]["containers"]:
        named = {each["name"]: each.get("value") for each in container["env"]}
        assert named["STELE_FIRST_MEMBER_TLS"] == level.value
    assert told["metadata"] == POD["metadata"]
    told["metadata"]["annotations"]["stele.dev/revision"] = "before"
    assert outdated_pod(told, POD) == ("revision",)


def test_a_pod_from_before_restarts_once_and_all_members_have_one_revision() -> None:
    assert POD["metadata"]["annotations"]["stele.dev/revision"] == member_revision(CLUSTER, SETTINGS.members)
    old = member_pod(CLUSTER, MEMBER, SETTINGS.members)
    old["metadata"]["annotations"]["stele.dev/revision"] = "before"
    for container in old["spec"]["containers"]:
        container["env"] = [each for each in container["env"] if "/etc/stele" not in each.get("value", "")]
    assert outdated_pod(old, POD) == ("STELE_TLS_DIR", "STELE_USERS_FILE")
    assert outdated_pod(POD, POD) == ()
