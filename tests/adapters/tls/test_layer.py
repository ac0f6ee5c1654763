"""A connection inside of TLS behaves as one without: ends, sizes of buffers, and bytes of any kind."""

import asyncio
import random
import ssl
from typing import cast

import pytest

from stele.adapters.tls.layer import TlsLayer
from tests.adapters.tls.conftest import Echo, Site, client_context, until

MIB = 1024 * 1024


async def dial(site: Site) -> tuple[Echo, TlsLayer]:
    """A client that is a layer, too."""
    loop, client = asyncio.get_running_loop(), Echo()
    client.answers, client.stays = False, True
    failures: list[str] = []
    contexts = site.identity.contexts
    assert contexts is not None
    _, layer = await loop.create_connection(
        lambda: TlsLayer(contexts.dialling, lambda: client, failures.append, server_side=False),
        "127.0.0.1",
        site.port,
    )
    site.layers.append(layer)
    await until(lambda: failures and site.sessions)
    assert failures == [""]
    return client, layer


async def test_large_and_small_pieces_arrive_in_order(site: Site) -> None:
    client, _ = await dial(site)
    site.sessions[0].transport.set_write_buffer_limits(high=64 * MIB)
    sent = b"".join(random.Random(size).randbytes(size) for size in (1, 3 * MIB, 0, 5, 20_000, 4 * MIB))
    for piece in (sent[:1], memoryview(sent)[1:100], bytearray(sent[100:200]), sent[200:]):
        client.transport.write(piece)
    await until(lambda: len(client.received) == len(sent))
    assert client.received == sent
    client.transport.close()
    await until(lambda: "lost" in site.sessions[0].ends)
    assert site.sessions[0].ends[-2:] == ["eof", "lost"]


async def test_a_half_closed_connection_goes_on_the_other_way(site: Site) -> None:
    client, _ = await dial(site)
    server = site.sessions[0]
    server.stays = True
    assert client.transport.can_write_eof()
    client.transport.write(b"question")
    client.transport.write_eof()
    client.transport.write(b"not sent")
    await until(lambda: server.ends)
    assert (server.received, server.ends) == (b"question", ["eof"])
    server.transport.write(b"more")
    await until(lambda: client.received == b"questionmore")
    server.transport.close()
    await until(lambda: "eof" in client.ends)
    client.transport.close()
    await until(lambda: "lost" in server.ends and "lost" in client.ends)
    assert client.ends == ["eof", "lost"]


async def test_what_arrives_after_the_end_was_said_is_read(site: Site) -> None:
    """As a member does that stops: it says the end, and reads until the client is quiet."""
    client, _ = await dial(site)
    server = site.sessions[0]
    server.answers, server.stays = False, True
    server.transport.write(b"the last reply")
    server.transport.write_eof()
    server.transport.write_eof()
    await until(lambda: client.ends == ["eof"])
    assert client.received == b"the last reply"
    for size in (10, MIB):
        client.transport.write(b"x" * size)
    await until(lambda: len(server.received) == MIB + 10)
    server.transport.close()
    await until(lambda: "lost" in server.ends)
    assert server.ends == ["lost"]


async def test_the_end_without_a_word_is_the_end(site: Site) -> None:
    client, layer = await dial(site)
    layer.raw.write_eof()
    await until(lambda: site.sessions[0].ends == ["eof", "lost"])
    await until(lambda: client.ends == ["eof"])
    client.transport.abort()
    await until(lambda: client.ends == ["eof", "lost"])


async def test_unsent_bytes_are_counted_and_writing_is_paused(site: Site) -> None:
    client, _ = await dial(site)
    server = site.sessions[0]
    server.transport.set_write_buffer_limits(high=MIB)
    client.transport.pause_reading()
    assert not client.transport.is_reading()
    server.transport.write(b"x" * (32 * MIB))
    assert server.ends == ["paused"]
    assert 16 * MIB < server.transport.get_write_buffer_size() < 33 * MIB
    assert server.transport.get_write_buffer_limits()[1] == MIB
    client.transport.resume_reading()
    await until(lambda: len(client.received) == 32 * MIB)
    assert server.transport.get_write_buffer_size() == 0
    assert server.ends == ["paused", "resumed"]


async def test_who_resets_is_lost_and_nothing_is_sent(site: Site) -> None:
    client, _ = await dial(site)
    server = site.sessions[0]
    client.transport.abort()
    await until(lambda: "lost" in server.ends)
    server.transport.write(b"word")
    server.transport.close()
    server.transport.abort()
    assert server.transport.is_closing()


async def test_the_certificates_that_were_shown_are_known(site: Site) -> None:
    site.require(site.acceptor.demand, ssl.CERT_REQUIRED)
    client, _ = await dial(site)
    for transport in (client.transport, site.sessions[0].transport):
        certificate = transport.get_extra_info("peercert")
        assert ("URI", "stele://uid/member/demo-0") in certificate["subjectAltName"]
        assert transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        assert transport.get_extra_info("peername")[0] == "127.0.0.1"
    client.transport.abort()


async def test_another_protocol_can_take_over(site: Site) -> None:
    client, _ = await dial(site)
    other = Echo()
    assert client.transport.get_protocol() is client
    client.transport.set_protocol(other)
    other.answers = False
    client.transport.write(b"word")
    await until(lambda: other.received == b"word")
    client.transport.abort()


async def test_a_client_sees_why_a_server_is_not_trusted(site: Site) -> None:
    loop, failures = asyncio.get_running_loop(), cast(list[str], [])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    _, layer = await loop.create_connection(
        lambda: TlsLayer(context, Echo, failures.append, server_side=False), "127.0.0.1", site.port
    )
    site.layers.append(layer)
    await until(lambda: failures and site.failures)
    assert failures[0].startswith("certificate refused: ")
    assert site.failures == ["tlsv1 alert unknown ca"]


@pytest.mark.parametrize("seed", range(20))
async def test_any_bytes_end_one_connection_and_nothing_else(site: Site, seed: int) -> None:
    """Before the handshake, in it, and in the middle of a session."""
    chance = random.Random(seed)
    _reader, writer = await site.open()
    writer.write(b"\x16\x03\x01" + chance.randbytes(chance.randrange(1, 4000)))
    client, layer = await dial(site)
    client.transport.write(b"word")
    await until(lambda: client.received == b"word")
    layer.raw.write(chance.randbytes(chance.randrange(20, 40_000)))
    await until(lambda: "lost" in site.sessions[-1].ends)
    writer.close()
    assert await site.echo(client_context(site)) == b"word"
    await until(lambda: not site.acceptor.pending)
    client.transport.abort()
