"""A full disk loses nothing, a failing one ends all writes, and nothing works once the log is closed."""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stele.adapters.segments import files
from stele.adapters.segments.log import SegmentedLog
from stele.errors import Corrupt, Unavailable
from stele.wire.storage.keys import log_key
from stele.wire.storage.segment import HEADER_BYTES
from tests.adapters.segments.test_damage import read_files
from tests.adapters.segments.workload import Pairs, content, keys_from

FIRST: Pairs = [(log_key(1, 1), b"first")]
NEXT: Pairs = [(log_key(1, 2), b"next")]
BOTH = dict([*FIRST, *NEXT])

Call = Callable[..., Any]


def refused(log: SegmentedLog, code: str, puts: Pairs = NEXT) -> None:
    with pytest.raises(Unavailable) as told:
        log.write(puts)
    assert told.value.code == code


def failing(number: int, when: Callable[..., bool] = lambda *args: True, call: Call | None = None) -> Call:
    """Return a call that fails with this error when its arguments are such."""

    def fail(*args: Any, **more: Any) -> Any:
        if when(*args):
            raise OSError(number, os.strerror(number))
        assert call is not None
        return call(*args, **more)

    return fail


def partly(size: int, number: int = 0) -> Call:
    """Return an os.write that writes so many bytes, then fails with an error if there is one."""
    write = os.write

    def write_partly(handle: int, data: bytes) -> int:
        written = write(handle, data[:size])
        if number:
            raise OSError(number, os.strerror(number))
        return written

    return write_partly


@pytest.fixture
def log(folder: Path) -> SegmentedLog:
    made = SegmentedLog(folder)
    made.write(FIRST)
    return made


def after_start(log: SegmentedLog, folder: Path) -> dict[bytes, bytes]:
    """Return what there is after another start."""
    log.close()
    again = SegmentedLog(folder)
    found = content(again)
    again.close()
    return found


