"""Clients that count: redis-py, through members as through a Service of Kubernetes."""

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncioRetry
from redis.backoff import NoBackoff
from redis.retry import Retry


class Service:
    """New connections go to the members that are left, as through a Service; those that exist stay.

    Clients have redis-py's own defaults. With `trusted`, a file of CAs, they use TLS. Those that try `once`
    send nothing again by themselves, so each connection that ends under them is an error.
    """

    def __init__(
        self, hosts: list[str], port: int, trusted: Path | None = None, *, once: bool = False
    ) -> None:
        self.hosts, self._once = hosts, once
        self._options: dict[str, Any] = {"port": port}
        if trusted is not None:
            self._options |= {"ssl": True, "ssl_ca_certs": str(trusted), "ssl_check_hostname": False}
        self._next = itertools.count()

    def host(self) -> str:
        return self.hosts[next(self._next) % len(self.hosts)]

    def client(self) -> redis.Redis:
        retry = {"retry": Retry(NoBackoff(), 0)} if self._once else {}
        client = redis.Redis(**self._options, **retry)
        self._spread(client.connection_pool)
        return client

    def asyncio_client(self) -> redis.asyncio.Redis:
        retry = {"retry": AsyncioRetry(NoBackoff(), 0)} if self._once else {}
        client = redis.asyncio.Redis(**self._options, **retry)
        self._spread(client.connection_pool)
        return client

    def _spread(self, pool: Any) -> None:
        service, base = self, pool.connection_class

        def _connect(connection: Any) -> Any:
            connection.host = service.host()
            return base._connect(connection)

        pool.connection_class = type(base.__name__, (base,), {"_connect": _connect})


class Load:
    """Clients that count up these keys without a pause: each request runs exactly once.

    They connect again after `renew_each` requests of one key, if it is not 0.
    """

    def __init__(self, service: Service, keys: list[bytes], renew_each: int = 0) -> None:
        self._service, self._renew_each = service, renew_each
        self.counts = dict.fromkeys(keys, 0)
        self.failures: list[str] = []
        self.over = False
        self._threads = [threading.Thread(target=self._run, args=(keys[n::4],)) for n in range(4)]
        self._tasks = [asyncio.ensure_future(self._asyncio_run(b"task-%d-" % n + keys[0])) for n in range(4)]
        for thread in self._threads:
            thread.start()

    def _run(self, keys: list[bytes]) -> None:
        with self._service.client() as client:
            while not self.over:
                for key in keys:
                    try:
                        if self._check(key, client.incr(key)):
                            client.connection_pool.disconnect()
                    except redis.RedisError as error:
                        self.failures.append(f"{key!r}: {error!r}: {error}")

    async def _asyncio_run(self, key: bytes) -> None:
        self.counts[key] = 0
        async with self._service.asyncio_client() as client:
            while not self.over:
                try:
                    if self._check(key, await client.incr(key)):
                        await client.connection_pool.disconnect()
                except redis.RedisError as error:
                    self.failures.append(f"{key!r}: {error!r}: {error}")

    def _check(self, key: bytes, value: object) -> bool:
        """Return whether the client is to connect again."""
        self.counts[key] += 1
        if value != self.counts[key]:
            self.failures.append(f"{key!r} is {value!r} after {self.counts[key]} requests")
            self.counts[key] = int(str(value))
        return self._renew_each > 0 and self.counts[key] % self._renew_each == 0

    async def end(self) -> None:
        self.over = True
        await asyncio.gather(*self._tasks)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    async def lost(self) -> dict[bytes, object]:
        """The values of keys that are not what a client was told last."""
        async with self._service.asyncio_client() as client:
            values = await client.mget(list(self.counts))
        found = zip(self.counts.items(), values, strict=True)
        return {key: value for (key, count), value in found if value != b"%d" % count}
