"""The files of a log: one for each segment, named for its number."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from stele.adapters import folders
from stele.errors import Corrupt, Unavailable
from stele.wire.storage.segment import HEADER_BYTES, decode_header, encode_header

FOLDER = "log"
"""The folder of a member's log on its volume."""

SUFFIX = ".seg"
_NAME = re.compile(rf"\d{{10}}{re.escape(SUFFIX)}")
DAMAGED = (errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENOENT)
"""What a read of a file fails with that was damaged or deleted."""

PAGE_BYTES = 4096
FULL = (errno.ENOSPC, errno.EDQUOT)


def name_of(number: int) -> str:
    """Return the name of a segment's file."""
    return f"{number:010}{SUFFIX}"


def number_of(name: str) -> int:
    """Return the number of the segment in a file of this name."""
    return int(name.removesuffix(SUFFIX))


class Segment:
    """A segment. `size` is the bytes of its header and of whole frames.

    The newest one has a handle; others are opened for each read, because there may be thousands.
    """

    __slots__ = ("_handle", "number", "path", "size")

    def __init__(self, path: Path, size: int, handle: int | None = None) -> None:
        self.path, self.size, self._handle = path, size, handle
        self.number = number_of(path.name)

    def open(self) -> None:
        """Open the file, to append to it. Raises Unavailable."""
        with failing(self.path):
            self._handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def append(self, frame: bytes) -> None:
        """Write it to the operating system, or nothing of it. Raises Unavailable."""
        assert self._handle is not None
        with failing(self.path):
            try:
                written = os.write(self._handle, frame)
                if written != len(frame):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                self._cut()
                raise
        self.size += len(frame)

    def end_at(self, size: int) -> None:
        """Take this as the size of what is whole, and cut an open file there. Raises Unavailable."""
        shorter, self.size = size < self.size, size
        if shorter and self._handle is not None:
            self._cut()

    def _cut(self) -> None:
        assert self._handle is not None
        try:
            os.ftruncate(self._handle, self.size)
        except OSError as error:
            raise Unavailable(f"log: {self.path} cannot be cut: {error.strerror}", "DISK_ERROR") from error

    def read(self, size: int, at: int) -> bytes:
        """Return bytes of the file. Raises Corrupt where they are not there, or are damaged."""
        with failing(self.path, reading=True), self._readable() as handle:
            found = os.pread(handle, size, at)
        if len(found) != size:
            raise Corrupt(f"{self.path} has {at + len(found)} bytes, {at + size} were written")
        return found

    def salvage(self, size: int, at: int) -> bytes:
        """Return bytes of the file; those of pages that cannot be read are zeros, which checksums tell."""
        try:
            return self.read(size, at)
        except Corrupt:
            ends = [*range(at - at % PAGE_BYTES + PAGE_BYTES, at + size, PAGE_BYTES), at + size]
            return b"".join(self._page(begin, end) for begin, end in pairwise([at, *ends]))

    def _page(self, begin: int, end: int) -> bytes:
        try:
            return self.read(end - begin, begin)
        except Corrupt:
            return bytes(end - begin)

    @contextmanager
    def _readable(self) -> Iterator[int]:
        if self._handle is not None:
            yield self._handle
            return
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield handle
        finally:
            os.close(handle)

    def sync(self) -> None:
        assert self._handle is not None
        with failing(self.path):
            os.fdatasync(self._handle)

    def close(self) -> None:
        """Close the handle, if there is one; the segment can still be read."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


@contextmanager
def failing(path: Path, *, reading: bool = False) -> Iterator[None]:
    """Convert errors of files: Corrupt where what was written is damaged, else Unavailable.

    Its code is NO_SPACE where the volume is full, else DISK_ERROR.
    """
    try:
        yield
    except OSError as error:
        if reading and error.errno in DAMAGED:
            raise Corrupt(f"{path} cannot be read: {error.strerror}") from error
        code = "NO_SPACE" if error.errno in FULL else "DISK_ERROR"
        raise Unavailable(f"log: {path}: {error.strerror or error}", code) from error


def create(folder: Path, number: int) -> Segment:
    """Create the empty file of a segment, durably. Raises Unavailable."""
    path = folder / name_of(number)
    with failing(path):
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        made = Segment(path, 0, os.open(path, flags, 0o660))
    try:
        sync_folder(folder)
    except Unavailable:
        made.close()
        raise
    return made


def begin(segment: Segment, size_before: int) -> None:
    """Write the header of an empty segment. Raises Unavailable."""
    segment.append(encode_header(size_before))


def find(folder: Path) -> list[Segment]:
    """Return the segments of a folder in order; the last ones may be files without a header yet.

    Raises Corrupt when one is missing, or not as long as the next one says.
    """
    with failing(folder):
        names = sorted(path.name for path in folder.iterdir() if _NAME.fullmatch(path.name))
        found = [Segment(folder / name, (folder / name).stat().st_size) for name in names]
    if found and _is_blank(found[-1]):
        found[-1].size = 0
    _check(folder, found)
    return found


def _is_blank(segment: Segment) -> bool:
    """Whether nothing but zeros is in the file, as after a loss of power before its first sync."""
    head = segment.salvage(min(segment.size, HEADER_BYTES), 0)
    return not any(head) and not any(segment.salvage(segment.size, 0))


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


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed and deleted in the folder durable. Raises Unavailable."""
    with failing(folder):
        folders.sync_folder(folder)
