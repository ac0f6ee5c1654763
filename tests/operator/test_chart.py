"""The Helm chart: what it renders is accepted by a real API server, and gives just the rights it should."""

import base64
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from e2e.cluster.control_plane import REPOSITORY, ControlPlane, documents
from stele import __version__
from stele.adapters.environment import read
from stele.adapters.kubernetes.bulk_job import DEFAULTS, manifest
from stele.master.manifests import copier_pod, labels, member_pod
from stele.master.network_rules import API_SERVER_PORTS, DNS_PORTS, OPERATOR
from stele.master.settings import Settings
from stele.model import TabletCluster, TabletMember
from stele.wire.pods import (
    COPIER_LABEL,
    DRIVER_BLOCK_PORT,
    DRIVER_PORT,
    DRIVER_PORTS_MAX,
    EXECUTOR_BLOCK_PORT,
)
from tests.fakes.network_plugin import End, NetworkPlugin
from tests.operator import rights

pytestmark = pytest.mark.control_plane

CHART = str(REPOSITORY / "charts" / "stele")
CLUSTER = {"apiVersion": "stele.dev/v1alpha1", "metadata": {"name": "demo", "uid": "u"}}
KINDS = {"tabletclusters", "tabletmembers", "tabletrebalances", "keyspaces", "tabletusers"}


BULK_RIGHTS = (
    ("get", "configmaps"),
    *((verb, "jobs.batch") for verb in ("create", "delete")),
    *(("list", kind) for kind in ("pods", "events", "tabletclusters.stele.dev")),
    ("get", "tabletclusters.stele.dev"),
    *((verb, "pods/proxy") for verb in ("get", "create", "update")),
)
"""Of `kubectl stele load` and `dump`, as docs/reference/kubectl-stele.md lists them."""
ADMIN_SECRET = "demo-admin-tls"
SECRET_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")


@dataclass(frozen=True)
class Installed:
    """A release in a namespace of its own."""

    plane: ControlPlane
    namespace: str

    def may(
        self, account: str, verb: str, resource: str, namespace: str | None = None, name: str = ""
    ) -> bool:
        """Whether a ServiceAccount of the release may do that; `resource` may end in `/subresource`."""
        where = namespace or self.namespace
        who = f"--as=system:serviceaccount:{self.namespace}:{account}"
        kind, _, part = resource.partition("/")
        what = (verb, f"{kind}/{name}" if name else kind, f"--subresource={part}")
        done = self.plane.run("kubectl", "auth", "can-i", *what, who, "-n", where)
        return done.stdout.strip() == "yes"

    def rights(self, account: str, namespace: str | None = None) -> dict[str, set[str]]:
        """Verbs by resource and the names it is limited to, as the API server lists them; without what every
        login has."""
        who = f"--as=system:serviceaccount:{self.namespace}:{account}"
        found: dict[str, set[str]] = {}
        for line in self.plane.kubectl(
            "auth", "can-i", "--list", who, "-n", namespace or self.namespace
        ).splitlines()[1:]:
            row = re.fullmatch(r"(\S*)\s+\[(.*?)\]\s+\[(.*?)\]\s+\[(.*?)\]\s*", line)
            assert row, line
            if row[1] and not row[1].startswith("selfsubject"):
                found.setdefault(f"{row[1]} [{row[3]}]" if row[3] else row[1], set()).update(row[4].split())
        return found


def helm(plane: ControlPlane, *arguments: str) -> str:
    done = plane.run("helm", *arguments)
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr or done.stdout}"
    return done.stdout


def render(plane: ControlPlane, namespace: str, *sets: str) -> str:
    values = [each for pair in sets for each in ("--set", pair)]
    return helm(plane, "template", "stele", CHART, "-n", namespace, "--kube-version=v1.34.4", *values)


def by_kind(text: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for each in yaml.safe_load_all(text):
        if each:
            found.setdefault(each["kind"], []).append(each)
    return found


@pytest.fixture(scope="module")
def installed(control_plane: ControlPlane) -> Iterator[Installed]:
    namespace = "chart"
    control_plane.kubectl("create", "namespace", namespace)
    helm(control_plane, "install", "stele", CHART, "-n", namespace, "--take-ownership")
    yield Installed(control_plane, namespace)
    helm(control_plane, "uninstall", "stele", "-n", namespace)
    # The resources stay, and all clusters with them: other tests need them too.
    assert "tabletclusters.stele.dev" in control_plane.kubectl("get", "crds", "-o", "name")


def test_lint_finds_nothing(bare_control_plane: ControlPlane) -> None:
    assert "0 chart(s) failed" in helm(bare_control_plane, "lint", "--strict", CHART)


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("watchNamespaces={default,kube-public}", "rbac.dataAdminOf={demo}"),
        ("rbac.clusterScoped=false", "crds.keep=false"),
        ("watchNamespaces={*}", "networkPolicy.enabled=true"),
        ("rbac.create=false", "fullnameOverride=other", "serviceAccounts.operator=mine"),
        (
            "operator.replicas=2",
            "operator.page=false",
            "operator.podLabels.a=b",
            "operator.extraEnv[0].name=A",
            "operator.affinity=null",
        ),
        (
            "images.pullSecrets={one,two}",
            "operator.nodeSelector.disk=fast",
            "operator.priorityClassName=high",
        ),
        ("networkPolicy.enabled=true", "watchNamespaces={default,kube-public}"),
        ("admissionPolicies.enabled=true", "images.allowed={a:1,b/*}", "watchNamespaces={default}"),
        ("admissionPolicies.enabled=true", "watchNamespaces={*}"),
        (
            "images.registry=registry.example.com/team",
            "images.member.digest=sha256:" + "a" * 64,
            "operator.replicas=3",
            "operator.podDisruptionBudget.maxUnavailable=50%",
            "operator.topologySpreadConstraints[0].maxSkew=1",
            "operator.topologySpreadConstraints[0].topologyKey=zone",
            "operator.topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
            "operator.podSecurityContext.runAsUser=null",
        ),
        (
            "networkPolicy.enabled=true",
            "networkPolicy.clients[0].podSelector.matchLabels.app=shop",
            "networkPolicy.admins[0].ipBlock.cidr=10.0.0.0/24",
        ),
        (
            "networkPolicy.operator.enabled=true",
            "networkPolicy.operator.egress[0].ports[0].port=9443",
            "networkPolicy.metrics[0].podSelector.matchLabels.app=prometheus",
            "commonLabels.team=shop",
            "operator.podLabels.team=other",
            "operator.deploymentStrategy.type=Recreate",
            "operator.livenessProbe.periodSeconds=20",
            "operator.readinessProbe.failureThreshold=9",
            r"serviceAccounts.annotations.member.example\.com/role=a",
        ),
        ("networkPolicy.operator.enabled=true", "watchNamespaces={*}"),
    ],
    ids=str,
)
def test_the_api_server_accepts_what_the_chart_renders(
    control_plane: ControlPlane, namespace: str, sets: tuple[str, ...]
) -> None:
    rendered = render(control_plane, namespace, *sets)
    how = ("--server-side", "--dry-run=server", "--force-conflicts", "--validate=strict")
    said = control_plane.kubectl("apply", *how, "-f", "-", stdin=rendered)
    assert "deployment.apps/" in said


