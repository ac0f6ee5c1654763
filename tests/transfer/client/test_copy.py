"""A copy from one volume to another: whole, once, harmless when late."""

import os
import socket
import threading
import time

import pytest

from stele.core.control.commands import CopyItem, OpId
from stele.errors import BadInput, Corrupt, Refused, Stale, Unavailable
from stele.transfer.client import copy, fragment_writer
from stele.wire.copy.blocks import End, encode_end, encode_stream
from stele.wire.copy.jobs import decode_manifest
from stele.wire.storage.keys import TABLET_PREFIX_BYTES, pack_value, tablet_prefix, user_key
from tests.transfer.checkpoints import (
    DEEP,
    ENTRIES,
    ITEM,
    NEIGHBOUR,
    TOKEN,
    copy_now,
    copy_tablet,
    ingest,
    make_checkpoint,
    transfer,
)


def only_file(manifest):
    (file,) = manifest.files
    return file


def files_of(folder, manifest):
    return [folder / "s-1" / file for file in manifest.files]


async def test_a_tablet_arrives_whole_under_its_new_generation(volume, staging, tmp_path):
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES), 8: (3, NEIGHBOUR)})
    own = {key[TABLET_PREFIX_BYTES:]: value for key, value in made.items() if key[:2] == b"\x00\x07"}
    expected = {tablet_prefix(7, 9) + rest: value for rest, value in own.items()}
    came = []
    async with transfer(volume) as url:
        manifest = await copy_now(url, staging, progress=came.append)
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
        (b"default", b"old"): (b"1", now_ms - fragment_writer.EXPIRED_MARGIN_MS - 60_000),
        (b"default", b"just"): (b"2", now_ms - 1000),
    }
    make_checkpoint(volume, "s-1", {7: (3, entries)})
    async with transfer(volume) as url:
        manifest = await copy_now(url, staging)
    got = ingest(tmp_path / "database", [staging / "s-1" / only_file(manifest)])
    assert user_key(7, 9, b"default", b"old") not in got
    assert got[user_key(7, 9, b"default", b"just")] == pack_value(b"2", now_ms - 1000)


async def test_a_finished_copy_is_not_made_again_but_another_generation_is(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    async with transfer(volume) as url:
        first = await copy_now(url, staging)
        assert await copy_now("http://127.0.0.1:1", staging) == first
        second = await copy_now(url, staging, CopyItem(7, 3, 10))
    assert second.generation == 10
    assert second.files != first.files


async def test_a_run_after_the_session_was_closed_leaves_nothing(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})

    def close_session(more):
        for path in (staging / "s-1").iterdir():
            path.unlink()
        (staging / "s-1").rmdir()

    async with transfer(volume) as url:
        with pytest.raises(Refused, match="CANCELLED: the session's staging folder is gone"):
            await copy_now(url, staging, progress=close_session)
    assert list(staging.iterdir()) == []


async def test_progress_may_stop_a_copy(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})

    def stop(more):
        raise Refused("stopped", "CANCELLED")

    async with transfer(volume) as url:
        with pytest.raises(Refused, match="stopped"):
            await copy_now(url, staging, progress=stop)
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
        copy_tablet(url, staging)


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
    manifest = copy_tablet(f"http://127.0.0.1:{port}", staging, progress=came.append)
    thread.join(5)
    assert manifest.entries == 1
    assert sum(came) == manifest.bytes
    assert len(list((staging / "s-1").iterdir())) == 2


def test_attempts_are_limited(staging, monkeypatch):
    monkeypatch.setattr(copy, "BACKOFF_SECONDS", 0.001)
    port, _ = serve_bytes([http(b"")] * copy.ATTEMPTS_MAX)
    with pytest.raises(Corrupt, match="the stream stops after 0 entries"):
        copy_tablet(f"http://127.0.0.1:{port}", staging)
    with pytest.raises(Unavailable, match="Connection refused"):
        copy_tablet("http://127.0.0.1:1", staging)


def test_an_empty_tablet_has_a_manifest_and_no_file(staging):
    port, _ = serve_bytes([http(encode_end(End(7, 3, OpId(1, 1), 0, 0)))])
    manifest = copy_tablet(f"http://127.0.0.1:{port}", staging)
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
            await copy_now(url, staging)
    assert list((staging / "s-1").iterdir()) == []


@pytest.mark.parametrize("content", [DEEP, b'{"format":2,"session":"\xff"}', b"[]", b'{"format":'])
def test_a_manifest_that_cannot_be_read_is_damage(content):
    with pytest.raises(Corrupt, match=r"manifest s-1/7\.json: "):
        decode_manifest(content, "s-1/7.json")
