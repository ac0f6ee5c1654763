"""What bench-steady measures, by name, and the tables of what it found: medians of rounds, and ratios."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from e2e.bench.report import Column, Report, Row, factor, milliseconds, plain, whole
from e2e.bench.timing import ratio

REPLICAS = 2
SIZES = {100: 20_000, 16_384: 4_096}
"""Bytes of a value: keys that there are of this size."""
OPERATIONS = ("get", "set")
CONNECTIONS = (8, 32)
TRANSACTION_KEYS = (2, 5)
"""Keys that one transaction reads and sets."""
TRANSACTION_BYTES, TRANSACTION_OF_KEYS = 100, 10_000
SMART, PLAIN, LETTUCE = "Stele, port 6380", "Stele, port 6379", "Stele, port 6380, Lettuce"
"""Clients of Stele: Jedis as a cluster, Jedis that asks any member, Lettuce as a cluster."""
TRANSACTIONS = {
    PLAIN: {PLAIN: "WATCH"},
    "Hazelcast": {"Hazelcast, two-phase": "TWO_PHASE"},
    "Infinispan": {"Infinispan, optimistic": "OPTIMISTIC", "Infinispan, pessimistic": "PESSIMISTIC"},
}
"""By clients: the kinds of transactions that they offer, by the name of the row."""
PEERS = ("Hazelcast", "Infinispan")
ALWAYS = f"{SMART}, Always"
DECLARED = f"{SMART}, ttl and notify"
SECURED = {name: f"{name}, TLS and AUTH" for name in (SMART, LETTUCE, PLAIN)}
"""Rows of a cluster with TLS among members and to clients, and a password, by those of one without."""
REDIS = {
    SMART: "redis-server, Jedis",
    PLAIN: "redis-server, Jedis",
    LETTUCE: "redis-server, Lettuce",
}
"""Rows of redis-server that the same client asks, by those of Stele."""
COPIES_BYTES = 100
"""Bytes of the values of a keyspace that every member has a copy of."""
MEMORY_BYTES = 100
"""Bytes of the values whose memory is measured."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of work, by so many connections at once."""

    operation: str
    size_bytes: int
    connections: int

    def __str__(self) -> str:
        size = f"{self.size_bytes >> 10} KiB" if self.size_bytes >= 1024 else f"{self.size_bytes} B"
        return f"{self.operation.upper()} {size}"


@dataclass(frozen=True, slots=True)
class Transactions:
    """Transactions of so many keys, by so many connections at once."""

    keys: int
    connections: int

    def __str__(self) -> str:
        return f"{self.keys} keys"


@dataclass(frozen=True, slots=True)
class Copies:
    """Work on a keyspace that every member has a copy of, by so many connections at once."""

    operation: str
    connections: int

    def __str__(self) -> str:
        return f"{self.operation.upper()} {COPIES_BYTES} B"


CASES = [Case(*each) for each in itertools.product(OPERATIONS, SIZES, CONNECTIONS)]
SETS = [case for case in CASES if case.operation == "set"]
TRANSACTION_CASES = [Transactions(*each) for each in itertools.product(TRANSACTION_KEYS, CONNECTIONS)]
COPIES_CASES = [Copies(*each) for each in itertools.product(OPERATIONS, CONNECTIONS)]
AnyCase = Case | Transactions | Copies
Rows = dict[tuple[AnyCase, str], list[dict[str, float]]]


@dataclass(slots=True)
class Found:
    """What was measured until now: rounds of each work by each system, the disk in each round, memory."""

    rounds: Rows = field(default_factory=dict)
    disk_bytes_per_second: list[float] = field(default_factory=list)
    memory: list[Row] = field(default_factory=list)

    @property
    def disk(self) -> float | None:
        """The median of what the disk wrote in a second, in bytes; None when it was not measured."""
        return statistics.median(self.disk_bytes_per_second) if self.disk_bytes_per_second else None

    def systems(self, case: AnyCase) -> list[str]:
        """Return the systems that have finished a round of this work."""
        return [name for (measured, name), rounds in self.rounds.items() if measured == case and rounds]

    def per_second(self, case: AnyCase, name: str) -> float | None:
        """The median of requests per second; None when it was not measured."""
        rounds = self.rounds.get((case, name))
        return statistics.median(each["per_second"] for each in rounds) if rounds else None


_NOTE = (
    "Requests per second and latencies are medians of the rounds; CPU is of all servers, and of the process "
    "of the clients, per request. Of the better peer compares with the better of Hazelcast and Infinispan. "
    "Stele writes to disk (fsync Interval, or Always where a row says so); both peers keep everything in "
    "memory. Hazelcast's client and Stele's on port 6380 know the owner of each key; on port 6379 a member "
    "asks the owner. Stele's client is Jedis where none is named. Embedded Infinispan has no client: its "
    "requests come from a member without capacity. Rows with Async are of the same clients and members, once "
    "the keyspace has replication: Async, those with ttl and notify once it has a Keyspace with ttl: 24h and "
    "notify: KEA, which gives every entry an expiry and every write an event. Rows with TLS and AUTH are of "
    "other members, which take only TLS from each other and from clients, and ask clients for a password; of "
    "without TLS compares with the same clients without both. redis-server is one process with one copy, "
    "appendonly yes and appendfsync everysec; of redis-server compares with the same client and as many "
    "connections. Of the disk compares with what it allows when each byte is written once for each copy."
)

