"""Writes many entries as fast as the cluster takes them: a few connections, batches in a pipeline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from e2e.demo.errors import DemoError
from e2e.demo.resp import Connection, Endpoint, ReplyFailure

CONNECTIONS = 4
BATCH_ENTRIES_MAX = 64
BATCH_BYTES_MAX = 256 * 1024
REPLY_SECONDS_MAX = 30.0
BATCH_SECONDS_MAX = 180.0
RETRY_SECONDS = 0.2

Pair = tuple[bytes, bytes]


@dataclass
class Load:
    """Progress and result of loading one keyspace. `retries` counts batches of which a part was sent
    again.
    """

    keyspace: str
    entries: int = 0
    bytes: int = 0
    seconds: float = 0.0
    retries: int = 0

    @property
    def megabytes_per_second(self) -> float:
        """Millions of bytes per second."""
        return self.bytes / self.seconds / 1e6 if self.seconds else 0.0


async def load(
    endpoint: Endpoint, keyspace: str, pairs: Iterable[Pair], told: Callable[[Load], None]
) -> Load:
    """Set every pair in the keyspace; `told` gets the progress after each batch.

    A part of a batch that failed is sent again, which is safe here because nobody else writes these keys.
    Raises DemoError when one batch is not done within `BATCH_SECONDS_MAX`.
    """
    progress = Load(keyspace)
    start = time.monotonic()
    todo = batches(pairs)

    async def work() -> None:
        sender = _Sender(endpoint, keyspace)
        try:
            for batch in todo:
                progress.retries += await sender.send(batch)
                progress.entries += len(batch)
                progress.bytes += sum(len(key) + len(value) for key, value in batch)
                progress.seconds = time.monotonic() - start
                told(progress)
        finally:
            sender.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(work())
    return progress


def batches(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Lists of at most `BATCH_ENTRIES_MAX` pairs and, unless one alone is longer, `BATCH_BYTES_MAX` bytes."""
    batch: list[Pair] = []
    size = 0
    for pair in pairs:
        length = len(pair[0]) + len(pair[1])
        if batch and (len(batch) == BATCH_ENTRIES_MAX or size + length > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(pair)
        size += length
    if batch:
        yield batch


class _Sender:
    """One connection that is opened again whenever it is lost."""

    def __init__(self, endpoint: Endpoint, keyspace: str) -> None:
        self._endpoint, self._keyspace = endpoint, keyspace
        self._connection: Connection | None = None

    async def send(self, batch: list[Pair]) -> int:
        """Set all of the batch; the number of times that a part had to be sent again."""
        deadline = time.monotonic() + BATCH_SECONDS_MAX
        retries, left, reason = 0, batch, ""
        while True:
            try:
                left, reason = await self._try(left)
            except (OSError, ReplyFailure) as error:
                self.close()
                reason = str(error) or type(error).__name__
            if not left:
                return retries
            if time.monotonic() > deadline:
                raise DemoError(
                    f"Loading {self._keyspace!r} at {self._endpoint} does not go on since "
                    f"{BATCH_SECONDS_MAX:.0f} s ({reason}): look at kubectl describe tabletcluster."
                )
            retries += 1
            await asyncio.sleep(RETRY_SECONDS)

    async def _try(self, pairs: list[Pair]) -> tuple[list[Pair], str]:
        if self._connection is None:
            self._connection = await Connection.open(self._endpoint, self._keyspace, REPLY_SECONDS_MAX)
        replies = await self._connection.ask([(b"SET", *pair) for pair in pairs], REPLY_SECONDS_MAX)
        failed = [(pair, reply) for pair, reply in zip(pairs, replies, strict=True) if reply != b"OK"]
        return [pair for pair, _ in failed], str(failed[0][1]) if failed else ""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
