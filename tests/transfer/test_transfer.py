"""A copy from one volume to another through the transfer process: whole, once, harmless when late."""

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import aiohttp
import pytest

from stele.adapters.environment import read
from stele.core.control.commands import CopyItem, MemberInfo, OpId, SessionTablet
from stele.errors import BadInput, Corrupt, Refused, Stale, SteleError, Unavailable
from stele.transfer.__main__ import Settings
from stele.transfer.client import copy, sst_writer
from stele.transfer.jobs import direct
from stele.transfer.jobs.board import JobBoard
from stele.transfer.server import stream_server
from stele.transfer.server.open_checkpoints import OpenCheckpoints
from stele.wire.copy.blocks import End, encode_end, encode_stream
from stele.wire.copy.jobs import CopyJob, damage_note, decode_manifest
from stele.wire.storage.keys import TABLET_PREFIX_BYTES, pack_value, tablet_prefix, user_key
from stele.wire.storage.volume import TableFile, encode_file
from tests.transfer.checkpoints import TOKEN, copy_tablet, ingest, make_checkpoint, transfer

NOW_MS = int(time.time() * 1000)
ENTRIES = {(b"default", b"k%05d" % number): (b"v" * (number % 300), 0) for number in range(4000)}
ENTRIES |= {(b"other", b""): (b"x", NOW_MS + 3_600_000), (b"other", b"large"): (bytes(3_000_000), 0)}
NEIGHBOUR = {(b"default", b"not this one"): (b"n", 0)}


def only_file(manifest):
    (file,) = manifest.files
    return file


def copy_now(url, staging, item, *, session="s-1", token=TOKEN, progress=lambda more: None):
    return asyncio.to_thread(copy_tablet, url, token, session, item, staging=staging, progress=progress)


ITEM = CopyItem(partition=7, source_generation=3, generation=9)
DEEP = b'{"format":2,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
"""JSON that is nested deeper than Python goes."""


def files_of(folder, manifest):
    return [folder / "s-1" / file for file in manifest.files]


async def test_a_tablet_arrives_whole_under_its_new_generation(volume, staging, tmp_path):
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES), 8: (3, NEIGHBOUR)})
    own = {key[TABLET_PREFIX_BYTES:]: value for key, value in made.items() if key[:2] == b"\x00\x07"}
    expected = {tablet_prefix(7, 9) + rest: value for rest, value in own.items()}
    came = []
    async with transfer(volume) as url:
        manifest = await copy_now(url, staging, ITEM, progress=came.append)
    got = ingest(tmp_path / "database", files_of(staging, manifest))
    assert got == expected
    assert manifest.entries == len(expected)
    assert manifest.bytes == sum(len(key) + len(value) for key, value in expected.items()) == sum(came)
    assert (manifest.applied, manifest.generation, manifest.source_generation) == (OpId(2, 17), 9, 3)
    for fragment in manifest.fragments:
        assert fragment.file_bytes == (staging / "s-1" / fragment.file).stat().st_size
    left = {path.name for path in (staging / "s-1").iterdir() if path.suffix != ".line"}
    assert left == {"7.json", *manifest.files}


async def test_what_expired_long_ago_is_left_out_and_what_just_expired_is_not(volume, staging, tmp_path):
    now_ms = int(time.time() * 1000)
    entries = {
        (b"default", b"old"): (b"1", now_ms - sst_writer.EXPIRED_MARGIN_MS - 60_000),
        (b"default", b"just"): (b"2", now_ms - 1000),
    }
    make_checkpoint(volume, "s-1", {7: (3, entries)})
    async with transfer(volume) as url:
        manifest = await copy_now(url, staging, ITEM)
    got = ingest(tmp_path / "database", [staging / "s-1" / only_file(manifest)])
    assert user_key(7, 9, b"default", b"old") not in got
    assert got[user_key(7, 9, b"default", b"just")] == pack_value(b"2", now_ms - 1000)


