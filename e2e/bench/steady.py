"""Three members at rest with one backup: how many requests they answer, beside Hazelcast and Infinispan.

One system runs at a time, and all take turns in each round, so that what else the machine does falls on all;
shown are the medians of the rounds. Each client thread sends its next request when the last one is answered.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from e2e.bench import machine, peers
from e2e.bench.grid import CLIENTS, Grid, node
from e2e.bench.member_stage import stage
from e2e.bench.report import Column, Report, Row, factor, milliseconds
from e2e.bench.secured import Secured
from e2e.bench.talk import Talker
from e2e.bench.timing import ratio
from e2e.cluster.steps import say
from stele.core.kv.keyspaces import REPLICATED_PARTITIONS, Catalog, Mode, Reads, Replication, Settings
from stele.core.table.groups import PartitionGroup, PartitionGroups

TITLE = (
    "three members at rest beside Hazelcast and Infinispan, through clients of one JVM (45 minutes; quick: 9)"
)
PARTITIONS = 271
REPLICAS = 2
SIZES = {100: 20_000, 16_384: 4_096}
"""Bytes of a value: keys that there are of this size."""
OPERATIONS = ("get", "set")
CONNECTIONS = (8, 32)
TRANSACTION_KEYS = (2, 5)
"""Keys that one transaction reads and sets."""
TRANSACTION_BYTES, TRANSACTION_OF_KEYS = 100, 10_000
SMART, PLAIN = "Stele, port 6380", "Stele, port 6379"
TRANSACTIONS = {
    PLAIN: {PLAIN: "WATCH"},
    "Hazelcast": {"Hazelcast, two-phase": "TWO_PHASE"},
    "Infinispan": {"Infinispan, optimistic": "OPTIMISTIC", "Infinispan, pessimistic": "PESSIMISTIC"},
}
"""By clients: the kinds of transactions that they offer, by the name of the row."""
ROUNDS, QUICK_ROUNDS = 3, 1
SECONDS, QUICK_SECONDS = 5, 2
WARM_SECONDS = 5
PEERS = ("Hazelcast", "Infinispan")
DECLARED = f"{SMART}, ttl and notify"
SECURED = {SMART: f"{SMART}, TLS and AUTH", PLAIN: f"{PLAIN}, TLS and AUTH"}
"""Rows of a cluster with TLS among members and to clients, and a password, by those of one without."""
COPIES_BYTES = 100
"""Bytes of the values of a keyspace that every member has a copy of."""
_ASYNC = Catalog(1, {"default": Settings(replication=Replication.ASYNC)})
_DECLARED = Catalog(2, {"default": Settings(ttl_seconds=86_400, notify="KEA")})
_REPLICATED = Catalog(
    3, {"default": Settings(mode=Mode.REPLICATED, reads=Reads.AVAILABLE, own_partitions=True)}
)
_GROUPS = PartitionGroups(1, (PartitionGroup("default", PARTITIONS, REPLICATED_PARTITIONS, 3),))


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
TRANSACTION_CASES = [Transactions(*each) for each in itertools.product(TRANSACTION_KEYS, CONNECTIONS)]
COPIES_CASES = [Copies(*each) for each in itertools.product(OPERATIONS, CONNECTIONS)]
AnyCase = Case | Transactions | Copies
Rows = dict[tuple[AnyCase, str], list[dict[str, float]]]


@dataclass(frozen=True, slots=True)
class Running:
    """A system that serves: its clients, by the name of the row, and the processes of its servers.

    `declare` gives the clients' keyspace these settings and groups, `replicate` every member a copy of it.
    """

    clients: dict[str, Talker]
    servers: Sequence[int]
    replicate: Callable[[], object]
    declare: Callable[[Catalog], None] = lambda _catalog: None


@contextmanager
def _stele(*, secured: bool = False) -> Iterator[Running]:
    with (
        tempfile.TemporaryDirectory() as folder,
        stage(Path(folder), 3, PARTITIONS, REPLICAS, secured=secured) as made,
    ):
        options = _options(made.secured)
        cluster = ",".join(f"{each.host}:{each.cluster_port}" for each in made.members)
        proxy = ",".join(f"{each.host}:{each.port}" for each in made.members)
        with (
            node("stele-cluster", CLIENTS, PARTITIONS, f"-Dstele.members={cluster}", *options) as smart,
            node("stele-proxy", CLIENTS, PARTITIONS, f"-Dstele.members={proxy}", *options) as plain,
        ):
            servers = [each.pid for each in made.members]
            replicate = partial(made.publish, _REPLICATED, _GROUPS)
            yield Running({SMART: smart, PLAIN: plain}, servers, replicate, made.publish)


def _options(secured: Secured | None) -> list[str]:
    """What the clients are told of certificates and passwords."""
    if secured is None:
        return []
    return [f"-Dstele.ca={secured.trusted}", f"-Dstele.password={secured.password}"]


@contextmanager
def _peer(name: str) -> Iterator[Running]:
    with Grid(name.lower(), PARTITIONS) as grid:
        grid.members[0].ask("mark")
        servers = [each.pid for each in grid.members]
        yield Running({name: grid.clients}, servers, partial(_replicate, grid))


def _replicate(grid: Grid) -> None:
    for each in (*grid.members, grid.clients):
        each.ask("replicate")


def run(report: Report, quick: bool) -> None:
    """Measure all cases; without --quick three rounds of five seconds each."""
    peers.check_java()
    results: Rows = {}
    try:
        for number in range(QUICK_ROUNDS if quick else ROUNDS):
            say(f"round {number + 1}")
            _round(results, QUICK_SECONDS if quick else SECONDS)
    finally:
        _fill(report, results)


def _round(results: Rows, seconds: int) -> None:
    with _stele() as running:
        _measure(running, results, seconds)
        running.declare(_ASYNC)
        clients = {f"{name}, Async": client for name, client in running.clients.items()}
        _measure(replace(running, clients=clients), results, seconds)
        running.declare(_DECLARED)
        _measure(replace(running, clients={DECLARED: running.clients[SMART]}), results, seconds)
        _measure_copies(running, PLAIN, results, seconds)
    with _stele(secured=True) as running:
        clients = {SECURED[name]: client for name, client in running.clients.items()}
        _measure(replace(running, clients=clients), results, seconds)
    for name in PEERS:
        with _peer(name) as running:
            _measure(running, results, seconds)
            _measure_copies(running, name, results, seconds)


def _measure(running: Running, results: Rows, seconds: int) -> None:
    for name, client in running.clients.items():
        say(name)
        for size, keys in SIZES.items():
            client.ask("fill", size, keys)
            for operation in OPERATIONS:
                client.ask("steady", operation, size, keys, max(CONNECTIONS), WARM_SECONDS)
        for case in CASES:
            words = ("steady", case.operation, case.size_bytes, SIZES[case.size_bytes], case.connections)
            results.setdefault((case, name), []).append(_one(running, client, words, seconds))
        for kind in TRANSACTIONS.get(name, {}).items():
            _transact(running, client, kind, results, seconds)


def _measure_copies(running: Running, name: str, results: Rows, seconds: int) -> None:
    """As all other work: write every key once, then ask for some seconds, then measure."""
    say(f"{name}, a copy at every member")
    running.replicate()
    client, values = running.clients[name], (COPIES_BYTES, SIZES[COPIES_BYTES])
    client.ask("fill", *values)
    for operation in OPERATIONS:
        client.ask("steady", operation, *values, max(CONNECTIONS), WARM_SECONDS)
    for case in COPIES_CASES:
        words = ("steady", case.operation, *values, case.connections)
        results.setdefault((case, name), []).append(_one(running, client, words, seconds))


def _transact(running: Running, client: Talker, kind: tuple[str, str], results: Rows, seconds: int) -> None:
    name, how = kind
    values = TRANSACTION_BYTES, TRANSACTION_OF_KEYS
    client.ask("transact", how, max(TRANSACTION_KEYS), *values, max(CONNECTIONS), WARM_SECONDS)
    for case in TRANSACTION_CASES:
        words = ("transact", how, case.keys, *values, case.connections)
        results.setdefault((case, name), []).append(_one(running, client, words, seconds))


def _one(running: Running, client: Talker, words: tuple[object, ...], seconds: int) -> dict[str, float]:
    servers, own = _cpu(running.servers), _cpu([client.pid])
    answer = client.ask(*words, seconds)
    requests = answer["per_second"] * seconds
    return answer | {
        "server_microseconds": (_cpu(running.servers) - servers) / requests * 1e6,
        "client_microseconds": (_cpu([client.pid]) - own) / requests * 1e6,
    }


def _cpu(pids: Sequence[int]) -> float:
    return sum(map(machine.cpu_seconds, pids))


# -- tables

_NOTE = (
    "Requests per second and latencies are medians of the rounds; CPU is of all servers, and of the process "
    "of the clients, per request. The last column compares with the better of Hazelcast and Infinispan. "
    "Stele writes to disk (fsync Interval); the others keep everything in memory. Hazelcast's client and "
    "Jedis on port 6380 know the owner of each key; on port 6379 a member asks the owner. Embedded "
    "Infinispan has no client: a member without capacity sends its requests. Rows with Async are of the same "
    "clients and members, once the keyspace has replication: Async, those with ttl and notify once it has a "
    "Keyspace with ttl: 24h and notify: KEA, which gives every entry an expiry and every write an event. "
    "Rows with TLS and AUTH are of other members, which take only TLS from each other and from clients, and "
    "ask clients for a password; of without TLS compares with the same clients without both."
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


def _microseconds(value: float) -> str:
    return f"{value:,.0f}"


_COLUMNS = (
    Column("work", "work"),
    Column("connections", "connections"),
    Column("system", "system"),
    Column("requests/s", "per_second", lambda value: f"{value:,.0f}"),
    Column("p50 ms", "p50_seconds", milliseconds),
    Column("p99 ms", "p99_seconds", milliseconds),
    Column("p99.9 ms", "p999_seconds", milliseconds),
    Column("servers' CPU, us", "server_microseconds", _microseconds),
    Column("clients' CPU, us", "client_microseconds", _microseconds),
    Column("failed", "failed", lambda value: f"{value:,.0f}"),
    Column("of the better peer", "of_better_peer", factor),
    Column("of without TLS", "of_plain", factor),
)


def _fill(report: Report, results: Rows) -> None:
    section = report.section("Requests of three members at rest", _COLUMNS, _NOTE)
    section.rows += [row_of(results, case, name) for case in CASES for name in _names(results, case)]
    section = report.section("Transactions across partitions", _COLUMNS, _TRANSACTIONS_NOTE)
    section.rows += [
        row_of(results, case, name) for case in TRANSACTION_CASES for name in _names(results, case)
    ]
    section = report.section("A copy at every member", _COLUMNS, _COPIES_NOTE)
    section.rows += [row_of(results, case, name) for case in COPIES_CASES for name in _names(results, case)]


def _names(results: Rows, case: AnyCase) -> list[str]:
    """Return the systems that have finished a round of this work."""
    return [name for (measured, name), rounds in results.items() if measured == case and rounds]


def row_of(results: Rows, case: AnyCase, name: str) -> Row:
    """The medians of one system and case; `failed` is the sum."""
    median = _medians(results[case, name])
    peers_of_case = [each for each in _names(results, case) if each.startswith(PEERS)]
    others = [_medians(results[case, each])["per_second"] for each in peers_of_case]
    better = max(others, default=None)
    own = None if name.startswith(PEERS) else ratio(median["per_second"], better)
    plain = next((each for each, secured in SECURED.items() if secured == name), "")
    before = results.get((case, plain))
    of_plain = ratio(median["per_second"], _medians(before)["per_second"]) if before else None
    return (
        {"work": str(case), "system": name, "connections": case.connections}
        | median
        | {"of_better_peer": own, "of_plain": of_plain}
    )


def _medians(rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    return medians | {"failed": sum(each["failed"] for each in rounds)}
