"""The packages of the host that the cluster needs, installed when missing and this is a Debian machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster import cache
from e2e.cluster.errors import MachineUnfitError
from e2e.cluster.steps import run, step

# A program that shows that a package is there, for each package: no package manager needs to be asked.
PACKAGES = {
    "podman": "podman",
    "conmon": "conmon",
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "conntrack": "conntrack",
    "jq": "jq",
    "gcc": "gcc",
    "containernetworking-plugins": "/usr/lib/cni/bridge",
    "netavark": "/usr/lib/podman/netavark",
    "aardvark-dns": "/usr/lib/podman/aardvark-dns",
    "ca-certificates": "/etc/ssl/certs/ca-certificates.crt",
    "libc6-dev": "/usr/include/stdio.h",
    "iptables": "iptables",
    # Clients that are not ours, for the tests and the steps by hand.
    "redis-tools": "redis-cli",
    # Redis' own tests are written in Tcl.
    "tcl": "tclsh",
}
# What tests use that need no cluster: clients of others, and what builds them. (Go is no package here, as
# Debian's is too old.)
TEST_PACKAGES = {
    "chromium": "chromium",
    "default-jdk-headless": "javac",
    "lua5.1": "lua5.1",
    "maven": "mvn",
    "prometheus": "promtool",
    "prometheus-redis-exporter": "prometheus-redis-exporter",
}
INSTALL_SECONDS_MAX = 900.0
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def present(sign: str) -> bool:
    """Whether a program (by name) or a file (by absolute path) is on this machine."""
    return (
        Path(sign).exists() if sign.startswith("/") else shutil.which(sign, path=_search_path()) is not None
    )


def missing_packages(packages: Mapping[str, str] = PACKAGES) -> list[str]:
    """Names of the packages that are not there, in a fixed order."""
    return [package for package, sign in packages.items() if not present(sign)]


def can_install() -> bool:
    """Whether this process may install packages here: root, on a machine with apt."""
    return os.geteuid() == 0 and present("apt-get")


def ensure_packages(packages: Mapping[str, str] = PACKAGES) -> None:
    """Install what is missing. Nothing is asked and nothing installed when all is there."""
    missing = missing_packages(packages)
    if not missing:
        return
    if not can_install():
        raise MachineUnfitError(
            f"These packages are missing: {' '.join(missing)}. Install them (apt-get install) as root."
        )
    with cache.locked("apt"):
        if missing := missing_packages(packages):  # Another may have installed them meanwhile.
            _install(missing)


def _install(missing: Sequence[str]) -> None:
    log = cache.root() / "logs" / "apt.log"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": _search_path()}
    with step(f"install packages: {' '.join(missing)}"):
        run(["apt-get", "-qq", "update"], log, env=env, seconds_max=INSTALL_SECONDS_MAX)
        install = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing]
        run(install, log, env=env, seconds_max=INSTALL_SECONDS_MAX)


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}"
