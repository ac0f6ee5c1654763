"""Each redis-server that the tests of this folder compare members with, and clients that see all bytes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from stele.member.resp.server import RespServer, start_resp_server
from stele.ports.key_value_service import KeyValueService
from tests.fakes.key_value_service import FakeKeyValueService
from tests.member.harness.raw_client import Client
from tests.member.harness.reference import redis_cluster, redis_server


@pytest.fixture
def store() -> KeyValueService:
    """What the server of a test answers from; files with a `store` of their own use that."""
    return FakeKeyValueService()


@pytest.fixture
async def server(store: KeyValueService) -> AsyncIterator[RespServer]:
    """A RESP server on loopback, with the port for clients of Redis Cluster."""
    server = await start_resp_server(store, "127.0.0.1", 0)
    await server.listen_cluster("127.0.0.1", 0)
    yield server
    await server.close()


@pytest.fixture(scope="module")
def reference() -> Iterator[int]:
    """The port of a redis-server."""
    with redis_server() as port:
        yield port


@pytest.fixture(scope="module")
def cluster_reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a redis-server in cluster mode that owns all slots."""
    folder: Path = tmp_path_factory.mktemp("redis")
    with redis_cluster(folder) as port:
        yield port


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[int], Awaitable[Client]]]:
    """Opens connections, which end with the test."""
    clients: list[Client] = []

    async def to(port: int) -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
        return clients[-1]

    yield to
    for client in clients:
        client.close()
    await asyncio.sleep(0)
