"""Archives have the same bytes for the same content, and say nothing of the machine that made them."""

import io
import os
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.supply import archives
from e2e.supply.archives import Entry

EPOCH_SECONDS = 1_790_000_001
ENTRIES = [
    Entry("a/run", b"#!/bin/sh\n", executable=True),
    Entry("a/text", b"x" * 1000),
    Entry("b.whl", b"PK"),
]


def write(folder: Path, umask: int) -> list[Entry]:
    """The entries of a tree that is written with a umask, and in another order for each."""
    before = os.umask(umask)
    try:
        folder.mkdir()
        for name in sorted(("one", "two", "three"), reverse=umask == 0):
            (folder / name).write_text(name)
            (folder / name).chmod(0o777 & ~umask if name == "one" else 0o666 & ~umask)
    finally:
        os.umask(before)
    return archives.entries_below(folder, "top")


def test_a_tree_is_the_same_whoever_checked_it_out(tmp_path: Path) -> None:
    entries = write(tmp_path / "a", 0o077)
    assert entries == write(tmp_path / "b", 0)
    assert [(each.name, each.mode) for each in entries] == [
        ("top/one", 0o755),
        ("top/three", 0o644),
        ("top/two", 0o644),
    ]


@pytest.mark.parametrize("make", [archives.tar_gz, archives.zipped])
def test_an_archive_does_not_depend_on_the_clock(
    make: Callable[[list[Entry], int], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(ENTRIES, EPOCH_SECONDS)
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)
    assert make(ENTRIES, EPOCH_SECONDS) == made
    assert make(ENTRIES, EPOCH_SECONDS + 60) != made


def test_a_tar_has_the_files_their_modes_and_no_owner() -> None:
    with tarfile.open(fileobj=io.BytesIO(archives.tar_gz(ENTRIES, EPOCH_SECONDS))) as archive:
        assert [(each.name, each.mode, each.size) for each in archive] == [
            ("a/run", 0o755, 10),
            ("a/text", 0o644, 1000),
            ("b.whl", 0o644, 2),
        ]
        assert {(each.mtime, each.uid, each.gid, each.uname) for each in archive} == {
            (EPOCH_SECONDS, 0, 0, "")
        }


def test_a_zip_stores_what_is_compressed_already() -> None:
    with zipfile.ZipFile(io.BytesIO(archives.zipped(ENTRIES, 0))) as archive:
        kinds = {each.filename: each.compress_type for each in archive.infolist()}
        assert archive.read("a/text") == b"x" * 1000
        assert archive.infolist()[0].date_time == (1980, 1, 1, 0, 0, 0)
    assert kinds == {"a/run": 8, "a/text": 8, "b.whl": 0}
