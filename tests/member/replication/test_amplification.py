"""How much memory and disk a few bytes take in a real member, before it knows who sends them and after."""

import asyncio
import gzip
import struct
from pathlib import Path

import pytest

from stele.wire import peer
from stele.wire.frames import FRAME_BYTES_MAX, encode_frame
from tests.member.harness.cluster import CLUSTER, Client, MemberProcess, Process, cluster, eventually

MIB = 1024 * 1024


def empty_lists(count: int) -> bytes:
    """A Forward of so many commands without arguments: a byte each."""
    head = b"\x96\xa2fw\x01\x01\x00\xc4\x01k\xdd"
    return encode_frame(head + struct.pack(">I", count) + b"\x90" * count)


def peak_bytes(process: Process | None) -> int:
    """The most memory that the process has had since `forget_peak`."""
    assert process is not None
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak(process: Process | None) -> int:
    """The memory that the process has now."""
    assert process is not None
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    return peak_bytes(process)


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
async def test_a_frame_of_empty_lists(tmp_path: Path, greeted: bool) -> None:
    async with cluster(tmp_path, 2) as made:
        client, member = Client(made), made.members[0]
        assert await client.set(0, b"k", b"v")
        hello = peer.Hello(peer.PEER_FORMAT, CLUSTER, 1, made.members[1].uuid, member.uuid)
        first = [encode_frame(peer.encode_message(hello))] if greeted else []
        sent = empty_lists(FRAME_BYTES_MAX - 100 if greeted else 2 * MIB)
        before = forget_peak(member.process)
        await closed_after(member, *first, sent)
        # A frame is held twice: as it comes, and as its body.
        assert peak_bytes(member.process) - before < (3 * len(sent) if greeted else 1 * MIB)
        assert await client.call(0, b"GET", b"k") == b"v"
        await eventually(lambda: made.exchange(0, rows=()), lambda reply: not reply.unserved)
        assert "Traceback" not in member.log()


async def answer_of(host: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        return await asyncio.wait_for(reader.read(), 20)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("which", "request_line"),
    [(2, b"POST /v1/exchange"), (3, b"PUT /v1/bulk/loads/l/pieces/p"), (3, b"POST /v1/copies")],
    ids=["admin", "pieces", "copies"],
)
async def test_a_packed_body_is_not_unpacked(tmp_path: Path, which: int, request_line: bytes) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        member = made.members[0]
        await member.start_transfer()
        await eventually(lambda: answers(member), bool)
        packed = gzip.compress(bytes(200 * MIB), 9)
        head = b"Host: x\r\nConnection: close\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        request = request_line + b" HTTP/1.1\r\n" + head % len(packed) + packed
        process = member.process if which == 2 else member.transfer
        before = forget_peak(process)
        answer = await answer_of(member.host, member.ports[which], request)
        assert answer.startswith(b"HTTP/1.1 415 ")
        assert peak_bytes(process) - before < 4 * MIB
        assert not list((tmp_path / "m0" / "loads").rglob("*"))


async def answers(member: MemberProcess) -> bytes:
    try:
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        return await answer_of(member.host, member.ports[3], request)
    except OSError:
        return b""


async def test_a_header_of_other_bytes_is_401_without_a_traceback(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        member = made.members[0]
        await member.start_transfer()
        await eventually(lambda: answers(member), bool)
        name = "export-1"
        url = f"http://{member.host}:{member.ports[2]}/v1/bulk/snapshots/{name}"
        order = b'{"partitions": [0], "lease_seconds": 30}'

        async def opened() -> bool:
            async with made.http.post(url, data=order) as response:
                return response.status == 200

        await eventually(opened, bool)
        for path in (
            f"/v1/sessions/{name}/partitions/0?generation=1",
            f"/v1/bulk/sessions/{name}/partitions/0?keyspace=d",
        ):
            for header in (b"", b"Authorization: Bearer \xff\xfe\r\n", b"Authorization: Bearer x\r\n"):
                request = b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" % path.encode()
                answer = await answer_of(member.host, member.ports[3], request + header + b"\r\n")
                assert answer.startswith(b"HTTP/1.1 401 "), answer
        assert "Traceback" not in (tmp_path / "t0.log").read_text()
