"""What bench-steady is to show, out of the rows of its tables."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.bench.report import NOT_MEASURED, Goal, Row, factor
from e2e.bench.steady_table import CASES, LETTUCE, PEERS, SMART, Case
from e2e.bench.timing import ratio

READS_OF_PEER_MIN, READS_OF_REDIS_MIN = 1.5, 0.8
WRITES_OF_PEER_MIN = 1.0
LARGE_WRITES_OF_DISK_MIN = 0.6
MEMORY_OF_PEER_MAX = 1.0
_CLIENTS = {SMART: "Jedis", LETTUCE: "Lettuce"}
_SMALL_BYTES = 1024

Bounds = dict[str, tuple[str, float]]
"""By the key of a ratio in a row: what it compares with, and what it is to be at least."""
_READS: Bounds = {
    "of_better_peer": ("the better peer", READS_OF_PEER_MIN),
    "of_redis": ("redis-server", READS_OF_REDIS_MIN),
}
_WRITES: Bounds = {"of_better_peer": ("the better peer", WRITES_OF_PEER_MIN)}
_LARGE_WRITES: Bounds = {"of_disk": ("what the disk allows", LARGE_WRITES_OF_DISK_MIN)}


def goals(rows: Sequence[Row], memory: Sequence[Row]) -> list[Goal]:
    """Each goal, what was found, and by how much it was missed; one that was not measured is missed."""
    found = {(row["work"], row["connections"], row["system"]): row for row in rows}
    requests = [
        _requests(case, client, found.get((str(case), case.connections, system), {}))
        for case in CASES
        for system, client in _CLIENTS.items()
    ]
    return [*requests, memory_goal(memory)]


def _requests(case: Case, client: str, row: Row) -> Goal:
    """The lower of several bounds is enough."""
    bounds = _bounds(case)
    shown = " or ".join(f"{factor(least)} of {name}" for name, least in bounds.values())
    lower = ", whichever is lower" if len(bounds) > 1 else ""
    text = f"{case}, {case.connections} connections, {client}: at least {shown}{lower}"
    ratios = {key: row[key] for key in bounds if row.get(key) is not None}
    if len(ratios) < len(bounds):
        return Goal(text, NOT_MEASURED, met=False)
    reached = max(ratios[key] / least for key, (_, least) in bounds.items())
    figures = ", ".join(f"{factor(ratios[key])} of {name}" for key, (name, _) in bounds.items())
    return Goal(text, figures + _missed(1 - reached), reached >= 1)


def _bounds(case: Case) -> Bounds:
    if case.operation == "get":
        return _READS
    return _WRITES if case.size_bytes < _SMALL_BYTES else _LARGE_WRITES


def memory_goal(rows: Sequence[Row]) -> Goal:
    """What an entry takes in memory, out of one row for each system."""
    per_entry = {row["system"]: row["bytes_per_entry"] for row in rows}
    text = f"memory of an entry of 100 B: at most {factor(MEMORY_OF_PEER_MAX)} of the better peer's"
    ours, peers = per_entry.get(SMART), [per_entry[name] for name in PEERS if name in per_entry]
    of_peer = ratio(ours, min(peers, default=None))
    if ours is None or of_peer is None or len(peers) < len(PEERS):
        return Goal(text, NOT_MEASURED, met=False)
    figures = f"{factor(of_peer)}: {ours:,.0f} and {min(peers):,.0f} bytes"
    share = of_peer / MEMORY_OF_PEER_MAX
    return Goal(text, figures + _missed(share - 1), share <= 1)


def _missed(by: float) -> str:
    return f"; missed by {by:.1%}" if by > 0 else ""
