"""Checks before work begins: what this machine lacks to run the test cluster, each as one plain sentence.

`probe` looks at the machine; `problems` judges what was seen and touches nothing, so that every sentence is
tested without a machine that lacks something.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import cache, debian, programs
from e2e.cluster.errors import ClusterError, MachineUnfitError
from e2e.cluster.steps import output

GIBIBYTE = 1 << 30
DISK_FREE_BYTES_MIN = 15 * GIBIBYTE  # measured: nodes with their images 8, images 5, the rest 2
DISK_BUILD_BYTES = 7 * GIBIBYTE  # Go's caches, which most often lie on the same disk; none once all is built
DISK_FREE_WHEN_UP_BYTES_MIN = 3 * GIBIBYTE  # programs, images and nodes are there already
MEMORY_FREE_BYTES_MIN = 4 * GIBIBYTE  # the linker of kube-apiserver 2, the nodes 1, pods 1
HOST_PORTS = (30379,)
GO_SELF_UPDATING_MIN = (1, 21)  # from here on Go fetches a newer toolchain by itself
GO_SECONDS_MAX = 10.0
IMAGE_PYTHON = (3, 11)  # that of the images' Debian; wheels made by another Python would not fit


@dataclass(frozen=True)
class Facts:
    """What was seen of the machine. Sizes in bytes; `go_version` is empty when there is no Go."""

    system: str
    root: bool
    missing_packages: Sequence[str]
    can_install: bool
    go_version: tuple[int, ...]
    go_toolchain: str
    python_version: tuple[int, ...]
    ports_in_use: Sequence[tuple[int, str]]
    disk_free_bytes: int
    memory_free_bytes: int
    cache: str


def problems(facts: Facts, disk_free_bytes_min: int = DISK_FREE_BYTES_MIN, builds: bool = True) -> list[str]:
    """One sentence for each thing that is wrong, with what to do about it; empty when all is well.

    Go is wanted where this machine `builds` Kubernetes.
    """
    found = _user_problems(facts.system, facts.root)
    if facts.system != "Linux":
        return found
    if builds:
        found += _go_problems(facts)
    return [*found, *_program_problems(facts), *_room_problems(facts, disk_free_bytes_min)]


def _user_problems(system: str, root: bool) -> list[str]:
    if system != "Linux":
        return [
            f"The test cluster runs on Linux only, not on {system}; "
            "give a cluster of your own with --kubeconfig (and --context)."
        ]
    return [] if root else ["The test cluster needs root; run the same command as root (sudo -E)."]


def _go_problems(facts: Facts) -> list[str]:
    wanted = ".".join(map(str, programs.GO_VERSION_MIN))
    if not facts.go_version:
        return [f"Go is missing; install Go {wanted} or newer from https://go.dev/dl and put it on the PATH."]
    if facts.go_version < programs.GO_VERSION_MIN and not _updates_itself(facts):
        seen = ".".join(map(str, facts.go_version))
        return [f"Go {seen} is too old; install Go {wanted} or newer from https://go.dev/dl."]
    return []


def _program_problems(facts: Facts) -> list[str]:
    found = []
    if facts.missing_packages and not facts.can_install:
        names = " ".join(facts.missing_packages)
        found.append(f"Missing on this machine: {names}; install them as root with: apt-get install {names}.")
    return [*found, *python_problems(facts.python_version)]


def python_problems(version: tuple[int, ...]) -> list[str]:
    """One sentence when wheels made by this Python do not fit the images (PySpark has no ready one)."""
    if version == IMAGE_PYTHON:
        return []
    seen, wanted = ".".join(map(str, version)), ".".join(map(str, IMAGE_PYTHON))
    return [
        f"This is Python {seen}, and the images need wheels made by Python {wanted}; "
        f"remove .venv, make it anew with python{wanted} -m venv .venv, and run make again."
    ]


def _updates_itself(facts: Facts) -> bool:
    return facts.go_version >= GO_SELF_UPDATING_MIN and facts.go_toolchain == "auto"


def _room_problems(facts: Facts, disk_free_bytes_min: int) -> list[str]:
    found = [
        f"Port {port} of 127.0.0.1 is in use by {owner}; end that program, as the cluster needs the port."
        for port, owner in facts.ports_in_use
    ]
    if facts.disk_free_bytes < disk_free_bytes_min:
        found.append(
            f"Too little disk: {_gib(facts.disk_free_bytes)} free in {facts.cache}, "
            f"{_gib(disk_free_bytes_min)} needed; free some or set STELE_CACHE to a folder with more room."
        )
    if facts.memory_free_bytes < MEMORY_FREE_BYTES_MIN:
        found.append(
            f"Too little memory: {_gib(facts.memory_free_bytes)} available, "
            f"{_gib(MEMORY_FREE_BYTES_MIN)} needed; end other programs first."
        )
    return found


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIBIBYTE:.1f} GiB"


def check(
    cluster_exists: bool = False, packages: Mapping[str, str] = debian.PACKAGES, builds: bool = True
) -> None:
    """Raise `MachineUnfitError` with every problem of this machine, one a line; return when there is none.

    When the cluster is there, its port is in use by itself and most of the disk is spent already.
    """
    facts = probe(() if cluster_exists else HOST_PORTS, packages)
    found = problems(facts, _disk_needed_bytes(cluster_exists, builds), builds)
    if found:
        raise MachineUnfitError("\n".join(found))


def _disk_needed_bytes(cluster_exists: bool, builds: bool) -> int:
    if cluster_exists:
        return DISK_FREE_WHEN_UP_BYTES_MIN
    return DISK_FREE_BYTES_MIN + (DISK_BUILD_BYTES if builds and not programs.built() else 0)


def check_user() -> None:
    """The first part of `check`, which reads no file: an unfit user may not even see the cache."""
    found = _user_problems(platform.system(), os.geteuid() == 0)
    if found:
        raise MachineUnfitError("\n".join(found))


def probe(ports: Sequence[int] = HOST_PORTS, packages: Mapping[str, str] = debian.PACKAGES) -> Facts:
    """Look at this machine; changes nothing."""
    place = _existing(cache.root())
    version, toolchain = _go()
    return Facts(
        system=platform.system(),
        root=os.geteuid() == 0,
        missing_packages=debian.missing_packages(packages),
        can_install=debian.can_install(),
        go_version=version,
        go_toolchain=toolchain,
        python_version=sys.version_info[:2],
        ports_in_use=[(port, _owner(port)) for port in ports if _in_use(port)],
        disk_free_bytes=shutil.disk_usage(place).free,
        memory_free_bytes=_memory_free_bytes(),
        cache=str(cache.root()),
    )


def _existing(path: Path) -> Path:
    """The folder itself or the nearest one above it that is there, as far as this user may see."""
    while not os.access(path, os.F_OK):
        path = path.parent
    return path


def _go() -> tuple[tuple[int, ...], str]:
    try:
        lines = output(["go", "env", "GOVERSION", "GOTOOLCHAIN"], seconds_max=GO_SECONDS_MAX).splitlines()
    except ClusterError:
        return (), ""
    found = re.match(r"go(\d+)\.(\d+)", lines[0] if lines else "")
    return (int(found[1]), int(found[2])) if found else (), lines[1] if len(lines) > 1 else ""


def _in_use(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe_socket:
        probe_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe_socket.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _owner(port: int) -> str:
    """Name and id of the process that listens on a TCP port, as far as this process may see it."""
    inodes = {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in (line.split() for line in _lines(table)[1:])
        if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port
    }
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*"):
        if _links(process / "fd") & sockets:
            name = " ".join(_lines(process / "comm")) or "a process"
            return f"{name} (process {process.name})"
    return "another program"


def _links(folder: Path) -> set[str]:
    try:
        return {_link(path) for path in folder.iterdir()}
    except OSError:
        return set()  # the process has ended, or is another user's


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed meanwhile


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _memory_free_bytes() -> int:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
