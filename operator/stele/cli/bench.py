"""`kubectl stele bench`: a short load with its throughput and latencies, which cleans up after itself."""

import asyncio
import random
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stele.cli import output as out
from stele.cli.client_port import LOCAL, Login, Way, active_members, login_of, pair_of
from stele.cli.options import OutputOption, Where, on_cluster
from stele.cli.status import ClusterArgument
from stele.client.resp import ERRORS, Connection, ReplyError
from stele.errors import Refused, SteleError, Unavailable

if TYPE_CHECKING:
    from stele.adapters.kubernetes.console import Console

BENCH_CLIENTS_MAX, BENCH_SECONDS_MAX, BENCH_BYTES_MAX = 64, 300, 1024 * 1024
KEYS_PER_CLIENT = 200
EXPIRY_SECONDS = str(BENCH_SECONDS_MAX + 300).encode()
"""Keys go by themselves, too, when the command is killed."""
PREFIX = "kubectl-stele-bench"
ERRORS_MAX = 1_000
"""Errors after which it gives up."""
REFUSALS = ("NOAUTH", "WRONGPASS", "NOPERM")
"""Errors of a user who may not do what is asked."""
HINT = f"--user names one with the rights +set +get +del ~{PREFIX}:*, REDISCLI_AUTH has another password"


@on_cluster
def bench(
    where: Where,
    cluster: ClusterArgument,
    *,
    seconds: Annotated[int, typer.Option("--seconds", min=1, max=BENCH_SECONDS_MAX, help="How long.")] = 10,
    clients: Annotated[int, typer.Option("--clients", min=1, max=BENCH_CLIENTS_MAX, help="Connections.")] = 8,
    size: Annotated[int, typer.Option("--bytes", min=1, max=BENCH_BYTES_MAX, help="Bytes of a value.")] = 100,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", metavar="NAME", help="Log in as this user; the password is that of its TabletUser."
        ),
    ] = None,
    cert: Annotated[
        Path | None, typer.Option("--cert", metavar="FILE", help="Certificate to show, as PEM.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its key, as PEM.")] = None,
    output: OutputOption = None,
) -> None:
    """Write and read for some seconds, and print throughput and latencies; its keys are deleted at the end.

    It is the user default unless --user names another one, or --cert is that of one. REDISCLI_AUTH has the
    password, if it is set.

    Requests go through the API server, which has its part in the latencies: compare runs with each other,
    and measure what members can do with redis-benchmark inside of Kubernetes.

    \b
    Examples:
      kubectl stele bench demo -n stele
      kubectl stele bench demo --seconds 30 --clients 16 --bytes 1000 -n stele
      kubectl stele bench demo --user shop --cert shop.crt --key shop.key -n stele
    """
    pair, run = pair_of(cert, key), _Bench(clients, seconds, b"v" * size)

    async def measured(console: "Console") -> dict[str, Any]:
        found = await console.cluster(cluster)
        login = await login_of(console, found, user or "", pair)
        return await run.run(Way(console, await active_members(console, cluster)), login)

    facts = where.ask(measured)
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

    async def run(self, way: Way, login: Login) -> dict[str, Any]:
        """Return what was measured.

        Raises Refused for a user who may not run it, Unavailable when nothing was answered.
        """
        async with await way.serve() as server:
            place = LOCAL, server.sockets[0].getsockname()[1]

            async def connect() -> Connection:
                return await login.connect(place)

            await self._check(connect, login)
            await self._measure(connect)
        if not sum(map(len, self._times.values())):
            raise Unavailable(f"no request was answered: {self._last_error or 'none failed either'}")
        return self._facts()

    async def _check(self, connect: Callable[[], Awaitable[Connection]], login: Login) -> None:
        """Raise Refused for a user who may not log in, or has no right to what follows."""
        key = self._key(0, 0)
        try:
            connection = await connect()
            try:
                for words in self._set(key), (b"GET", key), (b"DEL", key):
                    await connection.ask(*words)
            finally:
                connection.close()
        except ReplyError as error:
            if str(error).startswith(REFUSALS):
                raise Refused(f"{login.who} may not run it: {error}; {HINT}", "FORBIDDEN") from None
        except ERRORS:
            # All else may pass, and is counted.
            return

    def _set(self, key: bytes) -> tuple[bytes, ...]:
        return b"SET", key, self._value, b"EX", EXPIRY_SECONDS

    async def _measure(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        """Connect all clients, then let them ask for as long as it was asked for."""
        first = await asyncio.gather(*(connect() for _ in range(self._clients)), return_exceptions=True)
        open_ones = [each if isinstance(each, Connection) else None for each in first]
        tasks = [
            asyncio.create_task(self._client(connect, number, connection))
            for number, connection in enumerate(open_ones)
        ]
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

    async def _client(
        self, connect: Callable[[], Awaitable[Connection]], number: int, connection: Connection | None
    ) -> None:
        """Ask until cancelled. Who could not be connected before the start tries again, which counts."""
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
        words = self._set(key) if kind == "writes" else (b"GET", key)
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
