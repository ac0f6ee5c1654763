"""What one run of the demo does: sizes, phases, names, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from e2e.cluster import kind
from e2e.demo import kube

OPERATOR_NAMESPACE = "stele-system"
RELEASE = "stele"
DEMO_NAMESPACE = "stele-demo"
SMOKE_NAMESPACE = "stele-smoke"
# One operator serves both, so that the smoke test does not disturb what is left of a demo.
NAMESPACES = (DEMO_NAMESPACE, SMOKE_NAMESPACE)
SMOKE_NODE_PORT = 30380
PROJECT = Path(__file__).resolve().parents[2]
CHART = PROJECT / "charts" / "stele"
EXAMPLE = PROJECT / "examples" / "cluster.yaml"
MEMBERS_MIN, MEMBERS_MAX = 1, 9

RECORDS_KEYSPACE = "packages"
PADDED_KEYSPACE = "padded"
LEDGER_KEYSPACE = "default"

READY_SECONDS_MAX = 300.0
SAFE_HELD_SECONDS = 1.0
RESTART_SECONDS_MAX = 180.0
ROLL_SECONDS_MAX = 600.0
DRAIN_SECONDS_MAX = 180
NO_SUCH_IMAGE = "localhost/stele-member:no-such-tag"
EVERY_NODE = {
    "podTemplate": {
        "tolerations": [{"key": kube.CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}],
    }
}
"""Members run on the control plane too: three nodes for three members."""
RESTARTED_AT = "stele.dev/restartedAt"
POLL_SECONDS = 0.25
# All moves of the scale-down may be over in five seconds.
KILL_POLL_SECONDS = 0.05


class PhaseName(StrEnum):
    """The phases in which clients run, in their order."""

    QUIET = "quiet"
    SCALE_UP = "scale-up"
    KILL_MEMBER = "kill-member"
    ROLLING_UPDATE = "rolling-update"
    UPGRADE = "upgrade"
    IMAGE_CHANGE = "image-change"
    EVICT = "evict"
    DRAIN_NODES = "drain-nodes"
    SCALE_DOWN = "scale-down"


COPY_NOTHING = (
    PhaseName.ROLLING_UPDATE,
    PhaseName.UPGRADE,
    PhaseName.IMAGE_CHANGE,
    PhaseName.EVICT,
    PhaseName.DRAIN_NODES,
)
# Nodes are drained only where each member has a node of its own, and images have a second tag only in kind.
PLANNED_STOPS_ONLY = COPY_NOTHING[1:]
ALL_PHASES = tuple(each for each in PhaseName if each not in PLANNED_STOPS_ONLY)
SMALL_PHASES = (PhaseName.QUIET, PhaseName.SCALE_UP, PhaseName.KILL_MEMBER, PhaseName.ROLLING_UPDATE)


@dataclass(frozen=True)
class Settings:
    """One run. `records_max` None means all; `rate` is operations per second of all clients together.

    The operator of `release` serves all namespaces of `watched`; its chart gets `values`, each NAME=VALUE.
    `partitions` and `engine` None leave what the example says; `spec` has further fields of the spec.
    `spark_expected`: so much is moved that a scale-up in which Spark copied no byte is a broken promise.
    """

    data: Path | None = None
    json: bool = False
    keep: bool = False
    members: int = 3
    phases: tuple[PhaseName, ...] = ALL_PHASES
    release: str = RELEASE
    operator_namespace: str = OPERATOR_NAMESPACE
    watched: tuple[str, ...] = NAMESPACES
    values: tuple[str, ...] = ()
    namespace: str = DEMO_NAMESPACE
    cluster: str = "demo"
    node_port: int = kind.RESP_NODE_PORT
    records_max: int | None = None
    padded_entries: int = 20_000
    quiet_seconds: float = 10.0
    clients: int = 8
    rate: float = 400.0
    images: str = ""
    live: bool = True
    safe_seconds_max: float = 900.0
    partitions: int | None = None
    engine: str | None = None
    spec: Mapping[str, Any] = field(default_factory=dict)
    spark_expected: bool = True

    @property
    def resource(self) -> str:
        """The cluster as kubectl names it."""
        return f"tabletcluster/{self.cluster}"

    @property
    def scaled_members(self) -> int:
        """Members after the scale-up."""
        return self.members + 1