async def test_a_finished_copy_is_not_made_again_but_another_generation_is(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    async with transfer(volume) as url:
        first = await copy_now(url, staging, ITEM)
        assert await copy_now("http://127.0.0.1:1", staging, ITEM) == first
        second = await copy_now(url, staging, CopyItem(7, 3, 10))
    assert second.generation == 10
    assert second.files != first.files


async def test_two_runs_at_once_end_with_one_manifest_and_its_file(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    async with transfer(volume) as url:
        made = await asyncio.gather(*(copy_now(url, staging, ITEM) for _ in range(4)))
    assert len({tuple(manifest.files) for manifest in made}) == 1
    left = sorted(path.suffix for path in (staging / "s-1").iterdir())
    assert left == [".json", ".line", ".sst", ".sst"]


async def test_a_run_after_the_session_was_closed_leaves_nothing(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})

    def close_session(more):
        for path in (staging / "s-1").iterdir():
            path.unlink()
        (staging / "s-1").rmdir()

    async with transfer(volume) as url:
        with pytest.raises(Refused, match="CANCELLED: the session's staging folder is gone"):
            await copy_now(url, staging, ITEM, progress=close_session)
    assert list(staging.iterdir()) == []


async def test_progress_may_stop_a_copy(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})

    def stop(more):
        raise Refused("stopped", "CANCELLED")

    async with transfer(volume) as url:
        with pytest.raises(Refused, match="stopped"):
            await copy_now(url, staging, ITEM, progress=stop)
    assert list((staging / "s-1").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"token": "wrong"}, BadInput, "401: session s-1 requires its token"),
        ({"session": "s-2"}, BadInput, "404: session s-2 does not exist"),
        ({"item": CopyItem(8, 3, 9)}, BadInput, "404: session s-1 holds no partition 8"),
        ({"item": CopyItem(7, 2, 9)}, Stale, "409: .*generation 3, not 2"),
    ],
)
async def test_the_source_refuses_at_once(volume, staging, change, error, text):
    make_checkpoint(volume, "s-1", {7: (3, NEIGHBOUR)})
    asked = {"item": ITEM, "session": "s-1", "token": TOKEN} | change
    async with transfer(volume) as url:
        with pytest.raises(error, match=text):
            await copy_now(url, staging, **asked)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h:1",
        "http://h",
        "http://h:99999999",
        "http://h:1/x",
        "",
        "http://:80",
        "http://a..b:1",
        "http://[::zz]:1",
        "http://[::1%eth0]:1",
    ],
)
def test_a_wrong_url_is_named(staging, url):
    with pytest.raises(BadInput, match="expected http://HOST:PORT"):
        copy_tablet(url, TOKEN, "s-1", ITEM, staging=staging, progress=lambda more: None)


