"""What TLS and users cost: connections, beside redis-server with TLS, and a change of certificates and CA.

Three members with all that a new cluster has switched on. While certificates change, clients send a GET or a
SET every INTERVAL_SECONDS each, whatever the last one took, so the longest latency is the longest pause.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from e2e.bench.member_stage import Member, Program, Stage, answers, free_ports, redis_program, stage, until
from e2e.bench.report import Column, Goal, Report, Section, factor, milliseconds, whole
from e2e.bench.secured import DAYS, Secured
from e2e.cluster.steps import say
from stele.adapters.pki.certificates import make_authority
from stele.wire.resp import encode_request

TITLE = "TLS and passwords: connections, and a change of certificates and CA under load"
CLIENTS = 8
INTERVAL_SECONDS = 0.05
STEP_SECONDS, QUICK_STEP_SECONDS = 40.0, 15.0
"""How long each step of a change is measured: members look for new files every 10 s."""
CONNECTIONS, QUICK_CONNECTIONS = 1500, 200
LONGEST_GOAL_SECONDS = 0.1
REQUEST_SECONDS_MAX = 10.0

_CONNECTIONS = [
    Column("connection with", "what"),
    Column("of", "server"),
    Column("per second, one after the other", "per_second", whole),
    Column("processor of the server, ms each", "cpu_seconds", milliseconds),
    Column("of redis-server's", "ratio", factor),
]
_CHANGES = [
    Column("while", "what"),
    Column("requests", "requests"),
    Column("median, ms", "median_seconds", milliseconds),
    Column("p99, ms", "p99_seconds", milliseconds),
    Column("longest, ms", "longest_seconds", milliseconds),
    Column("failed", "failed"),
]


def run(report: Report, quick: bool) -> None:
    """Add what was measured to the report."""
    count = QUICK_CONNECTIONS if quick else CONNECTIONS
    connections = report.section(
        "New connections, each with one PING",
        _CONNECTIONS,
        f"the median of 3 rounds of {count}; a client in Python does most of the work",
    )
    changes = report.section(
        f"{CLIENTS} clients of three members",
        _CHANGES,
        f"each sends a GET or a SET every {INTERVAL_SECONDS * 1e3:.0f} ms; certificates and CA change for "
        "all members, the master and clients",
    )
    with tempfile.TemporaryDirectory() as folder:
        _connect(connections, Path(folder), count)
        _change(changes, Path(folder), QUICK_STEP_SECONDS if quick else STEP_SECONDS)
    longest = max(row["longest_seconds"] for row in changes.rows)
    failed = sum(row["failed"] for row in changes.rows)
    text = f"no request fails, and none waits longer than {LONGEST_GOAL_SECONDS * 1e3:.0f} ms"
    met = longest <= LONGEST_GOAL_SECONDS and not failed
    report.goals.append(Goal(text, f"{milliseconds(longest)} ms, {failed} failed", met))


# -- connections


class TlsRedis(Program):
    """redis-server that takes TLS with a member's certificate, and nothing else."""

    host = "127.0.0.1"

    def __init__(self, folder: Path, secured: Secured) -> None:
        super().__init__(folder / "redis-tls.log")
        (self.port,) = free_ports(1)
        files = secured.folder / "m0"
        words = ["redis-server", "--port", "0", "--tls-port", str(self.port), "--bind", self.host]
        words += ["--save", "", "--dir", str(folder), "--tls-auth-clients", "no"]
        words += ["--tls-cert-file", str(files / "tls.crt"), "--tls-key-file", str(files / "tls.key")]
        words += ["--tls-ca-cert-file", str(files / "ca.crt"), "--requirepass", secured.password]
        self.spawn(words, redis_program())
        until(lambda: answers(self.host, self.port), "redis-server starts")


def _connect(section: Section, folder: Path, count: int) -> None:
    say(f"connections: 3 rounds of {count} each")
    with stage(folder / "one", secured=True) as made, stage(folder / "open") as plain:
        assert made.secured is not None
        context = ssl.create_default_context(cafile=made.secured.trusted)
        context.check_hostname = False
        login = b"AUTH " + made.secured.password.encode()
        with TlsRedis(folder, made.secured) as redis:
            theirs = _rounds(redis, context, login, count)
        ours = _rounds(made.members[0], context, login, count)
        nothing = _rounds(plain.members[0], None, b"", count)
    tls = "TLS and a password"
    section.rows.append({"what": tls, "server": "redis-server"} | theirs)
    ratio = ours["cpu_seconds"] / theirs["cpu_seconds"]
    section.rows.append({"what": tls, "server": "Stele", "ratio": ratio} | ours)
    section.rows.append({"what": "nothing", "server": "Stele"} | nothing)


