"""A podman of our own: storage, networks and settings below the cache; the user's podman is not touched."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from e2e.cluster import cache

# podman asks for 1048576 open files, which a machine without CAP_SYS_RESOURCE refuses to give.
OPEN_FILES_MAX = 20_000
PROCESSES_MAX = 32_768

_CONTAINERS_CONF = """\
[engine]
stop_timeout = 0
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "{run}/tmp"
[containers]
pids_limit = 0
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
log_driver = "k8s-file"
[network]
network_backend = "netavark"
network_config_dir = "{networks}"
"""
_STORAGE_CONF = """\
[storage]
driver = "overlay"
graphroot = "{graph}"
runroot = "{run}/root"
"""


def folder() -> Path:
    """Where this podman keeps images, containers and volumes."""
    return cache.root() / "podman"


def run_folder() -> Path:
    """Run-time state: below /run, as it must not survive a reboot, and short, as socket paths end at 108."""
    name = hashlib.sha256(str(cache.root()).encode()).hexdigest()[:8]
    return Path("/run") / f"stele-{name}"


def environment() -> dict[str, str]:
    """This process's environment, with podman and buildah led to the cache; writes their settings."""
    home = folder()
    home.mkdir(parents=True, exist_ok=True)
    values = {"run": run_folder(), "graph": home / "graph", "networks": home / "networks"}
    containers, storage = home / "containers.conf", home / "storage.conf"
    _write(containers, _CONTAINERS_CONF.format(files=OPEN_FILES_MAX, processes=PROCESSES_MAX, **values))
    _write(storage, _STORAGE_CONF.format(**values))
    return {
        **os.environ,
        "CONTAINERS_CONF": str(containers),
        "CONTAINERS_STORAGE_CONF": str(storage),
        "BUILDAH_ISOLATION": "chroot",
        "PATH": f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin",
    }


def _write(path: Path, text: str) -> None:
    # Renamed into place: another process or thread may be reading, or writing, the file at this moment.
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    aside = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    aside.write_text(text, encoding="utf-8")
    aside.rename(path)