def test_the_crds_are_those_of_the_repository_and_stay(bare_control_plane: ControlPlane) -> None:
    rendered = by_kind(render(bare_control_plane, "shop"))["CustomResourceDefinition"]
    assert {each["spec"]["names"]["plural"] for each in rendered} == KINDS
    for each in rendered:
        assert each["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert each == yaml.safe_load(
            (REPOSITORY / "crds" / f"{each['spec']['names']['plural']}.yaml").read_text()
        )


def test_the_crds_can_be_left_out_or_given_up(bare_control_plane: ControlPlane) -> None:
    assert "CustomResourceDefinition" not in by_kind(render(bare_control_plane, "shop", "crds.install=false"))
    rendered = by_kind(render(bare_control_plane, "shop", "crds.keep=false"))
    assert all("annotations" not in each["metadata"] for each in rendered["CustomResourceDefinition"])


def test_the_right_to_administer_is_that_to_read_named_secrets(bare_control_plane: ControlPlane) -> None:
    """No other role has it: a Role of the chart that reads Secrets without names is the operator's."""
    rendered = by_kind(
        render(bare_control_plane, "shop", "watchNamespaces={a,b}", "rbac.dataAdminOf={demo,other}")
    )
    roles = [each for each in rendered["Role"] if each["metadata"]["name"].endswith("-data-admin")]
    assert [each["metadata"]["namespace"] for each in roles] == ["a", "b"]
    secrets, forward, kinds = roles[0]["rules"]
    assert (kinds["resources"], kinds["verbs"]) == (["tabletclusters", "tabletmembers"], ["get"])
    assert secrets["resourceNames"] == ["demo-admin-tls", "other-admin-tls"]
    assert (secrets["resources"], secrets["verbs"]) == (["secrets"], ["get"])
    assert (forward["resources"], forward["verbs"]) == (["pods/portforward"], ["get", "create"])
    for each in rendered["ClusterRole"] + rendered["Role"]:
        readers = [rule for rule in each["rules"] if "secrets" in rule["resources"]]
        assert not readers or each["metadata"]["name"].endswith(("-data-admin", "-operator-secrets"))
    assert not [
        each for each in by_kind(render(bare_control_plane, "shop"))["Role"] if "data-admin" in str(each)
    ]


def test_the_operator_is_confined_and_told_what_it_needs(bare_control_plane: ControlPlane) -> None:
    rendered = render(bare_control_plane, "shop", "watchNamespaces={a,b}", "images.member=m:1")
    (deployment,) = by_kind(rendered)["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}

    assert pod["securityContext"]["runAsUser"] == 10_001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert environment["STELE_WATCH_NAMESPACES"] == "a,b"
    assert environment["STELE_MEMBER_IMAGE"] == "m:1"
    assert environment["STELE_LOG_FORMAT"] == "json"
    assert {"POD_NAME", "POD_NAMESPACE", "POD_UID", "STELE_SPARK_IMAGE"} <= environment.keys()


DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("sets", "image"),
    [
        ((), f"localhost/stele-operator:{__version__}"),
        (("images.registry=example.com/team",), f"example.com/team/stele-operator:{__version__}"),
        (("images.operator.tag=v2",), "localhost/stele-operator:v2"),
        (("images.tag=v3",), "localhost/stele-operator:v3"),
        (("images.tag=v3", "images.operator.tag=v2"), "localhost/stele-operator:v2"),
        (
            ("images.operator.tag=v2", f"images.operator.digest={DIGEST}"),
            f"localhost/stele-operator:v2@{DIGEST}",
        ),
        ((f"images.operator.digest={DIGEST}",), f"localhost/stele-operator@{DIGEST}"),
        (("images.operator.repository=a.b/c", "images.registry=d.e"), f"a.b/c:{__version__}"),
        (("images.operator=a.b/c:1", "images.registry=d.e"), "a.b/c:1"),
    ],
    ids=str,
)
def test_an_image_is_named_by_its_parts_or_as_a_whole(
    bare_control_plane: ControlPlane, sets: tuple[str, ...], image: str
) -> None:
    rendered = by_kind(render(bare_control_plane, "shop", *sets))
    (container,) = rendered["Deployment"][0]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image
    (test,) = rendered["Pod"]
    assert test["spec"]["containers"][0]["image"] == image


def test_a_registry_is_that_of_all_images(bare_control_plane: ControlPlane) -> None:
    rendered = render(bare_control_plane, "shop", "images.registry=example.com/team")
    assert "localhost/" not in rendered
    named = set(re.findall(r"example\.com/team/stele-(\w+):", rendered))
    assert named == {"operator", "member", "spark", "sql"}


