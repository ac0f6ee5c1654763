"""The clients, in a process of their own so that nothing else that the demo does disturbs what they measure.

Run as `python -m e2e.demo.workload CONFIG.json`. Standard input takes one JSON object a line, `{"phase":
NAME}` or `{"stop": true}`; its end means stop too. Standard output gives one JSON object a line, by `type`:
`tick` (twice a second), `phase` (a phase ended) and at the end `end`. Every write goes into the history file
of `history.replay`.

Each client is one loop: one operation at a time, at a bounded rate, so that the machine is not all theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import mmh3
import msgspec

from e2e.demo.history import Breach, Ledger, Outcome, Violation, value_of
from e2e.demo.measure import KINDS, READ, WRITE, PhaseMeasure, total
from e2e.demo.resp import Command, Connection, Endpoint, Login, Reply, ReplyFailure

CONNECT_SECONDS_MAX = 2.0
RECONNECT_SECONDS = 0.05
REPLY_SECONDS_MAX = 30.0
RETRY_SECONDS = 0.05
TICK_SECONDS = 0.5
STOP_SECONDS_MAX = 40.0
VIOLATIONS_KEPT_MAX = 100
WINDOW_TICKS = 4
WRITES_OF_100 = 40
RECORD_READS_OF_100 = 20
HASH_SEED = 0
# Answers that say that the write did not and will not happen; after any other error nobody knows.
REFUSALS = frozenset({"TRYAGAIN", "LOADING", "READONLY", "MOVED", "CLUSTERDOWN"})


class Config(msgspec.Struct, frozen=True):
    """What the clients do. `rate` is operations per second of all clients together."""

    host: str
    port: int
    run: str
    history: str
    records: str
    login: Login | None = None
    clients: int = 8
    keys_per_client: int = 100
    rate: float = 400.0
    keyspace: str = "default"
    records_keyspace: str = "packages"


def hash_of(value: bytes) -> bytes:
    """The 128-bit hash by which values are compared."""
    return mmh3.hash_bytes(value, HASH_SEED)


@dataclass
class Window:
    """Rates and latencies of the last `WINDOW_TICKS` ticks, for people who watch."""

    phases: list[PhaseMeasure]

    def turn(self, now: float) -> dict[str, Any]:
        """Summaries of the window; the oldest tick falls out."""
        seconds = max(now - self.phases[0].start, 1e-6)
        merged = total(self.phases, now)
        self.phases.append(PhaseMeasure.begin("window", now))
        del self.phases[:-WINDOW_TICKS]
        return {
            kind: {
                "per_second": round(merged[kind]["count"] / seconds, 1),
                "p99_ms": merged[kind]["p99_ms"],
            }
            for kind in KINDS
        }


class World:
    """What all clients share: the ledger, its file, the measures, the records that are there to be read."""

    def __init__(self, config: Config, out: TextIO) -> None:
        self.config = config
        self.endpoint = Endpoint(config.host, config.port, config.login)
        self.ledger = Ledger()
        self.records: dict[bytes, bytes] = msgspec.msgpack.decode(
            Path(config.records).read_bytes(), type=dict[bytes, bytes]
        )
        self.record_keys = list(self.records)
        self.violations: list[Violation] = []
        self.violations_total = 0
        self.reconnects: Counter[str] = Counter()
        self.stopping = False
        now = time.monotonic()
        self.phases = [PhaseMeasure.begin("start", now)]
        self.window = Window([PhaseMeasure.begin("window", now)])
        self._out = out
        self._history = Path(config.history).open("w", encoding="utf-8", buffering=1 << 16)  # noqa: SIM115 - open as long as the world

    def note(self, outcome: Outcome, key: str, number: int) -> None:
        """Append to the history file."""
        self._history.write(f"{outcome} {key} {number}\n")

    def succeeded(self, kind: str, client: int, seconds: float) -> None:
        """Count a success."""
        now = time.monotonic()
        for phase in (self.phases[-1], self.window.phases[-1]):
            phase.meters[kind].latencies.add(seconds)
            phase.meters[kind].pauses.success(client, now)

    def failed(self, kind: str, code: str) -> None:
        """Count an error."""
        self.phases[-1].meters[kind].errors[code] += 1

    def broken(self, violation: Violation | None) -> None:
        """Keep a broken rule, if one was broken."""
        if violation is None:
            return
        self.violations_total += 1
        if len(self.violations) < VIOLATIONS_KEPT_MAX:
            self.violations.append(violation)

    def begin(self, phase: str) -> None:
        """End the present phase and begin another."""
        now = time.monotonic()
        self.tell("phase", **self.phases[-1].summary(now))
        self.phases.append(PhaseMeasure.begin(phase, now, self.phases[-1]))

    def tick(self) -> None:
        """Tell how it goes, and make the history file whole."""
        now = time.monotonic()
        self._history.flush()
        summary = self.phases[-1].summary(now)
        self.tell("tick", window=self.window.turn(now), violations=self.violations_total, **summary)

    def end(self) -> None:
        """Tell the last phase and the whole."""
        now = time.monotonic()
        self.tell("phase", **self.phases[-1].summary(now))
        self._history.flush()
        os.fsync(self._history.fileno())
        self._history.close()
        self.tell(
            "end",
            total=total(self.phases, now),
            violations_total=self.violations_total,
            violations=[asdict(each) for each in self.violations],
            reconnects=dict(self.reconnects),
            acknowledged=self.ledger.acknowledged_writes,
            doubtful=self.ledger.doubtful_writes,
        )

    def tell(self, type_: str, **facts: Any) -> None:
        """One line to the parent."""
        self._out.write(json.dumps({"type": type_, **facts}) + "\n")
        self._out.flush()


class Client:
    """One closed loop of reads and writes. It alone writes its keys; it reads everybody's."""

    def __init__(self, number: int, world: World) -> None:
        self.number, self.world = number, world
        self._random = random.Random(f"{world.config.run}:{number}")
        self._keys = [self._key(slot, 0) for slot in range(world.config.keys_per_client)]
        self._generations = [0] * len(self._keys)
        self._connections: dict[str, Connection] = {}
        self._again: Callable[[], Awaitable[None]] | None = None

    def _key(self, slot: int, generation: int) -> str:
        return f"ledger:{self.world.config.run}:{self.number}:{slot}:{generation}"

    async def run(self) -> None:
        """Until the world stops."""
        period = self.world.config.clients / self.world.config.rate
        following = time.monotonic() + self._random.random() * period
        while not self.world.stopping:
            await asyncio.sleep(max(0.0, following - time.monotonic()))
            # No catching up after a pause: a burst would measure the client, not the cluster.
            following = max(following + period, time.monotonic())
            operation, self._again = self._again or self._choose(), None
            await operation()
        for connection in self._connections.values():
            connection.close()

    def _choose(self) -> Callable[[], Awaitable[None]]:
        dice = self._random.randrange(100)
        if dice < WRITES_OF_100:
            slot = self._random.randrange(len(self._keys))
            return lambda: self._write(slot)
        if dice < WRITES_OF_100 + RECORD_READS_OF_100 and self.world.record_keys:
            key = self._random.choice(self.world.record_keys)
            return lambda: self._read_record(key)
        known = self.world.ledger.keys()
        name = self._random.choice(known) if known else self._keys[0]
        return lambda: self._read(name)

    async def _write(self, slot: int) -> None:
        world, key, start = self.world, self._keys[slot], time.monotonic()
        connection = await self._connected(world.config.keyspace)
        if connection is None:
            return
        number = world.ledger.send(key)
        world.note(Outcome.SENT, key, number)
        outcome = Outcome.DOUBTFUL
        try:
            with self._counted(WRITE, lambda: self._write(slot)):
                await self._ask(
                    world.config.keyspace, connection, (b"SET", key.encode(), value_of(key, number))
                )
                outcome = Outcome.ACKNOWLEDGED
                world.succeeded(WRITE, self.number, time.monotonic() - start)
        except _RefusedError:
            outcome = Outcome.REFUSED
        finally:
            world.ledger.end(key, number, outcome)
            world.note(outcome, key, number)
        if outcome is Outcome.DOUBTFUL:
            self._generations[slot] += 1
            self._keys[slot] = self._key(slot, self._generations[slot])
        await self._rest(outcome)

    async def _rest(self, outcome: Outcome) -> None:
        if outcome is not Outcome.ACKNOWLEDGED:
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, key: str) -> None:
        world, start = self.world, time.monotonic()
        connection = await self._connected(world.config.keyspace)
        if connection is None:
            return
        floor = world.ledger.floor(key)
        with suppress(_RefusedError), self._counted(READ, lambda: self._read(key)):
            value = await self._ask(world.config.keyspace, connection, (b"GET", key.encode()))
            world.succeeded(READ, self.number, time.monotonic() - start)
            world.broken(world.ledger.judge(key, floor, value))
            if world.ledger.floor(key) > floor and world.ledger.retired(key):
                world.note(Outcome.OBSERVED, key, world.ledger.floor(key))

    async def _read_record(self, key: bytes) -> None:
        world, start = self.world, time.monotonic()
        connection = await self._connected(world.config.records_keyspace)
        if connection is None:
            return
        with suppress(_RefusedError), self._counted(READ, lambda: self._read_record(key)):
            value = await self._ask(world.config.records_keyspace, connection, (b"GET", key))
            world.succeeded(READ, self.number, time.monotonic() - start)
            world.broken(judge_record(key, value, world.records[key]))

    @contextmanager
    def _counted(self, kind: str, again: Callable[[], Awaitable[None]]) -> Iterator[None]:
        """Count errors by code. An answer that says "not done" is tried again, and raised as
        _RefusedError.
        """
        try:
            yield
        except ReplyFailure as error:
            self.world.failed(kind, error.code)
            if error.code in REFUSALS:
                self._again = again
                raise _RefusedError from error
        except TimeoutError:
            self.world.failed(kind, "TIMEOUT")
        except OSError:
            self.world.failed(kind, "CONNECTION_LOST")

    async def _ask(self, keyspace: str, connection: Connection, command: Command) -> Reply:
        """The reply to one command, which is sent once more when the server closes the connection.

        Clients do that by default. All commands here have the same effect when they run twice.
        """
        for last in (False, True):
            try:
                return await connection.one(command, REPLY_SECONDS_MAX)
            except OSError as error:
                self._connections.pop(keyspace).close()
                again = None if last or isinstance(error, TimeoutError) else await self._connected(keyspace)
                if again is None:
                    raise
                self.world.reconnects["closed by the server while asked"] += 1
                connection = again
        raise AssertionError("the second try returns or raises")

    async def _connected(self, keyspace: str) -> Connection | None:
        """The connection of the keyspace, opened again until it works; None when the world stops."""
        while not self.world.stopping:
            connection = self._connections.get(keyspace)
            if connection is not None and not connection.closed_by_server:
                return connection
            if connection is not None:
                self._connections.pop(keyspace).close()
                self.world.reconnects["closed by the server at rest"] += 1
            try:
                opened = await Connection.open(self.world.endpoint, keyspace, CONNECT_SECONDS_MAX)
                self._connections[keyspace] = opened
                self.world.reconnects["opened"] += 1
            except (OSError, ReplyFailure):
                self.world.reconnects["failed"] += 1
                await asyncio.sleep(RECONNECT_SECONDS)
        return None


