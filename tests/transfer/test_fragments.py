"""A tablet comes fragment by fragment, over real HTTP: each once, checked, kept, in turn with others."""

import asyncio
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from stele.core.control.commands import CopyItem
from stele.errors import Corrupt, Unavailable
from stele.transfer.client import copy
from stele.transfer.client.copy import copy_tablets
from stele.transfer.server import stream_server
from stele.wire.copy import blocks, fragments
from stele.wire.copy.jobs import CopyJob
from stele.wire.storage.keys import SERVICE, TABLET_PREFIX_BYTES, tablet_prefix
from tests.transfer.checkpoints import ITEM, TOKEN, copy_now, ingest, make_checkpoint, transfer

SPACES = (SERVICE, b"@queue", b"map1", b"map2", b"cache1")
ENTRIES = {
    (space, b"k%03d" % number): (space + b"-%d" % number, 0) for space in SPACES for number in range(100)
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Every keyspace is large enough to be a fragment, and every fragment has several blocks."""
    monkeypatch.setattr(fragments, "GATHERED_BYTES", 1)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 500)
    monkeypatch.setattr(copy, "BACKOFF_SECONDS_MAX", 0.001)


class Mangler:
    """A source in front of the real one. `mangle(number of the request, at, body)` makes the answer.

    None for an answer closes the connection.
    """

    def __init__(self, url, mangle=lambda number, at, body: body):
        self.asked = []
        mangler = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                parts = urlsplit(self.path)
                (at,) = parse_qs(parts.query)["at"]
                mangler.asked.append((int(parts.path.rsplit("/", 1)[1]), at))
                request = urllib.request.Request(url + self.path, headers=dict(self.headers))
                try:
                    with urllib.request.urlopen(request) as answer:
                        status, body = 200, answer.read()
                except urllib.error.HTTPError as error:
                    status, body = error.code, error.read()
                body = mangle(len(mangler.asked) - 1, at, body)
                if body is None:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def expected_of(made, item=ITEM):
    head = tablet_prefix(item.partition, item.source_generation)
    return {
        tablet_prefix(item.partition, item.generation) + key[TABLET_PREFIX_BYTES:]: value
        for key, value in made.items()
        if key.startswith(head)
    }


def arrived(tmp_path, staging, manifest):
    return ingest(tmp_path / "database", [staging / "s-1" / file for file in manifest.files])


async def test_services_come_first_and_each_keyspace_by_itself(volume, staging, tmp_path):
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES)}, versions=(17, 12))
    async with transfer(volume) as url:
        with Mangler(url) as source:
            manifest = await copy_now(source.url, staging)
    assert [each.namespaces for each in manifest.fragments] == [
        {"": (17, 12), "@queue": (17, 12)},
        {"map1": (17, 12)},
        {"map2": (17, 12)},
        {"cache1": (17, 12)},
    ]
    assert source.asked == [(7, "0"), (7, "1"), (7, "2"), (7, "3")]
    assert [each.entries for each in manifest.fragments] == [200, 100, 100, 101]
    assert arrived(tmp_path, staging, manifest) == expected_of(made)


async def test_the_next_is_asked_for_when_the_one_before_is_on_disk(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    lines = []

    def look(number, at, body):
        lines.append(sorted(path.name for path in (staging / "s-1").glob("*.line")))
        return body

    async with transfer(volume) as url:
        with Mangler(url, look) as source:
            await copy_now(source.url, staging)
    assert lines == [[f"7-9.{done}.line" for done in range(number)] for number in range(4)]


async def test_without_fragments_a_tablet_is_one(volume, staging, tmp_path):
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES)}, fragments=False)
    async with transfer(volume) as url:
        manifest = await copy_now(url, staging)
    (fragment,) = manifest.fragments
    assert set(fragment.namespaces) == {space.decode() for space in SPACES}
    assert arrived(tmp_path, staging, manifest) == expected_of(made)


async def test_a_large_keyspace_comes_in_pieces(volume, staging, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_server, "piece_bytes", lambda rate: 700)
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    async with transfer(volume) as url:
        manifest = await copy_now(url, staging)
    assert len(manifest.fragments) > 10
    assert all(each.entries < 60 for each in manifest.fragments)
    assert manifest.entries == len(ENTRIES) + 1
    assert arrived(tmp_path, staging, manifest) == expected_of(made)


async def test_empty_keyspaces_cost_nothing(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, {})})
    async with transfer(volume) as url:
        with Mangler(url) as source:
            manifest = await copy_now(source.url, staging)
    assert len(source.asked) == len(manifest.fragments) == 1


def cuts_of(body):
    """Where each block begins, the end too."""
    places, at = [0], 0
    while at < len(body):
        at += 8 + int.from_bytes(body[at : at + 4], "big")
        places.append(at)
    return places


async def test_a_stream_may_be_cut_at_every_block(volume, staging, tmp_path):
    """Each fragment is cut at each boundary of its blocks in turn, and then comes whole."""
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    cut_at: dict[str, int] = {}
    monkey_attempts = copy.ATTEMPTS_MAX

    def cut(number, at, body):
        places = cuts_of(body)
        turn = cut_at[at] = cut_at.get(at, -1) + 1
        return body[: places[turn]] if turn < len(places) - 1 else body

    came = []
    copy.ATTEMPTS_MAX = 100
    try:
        async with transfer(volume) as url:
            with Mangler(url, cut) as source:
                manifest = await copy_now(source.url, staging, progress=came.append)
    finally:
        copy.ATTEMPTS_MAX = monkey_attempts
    assert len(cut_at) == 4
    assert all(turns >= 4 for turns in cut_at.values())
    assert sum(came) == manifest.bytes
    assert arrived(tmp_path, staging, manifest) == expected_of(made)
    assert sorted(path.name for path in (staging / "s-1").glob("*.sst")) == sorted(manifest.files)


def flipped(body):
    return body[: len(body) // 2] + bytes((body[len(body) // 2] ^ 1,)) + body[len(body) // 2 + 1 :]


def repeated(body):
    first, second = cuts_of(body)[:2]
    return body[first:second] + body


def swapped(body):
    a, b, c = cuts_of(body)[:3]
    return body[b:c] + body[a:b] + body[c:]


def twice(body):
    return body + body


@pytest.mark.parametrize("harm", [flipped, repeated, swapped, twice])
async def test_what_was_changed_on_the_way_is_asked_for_again_and_the_rest_is_kept(
    volume, staging, tmp_path, harm
):
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    async with transfer(volume) as url:
        with Mangler(url, lambda number, at, body: harm(body) if number == 2 else body) as source:
            manifest = await copy_now(source.url, staging)
    assert [at for _, at in source.asked] == ["0", "1", "2", "2", "3"]
    assert arrived(tmp_path, staging, manifest) == expected_of(made)


async def test_another_fragment_than_was_asked_for_is_not_taken(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    answers = {}

    def stale(number, at, body):
        answers[at] = body
        return answers["1"] if at == "2" else body

    async with transfer(volume) as url:
        with Mangler(url, stale) as source, pytest.raises(Corrupt, match="the fragment at 2"):
            await copy_now(source.url, staging)


async def test_a_retry_keeps_the_fragments_that_are_complete(volume, staging, tmp_path):
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    gone = True

    def lose(number, at, body):
        return None if gone and at == "2" else body

    async with transfer(volume) as url:
        with Mangler(url, lose) as source:
            with pytest.raises(Unavailable):
                await copy_now(source.url, staging)
            before = {path.name for path in (staging / "s-1").glob("*.sst")}
            assert len(before) == 2
            gone = False
            source.asked.clear()
            came = []
            manifest = await copy_now(source.url, staging, progress=came.append)
    assert [at for _, at in source.asked] == ["2", "3"]
    assert before < set(manifest.files)
    assert sum(came) == manifest.bytes
    assert arrived(tmp_path, staging, manifest) == expected_of(made)


@pytest.mark.parametrize("harm", ["torn note", "short file", "no file", "other session"])
async def test_a_note_that_does_not_fit_its_file_counts_for_nothing(volume, staging, tmp_path, harm):
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    folder = staging / "s-1"
    async with transfer(volume) as url:
        source = Mangler(url, lambda number, at, body: None if at == "2" else body)
        with source, pytest.raises(Unavailable):
            await copy_now(source.url, staging)
        note = folder / "7-9.1.line"
        file = folder / copy._decode_line(note.read_bytes()).fragment.file
        if harm == "torn note":
            note.write_bytes(note.read_bytes()[:-9])
        elif harm == "short file":
            file.write_bytes(file.read_bytes()[:-1])
        elif harm == "no file":
            file.unlink()
        else:
            note.write_bytes(note.read_bytes().replace(b'"s-1"', b'"s-0"'))
        manifest = await copy_now(url, staging)
    assert arrived(tmp_path, staging, manifest) == expected_of(made)


async def test_runs_at_once_share_their_fragments(volume, staging, tmp_path):
    made = make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    async with transfer(volume) as url:
        manifests = await asyncio.gather(*(copy_now(url, staging) for _ in range(5)))
    assert len({tuple(manifest.files) for manifest in manifests}) == 1
    kept = {path.name for path in (staging / "s-1").glob("*.sst")}
    assert kept == set(manifests[0].files)
    assert arrived(tmp_path, staging, manifests[0]) == expected_of(made)


async def test_a_manifest_of_another_version_of_stele_is_made_anew(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    (staging / "s-1").mkdir()
    (staging / "s-1" / "7.json").write_text('{"format":1,"session":"s-1","partition":7}')
    async with transfer(volume) as url:
        manifest = await copy_now(url, staging)
    assert manifest.entries == len(ENTRIES) + 1
    assert b'"format":2' in (staging / "s-1" / "7.json").read_bytes()


async def test_fragments_of_several_tablets_take_turns(volume, staging, monkeypatch):
    monkeypatch.setattr(copy, "TABLETS_AT_ONCE", 2)
    few = {key: value for key, value in ENTRIES.items() if key[0] in (b"map1", b"map2")}
    make_checkpoint(volume, "s-1", {1: (3, ENTRIES), 2: (3, few), 3: (3, few)})
    items = tuple(CopyItem(partition, 3, 9) for partition in (1, 2, 3))
    done = []
    async with transfer(volume) as url:
        with Mangler(url) as source:
            job = CopyJob("s-1", "m", "c", source.url, TOKEN, items)
            await asyncio.to_thread(
                copy_tablets,
                job,
                items,
                staging=staging,
                progress=lambda more: None,
                finished=lambda manifest: done.append(manifest.partition),
            )
    assert source.asked == [
        (1, "0"), (2, "0"), (1, "1"), (2, "1"), (1, "2"), (3, "0"), (1, "3"), (3, "1")
    ]  # fmt: skip
    assert done == [2, 1, 3]


async def test_one_connection_carries_many_fragments(volume, staging):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    connections = []
    async with transfer(volume) as url:
        with Mangler(url) as source:
            accept = source.server.get_request
            source.server.get_request = lambda: connections.append(1) or accept()
            await copy_now(source.url, staging)
    assert len(connections) == 1


@pytest.mark.parametrize("at", ["x", "4", "99999", "1.00"])
async def test_a_place_that_the_tablet_has_not_is_refused(volume, at):
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})
    async with transfer(volume) as url:
        path = f"{url}/v1/sessions/s-1/partitions/7?generation=3&at={at}"
        request = urllib.request.Request(path, headers={"Authorization": f"Bearer {TOKEN}"})

        def ask():
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(request)
            with raised.value:
                return raised.value.code, raised.value.read().decode()

        code, text = await asyncio.to_thread(ask)
    assert code == 400
    assert f"at is '{at}'" in text
