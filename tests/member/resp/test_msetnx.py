"""MSETNX sets all of its keys or none, at one owner."""

import pytest
import redis
from redis.asyncio import Redis

from stele.core.kv.commands import KEY_BYTES_MAX
from stele.core.kv.transaction import TRANSACTION_BYTES_MAX, WATCHED_KEYS_MAX
from stele.errors import Unavailable
from stele.member.resp.server import start_resp_server
from tests.fakes.key_value_service import FakeKeyValueService


@pytest.fixture
def store():
    return FakeKeyValueService()


@pytest.fixture
async def client(store):
    server = await start_resp_server(store, "127.0.0.1", 0)
    async with Redis(port=server.port) as client:
        yield client
    await server.close()


async def test_all_keys_are_set_or_none(client):
    assert await client.msetnx({"{t}a": 1, "{t}b": 2}) == 1
    assert await client.msetnx({"{t}b": 3, "{t}c": 3}) == 0
    assert await client.mget("{t}a", "{t}b", "{t}c") == [b"1", b"2", None]
    await client.delete("{t}b")
    assert await client.execute_command("MSETNX", "{t}b", 1, "{t}b", 2) == 1
    assert await client.get("{t}b") == b"2"


async def test_it_works_in_the_keyspace_that_was_selected_before_it(client):
    async with client.pipeline(transaction=False) as pipe:
        pipe.set("{t}a", 1)
        pipe.execute_command("SELECT", "other")
        pipe.execute_command("MSETNX", "{t}a", 2)
        pipe.get("{t}a")
        assert await pipe.execute() == [True, True, True, b"2"]


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (["a"], "wrong number of arguments for 'msetnx' command"),
        ([], "wrong number of arguments for 'msetnx' command"),
        (["a", 1, "b", 2], "Keys in request don't hash to the same slot: MSETNX needs keys of one partition"),
        (["{t}a", 1, b"{t}" + b"k" * KEY_BYTES_MAX, 2], "key of 65539 bytes exceeds the limit"),
        ([f"{{t}}{number}" for number in range(2 * WATCHED_KEYS_MAX + 2)], "MSETNX sets at most 1000 keys"),
        (["{t}a", b"v" * TRANSACTION_BYTES_MAX], "MSETNX sets at most 1000 keys of 4194304 bytes"),
    ],
)
async def test_what_is_refused_changes_nothing(client, store, keys, error):
    with pytest.raises(redis.ResponseError, match=error):
        await client.execute_command("MSETNX", *keys)
    assert not any(store.data.values())


async def test_an_error_of_the_owner_is_the_reply(client, store):
    store.failures.append(Unavailable("the partition has no owner"))
    with pytest.raises(redis.ResponseError, match="the partition has no owner"):
        await client.msetnx({"a": 1})


async def test_watched_keys_that_it_sets_itself_count_as_changed(client):
    async with client.pipeline() as pipe:
        await pipe.watch("{t}a")
        assert await pipe.msetnx({"{t}a": 1, "{t}b": 2}) == 1
        pipe.multi()
        pipe.get("{t}a")
        with pytest.raises(redis.WatchError):
            await pipe.execute()
