"""The spec of a small cluster, where a test asks for nothing else."""

from typing import Any

from stele.core.control.failure_detector import Timing
from stele.core.control.state import DesiredSpec

TIMING = Timing(1.0, 3.0, 30.0)


def desired_spec(members: int = 3, replicas: int = 2, timing: Timing = TIMING, **changes: Any) -> DesiredSpec:
    usual = {
        "state": "Active",
        "held": False,
        "migration_paused": False,
        "parallel_per_member": 10,
        "approval": "Automatic",
        "on_partition_loss": "Wait",
        "engine": "Auto",
        "spark_threshold_bytes": 64 << 20,
        "spark_idle_seconds": 300.0,
        "fragments": True,
        "bandwidth_per_member": 0,
    }
    return DesiredSpec(members, replicas, timing, **(usual | changes))
