"""Copying tablets: the ways of moving the same bytes, and a member joining three beside other systems."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.bench import copy_join, copy_plots, copy_tls, copy_ways, disk
from e2e.bench.report import NOT_MEASURED, Column, Goal, Report, Row, milliseconds, plain
from e2e.cluster import cache, kind

TITLE = "copying tablets, and a member joining three beside Hazelcast and Infinispan (30 minutes)"
MIB = 1 << 20
JOIN_BYTES = (64 * MIB, 256 * MIB, 1024 * MIB)
QUICK_JOIN_BYTES = (64 * MIB,)
P99_RATIO_MAX = 2.0
PAUSE_SECONDS_MAX = 0.05

_JOIN_NOTE = f"""\
safe: from when the members know of the joiner until every partition has owner and backup and nothing moves.
total: from when it was asked for. Clients: {copy_join.RATE} reads and {copy_join.RATE} writes per second,
each due at its moment whatever the last one took; in ms: p99 when nothing moves, then p50, p99 and longest
during the join, from the moment that a call was due; the longest call is from the moment that it was sent.
Stele's members write to disk and sync before they answer, the others keep all in memory. The systems have no
TLS and no passwords, but for {copy_join.SECURED}: a cluster as a user gets it who asks for nothing else."""


write = copy_plots.write


def mebibytes(value: int) -> str:
    """Bytes as MiB."""
    return plain(value // MIB)


def rate(value: float) -> str:
    """Bytes per second as MB/s."""
    return f"{value / 1e6:,.0f}"


def seconds(value: float) -> str:
    return f"{value:.2f}"


def run(report: Report, quick: bool) -> None:
    """Fill the report; raises BenchError and ClusterError when something outside is not as it must be."""
    with kind.paused():
        _joins(report, QUICK_JOIN_BYTES if quick else JOIN_BYTES)
        copy_tls.run(report, quick)
    copy_ways.run(report, quick)


def _joins(report: Report, sizes: Sequence[int]) -> None:
    columns = [
        Column("system", "system"),
        Column("data MiB", "data_bytes", mebibytes),
        Column("safe s", "safe_seconds", seconds),
        Column("total s", "total_seconds", seconds),
        Column("moved MiB", "moved_bytes", mebibytes),
        Column("MB/s", "bytes_per_second", rate),
    ]
    for operation in ("get", "set"):
        columns += [
            Column(f"{operation} quiet p99", f"quiet_{operation}_p99_seconds", milliseconds),
            Column("p50", f"join_{operation}_p50_seconds", milliseconds),
            Column("p99", f"join_{operation}_p99_seconds", milliseconds),
            Column("longest", f"join_{operation}_max_seconds", milliseconds),
            Column("longest call", f"join_{operation}_call_max_seconds", milliseconds),
        ]
    columns += [Column("failed", "failed"), Column("wrong", "wrong")]
    section = report.section(
        "A fourth member joins three, 16 KiB values, 271 partitions", columns, _JOIN_NOTE
    )
    for size in sizes:
        for system in copy_join.SYSTEMS:
            disk.until_idle(cache.root() / "work")
            section.rows.append(copy_join.measure(system, size))
    for size in sizes[:-1]:
        report.goals += safe_goals(section.rows, size)
    report.goals += [*join_goals(section.rows, sizes[-1]), secured_goal(section.rows, sizes[-1])]


def safe_goals(rows: Sequence[Row], data_bytes: int) -> list[Goal]:
    """How soon a join with so much data is safe; raises KeyError when a system was not measured."""
    seconds = {row["system"]: row["safe_seconds"] for row in rows if row["data_bytes"] == data_bytes}
    return [
        Goal(
            f"a join with {mebibytes(data_bytes)} MiB: safe sooner than {other.capitalize()}",
            f"{seconds['stele']:.2f} s, it {seconds[other]:.2f} s",
            seconds["stele"] < seconds[other],
        )
        for other in ("hazelcast", "infinispan")
    ]


def secured_goal(rows: Sequence[Row], data_bytes: int) -> Goal:
    """That TLS and passwords cost a join at most a quarter of its time."""
    seconds = {row["system"]: row["safe_seconds"] for row in rows if row["data_bytes"] == data_bytes}
    plain, secured = seconds["stele"], seconds[copy_join.SECURED]
    longest = copy_tls.TIME_RATIO_MAX
    text = f"a join with {mebibytes(data_bytes)} MiB and TLS: safe in at most {longest} of the time"
    return Goal(text, f"{secured:.2f} s, without {plain:.2f} s", secured <= longest * plain)


def join_goals(rows: Sequence[Row], data_bytes: int) -> list[Goal]:
    """The goals for a join with so much data; raises KeyError when a system was not measured."""
    found = {row["system"]: row for row in rows if row["data_bytes"] == data_bytes}
    ours, peers = found["stele"], (found["hazelcast"], found["infinispan"])
    size = f"{mebibytes(data_bytes)} MiB"
    goals = safe_goals(rows, data_bytes)
    for operation in ("get", "set"):
        goals += [_steady(ours, operation, size), _beside_peers(ours, peers, operation, size)]
    wrong = sum(row["wrong"] + row["failed"] for row in rows if row["system"] == "stele")
    return [*goals, Goal("no failed operation, no lost or old value", str(wrong), wrong == 0)]


def _steady(ours: Row, kind: str, size: str) -> Goal:
    quiet, during = ours[f"quiet_{kind}_p99_seconds"], ours[f"join_{kind}_p99_seconds"]
    longest = ours[f"join_{kind}_max_seconds"]
    times = f"{during / quiet:.1f} times" if quiet else NOT_MEASURED
    return Goal(
        f"{kind} during a join with {size}: p99 at most twice the quiet one, no pause over 50 ms",
        f"{milliseconds(during)} ms, {times}; longest {milliseconds(longest)} ms",
        during <= P99_RATIO_MAX * quiet and longest <= PAUSE_SECONDS_MAX,
    )


def _beside_peers(ours: Row, peers: Sequence[Row], operation: str, size: str) -> Goal:
    p99, call = f"join_{operation}_p99_seconds", f"join_{operation}_call_max_seconds"
    better_p99, better_call = (min(each[key] for each in peers) for key in (p99, call))
    text = f"{operation} during a join with {size}: p99 and longest call"
    return Goal(
        f"{text} at most the better peer's, none over 50 ms",
        f"{milliseconds(ours[p99])} and {milliseconds(ours[call])} ms; "
        f"{milliseconds(better_p99)} and {milliseconds(better_call)} ms",
        ours[p99] <= better_p99 and ours[call] <= min(better_call, PAUSE_SECONDS_MAX),
    )
