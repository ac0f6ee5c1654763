"""The spec of a small cluster, where a test asks for nothing else."""

from dataclasses import replace
from typing import Any

from stele.core.control.failure_detector import Timing
from stele.core.control.state import DesiredSpec
from stele.master.desired import desired_spec_of
from stele.model import TabletCluster

TIMING = Timing(1.0, 3.0, 30.0)
OPEN: dict[str, Any] = {
    "clients": {"tls": "Off", "auth": "Off"},
    "members": {"tls": "Off"},
    "networkPolicy": {"enabled": False},
}
"""spec.security of a cluster whose members are fakes, or of a test that is about something else."""
MINIMAL = {
    "metadata": {"name": "demo"},
    "spec": {"members": 1, "storage": {"size": "1Gi"}, "security": OPEN},
}


def opened(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec, of which spec.security asks for no more than it says."""
    given = spec.get("security", {})
    return spec | {"security": given | {part: OPEN[part] | given.get(part, {}) for part in OPEN}}


def desired_spec(members: int = 3, replicas: int = 2, timing: Timing = TIMING, **changes: Any) -> DesiredSpec:
    """What is not given is as the model has it."""
    desired = desired_spec_of(TabletCluster.model_validate(MINIMAL))
    return replace(desired, members=members, replicas=replicas, timing=timing, **changes)
