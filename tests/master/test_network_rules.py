"""Who reaches what with the NetworkPolicies of a cluster: pods as the product makes them, and strangers."""

from typing import Any

import pytest
import yaml

from stele.adapters.kubernetes.bulk_job import manifest
from stele.copyjob.conf import spark_conf
from stele.copyjob.settings import read_settings
from stele.master.manifests import copier_pod, member_pod
from stele.master.network_rules import network_policies
from stele.master.settings import Settings
from stele.model import TabletCluster, TabletMember
from stele.wire.copy.jobs import CopyJob
from tests.fakes.network_plugin import End, NetworkPlugin
from tests.guard.pages import ROOT

SETTINGS = Settings("member:1", "spark:1", (), "stele", "test")
NAMESPACE = "shop"
NODE = "172.18.0.2"
PEERS = {
    "clients": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "web"}}}],
    "metrics": [
        {
            "namespaceSelector": {},
            "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["prometheus"]}]},
        }
    ],
    "admins": [{"ipBlock": {"cidr": "172.18.0.0/24", "except": ["172.18.0.9/32"]}}],
}
EXECUTOR_LABEL = "spark.kubernetes.executor.label."


def cluster(name: str, **policy: Any) -> TabletCluster:
    spec = {
        "members": 3,
        "storage": {"size": "1Gi"},
        "podTemplate": {"labels": {"team": "a"}},
        "security": {"networkPolicy": policy},
    }
    meta = {"name": name, "uid": f"uid-{name}", "namespace": NAMESPACE}
    return TabletCluster.model_validate({"metadata": meta, "spec": spec})


