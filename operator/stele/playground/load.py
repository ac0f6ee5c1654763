"""Clients that write and read without end, check what they read, and count.

Each has keys of its own, and knows for each the last number that was acknowledged and the last that it sent.
A read that finds a number outside of these is a write that was lost, or one that nobody made.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import quantiles

from stele.client.resp import ERRORS, Connection, Place, ReplyError

KEYS_PER_CLIENT = 500
VALUE_BYTES = 1000
PAUSE_SECONDS = 0.1
"""Seconds from an error to the next request."""


@dataclass
class Counts:
    """What happened since the last `take`. `wrong` says what was read that should not have been."""

    writes: int = 0
    reads: int = 0
    errors: int = 0
    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    last_error: str = ""

    def take(self) -> "Counts":
        """Return the counts so far, and start from zero."""
        found = Counts(**vars(self))
        self.__init__()  # type: ignore[misc]
        return found

    @property
    def p99_ms(self) -> float:
        """99 of 100 requests took at most so many milliseconds."""
        if len(self.seconds) < 2:
            return 1000 * max(self.seconds, default=0.0)
        return 1000 * quantiles(self.seconds, n=100)[-1]


class Client:
    """One connection at a time, to any member. `places` returns those that there are."""

    def __init__(self, name: str, places: Callable[[], Sequence[Place]], counts: Counts) -> None:
        self._name, self._places, self._counts = name, places, counts
        self._acknowledged: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._connection: Connection | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            for key in range(KEYS_PER_CLIENT):
                await self._turn(key, writes=True)
            while True:
                await self._turn(random.randrange(KEYS_PER_CLIENT), writes=random.random() < 0.4)
        finally:
            self._drop()

    async def _turn(self, key: int, *, writes: bool) -> None:
        begin = time.monotonic()
        try:
            if self._connection is None:
                self._connection = await Connection.open(random.choice(self._places()))
            await (self._write if writes else self._read)(self._connection, key)
        except ReplyError as error:
            await self._note_error(str(error))
        except ERRORS as error:
            self._drop()
            await self._note_error(f"{type(error).__name__}: {error}")
        else:
            self._counts.seconds.append(time.monotonic() - begin)

    async def _note_error(self, text: str) -> None:
        self._counts.errors += 1
        self._counts.last_error = text
        await asyncio.sleep(PAUSE_SECONDS)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _key(self, key: int) -> bytes:
        return f"load:{self._name}:{key}".encode()

    async def _write(self, connection: Connection, key: int) -> None:
        number = self._sent[key] = self._sent.get(key, 0) + 1
        await connection.ask(b"SET", self._key(key), str(number).encode().ljust(VALUE_BYTES))
        self._acknowledged[key] = number
        self._counts.writes += 1

    async def _read(self, connection: Connection, key: int) -> None:
        least = self._acknowledged.get(key, 0)
        found = await connection.ask(b"GET", self._key(key))
        number = 0 if found is None else int(found)
        if not least <= number <= self._sent.get(key, 0) and least:
            self._counts.wrong.append(
                f"{self._key(key).decode()} has {number}; acknowledged was {least}, sent {self._sent[key]}"
            )
        self._counts.reads += 1


async def run_load(
    number: int, places: Callable[[], Sequence[Place]], seconds: float, show: Callable[[Counts], None]
) -> None:
    """Run clients for so many seconds. `show` gets the counts of each second."""
    counts, begin = Counts(), time.monotonic()
    names = [f"{random.getrandbits(32):08x}-{each}" for each in range(number)]
    tasks = [asyncio.create_task(Client(name, places, counts).run()) for name in names]
    try:
        while time.monotonic() - begin < seconds:
            await asyncio.sleep(1.0)
            for task in tasks:
                if task.done():
                    task.result()
            show(counts.take())
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
