"""The files of a log: one for each segment, named for its number."""

import errno
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from stele.errors import Corrupt, Unavailable
from stele.wire.storage.segment import HEADER_BYTES, decode_header, encode_header

FOLDER = "log"
"""The folder of a member's log on its volume."""

SUFFIX = ".seg"
_NAME = re.compile(rf"\d{{10}}{re.escape(SUFFIX)}")
APPENDING = os.O_RDWR | os.O_APPEND
FULL = (errno.ENOSPC, errno.EDQUOT)


def name_of(number: int) -> str:
    """Return the name of a segment's file."""
    return f"{number:010}{SUFFIX}"


def number_of(name: str) -> int:
    """Return the number of the segment in a file of this name."""
    return int(name.removesuffix(SUFFIX))


class Segment:
    """An open segment. `size` is the bytes of its header and of whole frames."""

    __slots__ = ("handle", "number", "path", "size")

    def __init__(self, path: Path, handle: int, size: int) -> None:
        self.path, self.handle, self.size = path, handle, size
        self.number = number_of(path.name)

    def append(self, frame: bytes) -> None:
        """Write it to the operating system, or nothing of it. Raises Unavailable."""
        with failing(self.path):
            try:
                written = os.write(self.handle, frame)
                if written != len(frame):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                self._cut()
                raise
        self.size += len(frame)

    def end_at(self, size: int, *, cut: bool) -> None:
        """Take this as the size of what is whole; `cut` the file there. Raises Unavailable (DISK_ERROR)."""
        shorter, self.size = size < self.size, size
        if cut and shorter:
            self._cut()

    def _cut(self) -> None:
        """Cut off what was written of a frame. Raises Unavailable (DISK_ERROR)."""
        try:
            os.ftruncate(self.handle, self.size)
        except OSError as error:
            raise Unavailable(f"log: {self.path} cannot be cut: {error.strerror}", "DISK_ERROR") from error

    def read(self, size: int, at: int) -> bytes:
        """Return bytes of the file. Raises Corrupt where they are not there."""
        with failing(self.path):
            found = os.pread(self.handle, size, at)
        if len(found) != size:
            raise Corrupt(f"{self.path} has {at + len(found)} bytes, {at + size} were written")
        return found

    @property
    def blank(self) -> bool:
        """Whether nothing but zeros is in the file, as after a loss of power before its first sync."""
        return not any(self.read(min(self.size, HEADER_BYTES), 0)) and not any(self.content())

    def sync(self) -> None:
        with failing(self.path):
            os.fdatasync(self.handle)

    def close(self) -> None:
        os.close(self.handle)

    def content(self) -> memoryview:
        """Return the file, mapped until nothing refers to a part of it."""
        if not self.size:
            return memoryview(b"")
        with failing(self.path):
            return memoryview(mmap.mmap(self.handle, 0, access=mmap.ACCESS_READ))


@contextmanager
def failing(path: Path) -> Iterator[None]:
    """Convert errors of files: Unavailable, NO_SPACE where the volume is full, else DISK_ERROR."""
    try:
        yield
    except OSError as error:
        code = "NO_SPACE" if error.errno in FULL else "DISK_ERROR"
        raise Unavailable(f"log: {path}: {error.strerror or error}", code) from error


def create(folder: Path, number: int) -> Segment:
    """Create the empty file of a segment, durably. Raises Unavailable."""
    path = folder / name_of(number)
    with failing(path):
        handle = os.open(path, APPENDING | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o660)
        try:
            sync_folder(folder)
        except OSError:
            os.close(handle)
            raise
    return Segment(path, handle, 0)


def begin(segment: Segment, size_before: int) -> None:
    """Write the header of an empty segment. Raises Unavailable."""
    segment.append(encode_header(size_before))


def open_all(folder: Path, *, read_only: bool = False) -> list[Segment]:
    """Open the segments of a folder in order; the last ones may be files without a header yet.

    Raises Corrupt when one is missing, or not as long as the next one says.
    """
    with failing(folder):
        names = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
    found: list[Segment] = []
    try:
        for name in names:
            path = folder / name
            with failing(path):
                handle = os.open(path, (os.O_RDONLY if read_only else APPENDING) | os.O_CLOEXEC)
                found.append(Segment(path, handle, os.fstat(handle).st_size))
        if found and found[-1].blank:
            found[-1].size = 0
        _check(folder, found)
    except BaseException:
        for segment in found:
            segment.close()
        raise
    return found


def _check(folder: Path, segments: list[Segment]) -> None:
    if not segments or segments[0].size < HEADER_BYTES:
        raise Corrupt(f"{folder} has no segment of the log with a header")
    for before, segment in pairwise(segments):
        if segment.number != before.number + 1:
            raise Corrupt(f"{folder / name_of(before.number + 1)} is missing")
    for at, segment in enumerate(segments):
        if segment.size >= HEADER_BYTES:
            _check_before(segment, segments[at - 1] if at else None)


def _check_before(segment: Segment, before: Segment | None) -> None:
    try:
        size = decode_header(segment.read(HEADER_BYTES, 0))
    except Corrupt as error:
        raise Corrupt(f"{segment.path}: {error.text}", error.code) from error
    if before is not None and before.size != size:
        raise Corrupt(f"{before.path} has {before.size} bytes, {size} were written")


def remove(folder: Path, segment: Segment) -> None:
    """Delete a segment, durably: before it is gone none behind it may be deleted. Raises Unavailable."""
    with failing(segment.path):
        segment.path.unlink(missing_ok=True)
        sync_folder(folder)
    segment.close()


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed and deleted in the folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
