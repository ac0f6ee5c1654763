"""Members leave, join, stop and are lost, with data and load, as the benchmark of Hazelcast's *Parallel
Independent Migrations* (docs/design/index.md) has it, which is the seed of this one.

One system runs at a time. Clients are those of a JVM, an open loop: each request is due at its moment,
whatever the last one took, and its latency counts from then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from e2e.bench import disk, peers, seed_plots, seed_systems
from e2e.bench.copy_join import until_idle
from e2e.bench.errors import BenchError
from e2e.bench.grid import HEAP
from e2e.bench.report import Column, Goal, Report, Row, factor, milliseconds, plain, whole
from e2e.bench.seed_cases import (
    CLIENT_THREADS,
    FULL,
    QUICK,
    RATE,
    VALUE_BYTES,
    Event,
    Series,
)
from e2e.bench.seed_rig import spec_of
from e2e.bench.seed_systems import SYSTEMS, Collections, Memory, System
from e2e.bench.talk import Talker
from e2e.bench.timing import ratio
from e2e.cluster import cache
from e2e.cluster.steps import say

TITLE = (
    "members leave, join, stop and are lost, beside Hazelcast: the seeds' benchmark (2 hours; quick: 20 min)"
)
LOAD_SECONDS_MAX = 300.0
WARM_SECONDS, QUICK_WARM_SECONDS = 10.0, 3.0
QUIET_SECONDS, QUICK_QUIET_SECONDS = 10.0, 3.0
"""Before each event, and after it."""
WINDOW_SECONDS = 1.0
"""Of one point of a course."""
COURSE_SECONDS_MAX = 120.0
KINDS, TIMES = ("get", "set"), ("before", "during", "after")
SHOWN = ("p50_seconds", "p99_seconds", "p999_seconds", "max_seconds")

write = seed_plots.write


@dataclass(slots=True)
class Results:
    """What was measured until now."""

    events: list[dict[str, Any]] = field(default_factory=list)
    series: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run(report: Report, quick: bool) -> None:
    """Measure all series; one that fails does not keep the others from being measured."""
    peers.check_java()
    peers.ensure()
    all_series = QUICK if quick else FULL
    report.facts.update(settings_of(all_series[0]))
    results = Results()
    try:
        for series in all_series:
            for name in SYSTEMS:
                _measure(name, series, quick, results)
    finally:
        fill(report, results)
    failed = "; ".join(results.failures)
    report.goals.append(Goal("every series was measured", failed or "yes", not failed))


def settings_of(series: Series) -> dict[str, str | int]:
    """What a result says of data, clients and the clusters; `spec.` are fields of the TabletCluster."""
    migration = "spec.migration.maxParallelPerMember"
    return {
        "spec.replicas": spec_of(series, 0)["replicas"],
        "spec.migration.engine": spec_of(series, 0)["migration"]["engine"],
        "spec.failureDetection.rejoinGracePeriodSeconds": "default; 0 before the loss",
        migration: "as hazelcast.partition.max.parallel.migrations: 1x, 5x, 20x",
        "hazelcast.heap": HEAP,
        "data.valueBytes": VALUE_BYTES,
        "clients.readsPerSecond": RATE,
        "clients.writesPerSecond": RATE,
        "clients.threads": 2 * CLIENT_THREADS,
    }


def _measure(name: str, series: Series, quick: bool, results: Results) -> None:
    say(f"{name}, {series}: {series.data_bytes >> 20} MiB")
    disk.until_idle(cache.root() / "work")
    try:
        seed_systems.run(name, series, partial(observe, series=series, quick=quick, results=results))
    except BenchError as error:
        say(f"{name}, {series}: {error}")
        results.failures.append(f"{name}, {series}")


def observe(system: System, series: Series, quick: bool, results: Results) -> None:
    """Load, let everything happen under the load of clients, and read every key back."""
    clients, quiet_seconds = system.clients, QUICK_QUIET_SECONDS if quick else QUIET_SECONDS
    place = {"series": str(series), "partitions": series.partitions, "parallel": series.parallel}
    place |= {"maps": series.maps, "data_bytes": series.data_bytes, "system": system.name}
    loaded = clients.ask("load", series.data_bytes, VALUE_BYTES, seconds=LOAD_SECONDS_MAX)
    begin = time.monotonic()
    clients.ask("live", RATE, CLIENT_THREADS)
    time.sleep(QUICK_WARM_SECONDS if quick else WARM_SECONDS)
    until_idle(clients)
    found = {**place, "load_seconds": loaded["seconds"], "marks": list[dict[str, Any]]()}
    results.series.append(found)
    for event in Event:
        say(f"{system.name}, {series}: {event}")
        row = _happen(system, event, quiet_seconds)
        mark = {"event": str(event), "begin_seconds": row.pop("begin") - begin}
        found["marks"].append(mark | {"end_seconds": mark["begin_seconds"] + row["safe_seconds"]})
        results.events.append({"event": str(event), **place, **row})
    found["course"] = course_of(clients, begin)
    found["wrong"] = _wrong(clients)


def _happen(system: System, event: Event, quiet_seconds: float) -> dict[str, Any]:
    start = time.monotonic()
    time.sleep(quiet_seconds)
    collected, asked = system.collections(), time.monotonic()
    with Memory(system.pids) as memory:
        found = system.happen(event)
    collections = collected_since(collected, system.collections())
    time.sleep(quiet_seconds)
    moments = {"before": (start, asked), "during": (found.begin, found.safe)}
    moments["after"] = (found.safe, time.monotonic())
    seconds = found.safe - found.begin
    return {
        "begin": found.begin,
        "safe_seconds": seconds,
        "member_seconds": found.member_seconds,
        "replicas_moved": found.replicas_moved,
        "moved_per_second": found.replicas_moved / seconds if seconds > 0 else None,
        "memory_bytes": memory.most,
        **collections,
        **latencies(system.clients, moments),
    }


def collected_since(before: Collections, after: Collections) -> dict[str, Any]:
    """Collections, and their seconds, of the members that run now; None where members do not tell."""
    grown = [
        (count - before.get(pid, (0, 0.0))[0], seconds - before.get(pid, (0, 0.0))[1])
        for pid, (count, seconds) in after.items()
    ]
    counts, seconds = [each[0] for each in grown], [each[1] for each in grown]
    return {
        "collections": sum(counts) if after else None,
        "collection_seconds": sum(seconds) if after else None,
    }


def latencies(clients: Talker, moments: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """`before_get_p99_seconds` and the others, `before_per_second`, and how many requests failed."""
    found: dict[str, Any] = {"failed": 0}
    for when, (begin, end) in moments.items():
        stats = clients.ask("stats", round(begin * 1e9), round(end * 1e9))
        found |= {f"{when}_{kind}_{name}": stats[kind][name] for kind in KINDS for name in SHOWN}
        answered = sum(stats[kind]["answered"] for kind in KINDS)
        found[f"{when}_per_second"] = answered / (end - begin) if end > begin else None
        found["failed"] += sum(stats[kind]["failed"] for kind in KINDS)
    return found


def course_of(clients: Talker, begin: float) -> dict[str, Any]:
    """For each window since then and each kind: answered, failed, p99 and longest in seconds."""
    moments = (round(begin * 1e9), time.monotonic_ns(), round(WINDOW_SECONDS * 1e9))
    return {"window_seconds": WINDOW_SECONDS, **clients.ask("course", *moments, seconds=COURSE_SECONDS_MAX)}


def _wrong(clients: Talker) -> int:
    ended, verified = clients.ask("end"), clients.ask("verify", seconds=LOAD_SECONDS_MAX)
    wrong = [ended[each] for each in ("stale_reads", "missing_reads")]
    wrong += [verified[each] for each in ("missing", "corrupt", "older")]
    return sum(map(int, wrong))


# -- tables


def _seconds(value: float) -> str:
    return f"{value:.1f}"


CASE = (
    Column("event", "event"),
    Column("partitions", "partitions"),
    Column("parallel", "parallel", "{}x".format),
    Column("maps", "maps"),
    Column("MiB", "data_bytes", lambda value: plain(value >> 20)),
    Column("system", "system"),
)
SAFE = (
    *CASE,
    Column("until safe, s", "safe_seconds", _seconds),
    Column("of Hazelcast", "safe_of_hazelcast", factor),
    Column("until the member ended, s", "member_seconds", _seconds),
    Column("replicas moved", "replicas_moved"),
    Column("moved/s", "moved_per_second", whole),
)
CLIENTS = (
    *CASE,
    *(
        Column(f"{kind.upper()} {title}", key.format(kind), milliseconds)
        for kind in KINDS
        for title, key in (
            ("p99 before", "before_{}_p99_seconds"),
            ("p99", "during_{}_p99_seconds"),
            ("p99.9", "during_{}_p999_seconds"),
            ("longest", "during_{}_max_seconds"),
        )
    ),
    *(Column(f"requests/s {when}", f"{when}_per_second", whole) for when in TIMES),
    Column("failed", "failed"),
    Column("GET p99 of Hazelcast", "get_of_hazelcast", factor),
    Column("SET p99 of Hazelcast", "set_of_hazelcast", factor),
)
MEMBERS = (
    *CASE,
    Column("memory of all, MiB", "memory_bytes", lambda value: plain(value >> 20)),
    Column("of Hazelcast", "memory_of_hazelcast", factor),
    Column("collections", "collections"),
    Column("s in them", "collection_seconds", lambda value: f"{value:.2f}"),
)
CHECKED = (
    *CASE[1:],
    Column("load, s", "load_seconds", _seconds),
    Column("wrong values", "wrong"),
)
_SAFE_NOTE = """\
Until every partition has owner and backup, members are even and nothing moves. A scale-up begins when the
members know of the new one, all else when it is asked for. After a shutdown Stele's member comes back with
its volume; Hazelcast's, which is empty, gets its share again."""
_CLIENTS_NOTE = "Latencies in ms, from when a request was due; requests/s are those answered."
_MEMBERS_NOTE = """\
Memory in RAM, at most while it lasted, of all processes of members. Hazelcast's heap is fixed. Collections
are those of JVMs in that time; Stele's members, which are Python, do not report theirs."""
_CHECKED_NOTE = "Wrong: reads of less than was acknowledged, and keys that are not as written at the end."


