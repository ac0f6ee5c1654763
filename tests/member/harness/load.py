"""Clients that count: redis-py with its own defaults, through members as through a Service of Kubernetes."""

import asyncio
import itertools
import threading

import redis
import redis.asyncio


class Service:
    """New connections go to the members that are left, as through a Service; those that exist stay."""

    def __init__(self, hosts: list[str], port: int) -> None:
        self.hosts, self._port = hosts, port
        self._next = itertools.count()

    def host(self) -> str:
        return self.hosts[next(self._next) % len(self.hosts)]

    def client(self) -> redis.Redis:
        """A client with redis-py's own defaults."""
        service = self

        class Connection(redis.Connection):
            def _connect(self) -> object:
                self.host = service.host()
                return super()._connect()

        client = redis.Redis(port=self._port)
        client.connection_pool.connection_class = Connection
        return client

    def asyncio_client(self) -> redis.asyncio.Redis:
        service = self

        class Connection(redis.asyncio.Connection):
            async def _connect(self) -> None:
                self.host = service.host()
                await super()._connect()

        client = redis.asyncio.Redis(port=self._port)
        client.connection_pool.connection_class = Connection
        return client


class Load:
    """Clients that count up these keys without a pause: each request runs exactly once."""

    def __init__(self, service: Service, keys: list[bytes]) -> None:
        self.counts = dict.fromkeys(keys, 0)
        self.failures: list[str] = []
        self.over = False
        self._threads = [threading.Thread(target=self._run, args=(service, keys[n::4])) for n in range(4)]
        self._tasks = [asyncio.ensure_future(self._asyncio_run(service, b"task-%d" % n)) for n in range(4)]
        for thread in self._threads:
            thread.start()

    def _run(self, service: Service, keys: list[bytes]) -> None:
        with service.client() as client:
            while not self.over:
                for key in keys:
                    try:
                        self._check(key, client.incr(key))
                    except redis.RedisError as error:
                        self.failures.append(f"{key!r}: {error!r}")

    async def _asyncio_run(self, service: Service, key: bytes) -> None:
        self.counts[key] = 0
        async with service.asyncio_client() as client:
            while not self.over:
                try:
                    self._check(key, await client.incr(key))
                except redis.RedisError as error:
                    self.failures.append(f"{key!r}: {error!r}")

    def _check(self, key: bytes, value: object) -> None:
        self.counts[key] += 1
        if value != self.counts[key]:
            self.failures.append(f"{key!r} is {value!r} after {self.counts[key]} requests")
            self.counts[key] = int(str(value))

    async def end(self) -> None:
        self.over = True
        await asyncio.gather(*self._tasks)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
