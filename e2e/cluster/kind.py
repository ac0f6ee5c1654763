"""The test cluster itself: made, waited for, filled with images and removed by kind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cache, debian, doctor, engine, external, images, layout, node_image, podman, programs
from e2e.cluster.engine import Engine
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output, run, say, step, succeeds

NAME = "stele"
WORKERS = 2
# The demo's RESP port: a NodePort Service of this port answers on loopback of the host.
RESP_NODE_PORT = 30379
RESP_HOST_ADDRESS = "127.0.0.1"

CREATE_SECONDS_MAX = 600.0
READY_SECONDS_MAX = 180
DELETE_SECONDS_MAX = 120.0
LOAD_SECONDS_MAX = 600.0
ANSWER_SECONDS_MAX = 20.0
PAUSE_SECONDS_MAX = 60.0
_IMAGE_LABEL = "stele.image"
_RUNNING = {"running", "up"}  # docker's word and podman's
# What must be rolled out before a cluster is called ready: namespace and workload.
_SYSTEM = (
    ("kube-system", "daemonset/kube-proxy"),
    ("kube-system", "daemonset/kindnet"),
    ("kube-system", "deployment/coredns"),
    ("local-path-storage", "deployment/local-path-provisioner"),
)


@dataclass(frozen=True)
class Status:
    """What there is of the cluster; `nodes` maps a node container's name to its state in the engine."""

    nodes: dict[str, str]
    complete: bool
    answers: bool

    @property
    def well(self) -> bool:
        """Whether it can be used as it is."""
        return self.complete and self.answers


def up() -> None:
    """Make the cluster unless it is there and well; what is left of a broken one is removed first.

    Raises `MachineUnfitError` before any work when this machine cannot run it. A cluster given by the user is
    only asked whether it answers.
    """
    given = external.given()
    if given is not None:
        _greet_external(given)
        return
    doctor.check_user()
    with cache.locked("cluster"):
        status = _status()
        chosen = _check(status)
        if status.well:
            say(f"The cluster {NAME!r} is up already; its kubeconfig is {kubeconfig()}")
            return
        debian.ensure_packages()
        _up(status, chosen)


def check() -> None:
    """Raise `MachineUnfitError` when this machine cannot run our own cluster; changes nothing."""
    _check(_status())


def _check(status: Status) -> Engine:
    """The engine that the cluster has, or is to be made with, on a machine that can run it."""
    chosen = _engine() if status.well else engine.choose()
    doctor.check(cluster_exists=bool(status.nodes), builds=engine.builds(chosen))
    return chosen


def _greet_external(given: external.External) -> None:
    nodes = output(["kubectl", "get", "nodes", "-o", "name"], env=env(), seconds_max=ANSWER_SECONDS_MAX)
    say(f"Using the given cluster of {given.kubeconfig} with {len(nodes.split())} nodes; nothing is created.")


def _up(before: Status, chosen: Engine) -> None:
    image = [] if chosen.published_image else ["--image", node_image.ensure()]
    _ensure_tools(chosen)
    if before.nodes:
        with step("remove what was left of a broken cluster"):
            _delete(engine.remembered() or chosen)
    engine.remember(chosen)
    with step(f"create the cluster: one control plane, {WORKERS} workers"):
        command = ["kind", "create", "cluster", "--name", NAME, "--config", str(_write_config()), *image]
        run([*command, "--wait", f"{READY_SECONDS_MAX}s"], _log(), env=env(), seconds_max=CREATE_SECONDS_MAX)
    with step("wait until all nodes and system pods are ready"):
        _wait()
    _mark().write_text("made\n", encoding="utf-8")
    say(f"The cluster {NAME!r} is up; its kubeconfig is {kubeconfig()}")


def _ensure_tools(chosen: Engine) -> None:
    if engine.builds(chosen):
        programs.ensure()


