"""The small run: create, write, scale up, kill, verify, announce node ports, delete a user, change the CA.

In a namespace of its own, on a cluster that stays usable.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from e2e.cluster import cache
from e2e.demo import main, stage
from e2e.demo.__main__ import shrink
from e2e.demo.report import Result
from e2e.demo.settings import SMALL_PHASES, SMOKE_NAMESPACE, SMOKE_NODE_PORT, Settings
from e2e.scenarios import announced, rotation, users

CLUSTER = "smoke"
# So few that each tablet holds more than its owner would send from its log: all of them have to be copied.
PARTITIONS = 31


class Afterwards(NamedTuple):
    """The small run, what a client outside of the pod network saw, what became of a user and of the CA."""

    result: Result
    client: announced.Outcome
    user: users.Outcome
    rotation: rotation.Outcome


def settings(data: Path | None = None) -> Settings:
    """The small run beside whatever a demo left: another namespace, name and port.

    Spark copies, where the API server allows nothing but executors.
    """
    small = shrink(
        Settings(
            data=data,
            phases=SMALL_PHASES,
            namespace=SMOKE_NAMESPACE,
            cluster=CLUSTER,
            node_port=SMOKE_NODE_PORT,
            live=False,
            values=("admissionPolicies.enabled=true",),
        )
    )
    return replace(small, partitions=PARTITIONS, engine="Spark", spark_expected=True)


def run(data: Path | None = None) -> Afterwards:
    """The result, and what was done with the cluster afterwards.

    The TabletCluster and its volumes are removed, the operator and its namespace stay.
    """
    wanted = settings(data)
    try:
        result, _ = main.run(wanted)
        return Afterwards(result, announced.run(wanted), users.run(wanted), rotation.run(wanted))
    finally:
        stage.clear(wanted.namespace, wanted.cluster, cache.root() / "logs" / "smoke.log")
