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
    """A file system that can be synced, on a machine on which nobody else writes."""
    monkeypatch.setattr(durable, "can_syncfs", lambda _: True)
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


def test_a_busy_disk_is_not_waited_for(tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "dirty_bytes", lambda: durable.DIRTY_BYTES_MAX + 1)
    calls = Calls(monkeypatch)
    replace(tmp_path, MANY)
    assert is_as_fsync(calls)


def test_a_file_system_that_cannot_be_synced_as_a_whole(
    tmp_path: Path, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "can_syncfs", lambda device: device != tmp_path.stat().st_dev)
    calls = Calls(monkeypatch)
    replace(tmp_path, MANY)
    assert is_as_fsync(calls)


@pytest.mark.parametrize(
    ("release", "type", "known", "can"),
    [
        ("5.17.0-generic", "ext4", True, True),
        ("6.18.44", "xfs", True, True),
        ("10.0", "ext4", True, True),
        ("6.18.44", "fuse.juicefs", True, False),
        ("6.18.44", "", True, False),
        ("5.16.19", "ext4", True, False),
        ("4.18.0-553.el8", "ext4", True, False),
        ("6.1.0", "ext4", False, False),
        ("", "ext4", True, False),
    ],
)
def test_what_does_not_report_errors_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, release: str, type: str, known: bool, can: bool
) -> None:
    monkeypatch.setattr(durable, "type_of", lambda _: type)
    monkeypatch.setattr(durable, "_libc", SimpleNamespace(**({"syncfs": abs} if known else {})))
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release))
    assert durable.can_syncfs.__wrapped__(7) == can


MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /run rw,nosuid - tmpfs tmpfs rw
41 22 8:17 /a\\040b /data rw master:2 propagate_from:1 - xfs /dev/sdb1 rw,attr2
"""


@pytest.mark.parametrize(
    ("device", "type"), [((254, 0), "ext4"), ((8, 17), "xfs"), ((0, 35), "tmpfs"), ((8, 1), "")]
)
def test_the_type_of_a_file_system_is_that_of_its_mount(
    monkeypatch: pytest.MonkeyPatch, device: tuple[int, int], type: str
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: MOUNTS)
    assert durable.type_of(os.makedev(*device)) == type


def test_without_a_list_of_mounts_the_type_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", fail)
    assert durable.type_of(os.makedev(254, 0)) == ""


def test_what_waits_to_be_written_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MemFree: 7 kB\nDirty:                24 kB\nWriteback:             3 kB\nWritebackTmp:   9 kB\n"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", lambda _: text)
        assert durable.dirty_bytes() == 27 * 1024
    with monkeypatch.context() as patched:

        def fail(_: Path) -> str:
            raise FileNotFoundError

        patched.setattr(Path, "read_text", fail)
        assert durable.dirty_bytes() == durable.UNKNOWN_BYTES
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", lambda _: "MemFree: 7 kB\n")
        assert durable.dirty_bytes() == durable.UNKNOWN_BYTES
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