def policies(of: TabletCluster, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """As an API server stores them."""
    return [
        {**each, "metadata": {**each["metadata"], "namespace": namespace}}
        for each in network_policies(of, "stele")
    ]


def pods(of: TabletCluster) -> dict[str, dict[str, str]]:
    """The labels of a cluster's pods."""
    name = of.metadata.name
    members = [
        TabletMember.model_validate(
            {"metadata": {"name": f"{name}-{index}", "uid": "m"}, "spec": {"cluster": name, "index": index}}
        )
        for index in (0, 1)
    ]
    copier = copier_pod(of, SETTINGS.copier, with_tls=False)
    told = {each["name"]: each.get("value", "") for each in copier["spec"]["containers"][0]["env"]}
    driver = told | {"POD_IP": "1.1.1.1", "POD_NAME": copier["metadata"]["name"], "POD_NAMESPACE": NAMESPACE}
    conf = spark_conf(read_settings(driver), CopyJob("s", f"{name}-0", "c", "http://h:1", "t", ()), "/t")
    given = {key.removeprefix(EXECUTOR_LABEL): conf[key] for key in conf if key.startswith(EXECUTOR_LABEL)}
    job = manifest(of.to_dict(), "1Gi", {"image": "i"}, with_tls=False)
    return {
        "member": member_pod(of, members[0], SETTINGS.members)["metadata"]["labels"],
        "member 1": member_pod(of, members[1], SETTINGS.members)["metadata"]["labels"],
        "copier": copier["metadata"]["labels"],
        "executor": given | {"spark-role": "executor"},
        "bulk": job["spec"]["template"]["metadata"]["labels"],
    }


DEMO, OTHER = cluster("demo", enabled=True, **PEERS), cluster("other", enabled=True)
OWN = {who: End(NAMESPACE, labels) for who, labels in pods(DEMO).items()}
OTHERS = {f"other's {who}": End(NAMESPACE, labels) for who, labels in pods(OTHER).items()}
NAMESAKES = {f"{who} elsewhere": End("team", labels) for who, labels in pods(DEMO).items()}
OPERATOR_LABELS = {"app.kubernetes.io/name": "stele-operator", "app.kubernetes.io/instance": "stele"}
STRANGERS = {
    "operator": End("stele", OPERATOR_LABELS),
    "operator elsewhere": End(NAMESPACE, OPERATOR_LABELS),
    "beside the operator": End("stele", {"app": "x"}),
    "client": End("web", {"app": "shop"}),
    "prometheus": End("monitoring", {"app": "prometheus"}),
    "node": End(address=NODE),
    "other node": End(address="172.18.0.9"),
    "internet": End(address="203.0.113.9"),
    "stranger": End(NAMESPACE, {"app": "x"}),
    "copier of nobody": End(NAMESPACE, {"stele.dev/component": "copier"}),
    "executor of nobody": End(NAMESPACE, {"spark-role": "executor", "stele.dev/copier": "mine"}),
}
ALL = OWN | OTHERS | NAMESAKES | STRANGERS
OPEN = NAMESAKES.keys() | STRANGERS.keys()
"""Who is held up by the target's policies alone."""
MEMBERS = {"member", "member 1"}
OF_MEMBERS = [6379, 6380, 6381, 7000, 7001, 7002, 7004]
OF_SPARK = [7010, 7078, 7079, 7080, 7099, 7100, 7227, 7228, 7299, 7300, 7427, 7428]
PORTS = [22, *OF_MEMBERS, 7003, *OF_SPARK, 8080]
WITH_PEERS: dict[str, dict[int, set[str]]] = {
    "member": {
        **{key: {"client"} for key in (6379, 6380, 6381)},
        7000: MEMBERS,
        7001: {"operator", "bulk", "node"},
        7002: MEMBERS | {"executor", "bulk", "node"},
        7004: {"prometheus"},
    },
    "copier": {7010: {"operator", "executor"}, **{key: {"executor"} for key in (7100, 7227, 7300, 7427)}},
    "executor": {7079: {"copier", "executor"}},
    "bulk": {7003: {"node"}},
}
WITHOUT_PEERS: dict[str, dict[int, set[str]]] = {
    "other's member": {
        **{key: set(OPEN) for key in (6379, 6380, 6381, 7004)},
        7000: {"other's member", "other's member 1"},
        7001: {"operator", "other's bulk"},
        7002: {"other's member", "other's member 1", "other's executor", "other's bulk"},
    },
    "other's copier": {
        7010: {"operator", "other's executor"},
        **{key: {"other's executor"} for key in (7100, 7227, 7300, 7427)},
    },
    "other's executor": {7079: {"other's copier", "other's executor"}},
    "other's bulk": {},
}


@pytest.mark.parametrize("target", [*WITH_PEERS, *WITHOUT_PEERS])
def test_who_reaches_a_pod(target: str) -> None:
    plugin = NetworkPlugin([*policies(DEMO), *policies(OTHER)])
    expected = (WITH_PEERS | WITHOUT_PEERS)[target]
    for port in PORTS:
        found = {who for who, source in ALL.items() if plugin.connects(source, ALL[target], port)}
        assert found == expected.get(port, set()), port


def test_without_policies_everyone_reaches_everything() -> None:
    """What the tables above are worth."""
    plugin = NetworkPlugin([])
    assert all(plugin.connects(source, OWN["member"], port) for source in ALL.values() for port in PORTS)


OUTSIDE = {
    "DNS": (End("kube-system", {"k8s-app": "kube-dns"}), 53, "UDP"),
    "DNS by TCP": (End(address="169.254.20.10"), 53, "TCP"),
    "DNS of OpenShift": (End("openshift-dns", {}), 5353, "UDP"),
    "API server": (End(address=NODE), 6443, "TCP"),
    "API server by its Service": (End(address="10.96.0.1"), 443, "TCP"),
    "API server by UDP": (End(address=NODE), 443, "UDP"),
    "database": (End(NAMESPACE, {"app": "postgres"}), 5432, "TCP"),
    "web page": (End(address="203.0.113.9"), 80, "TCP"),
    "operator": (STRANGERS["operator"], 8080, "TCP"),
}
NAMES = {"DNS", "DNS by TCP", "DNS of OpenShift"}


@pytest.mark.parametrize("source", ["member", "copier", "executor", "bulk"])
def test_what_a_pod_reaches_outside_of_its_cluster(source: str) -> None:
    plugin = NetworkPlugin(policies(DEMO))
    found = {what for what, place in OUTSIDE.items() if plugin.connects(OWN[source], *place)}
    api_server = {"API server", "API server by its Service"} if source == "copier" else set()
    assert found == NAMES | api_server


@pytest.mark.parametrize("closed", [DEMO, OTHER], ids=["demo", "other"])
def test_two_clusters_are_apart_when_one_of_them_has_policies(closed: TabletCluster) -> None:
    plugin = NetworkPlugin(policies(closed))
    for port in (6379, 7000, 7001, 7002, 7003, 7010, 7079, 7100):
        for own in OWN.values():
            for other in OTHERS.values():
                if closed is OTHER and port == 6379 and other.labels.get("stele.dev/component") == "member":
                    continue  # Open to all clients.
                assert not plugin.connects(own, other, port)
                assert not plugin.connects(other, own, port)


def test_each_pod_is_subject_to_one_policy_of_its_own_cluster() -> None:
    plugin = NetworkPlugin([*policies(DEMO), *policies(OTHER)])
    expected = {"member": "members", "member 1": "members", "executor": "executors"}
    for who, pod in OWN.items():
        names = [each["metadata"]["name"] for each in plugin.selecting(pod)]
        assert names == [f"demo-{expected.get(who, who)}"]
    assert not any(plugin.selecting(pod) for pod in (NAMESAKES | STRANGERS).values())


def test_an_empty_selector_is_everyone_of_the_namespace() -> None:
    plugin = NetworkPlugin(policies(cluster("demo", enabled=True, clients=[{"podSelector": {}}])))
    found = {who for who, source in ALL.items() if plugin.connects(source, OWN["member"], 6379)}
    assert found == {who for who, source in ALL.items() if source.namespace == NAMESPACE} - OWN.keys()


def test_the_port_of_a_service_is_closed_until_a_policy_of_the_user_opens_it() -> None:
    example = yaml.safe_load((ROOT / "examples" / "quota" / "network-policy.yaml").read_text())
    example["metadata"]["namespace"] = NAMESPACE
    chosen = {"chosen": End("shop", {"app": "checkout"}), "other of them": End("shop", {"app": "x"})}
    callers = ALL | chosen | {"elsewhere": End("web", {"app": "checkout"})}

    def reached(*further: dict[str, Any]) -> set[str]:
        plugin = NetworkPlugin([*policies(DEMO), *policies(OTHER), *further])
        return {who for who, source in callers.items() if plugin.connects(source, OWN["member"], 7020)}

    assert reached() == set()
    assert reached(example) == {"chosen"}
    opened = NetworkPlugin([*policies(DEMO), example])
    assert not opened.connects(callers["chosen"], OWN["member"], 6379), "it opens this port alone"


@pytest.mark.parametrize(
    ("selector", "meets"),
    [
        ({}, {"a", "b", ""}),
        ({"matchLabels": {"app": "a"}}, {"a"}),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", "c"]}]}, {"a"}),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}, {"b", ""}),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, {"a", "b"}),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, {""}),
    ],
)
def test_each_condition_on_labels_arrives(selector: dict[str, Any], meets: set[str]) -> None:
    plugin = NetworkPlugin(policies(cluster("demo", enabled=True, metrics=[{"podSelector": selector}])))
    callers = {app: End(NAMESPACE, {"app": app} if app else {}) for app in ("a", "b", "")}
    assert {app for app, end in callers.items() if plugin.connects(end, OWN["member"], 7004)} == meets