def fill(report: Report, results: Results) -> None:
    """Add the tables and goals of what was measured."""
    rows = [with_ratios(row, results.events) for row in results.events]
    for title, columns, note in (
        ("Until safe", SAFE, _SAFE_NOTE),
        ("Clients", CLIENTS, _CLIENTS_NOTE),
        ("Members", MEMBERS, _MEMBERS_NOTE),
    ):
        report.section(title, columns, note).rows += rows
    report.section("Values", CHECKED, _CHECKED_NOTE).rows += results.series
    report.goals += goals(rows, results)


def with_ratios(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """Add how a row of Stele compares with Hazelcast's of the same event and series."""
    case = ("event", "series")
    peer = next(
        (
            each
            for each in rows
            if each["system"] == "Hazelcast" and all(each[key] == row[key] for key in case)
        ),
        None,
    )
    compared = {
        "safe_of_hazelcast": "safe_seconds",
        "get_of_hazelcast": "during_get_p99_seconds",
        "set_of_hazelcast": "during_set_p99_seconds",
        "memory_of_hazelcast": "memory_bytes",
    }
    other = {} if row["system"] == "Hazelcast" or peer is None else peer
    return {**row, **{name: ratio(row[key], other.get(key)) for name, key in compared.items()}}


def goals(rows: Sequence[Row], results: Results) -> list[Goal]:
    """As good as Hazelcast where both are at their fastest, as far as it was measured."""
    found, most = [], max((row["partitions"] for row in rows), default=0)
    fastest = [row for row in rows if (row["partitions"], row["parallel"]) == (most, FULL[-1].parallel)]
    for text, key in (
        ("safe as soon as Hazelcast", "safe_of_hazelcast"),
        ("p99 of GET as Hazelcast's", "get_of_hazelcast"),
        ("p99 of SET as Hazelcast's", "set_of_hazelcast"),
    ):
        compared = [row for row in fastest if row[key] is not None]
        if compared:
            worst = max(compared, key=lambda row: row[key])
            said = f"{worst[key]:.2f} of it at most ({worst['event']}; {worst['series']})"
            found.append(Goal(f"{most:,} partitions: {text}", said, worst[key] <= 1.0))
    ours = [row for row in results.series if row["system"] == "Stele" and "wrong" in row]
    wrong = sum(row["wrong"] for row in ours) + sum(row["failed"] for row in rows if row["system"] == "Stele")
    if ours:
        found.append(Goal("Stele: no failed request, no wrong value", str(wrong), wrong == 0))
    return found
