"""Files of bulk loads: pieces become a tablet's file, whole and checked, or an error tells what is wrong."""

import os
import socket
from pathlib import Path
from threading import Thread

import pytest
from crc32c import crc32c

from stele.adapters.rocksdb.engine import RocksEngine
from stele.adapters.tls.dialled import connect
from stele.client.bulk import _piece
from stele.core.kv.keyslot import partition_of
from stele.errors import BadInput, Conflict, Corrupt, Refused, Unavailable
from stele.transfer.bulk import files
from stele.transfer.bulk.files import LoadFiles
from stele.wire.copy.blocks import BlockReader
from stele.wire.copy.bulk import HEAD_BYTES, BuildOrder, Section, decode_index, encode_run, piece_head
from stele.wire.storage.keys import pack_value, user_key

PARTITIONS = 4
KEYS = [b"key-%03d" % number for number in range(200)]
MINE = sorted(key for key in KEYS if partition_of(key, PARTITIONS) == 1)


def stream(entries: dict[bytes, bytes], partition: int = 1) -> bytes:
    return b"".join(encode_run(sorted(entries.items()), partition))


def entries(keys: list[bytes], value: bytes = b"v") -> dict[bytes, bytes]:
    return {key: pack_value(value, 0) for key in keys}


def put(loads: LoadFiles, piece: str, body: bytes) -> None:
    with loads.receiving("load", piece, len(body)) as file:
        file.write(body)


def order(*pieces: str, generation: int = 3, duplicates: str = "error", **more: object) -> BuildOrder:
    return BuildOrder(generation, "default", PARTITIONS, pieces, duplicates, **more)  # type: ignore[arg-type]


@pytest.fixture
def loads(tmp_path: Path) -> LoadFiles:
    (tmp_path / "loads").mkdir()
    return LoadFiles(tmp_path / "loads", lambda member: connect(("127.0.0.1", member), None, 10.0))


def test_pieces_become_one_file_that_the_database_takes(loads: LoadFiles, tmp_path: Path) -> None:
    put(loads, "a", _piece({0: stream({}, 0), 1: stream(entries(MINE[::2])), 3: stream({}, 3)}))
    put(loads, "b", _piece({1: stream(entries(MINE[1::2]))}))
    put(loads, "c", _piece({2: stream({}, 2)}))
    with pytest.raises(Refused, match="piece c of load load has no rows of partition 1") as caught:
        loads.build("load", 1, order("a", "b", "c"))
    assert caught.value.code == "NOT_STAGED"
    made = loads.build("load", 1, order("a", "b"))
    assert (made.entries, made.generation, made.keyspace) == (len(MINE), 3, "default")
    run = loads.run_path("load", 1, made.crc32c).read_bytes()
    assert crc32c(run) == made.crc32c
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    engine.ingest([str(tmp_path / "loads" / "load" / f"1-3-{made.crc32c:08x}.sst")])
    assert [engine.get(user_key(1, 3, b"default", key)) for key in MINE] == [pack_value(b"v", 0)] * len(MINE)
    engine.close()


def test_another_generation_has_the_same_run(loads: LoadFiles) -> None:
    put(loads, "a", _piece({1: stream(entries(MINE))}))
    made = [loads.build("load", 1, order("a", generation=generation)) for generation in (1, 9)]
    assert made[0].crc32c == made[1].crc32c
    assert loads.manifest("load", 1, 9, made[0].crc32c) == made[1]
    assert loads.manifest("load", 1, 2, made[0].crc32c) is None


def test_of_equal_keys_the_last_piece_wins_or_none(loads: LoadFiles) -> None:
    put(loads, "a", _piece({1: stream(entries(MINE, b"first"))}))
    put(loads, "b", _piece({1: stream(entries(MINE[:1], b"last"))}))
    with pytest.raises(Conflict, match=f"key '{MINE[0].decode()}' is repeated"):
        loads.build("load", 1, order("a", "b"))
    for pieces, value in ((("a", "b"), b"last"), (("b", "a"), b"first")):
        made = loads.build("load", 1, order(*pieces, duplicates="last"))
        with loads.run_path("load", 1, made.crc32c).open("rb") as run:
            found = {key: value for keys, values in BlockReader(run.read) for key, value in zip(keys, values)}  # noqa: B905
        assert found == {**entries(MINE, b"first"), MINE[0]: pack_value(value, 0)}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            entries([next(k for k in KEYS if partition_of(k, PARTITIONS) == 2)]),
            "contains keys of partition 2",
        ),
        ({MINE[0]: b"short"}, "does not begin with an expiry time"),
        ({MINE[0]: b"\xff" * 8}, "does not begin with an expiry time"),
        ({MINE[0]: pack_value(b"v" * (8 * 1024 * 1024 + 1), 0)}, "a value has 8388609 bytes"),
        ({}, "no piece holds an entry"),
    ],
)
def test_what_no_client_could_write_is_refused(
    loads: LoadFiles, wrong: dict[bytes, bytes], text: str
) -> None:
    put(loads, "a", _piece({1: stream(wrong)}))
    with pytest.raises(BadInput, match=text):
        loads.build("load", 1, order("a"))
    assert list(Path(loads._root, "load").glob("*.part")) == []