def _write_config() -> Path:
    path = cache.root() / "cluster" / "kind.json"
    mapping = {
        "containerPort": RESP_NODE_PORT,
        "hostPort": RESP_NODE_PORT,
        "listenAddress": RESP_HOST_ADDRESS,
    }
    config = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "networking": {
            "apiServerAddress": RESP_HOST_ADDRESS,
            "podSubnet": "10.245.0.0/16",
            "serviceSubnet": "10.97.0.0/16",
        },
        "nodes": [
            {"role": "control-plane", "extraPortMappings": [mapping]},
            *({"role": "worker"} for _ in range(WORKERS)),
        ],
    }
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")  # JSON is YAML too
    return path


def _wait() -> None:
    """kind's own `--wait` covers the control plane only."""
    limit = f"--timeout={READY_SECONDS_MAX}s"
    seconds_max = READY_SECONDS_MAX + ANSWER_SECONDS_MAX
    wait = ["kubectl", "wait", "--for=condition=Ready", "nodes", "--all", limit]
    run(wait, _log(), env=env(), seconds_max=seconds_max)
    for namespace, workload in _SYSTEM:
        rollout = ["kubectl", "--namespace", namespace, "rollout", "status", workload, limit]
        run(rollout, _log(), env=env(), seconds_max=seconds_max)


def down() -> None:
    """Remove the cluster with its volumes and its network. Nothing to remove is no error."""
    if external.given() is not None:
        raise ClusterError(
            "A cluster given by --kubeconfig is never removed; unset STELE_KUBECONFIG for the own one."
        )
    with cache.locked("cluster"):
        chosen = engine.remembered()
        if chosen is None and not _nodes(Engine("podman", published_image=False)):
            say(f"There is no cluster {NAME!r}.")
            return
        with step("remove the cluster"):
            _delete(chosen or Engine("podman", published_image=False))
            engine.forget()


def _delete(chosen: Engine) -> None:
    _ensure_tools(chosen)
    environment = engine.environment(chosen)
    _mark().unlink(missing_ok=True)
    run(
        ["kind", "delete", "cluster", "--name", NAME], _log(), env=environment, seconds_max=DELETE_SECONDS_MAX
    )
    if chosen.program != "podman":
        return  # docker drops the volumes with the containers, and the network may be another cluster's
    run(["podman", "volume", "prune", "--force"], _log(), env=environment)
    if succeeds(["podman", "network", "exists", "kind"], env=environment):
        run(["podman", "network", "rm", "kind"], _log(), env=environment)


def status() -> Status:
    """What there is of our own cluster; starts and changes nothing."""
    return _status()


def _engine() -> Engine:
    """The one that the cluster was made with, or would be found with."""
    return engine.remembered() or Engine("podman", published_image=False)


def _status() -> Status:
    chosen = _engine()
    nodes = _nodes(chosen)
    running = len(nodes) == WORKERS + 1 and set(nodes.values()) <= _RUNNING
    complete = running and _mark().is_file()
    ready = ["kubectl", "--request-timeout=10s", "get", "--raw", "/readyz"]
    answers = complete and succeeds(ready, env=engine.environment(chosen), seconds_max=ANSWER_SECONDS_MAX)
    return Status(nodes, complete, answers)


def _nodes(chosen: Engine) -> dict[str, str]:
    if shutil.which(chosen.program, path=podman.environment()["PATH"]) is None:
        return {}
    label = f"label=io.x-k8s.kind.cluster={NAME}"
    command = [chosen.program, "ps", "--all", "--filter", label, "--format", "{{.Names}} {{.State}}"]
    lines = output(command, env=engine.environment(chosen), seconds_max=ANSWER_SECONDS_MAX).splitlines()
    return dict(sorted((line.split()[0], line.split()[1].lower()) for line in lines if line.strip()))


@contextmanager
def paused() -> Iterator[None]:
    """Our own cluster stands still within the block, so that it takes nothing from what is measured there.

    It goes on afterwards, whatever happened, and is waited for. Nothing is done to a cluster that the user
    gave, and where none is up.
    """
    found = None if external.given() is not None else _status()
    if found is None or not found.answers:
        yield
        return
    chosen = _engine()
    names = list(found.nodes)
    say("The cluster stands still meanwhile.")
    run([chosen.program, "pause", *names], _log(), env=env(), seconds_max=PAUSE_SECONDS_MAX)
    try:
        yield
    finally:
        run([chosen.program, "unpause", *names], _log(), env=env(), seconds_max=PAUSE_SECONDS_MAX)
        _wait()


