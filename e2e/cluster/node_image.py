"""The image of the cluster's nodes, for an unmodified `kind create cluster`, made from packages."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import archive, cache, debian, lanes, podman, programs, rootfs
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import output, run, step, succeeds

RECIPE = programs.RECIPE / "node"
VERSION = f"v{programs.KUBERNETES_VERSION}"
BASE_PACKAGES = ("iptables", "nftables", "iproute2", "conntrack", "kmod", "ca-certificates", "procps")
NODE_SECONDS_MAX = 900.0
REMOVE_SECONDS_MAX = 60.0

# The names are those that kubeadm of this Kubernetes asks for; containerd wants the pause image as well.
_KUBERNETES = programs.KUBERNETES.programs[0]
_NODE_PROGRAMS = ("kubelet", "kubeadm", "kubectl")
_CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
_ETCD = "registry.k8s.io/etcd:3.6.5-0"
_COREDNS = "registry.k8s.io/coredns/coredns:v1.12.1"
_PAUSE = ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10.1")
_NETWORK = "localhost/kindnetd:local"
_PROVISIONER = "localhost/local-path-provisioner:local"
_HELPER = "localhost/local-path-helper:local"

# Manifests are Go constants in kind's sources: file there, constant, file here, values of its variables.
_MANIFESTS = (
    ("const_cni.go", "defaultCNIManifest", "default-cni.yaml", {"kindnetdImage": _NETWORK}),
    (
        "const_storage.go",
        "defaultStorageManifest",
        "default-storage.yaml",
        {"storageProvisionerImage": _PROVISIONER, "storageHelperImage": _HELPER},
    ),
)


def name() -> str:
    """Name and tag of the node image; the tag changes with its inputs."""
    sources = [Path(__file__), Path(archive.__file__)]
    key = cache.hash_inputs([RECIPE], sources, [programs.key(), rootfs.DEBIAN_SUITE, *BASE_PACKAGES])
    return f"localhost/kindest-node:{VERSION}-{key}"


def ensure() -> str:
    """The node image's name; makes the image first when its inputs changed."""
    image, env = name(), podman.environment()
    if succeeds(["podman", "image", "exists", image], env=env):
        return image
    debian.ensure_packages()
    with cache.locked("node-image"):
        if not succeeds(["podman", "image", "exists", image], env=env):
            _make(image, env)
    return image


def _make(image: str, env: Mapping[str, str]) -> None:
    with _work_folder() as work:
        root = work / "root"
        base, binaries = lanes.side_by_side(lambda: _fill(root), programs.ensure)
        with step("preload the control plane's images"):
            _add_programs(root, binaries)
            _preload(work, root, base, binaries)
        # Builds of our own images remove what has no name, and an image has none while it is imported.
        with cache.locked("images"), step("import the node image"):
            _import(root, image, env)
    _drop_older(image, env)


def _drop_older(image: str, env: Mapping[str, str]) -> None:
    """Remove earlier node images; podman refuses the one that a cluster runs on, which may stay."""
    listing = output(
        ["podman", "images", "--format", "{{.Repository}}:{{.Tag}}", image.rsplit(":", 1)[0]], env=env
    )
    for other in listing.split():
        if other != image:
            succeeds(["podman", "rmi", other], env=env, seconds_max=REMOVE_SECONDS_MAX)


@contextmanager
def _work_folder() -> Iterator[Path]:
    work = cache.root() / "work" / "node-image"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _fill(root: Path) -> Path:
    """Make the file system of a node, still without our programs; what it was copied from."""
    base = rootfs.ensure("node", BASE_PACKAGES)
    with step("make the node's file system"):
        sources = programs.kind_sources()
        run(["cp", "-a", "--reflink=auto", base, root], _log())
        env = {**os.environ, "ROOT": str(root), "KIND": str(sources), "VERSION": VERSION}
        run(["bash", RECIPE / "rootfs.sh"], _log(), env=env, seconds_max=NODE_SECONDS_MAX)
        for source, constant, target, names in _MANIFESTS:
            text = (sources / "pkg" / "build" / "nodeimage" / source).read_text(encoding="utf-8")
            (root / "kind" / "manifests" / target).write_text(
                go_constant(text, constant, names), encoding="utf-8"
            )
    return base


def _add_programs(root: Path, binaries: Path) -> None:
    place = root / "usr" / "bin"
    shutil.copy2(binaries / _KUBERNETES, place)
    programs.link(place, _NODE_PROGRAMS)


def go_constant(source: str, constant: str, names: Mapping[str, str]) -> str:
    """The text of a back-quoted Go constant that ends a file, with its variables replaced by `names`."""
    found = re.search(constant + r" = `(.*)`\s*\Z", source, re.DOTALL)
    if found is None:
        raise ClusterError(f"kind's sources hold no constant {constant}; this recipe fits kind v0.33.0 only.")
    text = found.group(1)
    for variable, value in names.items():
        text = text.replace(f"` + {variable} + `", value)
    if "` +" in text:
        raise ClusterError(f"kind's constant {constant} uses a variable that this recipe does not know.")
    return text


def _preload(work: Path, root: Path, base: Path, binaries: Path) -> None:
    tar = work / "images.tar"
    images = archive.Archive(work)
    ground = images.layer_of_folder(base)
    layer = images.layer_of_program(
        binaries / _KUBERNETES, f"usr/local/bin/{_KUBERNETES}", programs.KUBERNETES.links
    )
    images.add([f"registry.k8s.io/{program}:{VERSION}" for program in _CONTROL_PLANE], [ground, layer])
    images.add([_NETWORK], [ground, layer], ["/usr/local/bin/kindnetd"])
    for image, program, place in (
        (_ETCD, "etcd", "usr/local/bin/etcd"),
        (_COREDNS, "coredns", "coredns"),
        (_PROVISIONER, "local-path-provisioner", "usr/local/bin/local-path-provisioner"),
    ):
        layer = images.layer_of_program(binaries / program, place)
        images.add([image], [ground, layer], () if program == "etcd" else [f"/{place}"])
    images.add(_PAUSE, [images.layer_of_program(binaries / "pause", "pause")], ["/pause"])
    images.add([_HELPER], [ground], ["/bin/sh"])
    images.write(tar)
    env = {**os.environ, "ROOT": str(root), "TAR": str(tar), "RUN": str(podman.run_folder())}
    run(["bash", RECIPE / "preload.sh"], _log(), env=env, seconds_max=NODE_SECONDS_MAX)


def _import(root: Path, image: str, env: Mapping[str, str]) -> None:
    # kind mounts the host's /lib/modules into each node, and podman refuses when it is not there.
    Path("/lib/modules").mkdir(parents=True, exist_ok=True)
    changes = [
        'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]',
        "ENV container=docker",
        "STOPSIGNAL SIGRTMIN+3",
    ]
    options = " ".join(f"--change '{change}'" for change in changes)
    pipe = f"set -o pipefail; tar -C '{root}' --numeric-owner -cf - . | podman import -q {options} - {image}"
    run(["bash", "-c", pipe], _log(), env=env, seconds_max=NODE_SECONDS_MAX)


def _log() -> Path:
    return cache.root() / "logs" / "node-image.log"
