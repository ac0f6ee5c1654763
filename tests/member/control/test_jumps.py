"""Numbers near the end of their range: a member takes none of them, whoever tells them, and goes on."""

import asyncio

import msgspec
import pytest

from stele.core.control import commands as m
from stele.core.table.ids import EPOCH_MAX, STEP_MAX, VERSION_MAX
from stele.wire import peer
from stele.wire.frames import encode_frame
from tests.member.harness.cluster import CLUSTER, Client, Cluster

P = 0


def request_of(made: Cluster, **changes: object) -> m.ExchangeRequest:
    return msgspec.structs.replace(made.plain_request(0), **changes)


JUMPS: list[dict[str, object]] = [
    {"epoch": EPOCH_MAX},
    {"epoch": STEP_MAX + 2},
    {"member_list_version": EPOCH_MAX},
    {"rows": (m.Row(P, VERSION_MAX, (0, 1)),)},
    {"rows": (m.Row(P, STEP_MAX + 100, (0, 1)),)},
]
ORDERS: list[m.Command] = [
    m.Fence(P, VERSION_MAX - 1, True),
    m.Fence(P, VERSION_MAX, True),
    m.Accept("x", m.Row(P, VERSION_MAX - 1, (0, 1))),
]


@pytest.mark.parametrize("restarted", [False, True])
async def test_numbers_that_jump_are_refused_and_the_master_goes_on(two: Cluster, restarted: bool) -> None:
    client, member = Client(two), two.members[0]
    assert await client.set(0, b"k", b"v")
    for changes in JUMPS:
        reply = await two.post(member, request_of(two, **changes))
        assert (reply.code, "Numbers that jump" in reply.detail) == ("BAD_REQUEST", True), changes
    for order in ORDERS:
        reply = await two.post(member, request_of(two, commands=(order,)))
        assert (reply.code, reply.results[0].code) == ("OK", "BAD_REQUEST"), order
    if restarted:
        await member.kill()
        await member.start()
    two.epoch += 1
    version = two.rows[P].version
    two.rows[P] = m.Row(P, version + 1, two.rows[P].replicas)
    two.list_version += 1
    await two.publish()
    reply = await two.exchange(0, m.Fence(P, version + 2, True), want=True)
    assert (reply.epoch, reply.results[0].code) == (two.epoch, "OK")
    assert next(row.version for row in reply.rows if row.partition == P) == version + 1


async def test_a_member_that_tells_rows_and_terms_that_jump_is_not_followed(two: Cluster) -> None:
    member = two.members[0]
    mine = next(p for p, row in two.rows.items() if row.replicas[0] == 1)
    row, version = two.rows[mine], two.rows[mine].version
    hello = peer.Hello(peer.GREETING_FORMAT, CLUSTER, 1, two.members[1].uuid, member.uuid)
    reader, writer = await asyncio.open_connection(member.host, member.ports[1])
    items = [
        peer.ProbeItem(mine, VERSION_MAX, version, False, (VERSION_MAX, row.replicas)),
        peer.ProbeItem(mine, version, VERSION_MAX - 1, False, (version, row.replicas)),
    ]
    writer.write(encode_frame(peer.encode_message(hello)))
    await asyncio.wait_for(reader.readexactly(8), 10)
    writer.write(encode_frame(peer.encode_message(peer.Probe(items))))
    await asyncio.wait_for(reader.readexactly(8 + 30), 10)
    writer.close()
    reply = await two.exchange(0, rows=(), want=True)
    assert next(each.version for each in reply.rows if each.partition == mine) == version
    assert all(each.promised <= version for each in reply.tablets if each.partition == mine)