def stop_node(node: str) -> None:
    """Stop a node of our own cluster, and all that runs there, at once; its disk stays for `start_node`."""
    stop = [_engine().program, "stop", "--time", "0", node]
    run(stop, _log(), env=env(), seconds_max=PAUSE_SECONDS_MAX)


def start_node(node: str) -> None:
    """Let a stopped node join as a new one, with its disk and without taints, and wait until all is ready."""
    forget = ["kubectl", "delete", "node", node, "--ignore-not-found"]
    run(forget, _log(), env=env(), seconds_max=PAUSE_SECONDS_MAX)
    run([_engine().program, "start", node], _log(), env=env(), seconds_max=PAUSE_SECONDS_MAX)
    run(
        ["kubectl", "wait", "--for=create", f"node/{node}", f"--timeout={READY_SECONDS_MAX}s"],
        _log(),
        env=env(),
        seconds_max=READY_SECONDS_MAX + ANSWER_SECONDS_MAX,
    )
    _wait()


def kubeconfig() -> Path:
    """The kubeconfig of the cluster in use: the user's when given, else our own. It need not exist yet."""
    given = external.given()
    return external.kubeconfig(given) if given is not None else cache.root() / "cluster" / "kubeconfig"


def env() -> dict[str, str]:
    """The environment in which kubectl, helm, kind and the container engine speak to this cluster."""
    chosen = _engine()
    return {**engine.environment(chosen), "KUBECONFIG": str(kubeconfig())}


def load(image: str) -> None:
    """Bring an image of our own podman storage into every node; nodes that have it are left alone.

    `image` is a full name with tag, as `images.build` gives it. It gets the alias tag `dev` in the nodes too.
    """
    if external.given() is not None:
        raise ClusterError(
            "Images cannot be put into a given cluster; push them to a registry that it can pull from."
        )
    if not _mark().is_file():
        raise ClusterError("There is no cluster to load images into; run `python -m e2e.cluster up` first.")
    identity = images.identity(image)
    with cache.locked("load"):
        lacking = [node for node in status().nodes if not _node_has(node, image, identity)]
        if not lacking:
            say(f"every node has {image} already")
            return
        with step(f"load {image} into {len(lacking)} nodes"):
            _load(image, identity, lacking)


def _node_has(node: str, image: str, identity: str) -> bool:
    listing = output(_ctr(node, "images", "ls", f"name=={image}"), env=env(), seconds_max=ANSWER_SECONDS_MAX)
    return f"{_IMAGE_LABEL}={identity}" in listing


def _load(image: str, identity: str, nodes: list[str]) -> None:
    path = cache.root() / "work" / f"load-{os.getpid()}.tar"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        layout.export(image, path, _layers_in_all(nodes))
        command = ["kind", "load", "image-archive", str(path), "--name", NAME, "--nodes", ",".join(nodes)]
        run(command, _log(), env=env(), seconds_max=LOAD_SECONDS_MAX)
    finally:
        path.unlink(missing_ok=True)
    alias = images.alias(image)
    for node in nodes:
        if alias != image:
            run(_ctr(node, "images", "tag", "--force", image, alias), _log(), env=env())
        # The label belongs to the image in the node: when the kubelet drops the image, the label goes too.
        for name in {image, alias}:
            run(_ctr(node, "images", "label", name, f"{_IMAGE_LABEL}={identity}"), _log(), env=env())


def _layers_in_all(nodes: list[str]) -> set[str]:
    """Digests of all content that each of the nodes holds."""
    listings = [output(_ctr(node, "content", "ls", "--quiet"), env=env()) for node in nodes]
    return set.intersection(*(set(listing.split()) for listing in listings))


def _ctr(node: str, *words: str) -> list[str]:
    chosen = _engine()
    return [chosen.program, "exec", node, "ctr", "--namespace", "k8s.io", *words]


def _mark() -> Path:
    """Exists exactly while the cluster was made to the end."""
    return cache.root() / "cluster" / "complete"


def _log() -> Path:
    return cache.root() / "logs" / "cluster.log"
