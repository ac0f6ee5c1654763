"""Sets the stage: checks, cluster, images, chart, namespaces and an empty TabletCluster. Each step tells its
time; what does not need one another is done side by side.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import cache, external, images, kind, lanes
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output, run, say, step, succeeds
from e2e.demo.errors import DemoError, PreflightError
from e2e.demo.resp import Endpoint, Login
from e2e.demo.settings import (
    CHART,
    EXAMPLE,
    MEMBERS_MAX,
    MEMBERS_MIN,
    NAMESPACES,
    OPERATOR_NAMESPACE,
    READY_SECONDS_MAX,
    RELEASE,
    Settings,
)

HELM_SECONDS_MAX = 240
HELM_TEST_SECONDS_MAX = 120
DELETE_SECONDS_MAX = 180
KUBECTL_SECONDS_MAX = 60.0
GIVEN_TOOLS = ("kubectl", "helm")
"""What speaks to a cluster that the user gave."""
CLUSTER_LABEL = "stele.dev/cluster"
COMPONENT_LABEL = "stele.dev/component"
TEST_POD_SELECTOR = "app.kubernetes.io/name=stele-test"


class Stage:
    """The steps, in order."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder

    def prepare(self) -> Endpoint:
        """All steps; where clients connect. Raises DemoError or ClusterError."""
        members, keep = self.settings.members, self.settings.keep
        names = self._cluster_and_images()
        self._namespaces()
        with step("install the chart and wait for the operator"):
            self._install(names)
        with step("ask the operator whether it is ready, by helm test"):
            self._helm_test()
        with step("keep what is there" if keep else "start from an empty TabletCluster"):
            self._clear()
        with step(f"apply the TabletCluster of {members} members and wait until it is ready"):
            self._apply()
        return self.endpoint()

    def _cluster_and_images(self) -> dict[str, str]:
        """Full names by part. On a cluster that the user gave they must be where its nodes can pull them."""
        if external.given() is not None:
            kind.up()
            prefix, _, tag = self.settings.images.partition(":")
            names = dict(zip(images.NAMES, images.NAMES, strict=True)) | {"bulk": "sql"}
            return {part: f"{prefix}/stele-{name}:{tag or images.ALIAS_TAG}" for part, name in names.items()}
        built: dict[str, str]
        _, built = lanes.side_by_side(kind.up, images.build)
        for image in built.values():
            kind.load(image)
        # Loads and dumps run the image that was loaded last, if any.
        return {**built, "bulk": f"{images.repository('sql')}:{images.ALIAS_TAG}"}

    def _namespaces(self) -> None:
        for namespace in dict.fromkeys((self.settings.operator_namespace, *self.settings.watched)):
            if not succeeds(["kubectl", "get", "namespace", namespace], env=kind.env()):
                self._kubectl("create", "namespace", namespace)

    def _install(self, names: dict[str, str]) -> None:
        wanted = self.settings
        # The custom resources belong to the whole Kubernetes: the release that is installed last owns them.
        command = ["helm", "upgrade", "--install", wanted.release, str(CHART), "--take-ownership"]
        command += ["--namespace", wanted.operator_namespace]
        command += ["--set", f"watchNamespaces={{{','.join(wanted.watched)}}}"]
        for value in wanted.values:
            command += ["--set", value]
        for part, image in names.items():
            command += ["--set-string", f"images.{part}={image}"]
        command += ["--wait", f"--timeout={HELM_SECONDS_MAX}s"]
        run(command, self._log(), env=kind.env(), seconds_max=HELM_SECONDS_MAX + KUBECTL_SECONDS_MAX)

    def _helm_test(self) -> None:
        limit = HELM_TEST_SECONDS_MAX + KUBECTL_SECONDS_MAX
        try:
            run(helm_test_command(self.settings), self._log(), env=kind.env(), seconds_max=limit)
        except ClusterError as error:
            raise DemoError(
                f"The operator of release {self.settings.release} runs, but helm test could not ask it "
                f"within {HELM_TEST_SECONDS_MAX} s whether it is ready: {error}\n{self._why_not_asked()}"
            ) from error

    def _why_not_asked(self) -> str:
        """Return the events and the output of the pod of `helm test`, which stays when it failed."""
        kubectl = ["kubectl", "--namespace", self.settings.operator_namespace]
        selector = f"--selector={TEST_POD_SELECTOR},app.kubernetes.io/instance={self.settings.release}"
        return "\n".join(_said([*kubectl, *words, selector]) for words in (("describe", "pod"), ("logs",)))

    def _clear(self) -> None:
        """Remove what an earlier run left, so that each run starts from nothing and all that is there is its
        own.
        """
        if not self.settings.keep:
            clear(self.settings.namespace, self.settings.cluster, self._log())

    def _apply(self) -> None:
        path = self.folder / "cluster.yaml"
        path.write_text(yaml.safe_dump(manifest(EXAMPLE.read_text(), self.settings)), encoding="utf-8")
        self._kubectl("apply", "--filename", str(path))
        words = (
            "wait",
            "--for=condition=Ready",
            self.settings.resource,
            f"--timeout={READY_SECONDS_MAX:.0f}s",
        )
        try:
            self._kubectl(*words, seconds_max=READY_SECONDS_MAX + KUBECTL_SECONDS_MAX)
        except ClusterError as error:
            raise DemoError(f"{error}\n{self._why()}") from error

    def _why(self) -> str:
        return _said(["kubectl", "--namespace", self.settings.namespace, "describe", self.settings.resource])

    def endpoint(self) -> Endpoint:
        """The host's own port where kind maps it, else the port of a node, and what clients log in with."""
        login = self._login()
        if external.given() is None and self.settings.node_port == kind.RESP_NODE_PORT:
            return Endpoint(kind.RESP_HOST_ADDRESS, kind.RESP_NODE_PORT, login)
        path = '{.items[0].status.addresses[?(@.type=="InternalIP")].address}'
        words = ["kubectl", "get", "nodes", "-o", f"jsonpath={path}"]
        return Endpoint(
            output(words, env=kind.env(), seconds_max=KUBECTL_SECONDS_MAX), self.settings.node_port, login
        )

    def _login(self) -> Login:
        cluster = self.settings.cluster
        ca = self._secret(f"{cluster}-ca-cert", r"{.data.ca\.crt}")
        file = self.folder / f"ca-{hashlib.sha256(ca).hexdigest()[:8]}.crt"
        file.write_bytes(ca)
        return Login(str(file), cluster, self._secret(f"{cluster}-default-user", "{.data.password}").decode())

    def _secret(self, name: str, path: str) -> bytes:
        words = ["kubectl", "--namespace", self.settings.namespace, "get", "secret", name]
        found = output([*words, f"--output=jsonpath={path}"], env=kind.env(), seconds_max=KUBECTL_SECONDS_MAX)
        return base64.b64decode(found)

    def _kubectl(self, *words: str, seconds_max: float = KUBECTL_SECONDS_MAX) -> None:
        command = ["kubectl", "--namespace", self.settings.namespace, *words]
        run(command, self._log(), env=kind.env(), seconds_max=seconds_max)

    def _log(self) -> Path:
        return self.folder / "setup.log"


