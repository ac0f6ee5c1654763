"""`kubectl stele bench`: a short load with its throughput and latencies, which cleans up after itself."""

import asyncio
import random
import ssl
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stele.cli import output as out
from stele.cli.client_port import LOCAL, Way, active_members, ca_of, password_of
from stele.cli.options import OutputOption, Where, on_cluster
from stele.cli.status import ClusterArgument
from stele.client.resp import ERRORS, Connection, ReplyError
from stele.errors import BadInput, SteleError, Unavailable

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

BENCH_CLIENTS_MAX, BENCH_SECONDS_MAX, BENCH_BYTES_MAX = 64, 300, 1024 * 1024
KEYS_PER_CLIENT = 200
EXPIRY_SECONDS = str(BENCH_SECONDS_MAX + 300).encode()
"""Keys go by themselves, too, when the command is killed."""
PREFIX = "kubectl-stele-bench"
ERRORS_MAX = 1_000
"""Errors after which it gives up."""


@on_cluster
def bench(
    where: Where,
    cluster: ClusterArgument,
    *,
    seconds: Annotated[int, typer.Option("--seconds", min=1, max=BENCH_SECONDS_MAX, help="How long.")] = 10,
    clients: Annotated[int, typer.Option("--clients", min=1, max=BENCH_CLIENTS_MAX, help="Connections.")] = 8,
    size: Annotated[int, typer.Option("--bytes", min=1, max=BENCH_BYTES_MAX, help="Bytes of a value.")] = 100,
    output: OutputOption = None,
) -> None:
    """Write and read for some seconds, and print throughput and latencies; its keys are deleted at the end.

    Requests go through the API server, which has its part in the latencies: compare runs with each other,
    and measure what members can do with redis-benchmark inside of Kubernetes.

    \b
    Examples:
      kubectl stele bench demo -n stele
      kubectl stele bench demo --seconds 30 --clients 16 --bytes 1000 -n stele
    """
    run = _Bench(clients, seconds, b"v" * size)
    facts = where.ask(lambda console: run.run(console, cluster))
    if out.data(facts, output):
        return
    print(f"{facts['requests']} requests in {facts['seconds']} s, {facts['errors']} errors")
    out.table(
        ["REQUESTS", "PER SECOND", "P50 MS", "P99 MS", "P99.9 MS"],
        [[kind, *(f"{facts[kind][each]}" for each in FIGURES)] for kind in KINDS],
    )


KINDS = ("writes", "reads")
FIGURES = ("per_second", "p50_ms", "p99_ms", "p999_ms")


class _Bench:
    """One run."""

    def __init__(self, clients: int, seconds: int, value: bytes) -> None:
        self._clients, self._seconds, self._value = clients, seconds, value
        self._times = {kind: array("d") for kind in KINDS}
        self._errors, self._last_error = 0, ""
        self._prefix = f"{PREFIX}:{random.getrandbits(32):08x}"

    async def run(self, console: "Console", name: str) -> dict[str, Any]:
        """Return what was measured. Raises Unavailable when nothing was answered."""
        cluster = await console.cluster(name)
        way = Way(console, await active_members(console, name))
        ca, password = await ca_of(console, cluster), await password_of(console, cluster)
        async with await way.serve() as server:
            place = LOCAL, server.sockets[0].getsockname()[1]

            async def connect() -> Connection:
                made = await Connection.open(place, _context(ca) if ca else None)
                if password:
                    await made.ask(b"AUTH", password.encode())
                return made

            await self._measure(connect)
        if not sum(map(len, self._times.values())):
            raise Unavailable(f"no request was answered: {self._last_error}")
        return self._facts()

    async def _measure(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        tasks = [asyncio.create_task(self._client(connect, each)) for each in range(self._clients)]
        try:
            for second in range(self._seconds):
                await asyncio.sleep(1.0)
                if self._errors > ERRORS_MAX:
                    raise Unavailable(f"{self._errors} requests failed: {self._last_error}")
                out.progress(f"{second + 1} of {self._seconds} s", last=second + 1 == self._seconds)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.shield(self._clean(connect))

    async def _client(self, connect: Callable[[], Awaitable[Connection]], number: int) -> None:
        connection: Connection | None = None
        try:
            while True:
                try:
                    connection = connection or await connect()
                    await self._turn(connection, number)
                except (ReplyError, *ERRORS) as error:
                    self._errors, self._last_error = self._errors + 1, f"{type(error).__name__}: {error}"
                    if connection is not None:
                        connection.close()
                    connection = None
                    await asyncio.sleep(0.1)
        finally:
            if connection is not None:
                connection.close()

    async def _turn(self, connection: Connection, number: int) -> None:
        key, kind = self._key(number, random.randrange(KEYS_PER_CLIENT)), random.choice(KINDS)
        words = (b"SET", key, self._value, b"EX", EXPIRY_SECONDS) if kind == "writes" else (b"GET", key)
        begin = time.perf_counter()
        await connection.ask(*words)
        self._times[kind].append(time.perf_counter() - begin)

    def _key(self, number: int, key: int) -> bytes:
        return f"{self._prefix}:{number}:{key}".encode()

    async def _clean(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        """Delete all keys; those that cannot be deleted expire."""
        try:
            connection = await connect()
            try:
                for number in range(self._clients):
                    for key in range(KEYS_PER_CLIENT):
                        await connection.ask(b"DEL", self._key(number, key))
            finally:
                connection.close()
        except (ReplyError, SteleError, *ERRORS) as error:
            out.say_error(
                f"keys {self._prefix}:* are left, and expire in {EXPIRY_SECONDS.decode()} s: {error}"
            )

    def _facts(self) -> dict[str, Any]:
        measured: dict[str, Any] = {kind: _figures(self._times[kind], self._seconds) for kind in KINDS}
        requests = sum(map(len, self._times.values()))
        return {"requests": requests, "seconds": self._seconds, "errors": self._errors, **measured}


def _figures(times: "array[float]", seconds: int) -> dict[str, Any]:
    ordered = sorted(times)

    def within(share: float) -> float:
        """Return milliseconds within which this share of the requests was answered."""
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) if ordered else 0.0

    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {"per_second": len(ordered) // seconds, **{name: within(share) for name, share in shares.items()}}


def _context(ca: str) -> ssl.SSLContext:
    """Return a context that trusts the cluster's CA alone; no name fits the address of this machine."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=ca)
    except ssl.SSLError as error:
        raise BadInput(f"the Secret with the CA of the cluster has no certificate: {error}") from None
    return context
