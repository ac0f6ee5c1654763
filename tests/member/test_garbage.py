"""Garbage on the ports of a member: the connection is closed with an error, and nothing else happens."""

import asyncio
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from stele.errors import BadInput
from stele.member import limits
from stele.member.settings import read_settings
from stele.model.cluster import Storage
from stele.wire import peer
from stele.wire.frames import HEAD_BYTES, encode_frame
from tests.member.harness.cluster import CLUSTER, Client, cluster, eventually


async def closed_after(host: str, port: int, data: bytes) -> bytes:
    """What the member says before it closes the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


async def test_garbage_on_the_port_of_members(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        client, member = Client(made), made.members[0]
        assert await client.set(0, b"k", b"v")
        good = peer.Hello(peer.PEER_FORMAT, "x", 0, "u", member.uuid)
        for data in (
            os.urandom(200),
            b"GET / HTTP/1.1\r\n\r\n",
            encode_frame(b"\xc1"),
            encode_frame(b"\x92\xa2hi\x01"),
            encode_frame(peer.encode_message(peer.Heartbeat(1.0))),
            b"\x00\x00\x00\x04\x00\x00\x00\x00abcd",
        ):
            await closed_after(member.host, member.ports[1], data)
        answer = await closed_after(member.host, member.ports[1], encode_frame(peer.encode_message(good)))
        assert b"WRONG_CLUSTER" in answer
        assert await client.call(0, b"GET", b"k") == b"v"
        assert "Traceback" not in member.log()
        await eventually(lambda: made.exchange(0, rows=()), lambda reply: not reply.unserved)


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
            peer.encode_message(peer.Hello(peer.PEER_FORMAT, CLUSTER, 1, other.uuid, member.uuid))
        )
        older = await dial(hello)
        assert await asyncio.wait_for(older.readexactly(HEAD_BYTES), 10)
        await dial(hello)
        # It is one member, so the connection before is over; the real one dials once more and goes on.
        assert not await is_open(older, 5)
        assert await client.set(0, b"k", b"w")
        assert "Traceback" not in member.log()


async def test_wrong_requests_of_the_admin_port(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        member = made.members[0]
        url = f"http://{member.host}:{member.ports[2]}"
        for path, status in (
            ("/v1/digest?partition=x", 400),
            ("/v1/digest?partition=-1", 400),
            ("/v1/digest?partition=99", 404),
            ("/nothing", 404),
        ):
            async with made.http.get(url + path) as response:
                assert response.status == status, path
        await closed_after(member.host, member.ports[2], b"\x00\xff garbage\r\n\r\n")
        assert "Traceback" not in member.log()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"STELE_DATA_DIR": ""}, "STELE_DATA_DIR is not set"),
        (
            {"STELE_PEER_PORT": "70000"},
            "STELE_PEER_PORT is '70000'; it must be a whole number from 1 to 65535",
        ),
        ({"STELE_FSYNC": "always"}, "STELE_FSYNC is 'always'; it must be one of Always, Interval, Never"),
        ({"STELE_LEASE_MS": "100"}, "STELE_LEASE_MS is 100; it must be at least twice STELE_HEARTBEAT_MS"),
        ({"STELE_HEARTBEAT_MS": "-5"}, "STELE_HEARTBEAT_MS is '-5'"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, str], text: str) -> None:
    base = {"STELE_DATA_DIR": "/x", "STELE_CLUSTER_UID": "u", "STELE_MEMBER_NAME": "m"}
    with pytest.raises(BadInput) as raised:
        read_settings({**base, **changes})
    assert text in str(raised.value)


def test_a_write_is_synced_before_it_is_acknowledged_unless_told_otherwise() -> None:
    base = {"STELE_DATA_DIR": "/x", "STELE_CLUSTER_UID": "u", "STELE_MEMBER_NAME": "m"}
    assert read_settings(base).fsync.value == Storage(size="1Gi").fsync.value == "Always"


def test_the_process_says_what_is_wrong_and_ends(tmp_path: Path) -> None:
    for env, code, text in (
        ({}, 2, "STELE_DATA_DIR is not set"),
        (
            {"STELE_DATA_DIR": "/proc/x", "STELE_CLUSTER_UID": "u", "STELE_MEMBER_NAME": "m"},
            1,
            "STELE_DATA_DIR /proc/x cannot be used",
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "stele.member"], env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr + done.stdout
