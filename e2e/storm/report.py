"""What a storm found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NOT_CONNECTED = "connections refused"
"""What is counted beside operations: none was sent."""


@dataclass
class Report:
    """What a storm found; its fields are what the file holds."""

    seed: int
    seconds: float
    began: str
    storm_seconds: float = 0.0
    operations: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    violations: list[dict[str, Any]] = field(default_factory=list)
    replicas: dict[str, int] = field(default_factory=dict)
    keys: int = 0
    members_read: int = 0
    well_after_seconds: float | None = None
    failure: str = ""

    @property
    def broken(self) -> bool:
        """Whether a promise was broken, or the cluster did not become well."""
        return bool(self.violations or self.replicas or self.failure)

    def lines(self) -> list[str]:
        """The report for people."""
        total = sum(count for name, count in self.operations.items() if name != NOT_CONNECTED)
        told = [
            f"seed {self.seed}: {self.storm_seconds:.0f} s, {total:,} operations, "
            f"{sum(self.faults.values())} faults ({sum(self.missed.values())} missed their victim)",
            f"operations: {_counts(self.operations)}",
            f"faults: {_counts(self.faults)}",
        ]
        if self.well_after_seconds is not None:
            told.append(
                f"well again after {self.well_after_seconds:.0f} s; "
                f"{self.keys} keys read through the ports of {self.members_read} members"
            )
        told += [f"{each['breach']}: {each['key']}: {each['detail']}" for each in self.violations]
        told += [f"replicas at the end: {_counts(self.replicas)}"] if self.replicas else []
        told += [f"failed: {self.failure}"] if self.failure else []
        return [*told, "A promise was broken." if self.broken else "Every promise was kept."]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
