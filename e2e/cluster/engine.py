"""Which container engine runs the nodes, and whether it can pull kind's own node image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from e2e.cluster import cache, podman, programs
from e2e.cluster.steps import output, succeeds

# The default image of the pinned kind. Its Kubernetes needs cgroup v2.
PUBLISHED_IMAGE = "docker.io/kindest/node:v1.37.0"
CGROUP_V2 = Path("/sys/fs/cgroup/cgroup.controllers")
"""Is there where podman's containers get cgroup v2."""
ANSWER_SECONDS_MAX = 5.0
REGISTRY_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class Engine:
    """The engine's program, and whether the nodes run kind's published image rather than our own."""

    program: str
    published_image: bool


def choose() -> Engine:
    """Docker or podman where one of them can pull the published image, else podman with our own image."""
    if _docker_can_pull():
        return Engine("docker", published_image=True)
    return Engine("podman", published_image=_podman_can_pull())


def builds(engine: Engine) -> bool:
    """Whether Kubernetes and its tools are built here: not where others published the nodes' image, and the
    tools are on the PATH.
    """
    return not (engine.published_image and programs.tools_installed())


def remember(engine: Engine) -> None:
    """Note the engine that a cluster is made with, so that later commands speak to the same one."""
    path = _memory()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(engine)), encoding="utf-8")


def remembered() -> Engine | None:
    """The engine of the cluster that was made last, or None."""
    try:
        return Engine(**json.loads(_memory().read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def forget() -> None:
    """Called when the cluster is gone."""
    _memory().unlink(missing_ok=True)


def environment(engine: Engine) -> dict[str, str]:
    """The environment for kind, the engine, kubectl and helm."""
    env = podman.environment()
    binaries = cache.root() / "programs" / programs.key() / "bin"
    return {
        **env,
        "KIND_EXPERIMENTAL_PROVIDER": engine.program,
        "KUBECONFIG": str(cache.root() / "cluster" / "kubeconfig"),
        "PATH": f"{binaries}:{env['PATH']}",
    }


def _memory() -> Path:
    return cache.root() / "cluster" / "engine.json"


def _docker_can_pull() -> bool:
    if not succeeds(["docker", "version"], seconds_max=ANSWER_SECONDS_MAX):
        return False
    version = output(["docker", "info", "--format", "{{.CgroupVersion}}"], seconds_max=ANSWER_SECONDS_MAX)
    return version == "2" and _registry_has(["docker", "manifest", "inspect", PUBLISHED_IMAGE])


def _podman_can_pull() -> bool:
    if not CGROUP_V2.exists():
        return False
    return _registry_has(["podman", "manifest", "inspect", PUBLISHED_IMAGE], podman.environment())


def _registry_has(command: list[str], env: Mapping[str, str] | None = None) -> bool:
    return succeeds(command, env=env, seconds_max=REGISTRY_SECONDS_MAX)
