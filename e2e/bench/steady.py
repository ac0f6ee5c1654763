"""Three members at rest with one backup: how many requests they answer, beside Hazelcast and Infinispan, and
beside redis-server alone; what of the disk their writes take, and how much memory their entries.

One system runs at a time, and all take turns in each round, so that what else the machine does falls on all;
shown are the medians of the rounds. Each client thread sends its next request when the last one is answered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.bench import disk, machine, peers
from e2e.bench.member_stage import redis_program
from e2e.bench.report import Report, Row
from e2e.bench.steady_goals import goals
from e2e.bench.steady_systems import Running, peer, redis, resident_bytes, stele
from e2e.bench.steady_table import (
    ALWAYS,
    CASES,
    CONNECTIONS,
    COPIES_BYTES,
    COPIES_CASES,
    DECLARED,
    MEMORY_BYTES,
    OPERATIONS,
    PEERS,
    PLAIN,
    SECURED,
    SETS,
    SIZES,
    SMART,
    TRANSACTION_BYTES,
    TRANSACTION_CASES,
    TRANSACTION_KEYS,
    TRANSACTION_OF_KEYS,
    TRANSACTIONS,
    Case,
    Found,
    fill,
)
from e2e.bench.talk import Talker
from e2e.cluster.steps import say
from stele.core.kv.keyspaces import Catalog, Replication, Settings

TITLE = (
    "three members at rest beside Hazelcast, Infinispan and redis-server, through clients of one JVM "
    "(58 minutes; quick: 11)"
)
FILL_SECONDS_MAX = 600.0
_ASYNC = Catalog(1, {"default": Settings(replication=Replication.ASYNC)})
_DECLARED = Catalog(2, {"default": Settings(ttl_seconds=86_400, notify="KEA")})


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each work is done and how much of it.

    `warm_seconds` of each kind are not counted; `again_seconds` where the same processes did it before.
    """

    rounds: int
    seconds: int
    warm_seconds: int
    again_seconds: int
    entries: int
    disk_bytes: int


FULL = Pace(rounds=3, seconds=5, warm_seconds=3, again_seconds=1, entries=500_000, disk_bytes=1 << 30)
QUICK = Pace(rounds=1, seconds=2, warm_seconds=2, again_seconds=1, entries=100_000, disk_bytes=256 << 20)


def run(report: Report, quick: bool) -> None:
    """Measure all cases; without --quick three rounds of five seconds each."""
    peers.check_java()
    redis_program()
    found, pace = Found(), QUICK if quick else FULL
    try:
        measure_memory(found, pace)
        for number in range(pace.rounds):
            say(f"round {number + 1}")
            _round(found, pace)
    finally:
        fill(report, found)
        report.goals += goals(report.sections[0].rows, found.memory)


def _round(found: Found, pace: Pace) -> None:
    found.disk_bytes_per_second.append(_disk_rate(pace))
    again = replace(pace, warm_seconds=pace.again_seconds)
    with stele() as running:
        _measure(running, found, pace)
        running.declare(_ASYNC)
        clients = {f"{name}, Async": running.clients[name] for name in (SMART, PLAIN)}
        _measure(replace(running, clients=clients), found, again)
        running.declare(_DECLARED)
        _measure(replace(running, clients={DECLARED: running.clients[SMART]}), found, again)
        _measure_copies(running, PLAIN, found, pace)
    with stele(fsync="Always") as running:
        _measure(replace(running, clients={ALWAYS: running.clients[SMART]}), found, pace, SETS)
    with stele(secured=True) as running:
        clients = {SECURED[name]: client for name, client in running.clients.items()}
        _measure(replace(running, clients=clients), found, pace)
    with redis() as running:
        _measure(running, found, pace)
    for name in PEERS:
        with peer(name) as running:
            _measure(running, found, pace)
            _measure_copies(running, name, found, pace)