def test_two_operators_are_not_drained_at_once(bare_control_plane: ControlPlane) -> None:
    def budgets(*sets: str) -> list[dict[str, Any]]:
        return by_kind(render(bare_control_plane, "shop", *sets)).get("PodDisruptionBudget", [])

    assert budgets() == budgets("operator.replicas=2", "operator.podDisruptionBudget.enabled=false") == []
    (budget,) = budgets("operator.replicas=2")
    (deployment,) = by_kind(render(bare_control_plane, "shop"))["Deployment"]
    assert budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]


def test_operators_are_spread_by_their_own_labels_unless_others_are_named(
    bare_control_plane: ControlPlane,
) -> None:
    at = "operator.topologySpreadConstraints"
    sets = [f"{at}[{number}].topologyKey=zone" for number in (0, 1)]
    rendered = by_kind(render(bare_control_plane, "shop", *sets, f"{at}[1].labelSelector.matchLabels.a=b"))
    (deployment,) = rendered["Deployment"]
    first, second = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert first == {"topologyKey": "zone", "labelSelector": deployment["spec"]["selector"]}
    assert second == {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}


def test_the_user_can_be_left_to_the_cluster(bare_control_plane: ControlPlane) -> None:
    """As OpenShift wants it; what confines the pod stays."""
    fields = ("runAsUser", "runAsGroup", "fsGroup")
    sets = [f"operator.podSecurityContext.{each}=null" for each in fields]
    rendered = by_kind(render(bare_control_plane, "shop", *sets))
    for pod in (rendered["Deployment"][0]["spec"]["template"], rendered["Pod"][0]):
        confined = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert pod["spec"]["securityContext"] == confined


