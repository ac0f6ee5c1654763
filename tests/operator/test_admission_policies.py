"""Admission policies on a real API server: what the product does is allowed, what harms is refused."""

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from e2e.cluster.control_plane import ControlPlane, documents
from stele import __version__
from stele.copyjob.conf import pod_template
from stele.copyjob.settings import read_settings
from stele.master.authority import ca_name
from stele.model.ownership import CLUSTER_UID_LABEL
from stele.wire.copy.jobs import CopyJob
from stele.wire.pods import COPIER_LABEL
from tests.operator.test_chart import CHART, by_kind, helm, render

pytestmark = pytest.mark.control_plane

NAMESPACE = "policies"
COPIER = f"system:serviceaccount:{NAMESPACE}:stele-spark"
OPERATOR = f"system:serviceaccount:{NAMESPACE}:stele-operator"
COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
SETS = (
    "admissionPolicies.enabled=true",
    "images.spark=spark:1",
    "images.allowed={other:1,registry.test/a/*}",
)
OF_CHART = f"localhost/stele-member:{__version__}, spark:1, localhost/stele-sql:{__version__}"
ALLOWED = f"expected {OF_CHART}, other:1, registry.test/a/*"
DRY = "--dry-run=server"
Pod = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """A release with the policies in force."""

    plane: ControlPlane

    def create(self, who: str, *objects: dict[str, Any]) -> str:
        """Return why creating these is refused, or nothing; nothing is stored."""
        done = self.plane.run(
            "kubectl", "create", DRY, f"--as={who}", "-n", NAMESPACE, "-f", "-", stdin=documents(*objects)
        )
        return done.stderr if done.returncode else ""

    def run(self, who: str, *arguments: str) -> str:
        """Return why a command on stored objects is refused, or nothing; nothing is changed."""
        done = self.plane.run("kubectl", *arguments, DRY, f"--as={who}", "-n", NAMESPACE)
        return done.stderr if done.returncode else ""


@pytest.fixture(scope="module")
def scene(control_plane: ControlPlane) -> Iterator[Scene]:
    control_plane.kubectl("create", "namespace", NAMESPACE)
    values = [each for pair in SETS for each in ("--set", pair)]
    helm(control_plane, "install", "stele", CHART, "-n", NAMESPACE, "--take-ownership", *values)
    made = Scene(control_plane)
    # Nobody aggregates roles here, so `edit` is empty.
    edits, where = "--verb=get,list,create,update,patch,delete", ("-n", NAMESPACE)
    kinds = "--resource=pods,configmaps,secrets,tabletclusters.stele.dev"
    control_plane.kubectl("create", "role", "editor", edits, kinds, *where)
    control_plane.kubectl("create", "rolebinding", "editor", "--role=editor", "--user=editor", *where)
    control_plane.kubectl(
        "create", "clusterrolebinding", "boss", "--clusterrole=cluster-admin", "--user=boss"
    )
    _await(lambda: made.create("editor", plain_pod()) == "")
    for who, body in (
        (COPIER, plain_pod()),
        ("editor", state("demo-table")),
        ("editor", cluster(member="bad:1")),
    ):
        _await(partial(made.create, who, body))
    yield made
    helm(control_plane, "uninstall", "stele", "-n", NAMESPACE)
    control_plane.kubectl("delete", "clusterrolebinding", "boss")


def _await(done: Callable[[], object]) -> None:
    """Wait until something holds: a new policy or role is in force a moment later."""
    for _ in range(200):
        if done():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come about")


