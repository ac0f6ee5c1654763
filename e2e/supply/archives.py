"""Archives that are the same bytes for the same content, whenever and by whom they are made."""

from __future__ import annotations

import gzip
import hashlib
import io
import stat
import tarfile
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

COMPRESSION_LEVEL = 9
_ZIP_SECONDS_MIN = 315_532_800  # 1980-01-01: zip knows no earlier time


@dataclass(frozen=True, order=True)
class Entry:
    """One file of an archive; `name` has no leading slash."""

    name: str
    content: bytes
    executable: bool = False

    @property
    def mode(self) -> int:
        """Permissions; those on disk also depend on the umask of the checkout."""
        return 0o755 if self.executable else 0o644


def entries_below(folder: Path, inside: str) -> list[Entry]:
    """All files below `folder`, under the folder `inside` of the archive, sorted by name."""
    return sorted(
        Entry(f"{inside}/{path.relative_to(folder).as_posix()}", path.read_bytes(), _executable(path))
        for path in folder.rglob("*")
        if path.is_file()
    )


def _executable(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IXUSR)


def tar_gz(entries: Iterable[Entry], epoch_seconds: int) -> bytes:
    """A compressed tar of these files in this order, each with that time and no owner's name."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.size, info.mode, info.mtime = len(entry.content), entry.mode, epoch_seconds
            archive.addfile(info, io.BytesIO(entry.content))
    # Without a file's name and with this time, the header of gzip says nothing of the machine.
    return gzip.compress(tar.getvalue(), COMPRESSION_LEVEL, mtime=epoch_seconds)


def zipped(entries: Iterable[Entry], epoch_seconds: int) -> bytes:
    """A zip of these files in this order; what is compressed already (wheels) is stored as it is."""
    when = time.gmtime(max(epoch_seconds, _ZIP_SECONDS_MIN))[:6]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for entry in entries:
            info = zipfile.ZipInfo(entry.name, when)
            info.create_system = 3  # Unix, on every system
            info.external_attr = (stat.S_IFREG | entry.mode) << 16
            info.compress_type = zipfile.ZIP_STORED if entry.name.endswith(".whl") else zipfile.ZIP_DEFLATED
            archive.writestr(info, entry.content, compresslevel=COMPRESSION_LEVEL)
    return made.getvalue()


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal letters."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