def answering(exits: ExitStack, statuses: list[int]) -> str:
    """Answer as an operator that is asked whether it is ready, the last of the answers again and again."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = exits.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    exits.callback(server.shutdown)
    return f"http://127.0.0.1:{server.server_port}/readyz"


@pytest.mark.parametrize(
    ("statuses", "code", "text"),
    [([200], 0, "ok"), ([503, 200], 0, "ok"), ([503], 1, "HTTP Error 503")],
    ids=["ready", "later", "never"],
)
def test_helm_test_asks_the_operator_whether_it_is_ready(
    bare_control_plane: ControlPlane, statuses: list[int], code: int, text: str
) -> None:
    rendered = by_kind(render(bare_control_plane, "shop"))
    (pod,), (service,) = rendered["Pod"], rendered["Service"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    # Else the Service would send requests to the test.
    assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    *command, url = pod["spec"]["containers"][0]["command"]
    port = service["spec"]["ports"][0]["port"]
    assert url == f"http://{service['metadata']['name']}.shop:{port}/readyz"
    with ExitStack() as exits:
        # No time passes between two questions.
        script = command[-1].replace("time.sleep(2)", "pass")
        words = [sys.executable, "-c", script, answering(exits, statuses)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, text in done.stdout + done.stderr) == (code, True)


def test_secrets_to_pull_with_reach_every_account_and_every_pod(
    control_plane: ControlPlane, namespace: str
) -> None:
    names = [{"name": "one"}, {"name": "two"}]
    rendered = render(control_plane, namespace, "images.pullSecrets={one,two}", "crds.install=false")
    kinds = by_kind(rendered)
    (deployment,) = kinds["Deployment"]
    template = deployment["spec"]["template"]["spec"]
    assert template["imagePullSecrets"] == names
    accounts = [each for each in kinds["ServiceAccount"] if each["metadata"]["name"] != "stele-operator"]
    assert len(accounts) == 3
    assert all(each["imagePullSecrets"] == names for each in accounts)
    given = {each["name"]: str(each.get("value", "")) for each in template["containers"][0]["env"]}
    settings = read(Settings, given)
    cluster = TabletCluster.read({**CLUSTER, "spec": {"members": 1, "storage": {"size": "1Gi"}}})
    member = TabletMember.read({"metadata": {"name": "demo-0"}, "spec": {"cluster": "demo", "index": 0}})
    assert isinstance(cluster, TabletCluster)
    assert isinstance(member, TabletMember)
    pods = [
        member_pod(cluster, member, settings.members),
        copier_pod(cluster, settings.copier, with_tls=False),
    ]
    for each in pods:
        del each["metadata"]["ownerReferences"]
    control_plane.apply(namespace, *accounts, *pods)
    for each in (*accounts, *pods):
        where = (each["kind"], each["metadata"]["name"], "-n", namespace)
        made = json.loads(control_plane.kubectl("get", *where, "-o", "json"))
        assert made.get("spec", made)["imagePullSecrets"] == names
    copier = pods[1]["spec"]
    told = {each["name"]: each.get("value") for each in copier["containers"][0]["env"]}
    assert told["STELE_IMAGE_PULL_SECRETS"] == "one,two"


def test_who_reaches_what_with_network_policies(bare_control_plane: ControlPlane) -> None:
    """Labels of the pods as the product makes them."""
    sets = ("networkPolicy.enabled=true", "watchNamespaces={a}")
    rendered = by_kind(render(bare_control_plane, "shop", *sets))
    plugin = NetworkPlugin(rendered["NetworkPolicy"])
    (deployment,) = rendered["Deployment"]
    operator = deployment["spec"]["template"]["metadata"]["labels"]
    assert OPERATOR.items() <= operator.items()
    member, copier = labels("demo", "member", "demo-0"), labels("demo", "copier")
    executor = {"spark-role": "executor", COPIER_LABEL: "demo-copier"}
    bulk = manifest(CLUSTER, "1Gi", {"image": "i"}, with_tls=False)["spec"]["template"]["metadata"]["labels"]
    of_pods = {"members": member, "copiers": copier, "executors": executor, "bulk": bulk}
    pods = {name: End("a", given) for name, given in of_pods.items()}
    for name, pod in pods.items():
        assert [each["metadata"]["name"] for each in plugin.selecting(pod)] == [f"stele-operator-{name}"]
    callers = {"operator": End("shop", operator), **pods, "other": End("a", {"app": "shop"})}

    def let_in(name: str, port: int) -> set[str]:
        return {who for who, source in callers.items() if plugin.connects(source, pods[name], port)}

    assert all(let_in("members", port) == callers.keys() for port in (6379, 6380, 6381))
    assert let_in("members", 7000) == {"members"}
    assert let_in("members", 7001) == {"operator", "bulk"}
    assert let_in("members", 7004) == callers.keys()
    assert let_in("members", 7002) == {"members", "executors", "bulk"}
    assert let_in("copiers", 7010) == {"operator", "executors"}
    for first in (DRIVER_PORT, DRIVER_BLOCK_PORT):
        assert let_in("copiers", first) == let_in("copiers", first + DRIVER_PORTS_MAX - 1) == {"executors"}
        assert let_in("copiers", first - 1) == let_in("copiers", first + DRIVER_PORTS_MAX) == set()
    assert let_in("executors", EXECUTOR_BLOCK_PORT) == {"copiers", "executors"}
    assert let_in("executors", EXECUTOR_BLOCK_PORT + 1) == set()
    assert let_in("bulk", 7003) == set()
    assert not plugin.connects(End("a", operator), pods["members"], 7001)


def test_network_policies_are_off_and_take_further_peers(bare_control_plane: ControlPlane) -> None:
    assert "NetworkPolicy" not in by_kind(render(bare_control_plane, "shop"))
    sets = ("networkPolicy.enabled=true", "networkPolicy.admins[0].ipBlock.cidr=10.0.0.0/24")
    clients = "networkPolicy.clients[0].podSelector.matchLabels.app=shop"
    metrics = "networkPolicy.metrics[0].podSelector.matchLabels.app=prometheus"
    rendered = by_kind(render(bare_control_plane, "shop", *sets, clients, metrics))["NetworkPolicy"]
    rules = {
        (each["metadata"]["name"].rpartition("-")[2], rule["ports"][0]["port"]): rule["from"]
        for each in rendered
        for rule in each["spec"]["ingress"]
        if "from" in rule
    }
    admin = {"ipBlock": {"cidr": "10.0.0.0/24"}}
    assert {place for place, peers in rules.items() if admin in peers} == {
        ("members", 7001),
        ("members", 7002),
        ("bulk", 7003),
    }
    assert rules["members", 6379] == [{"podSelector": {"matchLabels": {"app": "shop"}}}]
    assert rules["members", 7004] == [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]


def test_who_reaches_the_operator_and_whom_it_reaches(bare_control_plane: ControlPlane) -> None:
    def plugin(*sets: str) -> tuple[NetworkPlugin, End, End]:
        rendered = by_kind(render(bare_control_plane, "shop", "networkPolicy.operator.enabled=true", *sets))
        (deployment,), (test,) = rendered["Deployment"], rendered["Pod"]
        operator = deployment["spec"]["template"]["metadata"]["labels"]
        assert [each["metadata"]["name"] for each in rendered["NetworkPolicy"]] == ["stele-operator"]
        ends = End("shop", operator), End("shop", test["metadata"]["labels"])
        return NetworkPlugin(rendered["NetworkPolicy"]), *ends

    scraper, api_server = End("monitoring", {"app": "prometheus"}), End(address="172.18.0.2")
    policies, operator, test = plugin("watchNamespaces={a}")
    for caller in (scraper, test, api_server):
        assert policies.connects(caller, operator, 8080)
        assert not policies.connects(caller, operator, 8081)
    for place, watched in (("a", True), ("b", False)):
        member, copier = End(place, labels("demo", "member", "demo-0")), End(place, labels("demo", "copier"))
        reached = {port for port in range(6000, 8000) if policies.connects(operator, member, port)}
        assert reached == ({6443, 7001} if watched else {6443}), "6443 is open for the API server anywhere"
        assert policies.connects(operator, copier, 7010) is watched
    for port in API_SERVER_PORTS:
        assert policies.connects(operator, api_server, port)
    for port in DNS_PORTS:
        for protocol in ("UDP", "TCP"):
            assert policies.connects(operator, End("kube-system"), port, protocol)
    assert not policies.connects(operator, api_server, 9443)

    selector = "namespaceSelector.matchLabels"
    of_metrics = rf"networkPolicy.metrics[0].{selector}.kubernetes\.io/metadata\.name=monitoring"
    policies, operator, test = plugin(of_metrics, "networkPolicy.operator.egress[0].ports[0].port=9443")
    assert policies.connects(scraper, operator, 8080)
    assert policies.connects(test, operator, 8080)
    assert not policies.connects(End("a"), operator, 8080)
    assert policies.connects(operator, api_server, 9443)

    policies, operator, _ = plugin("watchNamespaces={*}")
    assert policies.connects(operator, End("any", labels("demo", "member", "demo-0")), 7001)


def test_labels_in_common_are_on_every_object(bare_control_plane: ControlPlane) -> None:
    more = ("networkPolicy.enabled=true", "networkPolicy.operator.enabled=true", "operator.replicas=2")
    metrics = [
        f"metrics.{each}.enabled=true"
        for each in ("podMonitor", "serviceMonitor", "prometheusRule", "dashboards")
    ]
    sets = ("admissionPolicies.enabled=true", *more, *metrics, "metrics.podMonitor.labels.team=metrics")
    plain, labelled = (
        by_kind(render(bare_control_plane, "shop", *sets, *each)) for each in ((), ("commonLabels.team=7up",))
    )
    for kind, objects in labelled.items():
        for each, before in zip(objects, plain[kind], strict=True):
            team = {"team": "metrics" if kind == "PodMonitor" else "7up"}
            assert each["metadata"]["labels"] == before["metadata"]["labels"] | team, (kind, each["metadata"])
            assert each["metadata"].keys() == before["metadata"].keys()
            if kind in ("Deployment", "CustomResourceDefinition", "Secret"):
                continue
            assert {**each, "metadata": 0} == {**before, "metadata": 0}
    (deployment,), (old,) = labelled["Deployment"], plain["Deployment"]
    assert deployment["spec"].pop("template")["metadata"]["labels"]["team"] == "7up"
    del old["spec"]["template"]
    assert deployment["spec"] == old["spec"], "selectors do not change"
    kinds = (each["CustomResourceDefinition"] for each in (labelled, plain))
    assert all(each["spec"] == before["spec"] for each, before in zip(*kinds, strict=True))


def test_accounts_have_annotations_of_their_own(bare_control_plane: ControlPlane) -> None:
    names = ("operator", "member", "spark", "executor")
    sets = [rf"serviceAccounts.annotations.{name}.example\.com/role={name}" for name in names]
    rendered = by_kind(render(bare_control_plane, "shop", *sets))["ServiceAccount"]
    found = {each["metadata"]["name"]: each["metadata"]["annotations"] for each in rendered}
    assert found == {f"stele-{name}": {"example.com/role": name} for name in names}


def test_probes_and_strategy_can_be_others(bare_control_plane: ControlPlane) -> None:
    probes = ("livenessProbe.periodSeconds=20", "readinessProbe.initialDelaySeconds=5")
    sets = (*probes, "deploymentStrategy.type=Recreate")
    rendered = by_kind(render(bare_control_plane, "shop", *(f"operator.{each}" for each in sets)))
    (spec,) = (each["spec"] for each in rendered["Deployment"])
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["strategy"] == {"type": "Recreate"}
    assert container["livenessProbe"] == {
        "httpGet": {"path": "/healthz", "port": "http"},
        "periodSeconds": 20,
        "timeoutSeconds": 5,
        "failureThreshold": 6,
    }
    assert container["readinessProbe"] == {
        "httpGet": {"path": "/readyz", "port": "http"},
        "initialDelaySeconds": 5,
        "periodSeconds": 3,
        "timeoutSeconds": 3,
    }


def test_further_objects_are_templates(bare_control_plane: ControlPlane) -> None:
    text = 'apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ include "stele.operator" . }}-more\n'
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Namespace }}-a"}}
    values = json.dumps({"extraObjects": [extra, text]})
    done = bare_control_plane.run(
        "helm", "template", "stele", CHART, "-n", "shop", "--kube-version=v1.34.4", "-f", "-", stdin=values
    )
    names = [each["metadata"]["name"] for each in by_kind(done.stdout)["ConfigMap"]]
    assert {"shop-a", "stele-operator-more"} < set(names), done.stderr


def test_the_chart_says_which_resources_it_has() -> None:
    chart = yaml.safe_load((REPOSITORY / "charts/stele/Chart.yaml").read_text())
    listed = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    defined = [yaml.safe_load(path.read_text()) for path in (REPOSITORY / "crds").glob("*.yaml")]
    assert sorted((each["name"], each["kind"], each["version"]) for each in listed) == sorted(
        (each["metadata"]["name"], each["spec"]["names"]["kind"], each["spec"]["versions"][0]["name"])
        for each in defined
    )


PROTECTED = {"stele.dev/deletion-protection": "true"}


def test_a_protected_cluster_is_not_deleted(control_plane: ControlPlane, namespace: str) -> None:
    rendered = by_kind(render(control_plane, namespace))
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    policies = [each for kind in kinds for each in rendered[kind]]
    spec = {"members": 1, "storage": {"size": "1Gi"}}
    for name, annotations in (("demo", PROTECTED), ("other", {}), ("probe", PROTECTED)):
        body = {**CLUSTER, "kind": "TabletCluster", "metadata": {"name": name, "annotations": annotations}}
        control_plane.apply(namespace, {**body, "spec": spec})
    control_plane.apply(namespace, *policies)
    try:
        for _ in range(100):  # It takes a moment until a new policy is in force.
            if control_plane.run("kubectl", "delete", "-n", namespace, "stc", "probe").returncode:
                break
            control_plane.apply(
                namespace,
                {**CLUSTER, "kind": "TabletCluster", "spec": spec}
                | {"metadata": {"name": "probe", "annotations": PROTECTED}},
            )
            time.sleep(0.1)
        remedy = f"kubectl -n {namespace} annotate tabletcluster demo stele.dev/deletion-protection-"
        assert remedy in control_plane.refused("delete", "-n", namespace, "stc", "demo")
        assert remedy in control_plane.refused("delete", "-n", namespace, "stc", "--all")
        left = control_plane.kubectl("get", "-n", namespace, "stc", "-o", "name").split()
        assert left == [f"tabletcluster.stele.dev/{name}" for name in ("demo", "probe")]
        control_plane.kubectl(*remedy.split()[1:])
        control_plane.kubectl("delete", "-n", namespace, "stc", "demo")
    finally:
        for each in policies:
            control_plane.kubectl("delete", each["kind"], each["metadata"]["name"])


BALANCED = {"serviceType": "LoadBalancer"}
OFF = {"tls": "Off", "auth": "Off"}
ALLOWED_OPEN = {"stele.dev/allow-open-port": "true"}
LEFT_OPEN = "is LoadBalancer, spec.resp.loadBalancerSourceRanges lets in every address"


def exposed(
    name: str, resp: dict[str, Any], clients: dict[str, str], annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    spec = {"members": 1, "storage": {"size": "1Gi"}, "resp": resp, "security": {"clients": clients}}
    metadata = {"name": name, "annotations": annotations or {}}
    return {**CLUSTER, "kind": "TabletCluster", "metadata": metadata, "spec": spec}


def test_an_open_load_balancer_is_refused_unless_it_is_allowed_or_there_already(
    control_plane: ControlPlane, namespace: str
) -> None:
    rendered = by_kind(render(control_plane, namespace, "deletionProtection.enabled=false"))
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    policies = [each for kind in kinds for each in rendered[kind]]
    control_plane.apply(namespace, exposed("old", BALANCED, OFF), exposed("late", BALANCED, {}))
    status = ("--subresource=status", "--type=merge", "-p")
    control_plane.apply(namespace, *policies)

    def told(*bodies: dict[str, Any]) -> str:
        done = control_plane.run(
            "kubectl", "apply", "-n", namespace, "--dry-run=server", "-f", "-", stdin=documents(*bodies)
        )
        return "" if done.returncode == 0 else done.stderr

    try:
        for _ in range(100):  # It takes a moment until a new policy is in force.
            if LEFT_OPEN in told(exposed("new", BALANCED, OFF)):
                break
            time.sleep(0.1)
        for clients in (OFF, {"tls": "Off"}, {"auth": "Off"}, {"tls": "Optional", "auth": "Off"}):
            assert LEFT_OPEN in told(exposed("new", BALANCED, clients)), clients
        everyone = BALANCED | {"loadBalancerSourceRanges": ["10.0.0.0/8", "::/0"]}
        assert LEFT_OPEN in told(exposed("new", everyone, OFF))
        certified = {"auth": "Off", "tls": "Required", "clientCertificates": "Require"}
        some = BALANCED | {"loadBalancerSourceRanges": ["10.0.0.0/8"]}
        for resp, clients in ((BALANCED, {}), (BALANCED, certified), (some, OFF), ({}, OFF)):
            assert told(exposed("new", resp, clients)) == ""
        assert told(exposed("new", BALANCED, OFF, ALLOWED_OPEN)) == ""
        assert told({**CLUSTER, "kind": "TabletCluster", "metadata": {"name": "new"}, "spec": PLAIN}) == ""

        assert told(exposed("old", BALANCED, OFF | {"tls": "Off"})) == "", "what is open can be changed"
        closed = exposed("late", BALANCED, {})
        open_by_default = '{"status": {"security": {"defaults": "Open"}}}'
        control_plane.kubectl("patch", "-n", namespace, "stc", "old", *status, open_by_default)
        assert told(exposed("old", BALANCED, {})) == ""
        assert told(closed) == ""
        assert LEFT_OPEN in told(exposed("late", BALANCED, OFF))
    finally:
        for each in policies:
            control_plane.kubectl("delete", each["kind"], each["metadata"]["name"])


PLAIN = {"members": 1, "storage": {"size": "1Gi"}}


@pytest.mark.parametrize(
    "off",
    [
        ("deletionProtection.enabled=false", "openPortProtection.enabled=false"),
        ("rbac.clusterScoped=false",),
    ],
)
def test_the_protections_can_be_left_out(bare_control_plane: ControlPlane, off: tuple[str, ...]) -> None:
    assert "ValidatingAdmissionPolicy" not in by_kind(render(bare_control_plane, "shop", *off))


def test_kubernetes_1_29_has_no_such_policy(bare_control_plane: ControlPlane) -> None:
    rendered = helm(bare_control_plane, "template", CHART, "--kube-version=v1.29.0")
    assert "ValidatingAdmissionPolicy" not in by_kind(rendered)


def test_a_restricted_namespace_admits_the_operator_and_its_test(
    control_plane: ControlPlane, namespace: str
) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    control_plane.kubectl("label", "namespace", namespace, label)
    rendered = by_kind(render(control_plane, namespace))
    template = rendered["Deployment"][0]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "operator"}, "spec": template["spec"]}
    control_plane.apply(namespace, pod, *rendered["Pod"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("spark.existingSecret=No_Name", "at '/spark/existingSecret'"),
        ("images.pullPolicy=Sometimes", "at '/images/pullPolicy': value must be one of"),
        ("images.operator=", "at '/images/operator': minLength"),
        ("images.operator.tags=1", "at '/images/operator': additional properties 'tags' not allowed"),
        ("images.operator.digest=sha256:1", "at '/images/operator/digest'"),
        ("images.operator.repository=a@b", "at '/images/operator/repository'"),
        ("images.registry=example.com/", "at '/images/registry'"),
        ("operator.podDisruptionBudget.maxUnavailable=half", "at '/operator/podDisruptionBudget/maxUnavail"),
        ("operator.topologySpreadConstraints=zone", "at '/operator/topologySpreadConstraints': got string"),
        ("watchNamespaces={shop*}", "at '/watchNamespaces/0'"),
        ("watchNamespaces={*,shop}", 'watchNamespaces: write ["*"] alone, or names'),
        (
            "watchNamespaces={*},rbac.clusterScoped=false",
            "needs rbac.clusterScoped: list the namespaces instead",
        ),
        ("watchNamespaces=shop", "at '/watchNamespaces': got string, want array"),
        ("operator.replicas=-1", "at '/operator/replicas': minimum"),
        ("operator.resources.limits.memory=lots", "at '/operator/resources/limits/memory'"),
        ("rbac.create=perhaps", "at '/rbac/create': got string, want boolean"),
        ("networkPolicy.admins={10.0.0.1}", "at '/networkPolicy/admins/0': got string, want object"),
        ("networkPolicy.admins[0].ipBlock.cdir=1.2.3.4/32", "missing property 'cidr'"),
        ("admissionPolicies.enable=true", "additional properties 'enable' not allowed"),
        ("images.allowed={a*b}", "at '/images/allowed/0'"),
        ("crds.instal=false", "at '/crds': additional properties 'instal' not allowed"),
        ("replicas=3", "additional properties 'replicas' not allowed"),
        (r"commonLabels.stele\.dev/team=shop", "at '/commonLabels/stele.dev~1team': 'not' failed"),
        (r"commonLabels.app\.kubernetes\.io/name=shop", "at '/commonLabels/app.kubernetes.io~1name'"),
        ("commonLabels.te am=a", "at '/commonLabels': additional properties 'te am' not allowed"),
        ("commonLabels.team=a b", "at '/commonLabels/team'"),
        ("operator.livenessProbe.path=/", "additional properties 'path' not allowed"),
        (
            "operator.deploymentStrategy.type=Blue",
            "at '/operator/deploymentStrategy/type': value must be one",
        ),
        ("serviceAccounts.annotations.members.a=b", "additional properties 'members' not allowed"),
        ("extraObjects={7}", "at '/extraObjects/0'"),
        ("networkPolicy.operator=true", "at '/networkPolicy/operator': got boolean, want object"),
    ],
)
def test_bad_values_are_refused_with_their_name(
    bare_control_plane: ControlPlane, value: str, text: str
) -> None:
    done = bare_control_plane.run("helm", "template", CHART, "--kube-version=v1.34.4", "--set", value)
    assert done.returncode != 0
    assert text in done.stderr


def test_the_notes_name_the_next_commands(control_plane: ControlPlane, installed: Installed) -> None:
    notes = helm(control_plane, "get", "notes", "stele", "-n", installed.namespace)
    assert "kubectl -n chart rollout status deployment/stele-operator" in notes
    assert "kubectl -n chart scale tabletcluster/demo --replicas=4" in notes
    assert "kubectl stele page -n chart --open" in notes


def test_the_notes_name_no_page_that_is_switched_off(bare_control_plane: ControlPlane) -> None:
    off = ("--dry-run=client", "--set", "operator.page=false,crds.install=false")
    notes = helm(bare_control_plane, "install", "stele", CHART, "-n", "shop", *off).partition("\nNOTES:\n")[2]
    assert "kubectl -n shop scale tabletcluster/demo" in notes
    assert "stele page" not in notes


@pytest.mark.parametrize(
    ("account", "verb", "resource", "allowed"),
    [
        ("stele-operator", "patch", "tabletclusters.stele.dev/status", True),
        ("stele-operator", "update", "tabletmembers.stele.dev/finalizers", True),
        ("stele-operator", "create", "tabletrebalances.stele.dev", True),
        ("stele-operator", "update", "configmaps", True),
        ("stele-operator", "delete", "pods", True),
        ("stele-operator", "create", "persistentvolumeclaims", True),
        ("stele-operator", "update", "poddisruptionbudgets.policy", True),
        *(
            ("stele-operator", verb, "networkpolicies.networking.k8s.io", True)
            for verb in ("get", "create", "update", "delete")
        ),
        ("stele-operator", "list", "networkpolicies.networking.k8s.io", False),
        ("stele-operator", "update", "leases.coordination.k8s.io", True),
        ("stele-operator", "create", "events", True),
        ("stele-operator", "list", "customresourcedefinitions.apiextensions.k8s.io", True),
        ("stele-operator", "watch", "namespaces", True),
        ("stele-operator", "create", "pods/exec", False),
        *(("stele-operator", verb, "secrets", True) for verb in ("get", "create", "update", "delete")),
        *(("stele-operator", verb, "secrets", False) for verb in ("list", "watch", "patch")),
        ("stele-operator", "create", "roles.rbac.authorization.k8s.io", False),
        ("stele-operator", "delete", "namespaces", False),
    ],
)
def test_rights(installed: Installed, account: str, verb: str, resource: str, allowed: bool) -> None:
    assert installed.may(account, verb, resource) is allowed


@pytest.mark.parametrize(
    ("account", "given"),
    [
        ("stele-operator", rights.OPERATOR),
        ("stele-spark", rights.SPARK),
        ("stele-executor", {}),
        ("stele-member", {}),
    ],
)
def test_an_account_has_these_rights_and_no_other(
    installed: Installed, account: str, given: dict[str, set[str]]
) -> None:
    assert installed.rights(account) == given
    elsewhere = rights.CLUSTER if account == "stele-operator" else {}
    assert installed.rights(account, "default") == elsewhere


@pytest.mark.parametrize(
    ("role", "given"), [("chart-stele-view", rights.VIEW), ("chart-stele-edit", rights.EDIT)]
)
def test_a_role_for_people_has_these_rights_and_no_other(
    installed: Installed, role: str, given: dict[str, set[str]]
) -> None:
    account = f"only-{role}"
    bind(installed, account, role)
    assert installed.rights(account) == given


def test_no_account_has_a_token_that_its_pods_do_not_ask_for(installed: Installed) -> None:
    ours = ("-l", "app.kubernetes.io/part-of=stele", "-n", installed.namespace)
    listed = installed.plane.kubectl("get", "serviceaccounts", *ours, "-o", "yaml")
    mounting = {
        each["metadata"]["name"]: each.get("automountServiceAccountToken")
        for each in yaml.safe_load(listed)["items"]
    }
    names = ("stele-operator", "stele-member", "stele-spark", "stele-executor")
    assert mounting == dict.fromkeys(names, False)


def test_an_upgrade_that_reuses_values_of_an_older_chart_gets_the_defaults(
    bare_control_plane: ControlPlane,
) -> None:
    """`--reuse-values` takes those of the chart that is there, which lack what this one has besides."""
    lacking = (
        "networkPolicy",
        "metrics",
        "deletionProtection",
        "openPortProtection",
        "admissionPolicies",
        "images.allowed",
        "spark",
        "serviceAccounts.executor",
        "images.pullSecrets",
        "images.bulk",
        "images.registry",
        "images.tag",
        "commonLabels",
        "extraObjects",
        "serviceAccounts.annotations",
        "operator.deploymentStrategy",
        "operator.livenessProbe",
        "operator.readinessProbe",
        "operator.page",
        "operator.podDisruptionBudget",
        "operator.topologySpreadConstraints",
        "operator.podSecurityContext",
        "operator.securityContext",
    )
    sets = [f"{value}=null" for value in lacking]
    older, fresh = (by_kind(render(bare_control_plane, "shop", *each)) for each in (sets, ()))
    for kinds in (older, fresh):
        (secret,) = kinds["Secret"]
        assert len(base64.b64decode(secret["data"].pop("secret"))) == 64
    assert older == fresh
    assert read(Settings, environment(older)).executor_account == "stele-executor"
    # Older charts have one text for each image, which stays.
    texts = [f"images.{name}=a.b/{name}:0" for name in ("operator", "member", "spark", "bulk")]
    assert "localhost/" not in render(bare_control_plane, "shop", *texts)


def spark_secret(installed: Installed) -> str:
    where = ("-n", installed.namespace, "-o", "jsonpath={.data.secret}")
    return installed.plane.kubectl("get", "secret", "stele-spark-auth", *where)


def test_an_upgrade_keeps_the_secret_of_spark(installed: Installed) -> None:
    before = spark_secret(installed)
    assert len(base64.b64decode(before)) == 64
    helm(installed.plane, "upgrade", "stele", CHART, "-n", installed.namespace, "--set", "images.spark=s:2")
    assert spark_secret(installed) == before


def test_every_watched_namespace_has_a_secret_of_its_own(bare_control_plane: ControlPlane) -> None:
    found = by_kind(render(bare_control_plane, "shop", "watchNamespaces={a,b}"))["Secret"]
    assert [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in found] == [
        ("a", "stele-spark-auth"),
        ("b", "stele-spark-auth"),
    ]
    assert len({each["data"]["secret"] for each in found}) == 2


def test_a_secret_of_one_s_own_takes_the_place_of_that(bare_control_plane: ControlPlane) -> None:
    rendered = by_kind(render(bare_control_plane, "shop", "spark.existingSecret=mine"))
    assert "Secret" not in rendered
    assert read(Settings, environment(rendered)).spark_secret == "mine"


def test_the_operator_is_told_the_names_that_the_chart_made(bare_control_plane: ControlPlane) -> None:
    sets = ("serviceAccounts.spark=driver", "serviceAccounts.executor=worker")
    rendered = by_kind(render(bare_control_plane, "shop", *sets))
    told = read(Settings, environment(rendered))
    assert (told.spark_account, told.executor_account) == ("driver", "worker")
    assert {"driver", "worker"} < {each["metadata"]["name"] for each in rendered["ServiceAccount"]}
    assert [each["metadata"]["name"] for each in rendered["Secret"]] == [told.spark_secret] == ["driver-auth"]


def environment(rendered: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """What the operator's container is told by value."""
    (container,) = rendered["Deployment"][0]["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def bind(installed: Installed, account: str, *roles: str) -> None:
    """Give an account cluster roles in the release's namespace."""
    who = f"--serviceaccount={installed.namespace}:{account}"
    for role in roles:
        name = f"{account}-{role.replace(':', '-')}"
        what = ("create", "rolebinding", name, f"--clusterrole={role}", who)
        installed.plane.kubectl(*what, "-n", installed.namespace)


def test_the_built_in_role_edit_is_enough_for_bulk_loads(installed: Installed) -> None:
    """The parts that the role is made of: the process that gathers them is not here."""
    assert not any(installed.may("loader", *right) for right in BULK_RIGHTS)
    parts = ("system:aggregate-to-edit", "system:aggregate-to-view")
    bind(installed, "loader", *parts, "chart-stele-edit", "chart-stele-view")
    assert [right for right in BULK_RIGHTS if not installed.may("loader", *right)] == []
    assert not installed.may("loader", "create", "jobs.batch", "default")


@pytest.mark.parametrize(
    ("account", "roles"),
    [
        ("viewer", ("system:aggregate-to-view", "chart-stele-view")),
        ("stele-editor", ("chart-stele-view", "chart-stele-edit")),
    ],
)
def test_viewers_and_stele_s_own_roles_may_not_administer(
    installed: Installed, account: str, roles: tuple[str, ...]
) -> None:
    """Kubernetes' own `edit` is not here: it reads all Secrets of a namespace, without Stele."""
    bind(installed, account, *roles)
    assert "get" in installed.rights(account)["tabletclusters.stele.dev"], "the roles are in force"
    may = [verb for verb in SECRET_VERBS if installed.may(account, verb, "secrets", name=ADMIN_SECRET)]
    assert may == []
    assert "secrets" not in installed.rights(account)


def test_the_data_admin_may_get_that_secret_and_no_other(installed: Installed) -> None:
    rendered = by_kind(render(installed.plane, installed.namespace, "rbac.dataAdminOf={demo}"))["Role"]
    (role,) = [each for each in rendered if each["metadata"]["name"] == "stele-data-admin"]
    installed.plane.apply(installed.namespace, role)
    who = f"--serviceaccount={installed.namespace}:admin"
    what = ("create", "rolebinding", "admin", "--role=stele-data-admin", who)
    installed.plane.kubectl(*what, "-n", installed.namespace)
    may = [verb for verb in SECRET_VERBS if installed.may("admin", verb, "secrets", name=ADMIN_SECRET)]
    assert may == ["get"]
    assert not installed.may("admin", "get", "secrets", name="other-admin-tls")
    assert installed.rights("admin") == rights.DATA_ADMIN


def test_jobs_of_bulk_loads_get_the_image_and_the_secrets_of_the_release(
    control_plane: ControlPlane, namespace: str
) -> None:
    sets = ("images.bulk=registry/sql:2", "images.pullSecrets={one,two}", "images.pullPolicy=Always")
    (defaults,) = by_kind(render(control_plane, namespace, *sets))["ConfigMap"]
    assert defaults["metadata"]["name"] == DEFAULTS
    job = manifest(CLUSTER, "1Gi", defaults["data"], with_tls=True)
    del job["metadata"]["ownerReferences"]
    label = "pod-security.kubernetes.io/enforce=restricted"
    control_plane.kubectl("label", "namespace", namespace, label)
    job["metadata"] = {**job["metadata"], "name": "demo-bulk"}
    template = job["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bulk"}, "spec": template["spec"]}
    control_plane.apply(namespace, job, pod)
    spec = json.loads(control_plane.kubectl("get", "job", "demo-bulk", "-n", namespace, "-o", "json"))["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("registry/sql:2", "Always")
    assert spec["template"]["spec"]["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert spec["ttlSecondsAfterFinished"] == 600


def test_rights_end_at_the_watched_namespaces(installed: Installed) -> None:
    assert not installed.may("stele-operator", "get", "configmaps", "kube-system")
    assert not installed.may("stele-operator", "list", "tabletclusters.stele.dev", "default")
    assert not installed.may("stele-spark", "create", "pods", "default")
