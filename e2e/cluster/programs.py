"""Builds every program of the cluster from source through the Go module proxy, once for each set of inputs.

The sources are pinned by the `go.mod` and `go.sum` files below `recipe/`. These are several Go modules on
purpose: helm and kind raise dependencies that Kubernetes 1.34 does not build with. Kubernetes stays at 1.34
and kind at 0.33 because later ones refuse cgroup v1.
"""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cache, debian
from e2e.cluster.steps import output, run, step

RECIPE = Path(__file__).parent / "recipe"
KUBERNETES_VERSION = "1.34.4"
LOCAL_PATH_PROVISIONER = "github.com/rancher/local-path-provisioner@v0.0.30"
GO_VERSION_MIN = (1, 26)
BUILD_SECONDS_MAX = 3600.0

_VERSION_PACKAGE = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.split(".")
_KUBERNETES_FLAGS = (
    f"-s -w -X {_VERSION_PACKAGE}.gitVersion=v{KUBERNETES_VERSION} -X {_VERSION_PACKAGE}.gitMajor={_MAJOR}"
    f" -X {_VERSION_PACKAGE}.gitMinor={_MINOR} -X {_VERSION_PACKAGE}.gitTreeState=clean"
)
_PLAIN_FLAGS = "-s -w"


@dataclass(frozen=True)
class Build:
    """One `go build` (or `go install`): what it makes, in which module of the recipe, from which packages."""

    title: str
    programs: tuple[str, ...]
    module: str
    packages: tuple[str, ...]
    flags: str = _PLAIN_FLAGS
    cgo: bool = True

    def command(self, folder: Path) -> list[str]:
        """The command that puts the programs into `folder`; a trailing `/` lets Go choose their names."""
        if not self.module:
            return ["go", "install", "-ldflags", self.flags, *self.packages]
        target = f"{folder}/" if len(self.programs) > 1 else f"{folder / self.programs[0]}"
        return ["go", "build", "-ldflags", self.flags, "-o", target, *self.packages]


_KUBERNETES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubeadm",
    "kubectl",
)
BUILDS = (
    Build(
        "build Kubernetes",
        _KUBERNETES,
        "k8s",
        tuple(f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES),
        _KUBERNETES_FLAGS,
    ),
    Build("build the pod network", ("kindnetd",), "k8s", ("./kindnetd",)),
    Build("build etcd", ("etcd",), "tools", ("go.etcd.io/etcd/server/v3",)),
    Build("build helm and kind", ("helm", "kind"), "tools", ("helm.sh/helm/v3/cmd/helm", "sigs.k8s.io/kind")),
    Build("build CoreDNS", ("coredns",), "coredns", (".",), cgo=False),
    Build(
        "build the volume provisioner",
        ("local-path-provisioner",),
        "",
        (LOCAL_PATH_PROVISIONER,),
        cgo=False,
    ),
)
NAMES = (*(name for build in BUILDS for name in build.programs), "pause")
TOOLS = ("helm", "kind", "kubectl")
"""What speaks to a cluster that is made of published images."""


def key() -> str:
    """The hash of everything that the programs are made from."""
    return cache.hash_inputs(
        folders=[RECIPE / name for name in ("k8s", "tools", "coredns", "pause")],
        values=[repr(BUILDS), platform.machine()],
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


def kind_sources() -> Path:
    """The unpacked module of kind: its node files and manifests are part of the node image."""
    module = RECIPE / "tools"
    output(["go", "mod", "download", "sigs.k8s.io/kind"], env=_environment(cgo=False), cwd=module)
    return Path(
        output(
            ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kind"],
            env=_environment(cgo=False),
            cwd=module,
        )
    )


def _make(folder: Path) -> None:
    target = folder / "bin"
    target.mkdir()
    log = cache.root() / "logs" / "programs.log"
    for build in BUILDS:
        hint = "about 5 minutes on two cores the first time" if build.module == "k8s" and build.cgo else ""
        with step(build.title, hint if len(build.programs) > 2 else ""):
            env = {**_environment(build.cgo), "GOBIN": str(target)}
            cwd = RECIPE / build.module
            run(build.command(target), log, env=env, cwd=cwd, seconds_max=BUILD_SECONDS_MAX)
    run(["gcc", "-Os", "-static", "-s", "-o", target / "pause", RECIPE / "pause" / "pause.c"], log)


def _environment(cgo: bool) -> dict[str, str]:
    # The user's own GOFLAGS must not change what is built; go.sum pins every module.
    env = {**os.environ, "GOFLAGS": "-buildvcs=false -mod=readonly", "GOWORK": "off"}
    return env if cgo else {**env, "CGO_ENABLED": "0"}
