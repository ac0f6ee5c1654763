"""Files are whole and on disk, however many there are and whatever the system offers."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stele.member.storage import durable

MANY, FEW = durable.SYNCFS_FILES_MIN, durable.SYNCFS_FILES_MIN - 1


class Calls:
    """What is asked of the system, in order; nothing else is changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        for place, name in ((durable, "syncfs"), (os, "fsync"), (os, "write"), (os, "replace"), (os, "open")):
            self._watch(monkeypatch, place, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> None:
        real = getattr(place, name)

        def watched(*given: Any) -> Any:
            self.made.append(f"{name} {Path(given[0]).name}" if name == "open" else name)
            return real(*given)

        monkeypatch.setattr(place, name, watched)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests write, too."""
    monkeypatch.setattr(durable, "dirty_bytes", lambda: durable.DIRTY_BYTES_MAX)


def replace(folder: Path, count: int, content: bytes = b"new") -> list[Path]:
    paths = [folder / str(number) for number in range(count)]
    with ThreadPoolExecutor(2) as threads:
        durable.replace_all([*map(str, paths)], [content] * count, threads)
    return paths


@pytest.mark.parametrize("count", [0, 1, durable.PARALLEL_FILES_MIN, FEW, MANY, 200])
def test_files_are_replaced(tmp_path: Path, clean: None, count: int) -> None:
    replace(tmp_path, count // 2, b"what was before, and longer")
    paths = replace(tmp_path, count)
    assert sorted(tmp_path.iterdir()) == sorted(paths), "nothing is left aside"
    assert {path.read_bytes() for path in paths} <= {b"new"}


@pytest.mark.parametrize("count", [1, durable.PARALLEL_FILES_MIN, FEW])
def test_each_of_a_few_files_is_synced(
    tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    calls = Calls(monkeypatch)
    replace(tmp_path, count)
    assert "syncfs" not in calls.made
    first_rename = calls.made.index("replace")
    assert calls.made[:first_rename].count("fsync") == count
    assert calls.made[first_rename:] == ["replace"] * count + [f"open {tmp_path.name}", "fsync"]


def test_many_files_are_synced_at_once_before_the_first_takes_its_place(
    tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is opened first: `syncfs` tells only of what could not be written since then."""
    calls = Calls(monkeypatch)
    replace(tmp_path, MANY)
    written = [f"open {number}.new" for number in range(MANY)]
    writes = [each for opened in written for each in (opened, "write")]
    folder = f"open {tmp_path.name}"
    assert calls.made == [folder, *writes, "syncfs", *["replace"] * MANY, folder, "fsync"]


def test_files_of_several_folders_are_synced_with_their_folders(
    tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("consensus", "tablets")]
    for folder in folders:
        folder.mkdir()
    calls = Calls(monkeypatch)
    with ThreadPoolExecutor(2) as threads:
        paths = [str(folder / str(number)) for folder in folders for number in range(MANY)]
        durable.replace_all(paths, [b"x"] * len(paths), threads)
    assert sorted(calls.made[-4:]) == ["fsync", "fsync", "open consensus", "open tablets"]


def is_as_fsync(calls: Calls) -> bool:
    return "syncfs" not in calls.made and calls.made.count("fsync") == MANY + 1


def test_a_busy_disk_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "dirty_bytes", lambda: durable.DIRTY_BYTES_MAX + 1)
    calls = Calls(monkeypatch)
    replace(tmp_path, MANY)
    assert is_as_fsync(calls)


@pytest.mark.parametrize(
    ("release", "known", "can"),
    [
        ("5.8.0-generic", True, True),
        ("6.18.44", True, True),
        ("10.0", True, True),
        ("5.7.19", True, False),
        ("4.18.0-553.el8", True, False),
        ("6.1.0", False, False),
        ("", True, False),
    ],
)
@pytest.mark.usefixtures("clean")
def test_a_system_that_does_not_tell_of_errors_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, known: bool, can: bool
) -> None:
    real = durable._libc
    monkeypatch.setattr(durable, "_libc", real if known else SimpleNamespace())
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    calls = Calls(monkeypatch)
    replace(tmp_path, MANY)
    assert ("syncfs" in calls.made) == can
    assert is_as_fsync(calls) != can


def test_what_waits_to_be_written_is_read_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MemFree: 7 kB\nDirty:                24 kB\nWriteback:             3 kB\nWritebackTmp:   9 kB\n"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", lambda _: text)
        assert durable.dirty_bytes() == 27 * 1024
    with monkeypatch.context() as patched:

        def fail(_: Path) -> str:
            raise FileNotFoundError

        patched.setattr(Path, "read_text", fail)
        assert durable.dirty_bytes() > durable.DIRTY_BYTES_MAX
    assert 0 <= durable.dirty_bytes() < 1 << 50


def test_what_cannot_be_written_replaces_nothing(
    tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = replace(tmp_path, MANY, b"before")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(durable, "syncfs", fail)
        with pytest.raises(OSError, match="Input/output error"):
            replace(tmp_path, MANY)
    assert {path.read_bytes() for path in before} == {b"before"}
    replace(tmp_path, MANY)
    assert {path.read_bytes() for path in before} == {b"new"}


def test_an_error_of_the_system_is_raised() -> None:
    with pytest.raises(OSError, match="Bad file descriptor") as found:
        durable.syncfs(-1)
    assert found.value.errno == 9


@pytest.mark.parametrize("count", [1, MANY])
def test_a_write_that_takes_a_part_is_continued(
    tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: real(handle, content[:2]))
    paths = replace(tmp_path, count, b"seven ch")
    assert {path.read_bytes() for path in paths} == {b"seven ch"}


def test_no_file_stays_open(tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    replace(tmp_path, MANY)

    def fail(_: int, __: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    for count in (1, FEW, MANY):
        with pytest.raises(OSError, match="No space left"):
            replace(tmp_path, count)
    assert len(os.listdir("/proc/self/fd")) == before
