"""Every kind of planned stop, while clients read and write: a rolling update, an upgrade of everything, an
image that does not exist and another one that does, an eviction of each member, and a drain of each worker.

python -m e2e.scenarios.planned_stops
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from e2e.cluster import cache
from e2e.cluster.command_line import exit_code_of
from e2e.demo import stage
from e2e.demo.main import run as run_demo
from e2e.demo.report import Result, show
from e2e.demo.settings import COPY_NOTHING, EVERY_NODE, PhaseName
from e2e.scenarios import smoke

# As many as nodes: volumes stay on their node, so a member of a drained one waits until it is back.
MEMBERS = 3


def run(data: Path | None = None) -> Result:
    """The result. Its TabletCluster and volumes are removed afterwards."""
    phases = (PhaseName.QUIET, *COPY_NOTHING)
    wanted = replace(
        smoke.settings(data),
        members=MEMBERS,
        phases=phases,
        spark_expected=False,
        engine="Direct",
        spec=EVERY_NODE,
    )
    try:
        result, _ = run_demo(wanted)
        return result
    finally:
        stage.clear(wanted.namespace, wanted.cluster, cache.root() / "logs" / "planned-stops.log")


def main() -> int:
    """Print the result; 1 when a promise was broken, or the run failed."""
    return exit_code_of(_shown, "Interrupted.")


def _shown() -> int:
    result = run()
    show(result)
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
