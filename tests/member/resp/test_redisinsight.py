"""RedisInsight's requests when it connects and browses, from its source; the application is not run."""

import pytest
import redis.asyncio

from tests.member.harness.cluster import Cluster
from tests.member.resp.test_cluster_clients import CLUSTER_PORT

PORTS = [0, CLUSTER_PORT]
KEY = "user:1"
OPTIONAL = [
    *("SENTINEL MASTERS", "SLOWLOG LEN", "SLOWLOG GET 50", "MONITOR"),
    *("FT._LIST", "HGETALL k", "RENAMENX k l"),
]
"""What it does without: it tolerates `unknown command`, and says that the feature is not there."""


@pytest.fixture(params=PORTS, ids=["any", "cluster"])
async def client(one: Cluster, request: pytest.FixtureRequest):
    host, port = one.members[0].host, one.ports[request.param]
    async with redis.asyncio.Redis(host=host, port=port, single_connection_client=True) as client:
        yield client


@pytest.fixture
def is_cluster(request: pytest.FixtureRequest) -> bool:
    return "cluster" in request.node.name.split("[")[-1]


async def test_it_connects(client, is_cluster) -> None:
    """Its library greets, it looks which kind of server this is, and shows the overview."""
    assert await client.execute_command("CLIENT SETNAME", "redisinsight-common-0af3")
    assert await client.execute_command("SELECT", 0)
    info = await client.info()
    assert info["redis_version"]
    assert info.get("loading", 0) == 0
    assert info["role"] == "master"
    assert min(info["used_memory"], info["connected_clients"]) > 0
    assert await client.execute_command("MODULE LIST") == []
    assert await client.execute_command("CONFIG GET", "databases") == {}, "it takes that for one"
    assert await client.execute_command("COMMAND INFO", "arget") in ({}, [None])
    assert (await client.execute_command("HELLO"))[b"modules"] == []
    assert len(await client.execute_command("CLIENT LIST")) >= 1
    assert "flushall" in await client.execute_command("ACL CAT", "dangerous")
    assert await client.execute_command("ACL WHOAMI") in (b"default", "default")
    if is_cluster:
        assert (await client.execute_command("CLUSTER INFO"))["cluster_state"] == "ok"
        assert len(await client.execute_command("CLUSTER SLOTS")) == 1
    else:
        with pytest.raises(redis.ResponseError, match="cluster support disabled"):
            await client.execute_command("CLUSTER INFO")


async def test_it_browses_keys(client) -> None:
    """It scans, asks for size, type and expiry of each key in three pipelines, and opens one."""
    await client.set(KEY, "hello", ex=1000)
    await client.set("user:2", "")
    assert await client.dbsize() == 2
    cursor, keys = 0, []
    while not keys or cursor:
        cursor, found = await client.execute_command(
            "SCAN", cursor, "MATCH", "user:*", "COUNT", 500, "TYPE", "string"
        )
        keys += found
    assert sorted(keys) == [b"user:1", b"user:2"]
    for command, expected in (("MEMORY USAGE", [11, 6]), ("TYPE", [b"string"] * 2), ("TTL", [1000, -1])):
        pipe = client.pipeline(transaction=False)
        for key in sorted(keys):
            pipe.execute_command(command, key, *(("samples", "0") if command == "MEMORY USAGE" else ()))
        assert await pipe.execute() == expected
    assert await client.execute_command("TYPE", "none") == b"none"
    assert await client.execute_command("MEMORY USAGE", "none", "samples", "0") is None
    assert await client.execute_command("STRLEN", KEY) == 5
    assert await client.execute_command("GETRANGE", KEY, 0, 4999) == b"hello"
    assert await client.execute_command("SET", KEY, "bye", "XX")
    assert await client.execute_command("EXPIRE", KEY, 500)
    assert await client.execute_command("PERSIST", KEY)
    assert await client.execute_command("DEL", KEY) == 1


@pytest.mark.parametrize("command", OPTIONAL)
async def test_what_it_can_do_without_is_an_unknown_command(client, command: str) -> None:
    with pytest.raises(redis.ResponseError, match="unknown command"):
        await client.execute_command(*command.split())