def _said(command: list[str]) -> str:
    """Return what a command says that tells why another failed, or why it could not."""
    try:
        return output(command, env=kind.env(), seconds_max=KUBECTL_SECONDS_MAX)
    except ClusterError as error:
        return str(error)


def check(settings: Settings) -> None:
    """Everything that can be known to fail before work begins; raises PreflightError."""
    if not MEMBERS_MIN <= settings.members <= MEMBERS_MAX:
        raise PreflightError(
            f"--members is {settings.members}: {MEMBERS_MIN} to {MEMBERS_MAX} are possible on one machine."
        )
    for path in (CHART / "Chart.yaml", EXAMPLE):
        if not path.is_file():
            raise PreflightError(f"{path} is not there: this is no complete checkout.")
    try:
        given = external.given()
        if given is None:
            kind.check()
        elif not settings.images:
            raise PreflightError(
                "With a cluster of your own, --images PREFIX[:TAG] must say from where its nodes pull the "
                "images stele-operator, stele-member and stele-spark."
            )
        elif lacking := [name for name in GIVEN_TOOLS if shutil.which(name, path=kind.env()["PATH"]) is None]:
            raise PreflightError(
                f"With a cluster of your own, {' and '.join(lacking)} must be on the PATH: nothing is built."
            )
    except ClusterError as error:
        raise PreflightError(str(error)) from error