def serve_bytes(answers):
    """A source that answers each connection with the next of `answers`, then closes; (port, thread)."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
        with listener:
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return listener.getsockname()[1], thread


def http(body, status="200 OK"):
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def stream(prefix=b"\x00\x07\x00\x00\x00\x03\x01", partition=7, generation=3):
    end = lambda count, size: End(partition, generation, OpId(1, 1), count, size)  # noqa: E731
    return b"".join(encode_stream([(prefix + b"k", bytes(9))], end))


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        http(b"full up", "503 Service Unavailable"),
        http(stream())[:-5],
        http(stream()[:-5]),
        http(stream().replace(b"k", b"j")),
        http(stream(generation=4)),
        http(stream(prefix=b"\x00\x08\x00\x00\x00\x03\x01")),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
)
def test_a_bad_stream_is_tried_again_and_nothing_of_it_is_taken(staging, monkeypatch, bad):
    monkeypatch.setattr(copy, "BACKOFF_SECONDS", 0.001)
    port, thread = serve_bytes([bad, bad, http(stream())])
    came = []
    manifest = copy_tablet(
        f"http://127.0.0.1:{port}", TOKEN, "s-1", ITEM, staging=staging, progress=came.append
    )
    thread.join(5)
    assert manifest.entries == 1
    assert sum(came) == manifest.bytes
    assert len(list((staging / "s-1").iterdir())) == 2


def test_attempts_are_limited(staging, monkeypatch):
    monkeypatch.setattr(copy, "BACKOFF_SECONDS", 0.001)
    port, _ = serve_bytes([http(b"")] * copy.ATTEMPTS_MAX)
    with pytest.raises(Corrupt, match="the stream stops after 0 entries"):
        copy_tablet(
            f"http://127.0.0.1:{port}", TOKEN, "s-1", ITEM, staging=staging, progress=lambda more: None
        )
    with pytest.raises(Unavailable, match="Connection refused"):
        copy_tablet("http://127.0.0.1:1", TOKEN, "s-1", ITEM, staging=staging, progress=lambda more: None)


def test_an_empty_tablet_has_a_manifest_and_no_file(staging):
    port, _ = serve_bytes([http(encode_end(End(7, 3, OpId(1, 1), 0, 0)))])
    manifest = copy_tablet(
        f"http://127.0.0.1:{port}", TOKEN, "s-1", ITEM, staging=staging, progress=lambda more: None
    )
    assert (manifest.files, manifest.bytes, manifest.entries) == ([], 0, 0)
    assert [path.name for path in (staging / "s-1").iterdir()] == ["7.json"]


async def test_a_damaged_checkpoint_is_never_a_shorter_tablet(volume, staging, monkeypatch):
    monkeypatch.setattr(copy, "BACKOFF_SECONDS", 0.001)
    entries = {(b"default", b"k%05d" % number): (os.urandom(200), 0) for number in range(5000)}
    make_checkpoint(volume, "s-1", {7: (3, entries)})
    largest = max((volume / "checkpoints/s-1/db").glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.unlink()
    largest.write_bytes(data)
    async with transfer(volume) as url:
        with pytest.raises((Corrupt, Unavailable)):
            await copy_now(url, staging, ITEM)
    assert list((staging / "s-1").iterdir()) == []


@pytest.mark.parametrize("full", [False, True])
def test_a_note_of_damage_is_there_at_once_with_all_its_text(volume, monkeypatch, full):
    folder, write = volume / "checkpoints" / "s-1", Path.write_text
    folder.mkdir(parents=True)
    note = folder / damage_note(7, 3)

    def watched(path, text):
        written = write(path, "" if full else text)
        assert list(folder.glob(damage_note("*", "*"))) == []
        if full:
            raise OSError(errno.ENOSPC, "full")
        return written

    monkeypatch.setattr(Path, "write_text", watched)
    tablet = SessionTablet(7, 3, OpId(1, 1), 0)
    OpenCheckpoints(volume / "checkpoints").note_damage("s-1", tablet, "checksum mismatch")
    assert list(folder.iterdir()) == [note]
    assert note.read_text() == ("" if full else "checksum mismatch")


async def test_an_ended_session_is_let_go(volume, staging, monkeypatch):
    monkeypatch.setattr(stream_server, "CLOSE_ENDED_SECONDS", 0.05)
    make_checkpoint(volume, "s-1", {7: (3, NEIGHBOUR)})
    base = volume / "checkpoints" / "s-1"

    def held():
        links = Path("/proc/self/fd").iterdir()
        return sum(str(base) in os.readlink(link) for link in links if link.exists() or link.is_symlink())

    async with transfer(volume) as url:
        await copy_now(url, staging, ITEM)
        assert held() > 0
        (base / "session.json").unlink()
        for _ in range(100):
            await asyncio.sleep(0.05)
            if not held():
                break
        assert held() == 0


async def test_direct_jobs_over_http(volume, staging, tmp_path):
    tablets = {partition: (3, {(b"default", b"k%d" % partition): (b"v", 0)}) for partition in range(20)}
    make_checkpoint(volume, "s-1", tablets)
    items = tuple(CopyItem(partition, 3, 4, 100) for partition in range(20))
    async with (
        transfer(volume) as source,
        transfer(staging.parent) as url,
        aiohttp.ClientSession() as http,
    ):
        job = {
            "session": "s-1",
            "destination": "m-1",
            "claim": "data-m-1",
            "source_url": source,
            "token": TOKEN,
            "items": [vars_of(item) for item in items],
        }
        for _ in range(2):
            async with http.post(f"{url}/v1/copies", json=job) as answer:
                assert answer.status == 202, await answer.text()
        status = await until_over(http, f"{url}/v1/copies/s-1")
        assert status["state"] == "DONE", status
        assert sorted(status["finished"]) == list(range(20))
        assert status["entries"] == 40
        async with http.post(f"{url}/v1/copies", json=job | {"token": "t"}) as answer:
            assert (answer.status, (await answer.json())["code"]) == (409, "CONFLICT")
        async with http.delete(f"{url}/v1/copies/s-1") as answer:
            assert answer.status == 204
        async with http.get(f"{url}/v1/copies/s-1") as answer:
            assert (answer.status, (await answer.json())["code"]) == (404, "UNKNOWN_SESSION")
        bad = job | {"session": "s-9"}
        async with http.post(f"{url}/v1/copies", json=bad) as answer:
            assert answer.status == 202
        status = await until_over(http, f"{url}/v1/copies/s-9")
        assert status["state"] == "FAILED"
        assert status["error"].startswith("SOURCE: the source answered 404")
    assert len(list((staging / "s-1").glob("*.json"))) == 20


def vars_of(item):
    return {name: getattr(item, name) for name in item.__struct_fields__}


async def until_over(http, url):
    for _ in range(200):
        async with http.get(url) as answer:
            status = await answer.json()
        if status["state"] in ("DONE", "FAILED"):
            return status
        await asyncio.sleep(0.05)
    raise AssertionError(status)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "no copy job"),
        (b"[]", "no copy job"),
        (b'{"session": "s"}', "missing required field"),
        (DEEP, "no copy job: maximum recursion depth"),
    ],
)
async def test_garbage_is_answered(volume, body, text):
    async with transfer(volume) as url, aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/copies", data=body) as answer:
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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"source": "http://10.0.0.1:80"}, "no build order: Expected `int`, got `str` - at `$.source`"),
        ({"source": -2}, "no build order: Expected `int` >= -1 - at `$.source`"),
        ({"generation": 2**32}, "no build order: Expected `int` <= 4294967295"),
        ({"keyspace": "\udcff"}, "no build order: "),
    ],
)
async def test_a_bad_build_order_is_answered(volume, change, text):
    order = {"generation": 1, "keyspace": "k", "partitions": 16} | change
    body = json.dumps(order, ensure_ascii=False).encode(errors="surrogateescape")
    async with (
        transfer(volume) as url,
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/bulk/loads/l-1/partitions/3", data=body) as answer,
    ):
        assert answer.status == 400
        assert text in (await answer.json())["detail"]


async def test_a_run_is_fetched_of_members_of_the_table_alone(volume):
    order = {"generation": 1, "keyspace": "k", "partitions": 16, "source": 7}
    async with transfer(volume) as url, aiohttp.ClientSession() as http:

        async def told():
            async with http.post(f"{url}/v1/bulk/loads/l-1/partitions/3", json=order) as answer:
                assert answer.status == 503
                return (await answer.json())["detail"]

        assert "the table of this member cannot be read" in await told()
        (volume / "table").mkdir()
        table = TableFile(members=(MemberInfo(6, "m-6", "u", "127.0.0.1"),))
        (volume / "table" / "current").write_bytes(encode_file(table))
        assert "source is member 7, which this member's table does not name" in await told()


async def test_cancelling_ends_the_copying_process(volume, staging):
    listener = socket.create_server(("127.0.0.1", 0))
    job = CopyJob("s-1", "m", "c", f"http://127.0.0.1:{listener.getsockname()[1]}", "t", (ITEM,))
    board = JobBoard(direct.DirectRunner(staging), 1)
    board.submit(job)
    for _ in range(500):
        await asyncio.sleep(0.02)
        if board.status("s-1").state == "RUNNING":
            break
    begin = time.monotonic()
    assert await board.cancel("s-1")
    assert time.monotonic() - begin < 5
    assert board.status("s-1") is None
    listener.close()


async def test_a_copying_process_takes_jobs_one_after_the_other_until_one_fails(volume, staging, monkeypatch):
    for session in ("s-1", "s-2"):
        make_checkpoint(volume, session, {7: (3, ENTRIES)})
    pids = []
    monkeypatch.setattr(direct, "IDLE_SECONDS", 0.3)
    runner = direct.DirectRunner(staging)

    async def run(url, session):
        job = CopyJob(session, "m", "c", url, TOKEN, (ITEM,))
        try:
            await runner.run(job, lambda: None, lambda report: None)
        finally:
            pids.append(runner._idle[0]._process.pid if runner._idle else 0)

    async with transfer(volume) as url:
        await run(url, "s-1")
        await run(url, "s-2")
        assert len(set(pids)) == 1
        with pytest.raises(SteleError, match="404"):
            await run(url, "s-3")
        assert pids[-1] == 0, "a process whose job failed is not used again"
        await run(url, "s-2")
    assert pids[-1] not in (0, pids[0])
    await asyncio.sleep(0.6)
    assert not runner._idle, "a process that waited long enough ends"
    await runner.close()


async def test_the_program_starts_and_ends_on_sigterm(volume):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = os.environ | {
        "STELE_DATA_DIR": str(volume),
        "STELE_BIND": "127.0.0.1",
        "STELE_TRANSFER_PORT": str(port),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stele.transfer.__main__", env=environment
    )
    async with aiohttp.ClientSession() as http:
        for _ in range(200):
            try:
                async with http.get(f"http://127.0.0.1:{port}/healthz") as answer:
                    assert answer.status == 200
                    break
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 0


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({}, "STELE_DATA_DIR is not set; it must be the directory of the member's volume"),
        ({"STELE_DATA_DIR": "/nowhere"}, "STELE_DATA_DIR is '/nowhere'"),
        ({"STELE_DATA_DIR": "/", "STELE_TRANSFER_PORT": "x"}, "STELE_TRANSFER_PORT is 'x'"),
        (
            {"STELE_DATA_DIR": "/", "STELE_TRANSFER_PORT": "²"},
            "STELE_TRANSFER_PORT is '²'; it must be a whole number",
        ),
        ({"STELE_DATA_DIR": "/", "STELE_TRANSFER_PORT": "9" * 5000}, "STELE_TRANSFER_PORT is '9999"),
    ],
)
def test_wrong_settings_are_named(environment, text):
    with pytest.raises(BadInput, match=text):
        read(Settings, environment)


@pytest.mark.parametrize(
    ("arguments", "code", "texts"),
    [
        (["--help"], 0, ["STELE_DATA_DIR", "STELE_BIND", "(0.0.0.0)", "STELE_TRANSFER_PORT", "(7002)"]),
        (["--nonsense"], 2, ["stele-transfer: error", "--nonsense"]),
        (["nonsense"], 2, ["stele-transfer: error", "nonsense"]),
        ([], 2, ["stele-transfer: STELE_DATA_DIR is not set"]),
    ],
)
def test_the_program_tells_its_settings_and_takes_no_arguments(arguments, code, texts):
    command = [sys.executable, "-m", "stele.transfer.__main__", *arguments]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    told = done.stderr if code else done.stdout
    assert (done.returncode, [text for text in texts if text not in told]) == (code, []), told
    assert "Traceback" not in told


def test_a_port_that_is_taken_is_told(volume):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = {"STELE_DATA_DIR": str(volume), "STELE_BIND": "127.0.0.1", "STELE_TRANSFER_PORT": str(port)}
        command = [sys.executable, "-m", "stele.transfer.__main__"]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        f"stele-transfer: cannot listen on 127.0.0.1 port {port}: "
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("content", [DEEP, b'{"format":2,"session":"\xff"}', b"[]", b'{"format":'])
def test_a_manifest_that_cannot_be_read_is_damage(content):
    with pytest.raises(Corrupt, match=r"manifest s-1/7\.json: "):
        decode_manifest(content, "s-1/7.json")


def test_a_manifest_is_readable_json(staging):
    port, _ = serve_bytes([http(stream())])
    copy_tablet(f"http://127.0.0.1:{port}", TOKEN, "s-1", ITEM, staging=staging, progress=lambda more: None)
    assert json.loads((staging / "s-1" / "7.json").read_text())["partition"] == 7
