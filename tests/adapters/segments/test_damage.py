"""Damage of a log is told, with the file that has it; what only a crash leaves is cut off."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stele.adapters.segments.log import SegmentedLog
from stele.errors import Corrupt
from stele.wire.storage.keys import log_key, split_log_key
from stele.wire.storage.segment import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    WRITTEN,
    check_records,
    decode_frame,
    encode_frame,
    encode_header,
)
from tests.adapters.segments.disk import Files, restore
from tests.adapters.segments.workload import Pairs, State, applied, content, keys_from

Made = tuple[Files, list[tuple[str, int, State]]]
"""Files of a log, and after each write the newest one, its size, and what there was."""


Writes = list[tuple[Pairs, Pairs]]
"""What is put and what is dropped by each."""


def read_files(folder: Path) -> Files:
    return {f"log/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}


def steps() -> Writes:
    """Return writes that fill two segments and begin a third."""
    appends: Writes = [([(log_key(1, n), b"%d" % n * 30), (log_key(2, n), b"a")], []) for n in range(12)]
    late: Writes = [
        ([(log_key(1, 10), b"cut")], [keys_from(1, 10)]),
        ([], [keys_from(2, 0, 4), keys_from(1, 0, 3)]),
        ([(log_key(3, 5), bytes(30))], []),
    ]
    return [*appends, *late]


@pytest.fixture
def made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr("stele.adapters.segments.log.SEGMENT_BYTES", 600)
    log = SegmentedLog(folder)
    state: State = {}
    ends = []
    for puts, drops in steps():
        log.write(puts, drops)
        state = applied(state, puts, drops)
        ends.append((*log.end, state))
        log.sync()
    log.close()
    files = read_files(folder)
    assert len(files) == 3
    return files, ends


def test_every_cut_of_the_newest_segment_leaves_the_first_writes(made: Made, tmp_path: Path) -> None:
    files, ends = made
    newest = max(files)
    for size in range(len(files[newest])):
        folder = restore({**files, newest: files[newest][:size]}, tmp_path / "cut")
        log = SegmentedLog(folder)
        whole = [state for name, end, state in ends if f"log/{name}" < newest or end <= size]
        assert content(log) == whole[-1]
        log.write([(log_key(4, 1), b"next")])
        log.close()
        again = SegmentedLog(folder)
        assert content(again) == {**whole[-1], log_key(4, 1): b"next"}
        again.close()


def told(folder: Path, whole: State) -> bool:
    """Return whether damage is told at the start or when all is read. What is read must be whole."""
    try:
        log = SegmentedLog(folder, read_only=True)
    except Corrupt:
        return True
    try:
        assert content(log) == whole
    except Corrupt:
        return True
    finally:
        log.close()
    return False


def changed(data: bytes) -> Iterator[bytes]:
    """Iterate the data with each of its bytes changed in one bit."""
    for at in range(len(data)):
        yield data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :]


def test_every_changed_byte_of_the_newest_segment_is_told_with_its_file(made: Made, tmp_path: Path) -> None:
    newest = max(made[0])
    folder = restore(made[0], tmp_path / "changed")
    for data in changed(made[0][newest]):
        (folder.parent / newest).write_bytes(data)
        with pytest.raises(Corrupt, match=newest):
            SegmentedLog(folder)


def test_a_changed_byte_of_an_older_segment_is_told_or_is_of_no_use(made: Made, tmp_path: Path) -> None:
    """Records that were dropped are not read."""
    files, ends = made
    for name in sorted(files)[:-1]:
        folder = restore(files, tmp_path / "changed")
        for at, data in enumerate(changed(files[name])):
            (folder.parent / name).write_bytes(data)
            assert told(folder, ends[-1][2]) or is_dropped(files[name], at, ends[-1][2])


def is_dropped(segment: bytes, place: int, state: State) -> bool:
    """Return whether there is at this place a record, or its checksum, that is not in the log any more."""
    at = HEADER_BYTES
    while (frame := decode_frame(memoryview(segment), at)) is not None:
        at = frame.records_at
        for partition, index, size in frame.operations:
            record = segment[at + CHECKSUM_BYTES : at + CHECKSUM_BYTES + size]
            if at <= place < at + CHECKSUM_BYTES + size:
                return state.get(log_key(partition, index)) != record
            at += CHECKSUM_BYTES + size
    return False


def test_every_flipped_bit_of_a_frame_is_told() -> None:
    puts = [(log_key(1, 1), b"one"), (log_key(1, 2), b""), (log_key(2, 7), b"seven")]
    frame = encode_frame(puts, [keys_from(1), keys_from(2, 0, 3)])[0]
    assert decode_frame(memoryview(frame), 0) is not None
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            check_whole(memoryview(flipped))


def check_whole(segment: memoryview) -> None:
    """Check a frame and its records."""
    if (frame := decode_frame(segment, 0)) is not None:
        check_records(segment, frame)


def test_a_frame_says_what_was_written() -> None:
    puts, drops = [(log_key(1, 1), b"one"), (log_key(2, 7), b"seven")], [keys_from(1, 3, 5)]
    data = b"before" + encode_frame(puts, drops)[0]
    frame = decode_frame(memoryview(data), 6)
    assert frame is not None
    assert (frame.kind, frame.ranges) == (WRITTEN, [(1, 3, 5)])
    assert frame.operations == [(*split_log_key(key), len(record)) for key, record in puts]
    assert (data[frame.records_at + 4 : frame.records_at + 7], frame.end) == (b"one", len(data))


NAMES = [f"log/{number:010}.seg" for number in range(3)]


def without_the_middle(files: Files) -> None:
    del files[NAMES[1]]


def shortened(size: int) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files[NAMES[1]] = files[NAMES[1]][:size]

    return change


def longer(files: Files) -> None:
    files[NAMES[1]] += bytes(9)


def zeroed_tail(files: Files) -> None:
    files[NAMES[1]] = files[NAMES[1]][:-200] + bytes(200)


def magic(files: Files) -> None:
    files[NAMES[2]] = b"another " + files[NAMES[2]][8:]


def swapped(files: Files) -> None:
    files[NAMES[0]], files[NAMES[1]] = files[NAMES[1]], files[NAMES[0]]


def repeated(files: Files) -> None:
    files[NAMES[0]] = files[NAMES[1]]


def garbage_at_the_end(files: Files) -> None:
    files[NAMES[2]] += b"garbage that is longer than a head"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without_the_middle, "0000000001.seg is missing"),
        (shortened(-1), "0000000001.seg has"),
        (shortened(HEADER_BYTES), "0000000001.seg has 20 bytes"),
        (shortened(0), "0000000001.seg has 0 bytes"),
        (longer, "0000000001.seg has"),
        (zeroed_tail, "0000000001.seg"),
        (magic, "0000000002.seg"),
        (swapped, "0000000000.seg has"),
        (garbage_at_the_end, "0000000002.seg"),
    ],
)
def test_damaged_files_are_told(
    made: Made, tmp_path: Path, change: Callable[[Files], None], named: str
) -> None:
    files = dict(made[0])
    change(files)
    folder = restore(files, tmp_path / "damaged")
    for read_only in (False, True):
        with pytest.raises(Corrupt, match=named):
            SegmentedLog(folder, read_only=read_only)
    assert read_files(folder) == dict(sorted(files.items())), "it is left as it was found"


def test_a_folder_without_segments_is_told(tmp_path: Path) -> None:
    folder = restore({}, tmp_path / "empty")
    with pytest.raises(Corrupt, match="log has no segment"):
        SegmentedLog(folder)
    (folder / "0000000000.seg").touch()
    with pytest.raises(Corrupt, match="log has no segment"):
        SegmentedLog(folder)


def test_another_format_is_told_as_such(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("stele.wire.storage.segment.MAGIC", b"stele L2")
        newer = encode_header(0)
    folder = restore({**made[0], NAMES[0]: newer + made[0][NAMES[0]][HEADER_BYTES:]}, tmp_path / "newer")
    with pytest.raises(Corrupt, match=r"0000000000.seg.*stele L2") as told:
        SegmentedLog(folder)
    assert told.value.code == "UNKNOWN_FORMAT"


def test_a_missing_oldest_segment_is_told(made: Made, tmp_path: Path) -> None:
    files = {name: data for name, data in made[0].items() if name != NAMES[0]}
    with pytest.raises(Corrupt):
        SegmentedLog(restore(files, tmp_path / "missing"))


@pytest.mark.parametrize(
    "left", [b"", encode_header(7)[: HEADER_BYTES - 1], bytes(300)], ids=["empty", "cut", "zeros"]
)
def test_a_segment_that_was_only_begun_is_removed(made: Made, tmp_path: Path, left: bytes) -> None:
    folder = restore({**made[0], "log/0000000003.seg": left}, tmp_path / "begun")
    log = SegmentedLog(folder)
    assert content(log) == made[1][-1][2]
    assert read_files(folder) == made[0]
    log.close()


@pytest.mark.parametrize("tail", [bytes(5), bytes(200), b"\0\0\0"])
def test_zeros_behind_the_last_frame_are_cut_off(made: Made, tmp_path: Path, tail: bytes) -> None:
    folder = restore({**made[0], NAMES[2]: made[0][NAMES[2]] + tail}, tmp_path / "zeros")
    log = SegmentedLog(folder)
    assert content(log) == made[1][-1][2]
    log.close()
    assert read_files(folder) == made[0]


def changed_by_a_crash(files: Files) -> Files:
    """Return files as a crash leaves them: a frame that is not whole, a segment that was only begun."""
    return {**files, NAMES[2]: files[NAMES[2]][:-1], "log/0000000003.seg": b""}


def test_whoever_only_reads_changes_nothing(made: Made, tmp_path: Path) -> None:
    files = changed_by_a_crash(made[0])
    folder = restore(files, tmp_path / "read")
    log = SegmentedLog(folder, read_only=True)
    assert content(log) == made[1][-2][2]
    log.close()
    assert read_files(folder) == files


def test_a_sync_of_whoever_only_reads_changes_nothing(folder: Path) -> None:
    log = SegmentedLog(folder)
    for index in range(2):
        log.write([(log_key(1, index), bytes(700))])
        log.sync()
    log.write([], [keys_from(1)])
    log.close()
    files = read_files(folder)
    log = SegmentedLog(folder, read_only=True)
    log.sync()
    log.close()
    assert read_files(folder) == files


def test_a_record_that_is_damaged_later_is_told_when_it_is_read(made: Made, tmp_path: Path) -> None:
    folder = restore(made[0], tmp_path / "later")
    log = SegmentedLog(folder)
    name = next(name for name in NAMES if b"9" * 30 in made[0][name])
    data = made[0][name]
    at = data.index(b"9" * 30)
    (tmp_path / "later" / name).write_bytes(data[:at] + b"x" + data[at + 1 :])
    damaged = [key for key in made[1][-1][2] if fails(log, key)]
    assert damaged == [log_key(1, 9)]
    with pytest.raises(Corrupt, match="checksum mismatch"):
        log.scan(*keys_from(1), 1 << 30)
    log.close()


def fails(log: SegmentedLog, key: bytes) -> bool:
    try:
        log.get(key)
    except Corrupt:
        return True
    return False


def test_records_that_are_cut_off_later_are_told_with_their_file(made: Made, tmp_path: Path) -> None:
    log = SegmentedLog(restore(made[0], tmp_path / "later"))
    os.truncate(tmp_path / "later" / NAMES[0], 40)
    with pytest.raises(Corrupt, match=r"0000000000.seg has"):
        log.scan(*keys_from(1), 1 << 30)
    log.close()
