"""What examples/gitops says to Flux, evaluated by the API server: both have their CEL from cel-go.

An admission policy looks at a status that our own code has made, and refuses it with the verdict.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import CLUSTERS, KEYSPACES, MEMBERS, REBALANCES, USERS, Api, Kind
from stele.errors import SteleError
from stele.master import status
from stele.master.plan_status import with_conditions_of
from stele.model.rebalance import RebalancePhase, TabletRebalanceStatus
from tests.fakes.kstatus import kstatus
from tests.master.test_kstatus import CLUSTERS as VIEWS
from tests.master.test_statuses import NOON, cluster, rebalance, view
from tests.operator import test_crds as crds

pytestmark = pytest.mark.control_plane

FOLDER = Path(__file__).parents[2] / "examples" / "gitops"
KINDS = {each.kind: each for each in (CLUSTERS, MEMBERS, REBALANCES, KEYSPACES, USERS)}
NAMES = {"TabletMember": "demo-0", "TabletRebalance": "demo-1", "Keyspace": "sessions", "TabletUser": "shop"}
ORDER = (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current"))
"""In which Flux evaluates expressions; the first one that is true decides."""


def documents() -> dict[tuple[str, str], dict[str, Any]]:
    paths = (FOLDER / "flux.yaml", FOLDER / "flux-operator.yaml")
    found = [each for path in paths for each in yaml.safe_load_all(path.read_text())]
    return {(each["kind"], each["metadata"]["name"]): each["spec"] for each in found}


def checks() -> dict[str, dict[str, str]]:
    """The expressions, by the kind of what they are about."""
    listed = documents()["Kustomization", "stele-clusters"]["healthCheckExprs"]
    assert all(each["apiVersion"] == "stele.dev/v1alpha1" for each in listed)
    return {each["kind"]: each for each in listed}


def verdict(expressions: dict[str, str]) -> str:
    """One expression that tells what Flux does: `status` is the field of the object there."""
    found = "'InProgress'"
    for name, word in reversed(ORDER):
        if name in expressions:
            found = f"({expressions[name]}) ? '{word}' : ({found})"
    unseen = "object.status.?observedGeneration.orValue(0) != object.metadata.generation"
    return f"'VERDICT ' + ({unseen} ? 'InProgress' : [object.status].map(status, {found})[0])"


def policy(kind: Kind, expressions: dict[str, str], namespace: str) -> list[dict[str, Any]]:
    name, admission = f"flux-{kind.plural}", "admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": ["stele.dev"],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": [f"{kind.plural}/status"],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
        "validations": [{"expression": "false", "messageExpression": verdict(expressions)}],
    }
    bound = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": admission, "kind": what, "metadata": {"name": name}, "spec": each}
        for what, each in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", bound))
    ]


@pytest.fixture
def judged_by_flux(control_plane: ControlPlane, namespace: str) -> Iterator[None]:
    policies = [each for kind, exprs in checks().items() for each in policy(KINDS[kind], exprs, namespace)]
    control_plane.apply(namespace, *policies)
    yield
    for each in policies:
        control_plane.kubectl("delete", each["kind"], each["metadata"]["name"])


async def judged(api: Api, namespace: str, kind: Kind, name: str, shown: dict[str, Any]) -> str:
    """The verdict on an object with this status, which it never gets."""
    for _ in range(200):  # It takes a moment until a new policy is in force.
        try:
            await api.patch_status(kind, namespace, name, shown)
        except SteleError as error:
            text = str(error.args[0])
            assert "VERDICT " in text, text
            return text.split("VERDICT ")[1].split(maxsplit=1)[0].strip("\"'.,")
        await asyncio.sleep(0.1)
    raise AssertionError("the policy is never in force")


def conditions(**values: str) -> dict[str, Any]:
    """A status with these conditions, observed of the first generation."""
    listed = [
        {"type": name, "status": value, "reason": "A", "lastTransitionTime": "2030-01-01T00:00:00Z"}
        for name, value in values.items()
    ]
    return {"observedGeneration": 1, "conditions": listed}


def holds(shown: dict[str, Any], *types: str) -> bool:
    true = {each["type"] for each in shown["conditions"] if each["status"] == "True"}
    return true.issuperset(types)


@pytest.mark.usefixtures("judged_by_flux")
async def test_a_cluster_is_healthy_once_it_serves_and_has_its_copies(api: Api, namespace: str) -> None:
    await api.create(CLUSTERS, namespace, crds.cluster())
    met = set()
    for what, (change, by_itself, reason) in VIEWS.items():
        shown = status.cluster_status(cluster(), change(view((0, 1), (1, 0))), "").to_dict()
        found = await judged(api, namespace, CLUSTERS, "demo", shown | {"observedGeneration": 1})
        serves = holds(shown, "Available", "ReplicationSatisfied")
        waits = "Current" if serves else "InProgress"
        assert found == ("Failed" if by_itself == "Failed" else waits), (what, reason)
        met.add((by_itself, found))
        unseen = shown | {"observedGeneration": 7}
        assert await judged(api, namespace, CLUSTERS, "demo", unseen) == "InProgress"
    some = {("Current", "Current"), ("InProgress", "InProgress"), ("InProgress", "Current")}
    assert met == some | {("Failed", "Failed")}


@pytest.mark.usefixtures("judged_by_flux")
@pytest.mark.parametrize("kind", NAMES)
async def test_the_other_kinds_are_judged_as_by_kstatus(api: Api, namespace: str, kind: str) -> None:
    made = {"TabletMember": crds.member, "TabletRebalance": crds.rebalance}
    made |= {"Keyspace": crds.keyspace, "TabletUser": crds.user}
    stored = await api.create(KINDS[kind], namespace, made[kind](NAMES[kind]))
    statuses = [conditions(**{name: "True"}) for name in ("Ready", "Reconciling", "Stalled")]
    statuses += [conditions(Ready="False", Reconciling="False", Stalled="False"), conditions(Ready="Unknown")]
    statuses += [conditions(Ready="True") | {"observedGeneration": 7}]
    if kind == "TabletRebalance":
        phases = (TabletRebalanceStatus(phase=each) for each in RebalancePhase)
        ours = (with_conditions_of(each, rebalance(), NOON).to_dict() for each in phases)
        statuses += [each | {"observedGeneration": 1} for each in ours]
    for shown in statuses:
        expected = kstatus({"metadata": stored["metadata"], "status": shown})
        assert await judged(api, namespace, KINDS[kind], NAMES[kind], shown) == expected, shown


@pytest.mark.usefixtures("judged_by_flux")
async def test_what_no_operator_has_seen_is_waited_for(api: Api, namespace: str) -> None:
    await api.create(CLUSTERS, namespace, crds.cluster())
    for shown in ({}, {"observedGeneration": 1}, {"observedGeneration": 1, "epoch": 1}):
        assert await judged(api, namespace, CLUSTERS, "demo", shown) == "InProgress"


def test_clusters_come_after_the_operator_and_each_kind_has_a_check() -> None:
    found = documents()
    clusters, release = found["Kustomization", "stele-clusters"], found["HelmRelease", "stele"]
    names = {name for kind, name in found if kind == "Kustomization"}
    assert {each["name"] for each in clusters["dependsOn"]} == names - {"stele-clusters"} == {"stele"}
    assert all(found["Kustomization", name]["wait"] for name in names)
    assert checks().keys() == KINDS.keys()
    assert (FOLDER.parents[1] / release["chart"]["spec"]["chart"] / "Chart.yaml").exists()
    values = yaml.safe_load((FOLDER.parents[1] / "charts/stele/values.yaml").read_text())
    assert release["values"]["images"].keys() <= values["images"].keys()
