"""What a source answers, and what it holds open."""

import asyncio
import errno
import os
from pathlib import Path

import aiohttp
import pytest

from stele.core.control.commands import OpId, SessionTablet
from stele.errors import Refused
from stele.transfer.server import open_checkpoints, stream_server
from stele.transfer.server.open_checkpoints import OpenCheckpoints
from stele.wire.copy.jobs import damage_note
from tests.transfer.checkpoints import DEEP, NEIGHBOUR, copy_now, make_checkpoint, own_headers, transfer


def test_what_a_removed_session_lacks_is_no_damage(volume):
    """Its description goes first, then its files."""
    make_checkpoint(volume, "s-1", {7: (3, NEIGHBOUR)})
    folder, tablet = volume / "checkpoints" / "s-1", SessionTablet(7, 3, OpId(2, 17), 1)
    (folder / "session.json").unlink()
    OpenCheckpoints(volume / "checkpoints").note_damage("s-1", tablet, "IO error: no such file")
    assert list(folder.glob(damage_note("*", "*"))) == []


@pytest.mark.parametrize("full", [False, True])
def test_a_note_of_damage_is_there_at_once_with_all_its_text(volume, monkeypatch, full):
    make_checkpoint(volume, "s-1", {7: (3, NEIGHBOUR)})
    folder, write = volume / "checkpoints" / "s-1", Path.write_text
    before, note = set(folder.iterdir()), folder / damage_note(7, 3)

    def watched(path, text):
        written = write(path, "" if full else text)
        assert list(folder.glob(damage_note("*", "*"))) == []
        if full:
            raise OSError(errno.ENOSPC, "full")
        return written

    monkeypatch.setattr(Path, "write_text", watched)
    tablet = SessionTablet(7, 3, OpId(1, 1), 0)
    OpenCheckpoints(volume / "checkpoints").note_damage("s-1", tablet, "checksum mismatch")
    assert set(folder.iterdir()) - before == {note}
    assert note.read_text() == ("" if full else "checksum mismatch")


async def test_an_ended_session_is_let_go(volume, staging, monkeypatch):
    monkeypatch.setattr(stream_server, "CLOSE_ENDED_SECONDS", 0.05)
    make_checkpoint(volume, "s-1", {7: (3, NEIGHBOUR)})
    base = volume / "checkpoints" / "s-1"

    def held():
        links = Path("/proc/self/fd").iterdir()
        return sum(str(base) in os.readlink(link) for link in links if link.exists() or link.is_symlink())

    async with transfer(volume) as url:
        await copy_now(url, staging)
        assert held() > 0
        (base / "session.json").unlink()
        for _ in range(100):
            await asyncio.sleep(0.05)
            if not held():
                break
        assert held() == 0


def two_open(volume, monkeypatch):
    """As many sessions as may be open have been read, and there is a third."""
    monkeypatch.setattr(open_checkpoints, "SESSIONS_OPEN_MAX", 2)
    for number in range(3):
        make_checkpoint(volume, f"s-{number}", {7: (3, NEIGHBOUR)})
    served = OpenCheckpoints(volume / "checkpoints")
    for number in range(2):
        with served.reading(f"s-{number}"):
            pass
    return served


def test_sessions_that_ended_make_room_for_another(volume, monkeypatch):
    """Small copies take milliseconds: many end before anybody looks for sessions that have."""
    served = two_open(volume, monkeypatch)
    (volume / "checkpoints" / "s-0" / "session.json").unlink()
    with served.reading("s-2"):
        assert {each.session for each in served.sent().sessions} == {"s-1", "s-2"}
    served.close()


def test_no_more_sessions_are_open_than_may_be(volume, monkeypatch):
    served = two_open(volume, monkeypatch)
    with pytest.raises(Refused, match="2 sessions are open"), served.reading("s-2"):
        pass
    served.close()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "invalid copy job"),
        (b"[]", "invalid copy job"),
        (b'{"session": "s"}', "missing required field"),
        (DEEP, "invalid copy job: maximum recursion depth"),
    ],
)
async def test_garbage_is_answered(volume, body, text):
    async with transfer(volume) as url, aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/copies", data=body, headers=own_headers(volume)) as answer:
            assert answer.status == 400
            assert text in (await answer.json())["detail"]
        async with http.get(f"{url}/v1/sessions/..%2f..%2fx/partitions/1?generation=1") as answer:
            assert answer.status == 400
        async with http.get(f"{url}/healthz") as answer:
            assert await answer.text() == "ok"


@pytest.mark.parametrize("damaged", [b"{", b'{"session":"\xff"}', b"[]", DEEP])
async def test_a_damaged_session_file_is_told_and_not_served(volume, staging, damaged):
    make_checkpoint(volume, "s-1", {7: (3, NEIGHBOUR)})
    (volume / "checkpoints" / "s-1" / "session.json").write_bytes(damaged)
    async with transfer(volume) as url, aiohttp.ClientSession() as http:
        for path in ("sessions/s-1/partitions/7?generation=3", "bulk/sessions/s-1/partitions/7?keyspace=a"):
            async with http.get(f"{url}/v1/{path}") as answer:
                assert (answer.status, "s-1/session.json: " in await answer.text()) == (503, True)