def helm_test_command(settings: Settings) -> list[str]:
    """Return the words that run the chart's own test of its release."""
    command = ["helm", "test", settings.release, "--namespace", settings.operator_namespace]
    return [*command, f"--timeout={HELM_TEST_SECONDS_MAX}s"]


def upgrade_command(settings: Settings) -> list[str]:
    """Return the words that give the operator and members another image: the same one by its second tag."""
    command = ["helm", "upgrade", settings.release, str(CHART), "--namespace", settings.operator_namespace]
    command.append("--reuse-values")
    for part in ("operator", "member"):
        command += ["--set-string", f"images.{part}={second_tag(part)}"]
    return [*command, "--wait", f"--timeout={HELM_SECONDS_MAX}s"]


def second_tag(part: str) -> str:
    """Return the other name of a part's image, which every node of kind has."""
    return f"{images.repository(part)}:{images.ALIAS_TAG}"


def manifest(text: str, settings: Settings) -> dict[str, Any]:
    """The example TabletCluster with the run's own name, namespace, number of members and port, and its
    partitions and engine where the run has a wish."""
    made: dict[str, Any] = yaml.safe_load(text)
    made["metadata"] |= {"name": settings.cluster, "namespace": settings.namespace}
    made["spec"]["members"] = settings.members
    made["spec"].setdefault("resp", {})["nodePort"] = settings.node_port
    if settings.partitions is not None:
        made["spec"]["partitions"] = settings.partitions
    if settings.engine is not None:
        made["spec"].setdefault("migration", {})["engine"] = settings.engine
    made["spec"] |= settings.spec
    return made


def clear(namespace: str, cluster: str, log: Path) -> None:
    """Delete the TabletCluster with its volumes; returns when its pods are gone too. Nothing there is no
    error. Members get no time to hand over what is deleted with them.
    """
    limit = f"--timeout={DELETE_SECONDS_MAX}s"
    selector = f"{CLUSTER_LABEL}={cluster}"
    for words in (
        ("delete", "tabletcluster", cluster, "--ignore-not-found", "--wait", limit),
        ("delete", "pod", "--selector", selector, "--ignore-not-found", "--grace-period=1", "--wait=false"),
        ("wait", "--for=delete", "pod", "--selector", selector, limit),
        ("delete", "persistentvolumeclaim", "--selector", selector, "--ignore-not-found", "--wait", limit),
        ("delete", "configmap", "--selector", selector, "--ignore-not-found", "--wait", limit),
    ):
        command = ["kubectl", "--namespace", namespace, *words]
        run(command, log, env=kind.env(), seconds_max=DELETE_SECONDS_MAX + KUBECTL_SECONDS_MAX)


def remove_all() -> None:
    """Take the TabletClusters, the chart and the namespaces away; the Kubernetes cluster stays."""
    log = cache.root() / "logs" / "demo-down.log"
    env = kind.env()
    if not succeeds(["kubectl", "get", "--raw", "/readyz"], env=env):
        say("There is no cluster that answers, so there is nothing to remove from it.")
        return
    if succeeds(["kubectl", "get", "crd", "tabletclusters.stele.dev"], env=env):
        for namespace, cluster in zip(NAMESPACES, ("demo", "smoke"), strict=True):
            with step(f"remove {cluster} from namespace {namespace}"):
                clear(namespace, cluster, log)
    with step("remove the chart, its namespaces and the custom resources"):
        uninstall = ["helm", "uninstall", RELEASE, "--namespace", OPERATOR_NAMESPACE, "--ignore-not-found"]
        run([*uninstall, "--wait"], log, env=env)
        for kind_, names in (
            (
                "crd",
                [f"{name}.stele.dev" for name in ("tabletclusters", "tabletmembers", "tabletrebalances")],
            ),
            ("namespace", [OPERATOR_NAMESPACE, *NAMESPACES]),
        ):
            limit = f"--timeout={DELETE_SECONDS_MAX}s"
            run(["kubectl", "delete", kind_, *names, "--ignore-not-found", limit], log, env=env)
