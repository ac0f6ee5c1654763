"""What others may take of a member's port before it knows them, and after."""

import asyncio
import struct
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from stele.member import limits
from stele.wire import peer
from stele.wire.frames import FRAME_BYTES_MAX, HEAD_BYTES, encode_frame
from tests.fuzz.targets import TARGETS
from tests.member.harness.cluster import CLUSTER, Client, Cluster, MemberProcess, cluster, eventually
from tests.member.harness.memory import forget_peak, peak_bytes

MIB = 1024 * 1024


def empty_lists(count: int) -> bytes:
    """A Forward of so many commands without arguments: a byte each."""
    head = b"\x96\xa2fw\x01\x01\x00\xc4\x01k\xdd"
    return encode_frame(head + struct.pack(">I", count) + b"\x90" * count)


async def closed_after(member: MemberProcess, *frames: bytes) -> None:
    """Dial, say this, and see the member close the connection."""
    reader, writer = await asyncio.open_connection(member.host, member.ports[1])
    try:
        for frame in frames:
            writer.write(frame)
            if frame is not frames[-1]:
                assert await asyncio.wait_for(reader.readexactly(8), 10)
        await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.mark.parametrize("greeted", [False, True], ids=["before the greeting", "by a known member"])
async def test_a_frame_of_empty_lists(two: Cluster, greeted: bool) -> None:
    client, member = Client(two), two.members[0]
    assert await client.set(0, b"k", b"v")
    hello = peer.Hello(peer.GREETING_FORMAT, CLUSTER, 1, two.members[1].uuid, member.uuid)
    first = [encode_frame(peer.encode_message(hello))] if greeted else []
    sent = empty_lists(FRAME_BYTES_MAX - 100 if greeted else 2 * MIB)
    before = forget_peak(member.process)
    await closed_after(member, *first, sent)
    # A frame is held twice: as it comes, and as its body.
    assert peak_bytes(member.process) - before < (3 * len(sent) if greeted else 1 * MIB)
    assert await client.call(0, b"GET", b"k") == b"v"
    await eventually(lambda: two.exchange(0, rows=()), lambda reply: not reply.unserved)
    assert "Traceback" not in member.log()


async def is_open(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Whether the other side has not closed it within these seconds; what it says is read away."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read()
    except TimeoutError:
        return True
    return False


async def test_so_many_connections_without_a_greeting_and_one_of_each_member(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made, AsyncExitStack() as stack:
        client, member, other = Client(made), made.members[0], made.members[1]
        assert await client.set(0, b"k", b"v")

        async def dial(data: bytes) -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection(member.host, member.ports[1])
            stack.callback(writer.close)
            writer.write(data)
            return reader

        silent = [await dial(b"") for _ in range(limits.GREETINGS_MAX + 36)]
        left = await asyncio.gather(*(is_open(reader, limits.HELLO_SECONDS_MAX / 2) for reader in silent))
        # The newest stay: a member that dials now is greeted although others hold all the places.
        assert left == [False] * 36 + [True] * limits.GREETINGS_MAX
        hello = encode_frame(
            peer.encode_message(peer.Hello(peer.GREETING_FORMAT, CLUSTER, 1, other.uuid, member.uuid))
        )
        older = await dial(hello)
        assert await asyncio.wait_for(older.readexactly(HEAD_BYTES), 10)
        await dial(hello)
        # It is one member, so the connection before is over; the real one dials once more and goes on.
        assert not await is_open(older, 5)
        assert await client.set(0, b"k", b"w")
        assert "Traceback" not in member.log()


async def test_messages_with_values_that_cannot_be_end_nothing(two: Cluster) -> None:
    """A known member says what can be decoded, and means nothing."""
    member = two.members[0]
    hello = peer.Hello(peer.GREETING_FORMAT, CLUSTER, 1, two.members[1].uuid, member.uuid)
    said = [TARGETS["messages"].input_of(seed) for seed in range(4_000)]
    strange = [body for body in said if is_message(body)]
    assert len({body[1:4] for body in strange}) >= 25, "messages of nearly all kinds"
    for at in range(0, len(strange), 50):
        reader, writer = await asyncio.open_connection(member.host, member.ports[1])
        writer.write(encode_frame(peer.encode_message(hello)))
        assert await asyncio.wait_for(reader.readexactly(HEAD_BYTES), 10)
        with suppress(ConnectionError):
            writer.writelines(map(encode_frame, strange[at : at + 50]))
            await writer.drain()
        writer.close()
    log = member.log()
    assert "Traceback" not in log, log[log.index("Traceback") :][:2_000]
    reply = await two.exchange(0, rows=())
    assert reply.uuid == member.uuid


def is_message(body: bytes) -> bool:
    try:
        return not isinstance(peer.decode_message(body), peer.Greeting)
    except peer.MessageError:
        return False


@pytest.mark.parametrize("keyspace", [b"x" * 300, b"\xff"], ids=["long", "no text"])
async def test_a_forwarded_request_names_a_keyspace_that_can_be(two: Cluster, keyspace: bytes) -> None:
    member = two.members[0]
    mine = next(p for p, row in two.rows.items() if row.replicas[0] == 0)
    hello = peer.Hello(peer.GREETING_FORMAT, CLUSTER, 1, two.members[1].uuid, member.uuid)
    reader, writer = await asyncio.open_connection(member.host, member.ports[1])
    writer.write(encode_frame(peer.encode_message(hello)))
    assert await asyncio.wait_for(reader.readexactly(HEAD_BYTES), 10)
    forward = peer.Forward(7, two.rows[mine].version, mine, keyspace, [[b"SET", b"k", b"v"]], 1_000)
    writer.write(encode_frame(peer.encode_message(forward)))
    await asyncio.wait_for(reader.readuntil(b"cannot exist"), 10)
    writer.close()
    assert "Traceback" not in member.log()