@pytest.mark.parametrize("number", [0, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("size", [0, 1, 30])
def test_a_write_to_a_full_disk_leaves_nothing_and_the_next_one_works(
    log: SegmentedLog, folder: Path, monkeypatch: pytest.MonkeyPatch, size: int, number: int
) -> None:
    files, end = read_files(folder), log.end
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", partly(size, number))
        refused(log, "NO_SPACE")
    assert (read_files(folder), log.end, content(log)) == (files, end, dict(FIRST))
    log.write(NEXT)
    assert content(log) == after_start(log, folder) == BOTH


def test_a_drop_that_finds_no_space_is_not_done(
    log: SegmentedLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", partly(5))
        with pytest.raises(Unavailable):
            log.write([], [keys_from(1)])
    assert content(log) == after_start(log, folder) == dict(FIRST)


@pytest.mark.parametrize("size", [0, 30])
def test_no_write_follows_one_that_failed(
    log: SegmentedLog, folder: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", partly(size, errno.EIO))
        refused(log, "DISK_ERROR")
    refused(log, "DISK_ERROR")
    with pytest.raises(Unavailable, match="Input/output"):
        log.sync()
    assert after_start(log, folder) == dict(FIRST)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_no_write_follows_a_sync_that_failed(
    log: SegmentedLog, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Also for want of space, as on a volume that is thinly provisioned: more space repairs nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(number))
        with pytest.raises(Unavailable) as told:
            log.sync()
        assert told.value.code == "DISK_ERROR"
    refused(log, "DISK_ERROR")
    with pytest.raises(Unavailable):
        log.sync()
    log.close()


@pytest.mark.parametrize("name", ["open", "write", "fsync"])
def test_a_segment_that_finds_no_space_is_begun_later(
    log: SegmentedLog, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    whens: dict[str, Callable[..., bool]] = {
        "open": lambda path, flags, mode=0: bool(flags & os.O_CREAT),
        "write": lambda handle, data: len(data) == HEADER_BYTES,
        "fsync": lambda handle: True,
    }
    log.write([(log_key(2, 1), bytes(700))])
    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing(errno.ENOSPC, whens[name], getattr(os, name)))
        log.sync()
        log.write(NEXT)
        log.sync()
        assert log.end[0] == "0000000000.seg"
        assert after_crash(folder) == {**BOTH, log_key(2, 1): bytes(700)}
    log.sync()
    assert log.end == ("0000000001.seg", HEADER_BYTES)
    assert after_start(log, folder) == {**BOTH, log_key(2, 1): bytes(700)}


def after_crash(folder: Path) -> dict[bytes, bytes]:
    """Return what whoever only reads finds in the files as they are."""
    reader = SegmentedLog(folder, read_only=True)
    found = content(reader)
    reader.close()
    return found


def full_of_waste(log: SegmentedLog) -> None:
    """Fill segments of which only the first operation is of use, so that the next write moves it."""
    for index in range(4):
        log.write([(log_key(2, index), bytes(650))], [keys_from(2, 0, index)])
        if index < 3:
            log.sync()


def is_moved(handle: int, data: bytes) -> bool:
    return data[0] == 1


def test_a_write_is_done_where_there_is_no_space_to_move_others(
    log: SegmentedLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC, is_moved, os.write))
        full_of_waste(log)
        log.write(NEXT)
        assert content(log) == after_crash(folder) == {**BOTH, log_key(2, 3): bytes(650)}
    log.write([(log_key(1, 3), b"third")])
    log.sync()
    assert not (folder / "0000000000.seg").exists(), "moved as soon as there was space"
    assert content(log) == after_start(log, folder)
    assert len(content(SegmentedLog(folder, read_only=True))) == 4


def test_a_write_is_done_where_moving_fails_and_is_the_last_one(
    log: SegmentedLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", failing(errno.EIO, is_moved, os.write))
    written = list[int]()
    with pytest.raises(Unavailable) as told:
        waste(log, written)
    assert told.value.code == "DISK_ERROR"
    assert after_start(log, folder) == {**dict(FIRST), log_key(2, written[-1]): bytes(650)}


def waste(log: SegmentedLog, written: list[int]) -> None:
    """Write operations in place of each other."""
    for index in range(9):
        log.write([(log_key(2, index), bytes(650))], [keys_from(2, 0, index)])
        written.append(index)
        log.sync()


def test_a_segment_that_cannot_be_deleted_is_deleted_later(
    log: SegmentedLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write([(log_key(2, 1), bytes(700))])
    log.sync()
    log.write(NEXT, [keys_from(1), keys_from(2)])
    for name in ("unlink", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing(errno.EIO))
            log.sync()
        assert content(log) == dict(NEXT)
    log.sync()
    assert list(read_files(folder)) == ["log/0000000001.seg"]
    assert after_start(log, folder) == dict(NEXT)


def test_a_failed_sync_of_what_was_written_beside_another_is_not_forgotten(
    log: SegmentedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operating system tells once that it lost data; the next sync would succeed."""
    log.write([(log_key(2, 1), bytes(700))])
    calls = []

    def sync(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 1:
            log.write(NEXT)
        if len(calls) == 2:
            raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, "fdatasync", sync)
    with suppress(Unavailable):
        log.sync()
    assert len(calls) == 2, "the second one is for what was written during the first"
    with pytest.raises(Unavailable, match="lost"):
        log.sync()
    refused(log, "DISK_ERROR")


def test_a_failed_sync_is_not_forgotten_when_the_disk_is_full_too(
    log: SegmentedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, fail = threading.Event(), threading.Event()
    codes: list[str] = []

    def sync() -> None:
        with pytest.raises(Unavailable) as told:
            log.sync()
        codes.append(told.value.code)

    def fail_late(handle: int) -> None:
        begun.set()
        fail.wait(30)
        raise OSError(errno.EIO, "lost")

    def write(handle: int, data: bytes) -> int:
        fail.set()
        syncing.join(30)
        raise OSError(errno.ENOSPC, "full")

    syncing = threading.Thread(target=sync)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail_late)
        syncing.start()
        begun.wait(30)
        patch.setattr(os, "write", write)
        refused(log, "NO_SPACE")
    assert codes == ["DISK_ERROR"]
    refused(log, "DISK_ERROR")


USES: list[Callable[[SegmentedLog], object]] = [
    lambda log: log.write(NEXT),
    lambda log: log.write([], [keys_from(1)]),
    lambda log: log.get(log_key(1, 1)),
    lambda log: log.scan(*keys_from(1), 99),
    lambda log: log.bounds(*keys_from(1)),
    lambda log: log.sync(),
]


def test_whoever_uses_it_once_it_is_closed_is_told_so(log: SegmentedLog) -> None:
    log.close()
    log.close()
    for use in USES:
        with pytest.raises(Unavailable) as told:
            use(log)
        assert told.value.code == "CLOSED"


@pytest.mark.parametrize("read_only", [False, True])
def test_all_files_are_closed(log: SegmentedLog, folder: Path, read_only: bool) -> None:
    for index in range(3):
        log.write([(log_key(2, index), bytes(650))])
        log.sync()
    log.close()
    before = sorted(os.listdir("/proc/self/fd"))
    again = SegmentedLog(folder, read_only=read_only)
    again.close()
    assert sorted(os.listdir("/proc/self/fd")) == before


def record_or_code(log: SegmentedLog) -> bytes | str | None:
    try:
        return log.get(log_key(1, 1))
    except Unavailable as error:
        return error.code


def test_whoever_reads_while_it_is_closed_gets_the_record_or_is_told_so(
    log: SegmentedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes between the check and the read."""
    read, closing = os.pread, threading.Thread(target=log.close)

    def close_first(handle: int, size: int, at: int) -> bytes:
        closing.start()
        closing.join(0.05)
        return read(handle, size, at)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", close_first)
        assert record_or_code(log) in (b"first", "CLOSED")
    closing.join(30)
    with pytest.raises(Unavailable, match="closed"):
        log.get(log_key(1, 1))


def test_a_damaged_record_is_moved_and_told_when_it_is_read(log: SegmentedLog, folder: Path) -> None:
    path = folder / "0000000000.seg"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"first", b"fiRst"))
    full_of_waste(log)
    log.sync()
    log.sync()
    assert not path.exists(), "all was moved"
    for _ in range(2):
        with pytest.raises(Corrupt, match="operation 1 of partition 1: checksum mismatch"):
            log.get(log_key(1, 1))
        assert log.get(log_key(2, 3)) == bytes(650)
        log.close()
        log = SegmentedLog(folder)
    log.close()


def test_a_page_that_cannot_be_read_costs_the_operations_in_it(
    log: SegmentedLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they are moved, and where a start reads them."""
    path, pread = folder / "0000000000.seg", os.pread
    data = path.read_bytes()
    monkeypatch.setattr(files, "PAGE_BYTES", 8)
    page = data.index(b"first") // 8 * 8

    def fail(handle: int, size: int, at: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{handle}") == str(path) and at < page + 8 and page < at + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(handle, size, at)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", fail)
        with pytest.raises(Corrupt, match="cannot be read"):
            log.get(log_key(1, 1))
        full_of_waste(log)
    log.sync()
    log.sync()
    assert not path.exists(), "all was moved"
    with pytest.raises(Corrupt, match="checksum mismatch"):
        log.get(log_key(1, 1))
    assert log.get(log_key(2, 3)) == bytes(650)
    log.close()
