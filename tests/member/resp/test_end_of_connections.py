"""How connections of clients end when the member stops: replies to what was read, the end, nothing more."""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stele.member.resp.limits import RespServerLimits
from stele.member.resp.server import RespServer, start_resp_server
from stele.wire.resp import encode_request
from tests.fakes.key_value_service import FakeKeyValueService

INCR = encode_request([b"INCR", b"k"])


@pytest.fixture
def store() -> Any:
    return FakeKeyValueService()


@pytest.fixture
async def server(store: Any) -> AsyncIterator[RespServer]:
    limits = RespServerLimits(linger_seconds=0.1, linger_seconds_max=0.5, output_bytes_high=1000)
    server = await start_resp_server(store, "127.0.0.1", 0, limits)
    yield server
    await server.close()


async def closed(server: RespServer, within_seconds: float) -> None:
    await asyncio.wait_for(server.close(), within_seconds)
    assert list(server.sessions()) == []
    await asyncio.sleep(0)
    assert server.waiting_bytes == server.replies.held == 0


async def test_what_was_read_is_answered_and_nothing_else_is_run(server: RespServer, store: Any) -> None:
    store.delay_seconds = 0.1
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(INCR * 3 + INCR[:5])
    await asyncio.sleep(0.05)
    server.stop()
    assert server.busy()
    writer.write(INCR[5:] + INCR * 100)
    assert await reader.read() == b":1\r\n:2\r\n:3\r\n"
    assert not server.busy()
    await closed(server, 1.0)
    assert sum(len(commands) for _, _, commands in store.calls) == 3
    writer.close()


async def test_a_client_that_still_sends_reads_the_end_before_the_connection_closes(
    server: RespServer,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(INCR)
    assert await reader.readline() == b":1\r\n"
    server.stop()
    assert await reader.read() == b""
    closing = asyncio.create_task(server.close())
    for _ in range(3):
        await asyncio.sleep(0.05)
        writer.write(INCR)
    assert len(list(server.sessions())) == 1, "it is not quiet yet"
    await asyncio.wait_for(closing, 1.0)
    writer.close()


async def test_an_idle_client_and_one_that_leaves_hold_nothing_up(server: RespServer) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
    server.stop()
    assert not server.busy()
    for reader, writer in idle[:10]:
        assert await reader.read() == b""
        writer.close()
    await closed(server, 0.4)
    for _, writer in idle[10:]:
        writer.close()


async def test_clients_that_reset_their_connections_hold_nothing_up(server: RespServer) -> None:
    """The kernel knows of the reset before asyncio does."""
    clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
    await asyncio.sleep(0.05)
    for client in clients:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    server.stop()
    assert not server.busy()
    await closed(server, 0.4)


async def test_a_client_that_reads_nothing_is_cut_off_and_counted(
    server: RespServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "stele.member.resp.server")
    with socket.create_connection(("127.0.0.1", server.port)) as silent:
        silent.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(silent, encode_request([b"SET", b"k", b"v" * 1_000_000]))
        await loop.sock_sendall(silent, encode_request([b"GET", b"k"]) * 50)
        await asyncio.sleep(0.2)
        await closed(server, 1.5)
    assert "1 connections are reset: their clients still send, or do not read" in caplog.text


async def test_a_connection_that_was_not_read_for_a_full_queue_is_not_reset(store: Any) -> None:
    """Its unread bytes are dropped, so that its replies arrive."""
    limits = RespServerLimits(pipeline_commands_max=8, batch_commands_max=4)
    server = await start_resp_server(store, "127.0.0.1", 0, limits)
    store.delay_seconds = 0.05
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(INCR * 20_000)
    await asyncio.sleep(0.02)
    server.stop()
    replies = (await reader.read()).split()
    assert replies == [b":%d" % n for n in range(1, len(replies) + 1)]
    assert 8 <= len(replies) < 20_000
    await closed(server, 1.5)
    writer.close()


async def test_a_connection_that_comes_just_then_is_ended_too(server: RespServer, store: Any) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as late:
        late.setblocking(False)
        late.send(INCR)
        await asyncio.sleep(0)
        server.stop()
        try:
            assert await asyncio.get_running_loop().sock_recv(late, 100) in {b"", b":1\r\n"}
        except ConnectionResetError:
            assert store.calls == []


async def test_info_is_answered_while_the_server_stops(server: RespServer, store: Any) -> None:
    store.delay_seconds = 0.1
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(INCR + encode_request([b"INFO"]))
    await asyncio.sleep(0.05)
    server.stop()
    assert b"tcp_port:%d" % server.port in await reader.read()
    writer.close()
