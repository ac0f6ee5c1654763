"""What spec.podTemplate makes of pods."""

import json
from typing import Any

import pytest

from stele.copyjob.conf import pod_template
from stele.copyjob.settings import read_settings
from stele.master.manifests import claim, copier_pod, labels, member_pod, member_revision
from stele.master.settings import Settings
from stele.model import TabletCluster, TabletMember, Unreadable
from stele.wire.copy.jobs import CopyJob

SETTINGS = Settings("member:1", "spark:1", (), "", "test", pull_secrets=("chart",))
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


def read(**template: Any) -> TabletCluster:
    spec = {"members": 1, "storage": {"size": "1Gi"}, "podTemplate": template}
    found = TabletCluster.read({"metadata": {"name": "demo", "uid": "u"}, "spec": spec})
    assert isinstance(found, TabletCluster), found
    return found


def pod(**template: Any) -> dict[str, Any]:
    meta = {"name": "demo-0", "uid": "m"}
    member = TabletMember.read({"metadata": meta, "spec": {"cluster": "demo", "index": 0}})
    assert isinstance(member, TabletMember)
    return member_pod(read(**template), member, SETTINGS.members)


PLAIN = pod()


@pytest.mark.parametrize(
    "field",
    [
        {"nodeSelector": {"disk": "fast"}},
        {"tolerations": [{"key": "stele", "operator": "Exists", "effect": "NoSchedule"}]},
        {"priorityClassName": "high"},
        {"securityContext": {"runAsNonRoot": True}},
        {"securityContext": {}},
        {"topologySpreadConstraints": [{**SPREAD, "labelSelector": {"matchLabels": {"a": "b"}}}]},
    ],
    ids=str,
)
def test_a_field_is_that_of_the_pod_and_nothing_else_changes(field: dict[str, Any]) -> None:
    found = pod(**field)
    assert found["spec"] == PLAIN["spec"] | field
    assert found["metadata"]["labels"] == PLAIN["metadata"]["labels"]
    assert found["metadata"]["annotations"] != PLAIN["metadata"]["annotations"], "its revision is another"


def test_labels_and_annotations_are_added_to_those_of_the_operator() -> None:
    found = pod(labels={"team": "shop"}, annotations={"a.b/c": "d"})["metadata"]
    assert found["labels"] == labels("demo", "member", "demo-0") | {"team": "shop"}
    assert found["annotations"].keys() == {"stele.dev/revision", "a.b/c"}
    assert (
        found["annotations"]["stele.dev/revision"] != PLAIN["metadata"]["annotations"]["stele.dev/revision"]
    )


def test_the_end_of_a_failed_container_s_log_is_kept_in_the_status() -> None:
    containers = PLAIN["spec"]["containers"]
    assert {each["terminationMessagePolicy"] for each in containers} == {"FallbackToLogsOnError"}


def test_variables_are_added_to_both_containers() -> None:
    more = [{"name": "TZ", "value": "UTC"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]
    for plain, container in zip(
        PLAIN["spec"]["containers"], pod(env=more)["spec"]["containers"], strict=True
    ):
        assert container["env"] == plain["env"] + more


def test_an_affinity_replaces_that_of_its_kind_only() -> None:
    terms = [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}]
    nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    found = pod(affinity={"nodeAffinity": nodes})["spec"]["affinity"]
    assert found["podAntiAffinity"] == PLAIN["spec"]["affinity"]["podAntiAffinity"]
    assert found["nodeAffinity"] == nodes
    none = pod(affinity={"podAntiAffinity": {}})["spec"]["affinity"]["podAntiAffinity"]
    assert none == {}


def test_a_constraint_without_a_selector_counts_the_members_of_the_cluster() -> None:
    (found,) = pod(topologySpreadConstraints=[SPREAD])["spec"]["topologySpreadConstraints"]
    wanted = {"stele.dev/cluster": "demo", "stele.dev/component": "member"}
    assert found["labelSelector"] == {"matchLabels": wanted}
    assert SPREAD.items() <= found.items()


def test_spark_s_pods_have_what_lets_them_run_beside_the_members() -> None:
    shared = {
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "high",
        "securityContext": {"runAsNonRoot": True},
    }
    cluster = read(**shared, imagePullSecrets=[{"name": "own"}, {"name": "chart"}], nodeSelector={"a": "b"})
    spec = copier_pod(cluster, SETTINGS.copier, with_tls=False)["spec"]
    assert spec | shared == spec
    assert "nodeSelector" not in spec
    assert spec["imagePullSecrets"] == [{"name": "chart"}, {"name": "own"}]
    env = {each["name"]: each.get("value", "x") for each in spec["containers"][0]["env"]}
    assert env["STELE_IMAGE_PULL_SECRETS"] == "chart,own"
    job = CopyJob("s-1", "demo-1", "c", "http://h:1", "t", ())
    executor = json.loads(pod_template(job, read_settings(env)))["spec"]
    assert executor | shared == executor
    assert executor["affinity"], "it still runs beside its member"


def test_all_members_of_a_cluster_have_one_revision() -> None:
    cluster = read(labels={"team": "shop"}, tolerations=[{"operator": "Exists"}])
    found = pod(labels={"team": "shop"}, tolerations=[{"operator": "Exists"}])
    assert found["metadata"]["annotations"]["stele.dev/revision"] == member_revision(
        cluster, SETTINGS.members
    )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"labels": {"stele.dev/cluster": "x"}}, "stele.dev/cluster is set by the operator; leave it out"),
    ({"labels": {"app.kubernetes.io/instance": "x"}}, "is set by the operator; leave it out"),
    ({"labels": {"a b": "x"}}, "'a b' is no name of a label or an annotation"),
    ({"annotations": {"stele.dev/revision": "x"}}, "is set by the operator; leave it out"),
    ({"env": [{"name": "STELE_FSYNC", "value": "Never"}]}, "STELE_FSYNC is set by the operator"),
    ({"tolerations": [{"operator": "exists"}]}, "spec.podTemplate.tolerations.0.operator is 'exists'"),
    ({"topologySpreadConstraints": [{}]}, "spec.podTemplate.topologySpreadConstraints.0.maxSkew"),
    ({"securityContext": {"runAsUser": -1}}, "spec.podTemplate.securityContext.runAsUser is -1"),
    ({"nodeSelector": {str(n): "x" for n in range(65)}}, "spec.podTemplate.nodeSelector"),
]


@pytest.mark.parametrize(("template", "text"), REFUSED, ids=str)
def test_what_the_operator_sets_and_what_is_no_field_is_refused(template: dict[str, Any], text: str) -> None:
    spec = {"members": 1, "storage": {"size": "1Gi"}, "podTemplate": template}
    found = TabletCluster.read({"metadata": {"name": "demo"}, "spec": spec})
    assert isinstance(found, Unreadable)
    assert text in str(found)


def test_nothing_that_deletes_what_is_not_in_git_takes_a_volume_claim_for_its_own() -> None:
    meta = claim(read(), 0)["metadata"]
    assert "app.kubernetes.io/instance" not in meta["labels"]
    assert meta["annotations"]["argocd.argoproj.io/sync-options"] == "Prune=false,Delete=false"
