"""FLUSHDB and FLUSHALL: replies compared with redis-server, both ports, and a failure in between."""

import pytest
import redis.asyncio

from stele.errors import Refused, Uncertain
from stele.member.resp.flush import FLUSH_PARTITIONS_AT_ONCE
from tests.member.resp.test_transactions import replies

SCRIPTS = {
    "flushdb": "SET {t}a 1 | SELECT 1 | SET {t}b 1 | FLUSHDB | GET {t}b | DBSIZE | SELECT 0 | GET {t}a",
    "flushall": "SET {t}a 1 | SELECT 1 | SET {t}b 1 | FLUSHALL | GET {t}b | SELECT 0 | GET {t}a | DBSIZE",
    "how": "SET {t}a 1 | FLUSHDB ASYNC | GET {t}a | FLUSHDB sync | FLUSHALL async | flushall SYNC",
    "wrong": "SET {t}a 1 | FLUSHDB NOW | FLUSHDB ASYNC SYNC | FLUSHALL 1 | GET {t}a | DEL {t}a",
    "watched": "SET {t}a 1 | WATCH {t}a | FLUSHDB | MULTI | SET {t}a 3 | EXEC | GET {t}a",
    "watched, missing": "WATCH {t}c | FLUSHALL | MULTI | SET {t}a 3 | EXEC | GET {t}a | DEL {t}a",
}


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_replies_are_those_of_redis(server, reference, name, protocol):
    script = f"FLUSHALL | {SCRIPTS[name]} | FLUSHALL"
    assert await replies(server.port, script, protocol) == await replies(reference, script, protocol)


async def test_on_the_cluster_port_a_member_clears_its_own_partitions(server, store):
    store.data = {(p, b"default"): {b"k": (b"v", 0)} for p in range(store.partitions)}
    store.elsewhere = {0, 3, 7}
    async with redis.asyncio.Redis(port=server.cluster_port) as client:
        assert await client.flushdb()
    assert {place[0] for place in store.data} == store.elsewhere


async def test_a_failure_says_how_far_it_went_and_to_repeat_it(server, store):
    async with redis.asyncio.Redis(port=server.port) as client:
        await client.set("a", 1)
        store.failures = [Refused("writes are refused", "CLUSTER_PASSIVE"), Uncertain("no answer")]
        with pytest.raises(redis.ResponseError) as caught:
            await client.flushdb()
        done, total = FLUSH_PARTITIONS_AT_ONCE - 2, store.partitions
        text = f"FLUSHDB cleared {done} of {total} partitions; repeat it, for not all are: no answer"
        assert str(caught.value) == f"UNCERTAIN {text}"
        assert await client.flushdb(), "repeating it is safe"
        assert await client.dbsize() == 0


async def test_clients_are_told_to_send_it_to_all_members(server):
    async with redis.asyncio.Redis(port=server.port) as client:
        found = await client.execute_command("COMMAND", "INFO", "flushdb", "flushall")
    for name in ("flushdb", "flushall"):
        assert found[name]["arity"] == -1
        assert "write" in found[name]["flags"]