def _disk_rate(pace: Pace) -> float:
    """Of the disk that the members' folders are on."""
    say("the disk")
    with tempfile.TemporaryDirectory() as folder:
        disk.until_idle(Path(folder))
        return disk.sequential_rate(Path(folder), pace.disk_bytes)


def _measure(running: Running, found: Found, pace: Pace, cases: Sequence[Case] = CASES) -> None:
    operations = [each for each in OPERATIONS if any(case.operation == each for case in cases)]
    for name, client in running.clients.items():
        say(name)
        for size, keys in SIZES.items():
            _warm(client, size, keys, operations, pace)
        for case in cases:
            words = ("steady", case.operation, case.size_bytes, SIZES[case.size_bytes], case.connections)
            found.rounds.setdefault((case, name), []).append(one(running, client, words, pace.seconds))
        for kind in TRANSACTIONS.get(name, {}).items():
            _transact(running, client, kind, found, pace)


def _warm(client: Talker, size: int, keys: int, operations: Sequence[str], pace: Pace) -> None:
    """Write every key once, then do each work without counting it."""
    client.ask("fill", size, keys, max(CONNECTIONS), seconds=FILL_SECONDS_MAX)
    for operation in operations:
        client.ask("steady", operation, size, keys, max(CONNECTIONS), pace.warm_seconds)


def _measure_copies(running: Running, name: str, found: Found, pace: Pace) -> None:
    say(f"{name}, a copy at every member")
    running.replicate()
    client, values = running.clients[name], (COPIES_BYTES, SIZES[COPIES_BYTES])
    _warm(client, *values, OPERATIONS, pace)
    for case in COPIES_CASES:
        words = ("steady", case.operation, *values, case.connections)
        found.rounds.setdefault((case, name), []).append(one(running, client, words, pace.seconds))


def _transact(running: Running, client: Talker, kind: tuple[str, str], found: Found, pace: Pace) -> None:
    name, how = kind
    values = TRANSACTION_BYTES, TRANSACTION_OF_KEYS
    client.ask("transact", how, max(TRANSACTION_KEYS), *values, max(CONNECTIONS), pace.warm_seconds)
    for case in TRANSACTION_CASES:
        words = ("transact", how, case.keys, *values, case.connections)
        found.rounds.setdefault((case, name), []).append(one(running, client, words, pace.seconds))


def one(running: Running, client: Talker, words: tuple[object, ...], seconds: int) -> dict[str, float]:
    """What clients found in so many seconds, with the processor's time of both sides for each request."""
    servers, own = _cpu(running.servers), _cpu([client.pid])
    answer = client.ask(*words, seconds)
    requests = answer["per_second"] * seconds
    return answer | {
        "server_microseconds": (_cpu(running.servers) - servers) / requests * 1e6,
        "client_microseconds": (_cpu([client.pid]) - own) / requests * 1e6,
    }


def _cpu(pids: Sequence[int]) -> float:
    return sum(map(machine.cpu_seconds, pids))


def measure_memory(found: Found, pace: Pace) -> None:
    """Add a row for each system: what all servers use once the entries are there."""
    with stele() as running:
        found.memory.append(_memory_of(SMART, running, pace))
    for name in PEERS:
        with peer(name) as running:
            found.memory.append(_memory_of(name, running, pace))


def _memory_of(name: str, running: Running, pace: Pace) -> Row:
    say(f"{name}, memory of {pace.entries:,} entries")
    client, values = running.clients[name], (MEMORY_BYTES, pace.entries, max(CONNECTIONS))
    before = running.used_bytes()
    client.ask("fill", *values, seconds=FILL_SECONDS_MAX)
    client.ask("steady", "get", *values, pace.seconds)
    after = running.used_bytes()
    return {
        "system": name,
        "entries": pace.entries,
        "before_bytes": before,
        "after_bytes": after,
        "bytes_per_entry": (after - before) / pace.entries,
        "resident_bytes": resident_bytes(running.servers),
    }