def test_a_piece_that_is_damaged_on_its_way_is_not_taken(loads: LoadFiles) -> None:
    body = bytearray(_piece({1: stream(entries(MINE))}))
    body[-3] ^= 1
    with pytest.raises(BadInput, match="send it again"):
        put(loads, "a", bytes(body))
    with pytest.raises(BadInput, match="send it again"):
        put(loads, "a", _piece({1: stream(entries(MINE))})[:-1])
    with pytest.raises(Refused, match="piece a of load load is not at this member"):
        loads.build("load", 1, order("a"))


def test_a_piece_that_is_damaged_on_the_volume_is_found(loads: LoadFiles) -> None:
    put(loads, "a", _piece({1: stream(entries(MINE))}))
    path = Path(loads._root, "load", "a.piece")
    body = bytearray(path.read_bytes())
    body[-100] ^= 1
    path.write_bytes(bytes(body))
    with pytest.raises(Corrupt, match="a piece or a run is damaged"):
        loads.build("load", 1, order("a"))


def test_a_piece_that_is_cut_at_any_byte_is_refused(loads: LoadFiles) -> None:
    body = _piece({1: stream(entries(MINE[:3]))})
    for size in range(len(body)):
        with pytest.raises(BadInput):
            put(loads, "a", body[:size])


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ([Section(2, 0, 5), Section(1, 5, 5)], "partition 1 is out of order or not contiguous"),
        ([Section(1, 3, 5)], "partition 1 is out of order or not contiguous"),
        ([Section(1, 0, 300 * 1024 * 1024)], "at most 268435456"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(sections: list[Section], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        decode_index(piece_head(sections, 0)[HEAD_BYTES:])


def test_a_source_that_is_not_there_is_named(loads: LoadFiles) -> None:
    with pytest.raises(Unavailable, match=r"member 1: .*refused"):
        loads.build("load", 1, order(source=1, crc32c=5))
    with pytest.raises(Unavailable, match="source is member 1, but this process cannot fetch"):
        LoadFiles(loads.run_path("load", 0, 0).parent.parent).build("load", 1, order(source=1, crc32c=5))


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (b"HTTP/1.1 500 secret\r\nContent-Length: 6\r\n\r\nsecret", Unavailable, "answered 500, expected"),
        (b"HTTP/1.1 200 OK\r\n\r\nsecret without an end", Unavailable, "answered 200, expected"),
        (b"HTTP/1.1 404 no\r\nContent-Length: 0\r\n\r\n", Refused, "does not have the run"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n", Refused, "bytes free"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret and more", Corrupt, "has crc32c"),
        (b"secret\r\n\r\n", Unavailable, "member"),
    ],
)
def test_of_a_source_only_the_status_is_told(
    loads: LoadFiles, answer: bytes, kind: type[Exception], text: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        with pytest.raises(kind, match=text) as caught:
            loads.build("load", 1, order(source=server.getsockname()[1], crc32c=5))
        thread.join()
    assert "secret" not in str(caught.value)
    assert not list(loads.run_path("load", 1, 5).parent.iterdir())


def test_a_load_leaves_room_to_clients(loads: LoadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SPARE_BYTES", 2**62)
    with pytest.raises(Refused, match=r"the volume has \d+ bytes free.*enlarge the volume") as caught:
        put(loads, "a", bytes(100))
    assert caught.value.code == "NO_SPACE"


def test_a_piece_takes_the_bytes_that_were_announced(loads: LoadFiles) -> None:
    body = _piece({1: stream(entries(MINE))})
    for sent, text in ((body + b"x", "more than the"), (body[:-1], "1 of")):
        with (
            pytest.raises(BadInput, match=rf"{text} {len(body)} bytes"),
            loads.receiving("load", "a", len(body)) as file,
        ):
            file.write(sent)
    assert not list(loads.run_path("load", 1, 5).parent.iterdir())


def test_room_is_kept_for_all_that_come_at_once(loads: LoadFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = os.statvfs("/")
    free = 1024 * 1024 * 1024 // usage.f_frsize
    values = (usage.f_bsize, usage.f_frsize, free, free, free, 0, 0, 0, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
    half = (1024 * 1024 * 1024 - files.SPARE_BYTES) // 2
    with (
        loads._room(half),
        loads._room(half),
        pytest.raises(Refused, match="enlarge the volume"),
        loads._room(1),
    ):
        raise AssertionError("there is no room")
    with loads._room(2 * half):
        pass


def test_the_end_of_a_load_takes_its_pieces_only(loads: LoadFiles) -> None:
    put(loads, "a", _piece({1: stream(entries(MINE))}))
    made = loads.build("load", 1, order("a"))
    loads.drop_pieces("load")
    assert not Path(loads._root, "load", "a.piece").exists()
    assert loads.manifest("load", 1, 3, made.crc32c) == made