class _RefusedError(Exception):
    """The answer says that the operation did not happen."""


def judge_record(key: bytes, value: bytes | None, expected_hash: bytes) -> Violation | None:
    """Check a read of a record that never changes."""
    name = key.decode(errors="replace")
    if value is None:
        return Violation(Breach.LOST, name, "a record of the input is not there")
    if hash_of(value) != expected_hash:
        return Violation(Breach.GARBLED, name, f"a record of the input has another value, {value[:80]!r}")
    return None


async def _obey(world: World, stdin: asyncio.StreamReader) -> None:
    while line := await stdin.readline():
        order = json.loads(line)
        if "phase" in order:
            world.begin(order["phase"])
        if order.get("stop"):
            return


async def _tick(world: World) -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)
        world.tick()


async def _main(config: Config) -> None:
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    world = World(config, sys.stdout)
    clients = [asyncio.create_task(Client(n, world).run()) for n in range(config.clients)]
    ticker = asyncio.create_task(_tick(world))
    orders = asyncio.create_task(_obey(world, stdin))
    # A client that fails is a defect of this program: all must end then, and say why.
    await asyncio.wait([orders, *clients], return_when=asyncio.FIRST_COMPLETED)
    world.stopping = True
    async with asyncio.timeout(STOP_SECONDS_MAX):
        await asyncio.gather(*clients)
    ticker.cancel()
    orders.cancel()
    world.end()


if __name__ == "__main__":
    asyncio.run(_main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config)))
