"""Every member answers for every key, as its role and the state of the cluster let it."""

import pytest

from stele.core.formats import CLEARS
from tests.member.harness.clients import RespError
from tests.member.harness.cluster import Client, Cluster, eventually


async def write_some(client: Client, members: list[int], number: int, text: bytes = b"v") -> None:
    for n in range(number):
        assert await client.set(members[n % len(members)], b"k%d" % n, text + b"%d" % n), client.errors


async def test_every_member_answers_for_every_key(three: Cluster) -> None:
    client = Client(three)
    await write_some(client, [0, 1, 2], 60)
    for member in (0, 1, 2):
        await client.check(member)
    assert await client.call(1, b"DBSIZE") == 60
    await three.same_everywhere()


async def test_a_keyspace_is_cleared_through_any_member(three: Cluster) -> None:
    three.features = CLEARS
    await three.publish()
    client, after = Client(three), Client(three)
    await write_some(client, [0, 1, 2], 60)
    assert await client.call(1, b"FLUSHDB") == b"OK"
    assert [await client.call(member, b"DBSIZE") for member in (0, 1, 2)] == [0, 0, 0]
    await write_some(after, [2, 1, 0], 20)
    assert await client.call(0, b"FLUSHALL", b"ASYNC") == b"OK"
    assert await client.call(2, b"DBSIZE") == 0
    await write_some(after, [1], 5)
    assert await client.call(2, b"DBSIZE") == 5
    await three.same_everywhere()


async def test_passive_refuses_writes_and_answers_reads(two: Cluster) -> None:
    client = Client(two)
    assert await client.set(0, b"key", b"1")
    two.state = "Passive"
    await two.publish()
    with pytest.raises(RespError, match="CLUSTER_PASSIVE"):
        await client.call(1, b"SET", b"key", b"2")
    assert await client.call(1, b"GET", b"key") == b"1"
    two.state = "Active"
    await two.publish()
    assert await client.set(1, b"key", b"3")


async def test_a_lite_member_holds_nothing_and_serves_clients_by_asking_owners(two: Cluster) -> None:
    await two.add()
    two.lite = {2}
    await two.publish()
    client = Client(two)
    for number in range(40):
        assert await client.set(2, b"key-%d" % number, b"%d" % number)
    for number in range(40):
        assert await client.call(2, b"GET", b"key-%d" % number) == b"%d" % number
    reply = await eventually(lambda: two.exchange(2), lambda reply: reply.stats.forwarded >= 80)
    assert (reply.stats.owned, reply.stats.backups) == (0, 0)
    assert not [each for each in reply.tablets if each.state != "DELETED"]
    for owner in (0, 1):
        stats = (
            await eventually(lambda n=owner: two.exchange(n), lambda reply: reply.stats.writes > 0)
        ).stats
        assert sum(stats.durations) == stats.reads + stats.writes
