"""Judges what the API server says of a TabletCluster and its rebalances. Pure: JSON objects in, values
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MIGRATION_TYPES = ("move", "copy", "shiftUp", "shiftDown", "swap")
# Of a plan that was given up, what it did not do is planned again by its successor.
_GIVEN_UP = ("Superseded", "Failed", "Cancelling")
Json = Mapping[str, Any]


def unsafe_reason(cluster: Json, members: int) -> str:
    """Why the cluster is not at rest and safe with so many members; empty when it is."""
    status: Json = cluster.get("status") or {}
    counts, partitions = status.get("members") or {}, status.get("partitions") or {}
    migrations: Json = status.get("migrations") or {}
    under_way = migrations.get("active", 0) + migrations.get("waiting", 0)
    total, safe = partitions.get("total", 0), partitions.get("safe", 0)
    if status.get("observedGeneration", 0) != cluster["metadata"]["generation"]:
        return "the operator has not seen the newest spec"
    if counts.get("ready", 0) != members or counts.get("current", members) != members:
        return f"{counts.get('ready', 0)} of {counts.get('current', 0)} members ready, {members} wanted"
    if not total or safe != total:
        return f"{safe} of {total} partitions safe"
    if under_way:
        return f"{under_way} migrations under way"
    balanced = condition(cluster, "Balanced")
    if balanced.get("status") != "True":
        return f"not balanced: {balanced.get('message') or balanced.get('reason') or 'no such condition'}"
    return ""


def condition(resource: Json, type_: str) -> Json:
    """The condition of that type; empty when it is not set."""
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == type_), {})


def conditions_text(resource: Json) -> str:
    """All conditions that are not as one wishes, for people."""
    wrong = [
        f"{each['type']}={each['status']} ({each['reason']}: {each.get('message', '')})"
        for each in (resource.get("status") or {}).get("conditions") or ()
        if (each["status"] == "True")
        == (each["type"] in {"Degraded", "DataLoss", "Stalled", "Paused", "Reconciling"})
    ]
    return "; ".join(wrong)


@dataclass(frozen=True)
class Moves:
    """Migrations and copied bytes of one span of time, or of all that is planned in it."""

    planned: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    bytes_planned: int = 0
    bytes_copied: int = 0
    bytes_by_spark: int = 0
    bytes_per_second: int = 0
    eta_seconds: int | None = None
    engines: tuple[str, ...] = ()

    @property
    def fraction_done(self) -> float:
        """Done migrations of those planned; 0 when nothing is planned."""
        total = self.planned.total()
        return self.done.total() / total if total else 0.0


class MoveTracker:
    """Adds the rebalances up that ran since the tracker was made, also those that the operator has dropped
    since.

    A rebalance that was there already counts with what it did after the first `observe`.
    """

    def __init__(self, before: Iterable[Json]) -> None:
        self._before = {each["metadata"]["name"]: each.get("status") or {} for each in before}
        self._after: dict[str, Json] = {}

    def observe(self, rebalances: Iterable[Json]) -> None:
        """Take the newest statuses in. Dry runs move nothing and do not count."""
        for each in rebalances:
            if (each.get("spec") or {}).get("mode", "Execute") == "Execute" and each.get("status"):
                self._after[each["metadata"]["name"]] = each["status"]

    def moves(self) -> Moves:
        """The sum so far."""
        parts = [(status, self._before.get(name, {})) for name, status in self._after.items()]
        running = [status for status, _ in parts if status.get("phase") in ("Pending", "Running")]
        return Moves(
            planned=self._counts(parts, "planned"),
            done=self._counts(parts, "done"),
            failed=self._sum(parts, "failed"),
            bytes_planned=self._sum(parts, "bytesPlanned"),
            bytes_copied=self._sum(parts, "bytesCopied"),
            bytes_by_spark=self._sum(parts, "bytesBySpark"),
            bytes_per_second=sum(each.get("throughputBytesPerSecond", 0) for each in running),
            eta_seconds=max((each["etaSeconds"] for each in running if "etaSeconds" in each), default=None),
            engines=tuple(sorted({each["engine"] for each, _ in parts if each.get("engine")})),
        )

    def refusal(self) -> str:
        """Why a migration of the newest plan that tells any waits or was refused; empty when none tells."""
        for status in reversed(self._after.values()):
            for refusal in status.get("refusals") or ():
                where = f"partition {refusal['partition']}: " if "partition" in refusal else ""
                return f"{where}{refusal['reason']} {refusal.get('message', '')}"
        return ""

    @staticmethod
    def _sum(parts: Iterable[tuple[Json, Json]], name: str) -> int:
        return sum(after.get(name, 0) - before.get(name, 0) for after, before in parts)

    @staticmethod
    def _counts(parts: Iterable[tuple[Json, Json]], name: str) -> Counter[str]:
        """By type. Of a plan that was there before, what was done before is not part of this span."""
        counts: Counter[str] = Counter()
        for after, before in parts:
            earlier = before.get("done") or {}
            source = "done" if after.get("phase") in _GIVEN_UP else name
            for type_ in MIGRATION_TYPES:
                counts[type_] += (after.get(source) or {}).get(type_, 0) - earlier.get(type_, 0)
        return +counts
