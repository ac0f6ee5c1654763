"""As many subscriptions as a member takes: the memory of a real process, and what is answered beyond."""

import asyncio

from stele.member.resp.pubsub import SUBSCRIPTION_BYTES, SUBSCRIPTIONS_BYTES_MAX, SUBSCRIPTIONS_MAX
from stele.wire.resp import encode_request
from tests.member.harness.cluster import Cluster
from tests.member.harness.memory import forget_peak, peak_bytes

CHANNELS = 100_000
NAME_BYTES = SUBSCRIPTIONS_BYTES_MAX // CHANNELS - SUBSCRIPTION_BYTES
"""With names of this length the limit is reached by that many channels."""


def names(connection: int) -> list[bytes]:
    return [(b"%d-%d-" % (connection, number)).ljust(NAME_BYTES, b"x") for number in range(SUBSCRIPTIONS_MAX)]


async def answered(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, words: list[bytes]) -> bytes:
    """The end of all that comes."""
    writer.write(encode_request([b"SUBSCRIBE", *words]) + encode_request([b"PING", b"=end="]))
    end, tail = b"$5\r\n=end=\r\n", b""
    while not tail.endswith(end):
        tail = (tail + await asyncio.wait_for(reader.read(1 << 20), 20))[-1000:]
    return tail


async def test_a_hundred_thousand_channels(one: Cluster) -> None:
    member = one.members[0]
    connections = [await asyncio.open_connection(member.host, one.ports[0]) for _ in range(11)]
    reader, writer = connections[0]
    assert await answered(writer, reader, [b"warm"])
    before = forget_peak(member.process)
    for number, (reader, writer) in enumerate(connections[:10]):
        tail = await answered(writer, reader, names(number)[number == 0 :])
        assert b":%d\r\n*2\r\n$4\r\npong\r\n" % SUBSCRIPTIONS_MAX in tail
    assert peak_bytes(member.process) - before < 1.25 * SUBSCRIPTIONS_BYTES_MAX
    reader, writer = connections[10]
    refused = await answered(writer, reader, names(10)[:100])
    text = b" bytes of all clients of this member exceed the limit of 67108864; connect to another member\r\n"
    assert text in refused
    for _, writer in connections:
        writer.close()