def plain_pod() -> Pod:
    containers = [{"name": "c", "image": "i"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": containers}}


def executor(**environment: str) -> Pod:
    """What Spark sends for an executor: the copier's template, and what Spark adds by its properties."""
    settings = read_settings(
        {
            "STELE_SPARK_IMAGE": "spark:1",
            "POD_NAMESPACE": NAMESPACE,
            "POD_NAME": "demo-copier",
            "POD_IP": "10.0.0.9",
            **environment,
        }
    )
    job = CopyJob("s-1", "demo-1", "demo-1", "http://10.0.0.1:7002", "token", ())
    spec: Pod = json.loads(pod_template(job, settings))["spec"]
    (container,) = spec["containers"]
    fields = {"SPARK_EXECUTOR_POD_IP": "status.podIP", "SPARK_EXECUTOR_POD_NAME": "metadata.name"}
    container |= {
        "image": settings.image,
        "imagePullPolicy": settings.pull_policy,
        "args": ["executor"],
        "ports": [{"name": "blockmanager", "containerPort": 7079, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": "896Mi"}, "limits": {"memory": "896Mi"}},
        "env": [
            {"name": "SPARK_USER", "value": "stele"},
            {"name": "SPARK_LOCAL_DIRS", "value": "/tmp"},
            *({"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in fields.items()),
        ],
    }
    container["volumeMounts"] += [
        {"name": "spark-local-dir-1", "mountPath": "/tmp"},
        {"name": "staging", "mountPath": "/staging", "subPath": "staging", "readOnly": False},
    ]
    spec["volumes"] += [
        {"name": "spark-local-dir-1", "emptyDir": {}},
        {"name": "staging", "persistentVolumeClaim": {"claimName": job.claim, "readOnly": False}},
    ]
    spec |= {"serviceAccountName": settings.executor_account, "restartPolicy": "Never", "hostname": "exec-1"}
    driver = {"apiVersion": "v1", "kind": "Pod", "name": "demo-copier", "uid": "u", "controller": True}
    labels = {"spark-role": "executor", "spark-exec-id": "1", COPIER_LABEL: "demo-copier"}
    metadata = {"name": "copy-demo-1-exec-1", "labels": labels, "ownerReferences": [driver]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def changed(path: str, value: Any) -> Pod:
    """An executor with one field set, such as spec.containers.0.image."""
    pod = executor()
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    place: Any = pod
    for part in parents:
        place = place[part]
    place[last] = value
    return pod


def added(path: str, value: Any) -> Pod:
    """An executor with one more item in a list."""
    place: Any = executor()
    for part in path.split("."):
        place = place[int(part) if part.isdigit() else part]
    return changed(path, [*place, value])


def state(name: str, kind: str = "ConfigMap", **metadata: Any) -> dict[str, Any]:
    """A part of a cluster's state, which the cluster owns."""
    owner = {"apiVersion": "stele.dev/v1alpha1", "kind": "TabletCluster", "name": "demo", "uid": "u"}
    given = {"name": name, **(metadata or {"ownerReferences": [owner]})}
    return {"apiVersion": "v1", "kind": kind, "metadata": given}


def cluster(**images: str) -> dict[str, Any]:
    spec = {"members": 1, "storage": {"size": "1Gi"}, **({"images": images} if images else {})}
    body = {"apiVersion": "stele.dev/v1alpha1", "kind": "TabletCluster", "metadata": {"name": "demo"}}
    return {**body, "spec": spec}


SHARED = {
    "tolerations": [{"operator": "Exists"}],
    "securityContext": {"runAsNonRoot": True, "seLinuxOptions": {"level": "s0:c1"}},
}


@pytest.mark.parametrize(
    "environment", [{}, {"STELE_EXECUTOR_POD": json.dumps(SHARED)}], ids=["plain", "template"]
)
def test_executors_as_the_copier_makes_them_are_allowed(scene: Scene, environment: dict[str, str]) -> None:
    assert scene.create(COPIER, executor(**environment)) == ""


SECRET = {"name": "a", "secret": {"secretName": "demo-ca"}}
KEY = {"secretKeyRef": {"name": "demo-ca", "key": "tls.key"}}
CONTAINER = "spec.containers.0"
SECURITY = f"{CONTAINER}.securityContext"
HARMFUL: dict[str, tuple[Pod, str]] = {
    "a pod that is no executor": (
        plain_pod(),
        "expected the labels spark-role=executor and stele.dev/copier",
    ),
    "another account": (
        changed("spec.serviceAccountName", "stele-operator"),
        "expected serviceAccountName stele-executor",
    ),
    "a token": (
        changed("spec.automountServiceAccountToken", True),
        "expected serviceAccountName stele-executor and automountServiceAccountToken false",
    ),
    "another image": (changed(f"{CONTAINER}.image", "bad:1"), ALLOWED),
    "a Secret": (added("spec.volumes", SECRET), "expected emptyDir, Secret stele-spark-auth and the claim"),
    "the node's files": (
        added("spec.volumes", {"name": "a", "hostPath": {"path": "/"}}),
        "expected emptyDir",
    ),
    "a second claim": (
        added("spec.volumes", {"name": "a", "persistentVolumeClaim": {"claimName": "demo-2"}}),
        "the claim of one member",
    ),
    "a projected token": (
        added(
            "spec.volumes", {"name": "a", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
        ),
        "expected emptyDir",
    ),
    "a member's data": (
        added(f"{CONTAINER}.volumeMounts", {"name": "staging", "mountPath": "/data"}),
        "expected subPath staging",
    ),
    "a member's database": (
        added(f"{CONTAINER}.volumeMounts", {"name": "staging", "mountPath": "/data", "subPath": "db"}),
        "expected subPath staging",
    ),
    "a folder by a variable": (
        added(f"{CONTAINER}.volumeMounts", {"name": "staging", "mountPath": "/d", "subPathExpr": "$(A)"}),
        "expected subPath staging",
    ),
    "a Secret in a variable": (
        added(f"{CONTAINER}.env", {"name": "A", "valueFrom": KEY}),
        "expected values and fields of the pod",
    ),
    "all of a Secret in variables": (
        changed(f"{CONTAINER}.envFrom", [{"secretRef": {"name": "demo-ca"}}]),
        "expected values and fields of the pod",
    ),
    "another container first": (
        changed("spec.initContainers", [{"name": "a", "image": "spark:1"}]),
        "no initContainers",
    ),
    "the node's network": (changed("spec.hostNetwork", True), "no hostNetwork, hostPID or hostIPC"),
    "the node's processes": (changed("spec.hostPID", True), "no hostNetwork, hostPID or hostIPC"),
    "no security context": (
        changed("spec.securityContext", {}),
        "expected securityContext.runAsNonRoot true",
    ),
    "root": (
        changed("spec.securityContext", {"runAsUser": 0}),
        "expected securityContext.runAsNonRoot true",
    ),
    "any system call": (
        changed("spec.securityContext.seccompProfile", {"type": "Unconfined"}),
        "a seccompProfile other than Unconfined",
    ),
    "root in the container": (changed(f"{SECURITY}.runAsUser", 0), "no user 0"),
    "root allowed in the container": (changed(f"{SECURITY}.runAsNonRoot", False), "no user 0"),
    "privileges": (changed(f"{SECURITY}.allowPrivilegeEscalation", True), "allowPrivilegeEscalation false"),
    "capabilities kept": (changed(f"{SECURITY}.capabilities", {}), "capabilities.drop [ALL]"),
    "a capability": (
        changed(f"{SECURITY}.capabilities", {"drop": ["ALL"], "add": ["SYS_ADMIN"]}),
        "capabilities.drop [ALL]",
    ),
    "an image that is written to": (
        changed(f"{SECURITY}.readOnlyRootFilesystem", False),
        "readOnlyRootFilesystem true",
    ),
    "a container without a context": (changed(SECURITY, None), "expected a securityContext"),
    "a port of the node": (
        changed(f"{CONTAINER}.ports", [{"containerPort": 7079, "hostPort": 7079}]),
        "no hostPort",
    ),
}


@pytest.mark.parametrize(("pod", "text"), HARMFUL.values(), ids=HARMFUL)
def test_a_copier_makes_no_other_pods(scene: Scene, pod: Pod, text: str) -> None:
    refused = " ".join(scene.create(COPIER, pod).split())
    assert "ValidatingAdmissionPolicy 'policies-stele-executors'" in refused
    assert text in refused


@pytest.mark.parametrize("image", ["spark:1", "other:1", "registry.test/a/spark:7"])
def test_images_of_the_list_are_allowed(scene: Scene, image: str) -> None:
    assert scene.create(COPIER, changed(f"{CONTAINER}.image", image)) == ""


def test_a_copier_changes_and_deletes_its_executors_alone(scene: Scene) -> None:
    member = plain_pod() | {"metadata": {"name": "demo-0", "labels": {"stele.dev/component": "member"}}}
    scene.plane.apply(NAMESPACE, executor(), member)
    mine, other = "pod/copy-demo-1-exec-1", "pod/demo-0"
    label = '{"metadata": {"labels": {"spark-exec-inactive": "true"}}}'
    image = '{"spec": {"containers": [{"name": "%s", "image": "bad:1"}]}}'
    marked = '{"metadata": {"labels": {"spark-role": "executor", "stele.dev/copier": "demo-copier"}}}'
    assert scene.run(COPIER, "patch", mine, "-p", label) == ""
    assert scene.run(COPIER, "delete", mine) == ""
    assert scene.run(COPIER, "delete", "pods", "-l", "spark-role=executor") == ""
    assert ALLOWED in scene.run(COPIER, "patch", mine, "-p", image % "spark-kubernetes-executor")
    for selector, refused in (("spark-role%3Dexecutor", False), ("", True)):
        # As the copier sweeps what an earlier start left.
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector}&dryRun=All"
        done = scene.plane.run("kubectl", "delete", f"--as={COPIER}", "--raw", path)
        assert ("deletes executors only" in done.stdout + done.stderr) is refused, done
    for command in (
        *(("patch", other, "-p", image % "c"), ("patch", other, "-p", marked)),
        *(("delete", other), ("delete", "pods", "-l", "stele.dev/component=member")),
    ):
        assert "makes, changes and deletes executors only" in scene.run(COPIER, *command)


def test_pods_of_others_are_not_looked_at(scene: Scene) -> None:
    for who in (OPERATOR, "editor"):
        assert scene.create(who, plain_pod()) == ""


def test_a_cluster_names_images_of_the_list(scene: Scene) -> None:
    for images in ({}, {"member": "other:1"}, {"spark": "registry.test/a/b:2", "member": "other:1"}):
        assert scene.create("editor", cluster(**images)) == ""
    for field in ("member", "spark", "bulk"):
        refused = scene.create("editor", cluster(**{field: "bad:1"}))
        assert f"spec.images.{field} is bad:1; {ALLOWED}" in refused
        assert scene.create("boss", cluster(**{field: "bad:1"})) != ""


def test_an_image_that_a_cluster_has_already_stays(scene: Scene) -> None:
    """One that was allowed before, or made before there was a policy."""
    stored = deepcopy(cluster(member="other:1"))
    scene.plane.apply(NAMESPACE, stored)
    policy = json.dumps({"spec": {"validationActions": ["Audit"]}})
    binding = ("validatingadmissionpolicybinding", "policies-stele-images")
    scene.plane.kubectl("patch", *binding, "--type=merge", "-p", policy)
    image = '{"spec": {"images": {"member": "old:1"}}}'
    _await(lambda: not scene.run("boss", "patch", "stc/demo", "--type=merge", "-p", image))
    scene.plane.kubectl("patch", "stc/demo", "-n", NAMESPACE, "--type=merge", "-p", image)
    scene.plane.kubectl("patch", *binding, "--type=merge", "-p", policy.replace("Audit", "Deny"))
    other = image.replace("old:1", "bad:1")
    _await(lambda: scene.run("boss", "patch", "stc/demo", "--type=merge", "-p", other))
    members = '{"spec": {"members": 2}}'
    assert scene.run("editor", "patch", "stc/demo", "--type=merge", "-p", members) == ""


STATE = [
    state("demo-table"),
    state("demo-table-17"),
    state("demo-keyspaces"),
    state("demo-table-0", labels={CLUSTER_UID_LABEL: "u"}),
    state(ca_name("demo"), "Secret"),
]


@pytest.mark.parametrize("body", STATE, ids=lambda body: body["metadata"]["name"])
def test_only_the_operator_writes_a_cluster_s_state(scene: Scene, body: dict[str, Any]) -> None:
    name = body["metadata"]["name"]
    for who in (OPERATOR, "boss"):
        assert scene.create(who, body) == ""
    refused = scene.create("editor", body)
    assert f"only the operator writes {name}; to restore it by hand, editor needs the verb restore" in refused


def test_who_may_change_and_delete_a_cluster_s_state(scene: Scene) -> None:
    table, authority = state("old-table"), state("old-ca", "Secret")
    scene.plane.apply(NAMESPACE, table, authority)
    change = '{"metadata": {"labels": {"a": "b"}}}'
    for name in ("configmap/old-table", "secret/old-ca"):
        for command in (("patch", name, "-p", change), ("delete", name)):
            assert scene.run("boss", *command) == ""
            assert "needs the verb restore on tabletclusters.stele.dev" in scene.run("editor", *command)
        assert scene.run(COLLECTOR, "delete", name) == ""
    assert scene.run(OPERATOR, "patch", "configmap/old-table", "-p", change) == ""
    role = ("role", "restorer", "--verb=restore", "--resource=tabletclusters.stele.dev", "-n", NAMESPACE)
    scene.plane.kubectl("create", *role)
    scene.plane.kubectl(
        "create", "rolebinding", "restorer", "--role=restorer", "--user=editor", "-n", NAMESPACE
    )
    _await(lambda: not scene.run("editor", "delete", "configmap/old-table"))
    scene.plane.kubectl("delete", "rolebinding", "restorer", "-n", NAMESPACE)
    _await(lambda: scene.run("editor", "delete", "configmap/old-table"))


def test_objects_of_others_with_such_names_are_not_looked_at(scene: Scene) -> None:
    others = (state("my-table", labels={"app": "shop"}), state("my-ca", "Secret", labels={"app": "shop"}))
    of_users = (state("demo-0-tls", "Secret"), state("demo-users", "Secret"), state("settings"))
    assert scene.create("editor", *others, *of_users) == ""


def test_other_namespaces_are_not_looked_at(scene: Scene, namespace: str) -> None:
    account, where = f"{namespace}:stele-spark", ("-n", namespace)
    scene.plane.kubectl("create", "role", "spark", "--verb=create", "--resource=pods", *where)
    scene.plane.kubectl(
        "create", "rolebinding", "spark", "--role=spark", f"--serviceaccount={account}", *where
    )
    create = ("create", DRY, f"--as=system:serviceaccount:{account}", *where, "-f", "-")
    _await(lambda: not scene.plane.run("kubectl", *create, stdin=documents(plain_pod())).returncode)


UNPROTECTED = ("deletionProtection.enabled=false", "openPortProtection.enabled=false")


def test_the_policies_are_off_unless_they_are_asked_for(bare_control_plane: ControlPlane) -> None:
    def policies(*sets: str) -> list[str]:
        found = by_kind(render(bare_control_plane, "shop", *UNPROTECTED, *sets))
        return [each["metadata"]["name"] for each in found.get("ValidatingAdmissionPolicy", [])]

    asked = "admissionPolicies.enabled=true"
    assert policies() == []
    assert policies(asked, "rbac.clusterScoped=false") == []
    assert policies(asked) == ["shop-stele-executors", "shop-stele-state"]
    assert "shop-stele-images" in policies(asked, "images.allowed={a:1}")


@pytest.mark.parametrize(
    "sets", [(), ("admissionPolicies.enabled=true", "rbac.clusterScoped=false")], ids=str
)
def test_a_list_of_images_that_nothing_would_check_is_refused(
    bare_control_plane: ControlPlane, sets: tuple[str, ...]
) -> None:
    values = [each for pair in ("images.allowed={a:1}", *sets) for each in ("--set", pair)]
    done = bare_control_plane.run("helm", "template", CHART, "--kube-version=v1.34.4", *values)
    assert "images.allowed is set, but nothing would check it" in done.stderr


def test_all_namespaces_and_their_account(bare_control_plane: ControlPlane) -> None:
    sets = ("watchNamespaces={*}", "admissionPolicies.enabled=true")
    policies = by_kind(render(bare_control_plane, "shop", *sets))["ValidatingAdmissionPolicy"]
    (executors,) = (each for each in policies if each["metadata"]["name"].endswith("-executors"))
    assert all("namespaceSelector" not in each["spec"]["matchConstraints"] for each in policies)
    assert "serviceAccountName default" in json.dumps(executors)
