"""What cluster clients do when a member answers that nothing was done: most send the command again."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.cluster import RedisCluster

from stele.core.kv.announce import Announce
from stele.errors import SteleError, Unavailable, Uncertain
from stele.member.resp.server import RespServer, start_resp_server
from tests.fakes.key_value_service import FakeKeyValueService
from tests.member.resp.test_cluster_protocol import talk
from tests.member.resp.test_foreign_clients import command_of

HOST = "127.0.0.1"
PARTITIONS = 16
REFUSED_SECONDS = 0.8
KEYS = [b"key-%d" % number for number in range(8)]


class RefusingStore(FakeKeyValueService):
    """Refuses what comes within `seconds` after the first request, without doing anything."""

    def __init__(self) -> None:
        super().__init__(PARTITIONS)
        self.error: SteleError = Unavailable("partition 3 had no serving owner for 15 s; nothing was done")
        self.seconds = REFUSED_SECONDS
        self.fresh = False
        self.refused = 0
        self._until = 0.0

    async def execute(self, *args, **options):  # type: ignore[no-untyped-def]
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self.seconds
        if now < self._until:
            self.refused += 1
            raise self.error
        return await super().execute(*args, **options)


@pytest.fixture
def store() -> RefusingStore:
    return RefusingStore()


@pytest.fixture
async def server(store: RefusingStore) -> AsyncIterator[RespServer]:
    server = await start_resp_server(store, HOST, 0)
    await server.listen_cluster(HOST, 0)
    await server.listen_reads(HOST, 0)
    store.announce = Announce(HOST, server.cluster_port, server.cluster_port, 0)
    yield server
    await server.close()


REQUESTS = (
    ((b"INCR", b"n"),),
    ((b"GET", b"n"),),
    ((b"MGET", b"n", b"n"),),
    ((b"WATCH", b"n"),),
    ((b"MULTI",), (b"INCR", b"n"), (b"EXEC",)),
)


@pytest.mark.parametrize("requests", REQUESTS)
@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (Unavailable("why"), (b"-TRYAGAIN why", b"-CLUSTERDOWN why")),
        (Unavailable("why", code="LOADING"), (b"-LOADING why", b"-CLUSTERDOWN why")),
        (Uncertain("why"), (b"-UNCERTAIN why", b"-UNCERTAIN why")),
    ],
)
async def test_each_port_answers_what_its_clients_send_again_after(
    server: RespServer,
    store: RefusingStore,
    requests: tuple[tuple[bytes, ...], ...],
    error: SteleError,
    lines: tuple[bytes, bytes],
) -> None:
    """Also when requests of both ports run together."""
    store.error, store.seconds = error, 60.0
    ports = server.port, server.cluster_port, server.read_port
    answers = await asyncio.gather(*(talk(port, *requests) for port in ports))
    plain, cluster = lines
    assert [answer[-1] for answer in answers] == [plain, cluster, cluster]


async def test_redis_py_sends_again_by_default(server: RespServer, store: RefusingStore) -> None:
    def count() -> list[int]:
        with RedisCluster(host=HOST, port=server.cluster_port) as client:
            return [client.incr(key) for key in KEYS]

    assert await asyncio.to_thread(count) == [1] * len(KEYS)
    assert store.refused > 1


async def test_redis_py_sends_again_by_default_with_asyncio(server: RespServer, store: RefusingStore) -> None:
    async with AsyncRedisCluster(host=HOST, port=server.cluster_port) as client:
        assert [await client.incr(key) for key in KEYS] == [1] * len(KEYS)
    assert store.refused > 1


async def failures_of(server: RespServer, store: RefusingStore, client: str, what: str) -> list[str]:
    """What a program says that failed, up to when all its keys have been counted."""
    command = await asyncio.to_thread(command_of, client, what, HOST, server.cluster_port)
    process = await asyncio.create_subprocess_exec(
        *command,
        *(key.decode() for key in KEYS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            while sum(map(len, store.data.values())) < len(KEYS):  # noqa: ASYNC110  it is seen nowhere else
                await asyncio.sleep(0.02)
            out, _ = await process.communicate(b"")
        return [text for text in json.loads(out)["failures"] if " after " not in text]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_go_redis_sends_again_with_the_options_for_members_that_die(
    server: RespServer, store: RefusingStore
) -> None:
    assert await failures_of(server, store, "go-redis", "die") == []
    assert store.refused > 1


@pytest.mark.parametrize(
    ("client", "error"),
    [
        ("jedis", "redis.clients.jedis.exceptions.JedisClusterException"),
        ("lettuce", "io.lettuce.core.RedisCommandExecutionException"),
        ("lettuce-6", "io.lettuce.core.RedisCommandExecutionException"),
    ],
)
async def test_others_say_that_nothing_was_done(
    server: RespServer, store: RefusingStore, client: str, error: str
) -> None:
    """The page on clients says that programs have to send again."""
    store.seconds = 0.1
    failures = await failures_of(server, store, client, "count")
    assert failures
    assert [text for text in failures if f"{error}: CLUSTERDOWN partition" not in text] == []