def _rounds(
    server: TlsRedis | Member, context: ssl.SSLContext | None, login: bytes, count: int
) -> dict[str, float]:
    found: list[tuple[float, float]] = []
    for _ in range(3):
        cpu, begin = server.cpu_seconds(), time.monotonic()
        asyncio.run(_one_after_the_other(server, context, login, count))
        found.append((count / (time.monotonic() - begin), (server.cpu_seconds() - cpu) / count))
    return {
        "per_second": median(each for each, _ in found),
        "cpu_seconds": median(each for _, each in found),
    }


async def _one_after_the_other(
    server: TlsRedis | Member, context: ssl.SSLContext | None, login: bytes, count: int
) -> None:
    for _ in range(count):
        reader, writer = await asyncio.open_connection(server.host, server.port, ssl=context)
        lines = [login, b"PING"] if login else [b"PING"]
        writer.write(b"".join(line + b"\r\n" for line in lines))
        for _ in lines:
            answer = await reader.readline()
            assert answer in (b"+OK\r\n", b"+PONG\r\n"), answer
        writer.transport.abort()


# -- changes of certificates


@dataclass
class Client:
    """Sends requests to one member over one connection, and over another one where that ends."""

    host: str
    port: int
    secured: Secured
    number: int
    waits: list[float] = field(default_factory=list)
    failed: int = 0

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            try:
                await self._on_a_connection()
            except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
                self.failed += 1
                await asyncio.sleep(INTERVAL_SECONDS)

    async def _on_a_connection(self) -> None:
        context = ssl.create_default_context(cafile=self.secured.trusted)
        context.check_hostname = False
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
        try:
            await _ask(reader, writer, b"AUTH", self.secured.password.encode())
            due = time.monotonic()
            while True:
                due += INTERVAL_SECONDS
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._one(reader, writer)
                self.waits.append(time.monotonic() - due)
        finally:
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        key = b"key-%d" % (self.number * 1000 + len(self.waits) % 1000)
        words = (b"SET", key, b"x" * 100) if len(self.waits) % 2 else (b"GET", key)
        await asyncio.wait_for(_ask(reader, writer, *words), REQUEST_SECONDS_MAX)

    def taken(self) -> tuple[list[float], int]:
        """Return what was measured since the last call."""
        found, failed = self.waits, self.failed
        self.waits, self.failed = [], 0
        return found, failed


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *words: bytes) -> None:
    """Raise ValueError for an answer that is an error."""
    writer.write(encode_request(words))
    line = await reader.readuntil(b"\r\n")
    if line.startswith(b"-"):
        raise ValueError(line.decode(errors="replace"))
    if line.startswith(b"$") and line != b"$-1\r\n":
        await reader.readexactly(int(line[1:]) + 2)


def _change(section: Section, folder: Path, seconds: float) -> None:
    with stage(folder / "three", members=3, replicas=2, secured=True) as made:
        asyncio.run(_measured(made, section, seconds))


async def _measured(made: Stage, section: Section, seconds: float) -> None:
    assert made.secured is not None
    secured, places = made.secured, [(each.host, each.port) for each in made.members]
    clients = [Client(*places[n % len(places)], secured, n) for n in range(CLIENTS)]
    with _running(clients):
        for what, change in _steps(secured):
            say(f"{what}: {seconds:.0f} s")
            change()
            await asyncio.sleep(seconds)
            found = [client.taken() for client in clients]
            section.rows.append(_row(what, [wait for waits, _ in found for wait in waits], found))


def _steps(secured: Secured) -> list[tuple[str, Callable[[], None]]]:
    old, new = secured.ca, make_authority("next", time.time(), DAYS)
    both = old.certificate + new.certificate
    return [
        ("nothing changes", lambda: None),
        ("all certificates are renewed", lambda: secured.renew(old, old.certificate)),
        ("a new CA is trusted, too", lambda: secured.renew(old, both)),
        ("certificates are of the new CA", lambda: secured.renew(new, both)),
        ("the new CA alone is trusted", lambda: secured.renew(new, new.certificate)),
    ]


def _row(what: str, waits: list[float], found: list[tuple[list[float], int]]) -> dict[str, Any]:
    ordered = sorted(waits)
    return {
        "what": what,
        "requests": len(ordered),
        "median_seconds": median(ordered),
        "p99_seconds": ordered[len(ordered) * 99 // 100],
        "longest_seconds": ordered[-1],
        "failed": sum(failed for _, failed in found),
    }


@contextmanager
def _running(clients: list[Client]) -> Iterator[None]:
    tasks = [asyncio.create_task(client.run()) for client in clients]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
