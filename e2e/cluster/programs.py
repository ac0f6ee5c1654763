"""Builds every program of the cluster from source through the Go module proxy, once for each set of inputs.

The sources are pinned by the `go.mod` and `go.sum` files below `recipe/`. What builds with the libraries of
Kubernetes 1.34 is in its Go module, so that they are compiled once: the volume provisioner, and helm, which
stays at 3.19. CoreDNS of that Kubernetes has older ones. Kubernetes stays at 1.34 and kind at 0.33 because
later ones refuse cgroup v1. All programs of Kubernetes are one file with a link for each name.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cache, debian, lanes
from e2e.cluster.steps import output, run, step

RECIPE = Path(__file__).parent / "recipe"
KUBERNETES_VERSION = "1.34.4"
GO_VERSION_MIN = (1, 26)
BUILD_SECONDS_MAX = 3600.0

_VERSION_PACKAGE = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.split(".")
_KUBERNETES_FLAGS = (
    f"-s -w -X {_VERSION_PACKAGE}.gitVersion=v{KUBERNETES_VERSION} -X {_VERSION_PACKAGE}.gitMajor={_MAJOR}"
    f" -X {_VERSION_PACKAGE}.gitMinor={_MINOR} -X {_VERSION_PACKAGE}.gitTreeState=clean"
)
_PLAIN_FLAGS = "-s -w"
COMPILER_FLAGS = "-gcflags=all=-dwarf=false"
"""Nothing for debuggers, which the linker would drop: a tenth of the compiler's time."""


@dataclass(frozen=True)
class Build:
    """One `go build`: what it makes, in which module of the recipe, from which packages.

    `links` are further names of its first program, which does what the name says by which it is run.
    """

    title: str
    programs: tuple[str, ...]
    module: str
    packages: tuple[str, ...]
    flags: str = _PLAIN_FLAGS
    links: tuple[str, ...] = ()

    def command(self, folder: Path) -> list[str]:
        """The command that puts the programs into `folder`; a trailing `/` lets Go choose their names."""
        target = f"{folder}/" if len(self.programs) > 1 else f"{folder / self.programs[0]}"
        return ["go", "build", COMPILER_FLAGS, "-ldflags", self.flags, "-o", target, *self.packages]


KUBERNETES = Build(
    "build Kubernetes and helm",
    ("kubernetes", "helm"),
    "k8s",
    (".", "helm.sh/helm/v3/cmd/helm"),
    _KUBERNETES_FLAGS,
    (
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "kubelet",
        "kubeadm",
        "kubectl",
        "kindnetd",
    ),
)
PROVISIONER = Build(
    "build the volume provisioner",
    ("local-path-provisioner",),
    "k8s",
    ("github.com/rancher/local-path-provisioner",),
)
"""A build of its own: it imports a module by a name that others write in lower case."""
OTHERS = (
    Build("build etcd", ("etcd",), "tools", ("go.etcd.io/etcd/server/v3",)),
    Build("build kind", ("kind",), "tools", ("sigs.k8s.io/kind",)),
    Build("build CoreDNS", ("coredns",), "coredns", (".",)),
)
BUILDS = (KUBERNETES, PROVISIONER, *OTHERS)
NAMES = (*(name for build in BUILDS for name in (*build.programs, *build.links)), "pause")
TOOLS = ("helm", "kind", "kubectl")
"""What speaks to a cluster that is made of published images."""
_SETTINGS = {
    # The user's own GOFLAGS must not change what is built; go.sum pins every module.
    "GOFLAGS": "-buildvcs=false -mod=readonly",
    "GOWORK": "off",
    # Programs that need no C library run on every node; and the standard library is compiled in one way only.
    "CGO_ENABLED": "0",
}


def key() -> str:
    """The hash of everything that the programs are made from."""
    return cache.hash_inputs(
        folders=[RECIPE / name for name in ("k8s", "tools", "coredns", "pause")],
        values=[repr(BUILDS), repr(_SETTINGS), platform.machine()],
    )


def built() -> bool:
    """Whether the programs of the present inputs are in the cache."""
    return (cache.root() / "programs" / key()).is_dir()


def tools_installed() -> bool:
    """Whether all of `TOOLS` are on the user's PATH."""
    return all(shutil.which(name) is not None for name in TOOLS)


def ensure() -> Path:
    """The folder that holds all of `NAMES`; builds them first when their inputs changed.

    Packages of the host that are missing are installed in any case: what was built needs them to run.
    """
    debian.ensure_packages()
    return cache.entry("programs", key(), _make) / "bin"


def separate(build: Build) -> Path:
    """The folder with the programs of a build that no cluster needs; builds them when their inputs changed.

    They have a key of their own: what clusters run is not built again when they change.
    """
    key = cache.hash_inputs(
        folders=[RECIPE / build.module], values=[repr(build), repr(_SETTINGS), platform.machine()]
    )
    return cache.entry("separate-programs", key, lambda folder: _build(build, folder))


def kind_sources() -> Path:
    """The unpacked module of kind: its node files and manifests are part of the node image."""
    module, name = RECIPE / "tools", "sigs.k8s.io/kind"
    output(["go", "mod", "download", name], env=_environment(), cwd=module)
    return Path(output(["go", "list", "-m", "-f", "{{.Dir}}", name], env=_environment(), cwd=module))


def link(folder: Path, names: Sequence[str] = KUBERNETES.links) -> None:
    """Give the program of Kubernetes in `folder` these names."""
    for name in names:
        (folder / name).symlink_to(KUBERNETES.programs[0])


def _make(folder: Path) -> None:
    target = folder / "bin"
    target.mkdir()
    lanes.side_by_side(lambda: _make_kubernetes(target), lambda: _make_others(target))


def _make_kubernetes(target: Path) -> None:
    # The library first, and once: builds that run at the same time would each compile it.
    lanes.side_by_side(_compile_library, lambda: _download(KUBERNETES.module))
    _build(KUBERNETES, target, "about 12 minutes on two cores the first time")
    link(target)
    _build(PROVISIONER, target)


def _compile_library() -> None:
    with step("compile Go's standard library"):
        _go(["go", "build", COMPILER_FLAGS, "std"], "std", RECIPE / KUBERNETES.module)


def _make_others(target: Path) -> None:
    for module in dict.fromkeys(build.module for build in OTHERS):
        _download(module)
    for build in OTHERS:
        _build(build, target)
    source = RECIPE / "pause" / "pause.c"
    run(["gcc", "-Os", "-static", "-s", "-o", target / "pause", source], _log("pause"))


def _download(module: str) -> None:
    with step(f"download the Go modules of {module}"):
        _go(["go", "mod", "download"], module, RECIPE / module)


def _build(build: Build, target: Path, hint: str = "") -> None:
    with step(build.title, hint):
        _go(build.command(target), build.module, RECIPE / build.module)


def _go(command: list[str], name: str, cwd: Path) -> None:
    run(command, _log(name), env=_environment(), cwd=cwd, seconds_max=BUILD_SECONDS_MAX)


def _log(name: str) -> Path:
    """A log for each of those that work side by side."""
    return cache.root() / "logs" / f"programs-{name}.log"


def _environment() -> dict[str, str]:
    return {**os.environ, **_SETTINGS}
