"""How much memory an entry takes in three members, beside Hazelcast and Infinispan: a part of `steady`."""

from __future__ import annotations

from e2e.bench import peers
from e2e.bench.report import Report
from e2e.bench.steady import FULL, QUICK, measure_memory
from e2e.bench.steady_goals import memory_goal
from e2e.bench.steady_table import Found, memory_section

TITLE = "memory of an entry in three members, beside Hazelcast and Infinispan (4 minutes; quick: 1)"


def run(report: Report, quick: bool) -> None:
    """Write the entries to each system, read some, and see what its servers use more than before."""
    peers.check_java()
    found = Found()
    try:
        measure_memory(found, QUICK if quick else FULL)
    finally:
        memory_section(report, found)
        report.goals.append(memory_goal(found.memory))
