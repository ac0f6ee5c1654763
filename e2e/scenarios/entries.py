"""Entries that a scenario writes before anything happens, and reads again afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from e2e.demo.resp import Endpoint, redis_options

SOCKET_SECONDS = 60.0
CONNECT_TRIES_MAX = 30


@dataclass(frozen=True)
class Entries:
    """`number` entries with values of `value_bytes`, the same in each run; `batch` of them in one command."""

    endpoint: Endpoint
    number: int
    value_bytes: int
    batch: int

    def write(self) -> None:
        """Every entry is acknowledged."""
        with self._client() as client:
            for batch in self._batches():
                assert client.mset(batch)

    def wrong(self) -> int:
        """Count entries that are not as written."""
        with self._client() as client:
            return sum(
                found != value
                for batch in self._batches()
                for found, value in zip(client.mget(list(batch)), batch.values(), strict=True)
            )

    def _client(self) -> redis.Redis:
        """Return a client that waits for the Service, which has its members some seconds after they serve."""
        patient = Retry(ConstantBackoff(1.0), CONNECT_TRIES_MAX)
        where = self.endpoint.host, self.endpoint.port
        return redis.Redis(
            *where, **redis_options(self.endpoint), socket_timeout=SOCKET_SECONDS, retry=patient
        )

    def _batches(self) -> Iterator[dict[str, bytes]]:
        chance = random.Random(7)
        for begin in range(0, self.number, self.batch):
            numbers = range(begin, min(begin + self.batch, self.number))
            yield {f"key-{number}": chance.randbytes(self.value_bytes) for number in numbers}
