"""Keyspaces that no Keyspace declares, where all have to be declared."""

import pytest
import redis.asyncio

from stele.core.kv.keyspaces import Catalog, Settings, Undeclared
from stele.member.replication.keyspaces import Keyspaces
from stele.member.resp.server import start_resp_server
from tests.fakes.key_value_service import FakeKeyValueService


def text_of(keyspace):
    return (
        f"UNDECLARED keyspace {keyspace} is not declared: create a Keyspace with this name"
        " (keyspaces.undeclared of the TabletCluster is Refuse)"
    )


@pytest.fixture
def keyspaces():
    """What the member of these clients knows."""
    return Keyspaces(Catalog(1, {"sessions": Settings()}))


@pytest.fixture
def store(keyspaces):
    store = FakeKeyValueService()
    store.only = keyspaces.only
    return store


@pytest.fixture(params=["port", "cluster_port", "read_port"])
async def client(store, request):
    server = await start_resp_server(store, "127.0.0.1", 0)
    await server.listen_cluster("127.0.0.1", 0)
    await server.listen_reads("127.0.0.1", 0)
    async with redis.asyncio.Redis(
        port=getattr(server, request.param), single_connection_client=True
    ) as made:
        yield made
    await server.close()


def refuse(keyspaces, version=2):
    keyspaces.use(Catalog(version, {"sessions": Settings()}, Undeclared.REFUSE))


async def answers(client, *commands):
    found = []
    for command in commands:
        try:
            found.append(await client.execute_command(*command.split()))
        except redis.ResponseError as error:
            found.append(str(error))
    return found


async def test_only_declared_keyspaces_can_be_selected(client, keyspaces):
    assert all(each in (b"OK", True) for each in await answers(client, "SELECT other", "SELECT 0"))
    refuse(keyspaces)
    found = await answers(client, "SELECT other", "SELECT 5", "SELECT 0")
    assert found == [text_of("other"), text_of("db5"), text_of("default")]
    await client.execute_command("SELECT", "sessions")
    assert await answers(client, "SELECT other", "GET a") == [text_of("other"), None], "it stays in sessions"


@pytest.mark.parametrize(
    "command",
    [
        "GET a",
        "SET a 1",
        "set a 1 EX 5",
        "MGET a {a}b",
        "MSET a 1 {a}b 2",
        "MSETNX a 1 {a}b 2",
        "DEL a",
        "STELE.ONCE client 1 SET a 1",
        "WATCH a",
        "SCAN 0",
        "DBSIZE",
        "FLUSHDB",
        "MEMORY USAGE a",
    ],
)
async def test_a_connection_that_is_in_another_keyspace_is_refused_there(client, keyspaces, store, command):
    refuse(keyspaces)
    assert await answers(client, command) == [text_of("default")]
    assert store.calls == []


async def test_commands_about_no_keyspace_go_on(client, keyspaces):
    refuse(keyspaces)
    for command in ("PING", "ECHO a", "CLIENT ID", "INFO", "FLUSHALL", "PUBLISH a b"):
        await client.execute_command(*command.split())


async def test_a_transaction_is_refused_when_it_is_queued(client, keyspaces):
    refuse(keyspaces)
    found = await answers(client, "MULTI", "SET a 1", "EXEC")
    assert found[1:] == [text_of("default"), "Transaction discarded because of previous errors."]


async def test_what_is_declared_or_allowed_later_works_at_once(client, keyspaces):
    refuse(keyspaces)
    await client.execute_command("SELECT", "sessions")
    assert await client.set("a", 1)
    keyspaces.use(Catalog(3, {"other": Settings()}, Undeclared.REFUSE))
    assert await answers(client, "GET a") == [text_of("sessions")]
    keyspaces.use(Catalog(4, {"other": Settings()}))
    assert await client.get("a") == b"1"