_DISK_NOTE = (
    "One file is written from its beginning to its end and synced, before each round and on the disk of "
    f"Stele's members; the median. All members share it, so {REPLICAS} copies of each byte go to it."
)

_MEMORY_NOTE = (
    f"Entries with values of {MEMORY_BYTES} B, each of which two members have; per entry is what all servers "
    "together use once they were all written, and some read, less what they used before. Used is resident "
    "memory of Stele's members, and of JVMs the heap that is left after a collection."
)

_COPIES_NOTE = (
    "Every member has a copy: Stele's Keyspace with mode: Replicated, Hazelcast's ReplicatedMap, "
    "Infinispan's REPL_SYNC. Stele's members are asked on port 6379 and answer reads themselves; a read may "
    "lack what was acknowledged within the last lease. Hazelcast acknowledges a write before the other "
    "members have it."
)

_TRANSACTIONS_NOTE = (
    f"Each transaction reads and sets some of {TRANSACTION_OF_KEYS:,} keys, {TRANSACTION_BYTES} B each, in "
    "different partitions: with Stele by WATCH, MGET, MULTI, SET and EXEC, on Hazelcast's TransactionalMap "
    "in two phases, on Infinispan's transactional caches. One that meets another is tried again, "
    "which counts under failed."
)


def _millions(value: float) -> str:
    return f"{value / 1e6:,.0f}"


def _mebibytes(value: float) -> str:
    return plain(round(value) >> 20)


_COLUMNS = (
    Column("work", "work"),
    Column("connections", "connections"),
    Column("system", "system"),
    Column("requests/s", "per_second", whole),
    Column("p50 ms", "p50_seconds", milliseconds),
    Column("p99 ms", "p99_seconds", milliseconds),
    Column("p99.9 ms", "p999_seconds", milliseconds),
    Column("servers' CPU, us", "server_microseconds", whole),
    Column("clients' CPU, us", "client_microseconds", whole),
    Column("failed", "failed", whole),
    Column("of the better peer", "of_better_peer", factor),
)
_REQUESTS_COLUMNS = (
    *_COLUMNS,
    Column("of without TLS", "of_plain", factor),
    Column("of redis-server", "of_redis", factor),
    Column("of the disk", "of_disk", factor),
)
_DISK_COLUMNS = (
    Column("written MB/s", "disk_bytes_per_second", _millions),
    Column("SET 16 KiB/s that it allows", "set_per_second", whole),
)
_MEMORY_COLUMNS = (
    Column("system", "system"),
    Column("entries", "entries"),
    Column("used before, MiB", "before_bytes", _mebibytes),
    Column("used after, MiB", "after_bytes", _mebibytes),
    Column("bytes per entry", "bytes_per_entry", whole),
    Column("resident after, MiB", "resident_bytes", _mebibytes),
)


def fill(report: Report, found: Found) -> None:
    """Add the tables."""

    def rows(cases: Sequence[AnyCase]) -> list[Row]:
        return [row_of(found, case, name) for case in cases for name in found.systems(case)]

    title = "Requests of three members at rest"
    report.section(title, _REQUESTS_COLUMNS, _NOTE).rows += rows(CASES)
    title = "Transactions across partitions"
    report.section(title, _COLUMNS, _TRANSACTIONS_NOTE).rows += rows(TRANSACTION_CASES)
    report.section("A copy at every member", _COLUMNS, _COPIES_NOTE).rows += rows(COPIES_CASES)
    report.section("What the disk allows", _DISK_COLUMNS, _DISK_NOTE).rows += _disk_rows(found)
    memory_section(report, found)


def memory_section(report: Report, found: Found) -> None:
    """Add the table of memory."""
    report.section("Memory of an entry", _MEMORY_COLUMNS, _MEMORY_NOTE).rows += found.memory


def _disk_rows(found: Found) -> list[Row]:
    if found.disk is None:
        return []
    largest = max(SIZES)
    return [{"disk_bytes_per_second": found.disk, "set_per_second": found.disk / (REPLICAS * largest)}]


def row_of(found: Found, case: AnyCase, name: str) -> Row:
    """The medians of one system and case, and what they are compared with; `failed` is the sum."""
    median = _medians(found.rounds[case, name])
    own = median["per_second"]
    without = next((each for each, secured in SECURED.items() if secured == name), "")
    return (
        {"work": str(case), "system": name, "connections": case.connections}
        | median
        | {
            "of_better_peer": _of_better_peer(found, case, name, own),
            "of_plain": ratio(own, found.per_second(case, without)),
            "of_redis": ratio(own, found.per_second(case, REDIS.get(name, ""))),
            "of_disk": _of_disk(found, case, name, own),
        }
    )


def _of_better_peer(found: Found, case: AnyCase, name: str, own: float) -> float | None:
    if name.startswith(PEERS):
        return None
    others = [found.per_second(case, each) or 0.0 for each in found.systems(case) if each.startswith(PEERS)]
    return ratio(own, max(others, default=None))


def _of_disk(found: Found, case: AnyCase, name: str, own: float) -> float | None:
    """Of large values alone: it is not bytes that bound small ones."""
    if not name.startswith("Stele") or not isinstance(case, Case):
        return None
    if case.operation != "set" or case.size_bytes != max(SIZES):
        return None
    return ratio(own * REPLICAS * case.size_bytes, found.disk)


def _medians(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    return medians | {"failed": sum(each["failed"] for each in rounds)}
