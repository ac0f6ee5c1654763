"""RocksDB deletes files while a member looks at them: at rotations of the log, and after compactions."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stele.member.storage.volume import WALS, Volume, files_in

LOOKS = 3_000
KEPT = "000001.log"
Look = Callable[[Path], list[int]]


@contextmanager
def rotating(folder: Path) -> Iterator[None]:
    """Files appear and go all the time; KEPT stays."""
    (folder / KEPT).write_bytes(b"kept")
    over = threading.Event()

    def rotate() -> None:
        while not over.is_set():
            for number in range(2, 8):
                (folder / f"{number:06}.log").write_bytes(b"new")
            for number in range(2, 8):
                (folder / f"{number:06}.log").unlink()

    thread = threading.Thread(target=rotate)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def of_the_log(root: Path) -> list[int]:
    return list(Volume(root).log_files().values())


def of_a_folder(root: Path) -> list[int]:
    return [file.st_size for file in files_in(root / WALS).values()]


@pytest.mark.parametrize("look", [of_the_log, of_a_folder])
def test_files_that_go_meanwhile_do_not_hide_those_that_stay(look: Look, tmp_path: Path) -> None:
    """A member would end otherwise, or take a checkpoint for larger than it is."""
    (tmp_path / WALS).mkdir()
    with rotating(tmp_path / WALS):
        assert all(len(b"kept") in look(tmp_path) for _ in range(LOOKS))


def test_a_folder_that_is_gone_has_no_files(tmp_path: Path) -> None:
    assert files_in(tmp_path / "gone") == {}
