"""How much memory and disk a few bytes take in a real member, before it knows who sends them and after."""

import asyncio
import struct
from pathlib import Path

import pytest
from harness import CLUSTER, Client, MemberProcess, cluster, eventually

from stele.wire import peer
from stele.wire.frames import FRAME_BYTES_MAX, encode_frame

MIB = 1024 * 1024


def empty_lists(count: int) -> bytes:
    """A Forward of so many commands without arguments: a byte each."""
    head = b"\x96\xa2fw\x01\x01\x00\xc4\x01k\xdd"
    return encode_frame(head + struct.pack(">I", count) + b"\x90" * count)


def peak_bytes(member: MemberProcess) -> int:
    """The most memory that the process has had since `forget_peak`."""
    assert member.process is not None
    lines = Path(f"/proc/{member.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak(member: MemberProcess) -> int:
    """The memory that the process has now."""
    assert member.process is not None
    Path(f"/proc/{member.process.pid}/clear_refs").write_text("5")
    return peak_bytes(member)


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
        before = forget_peak(member)
        await closed_after(member, *first, sent)
        # A frame is held twice: as it comes, and as its body.
        assert peak_bytes(member) - before < (3 * len(sent) if greeted else 1 * MIB)
        assert await client.call(0, b"GET", b"k") == b"v"
        await eventually(lambda: made.exchange(0, rows=()), lambda reply: not reply.unserved)
        assert "Traceback" not in member.log()
