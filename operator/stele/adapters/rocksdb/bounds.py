"""Reads the first and last keys of SST files in a separate process (`python -m` this module).

RocksDB's Python binding reads a file only as part of a database, and holds the GIL while it ingests it, which
would block clients. The process ingests hard links to the files into a temporary database.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rocksdict import IngestExternalFileOptions, Options, Rdict

SECONDS_MAX = 60.0
"""Timeout; the process starts in a quarter of a second and takes some milliseconds per file."""

TEXT_MAX = 500
"""Characters of its error output that an error repeats."""

Bounds = tuple[bytes, bytes]
_decode = msgspec.msgpack.Decoder(list[Bounds]).decode


def file_bounds(paths: Sequence[str]) -> list[Bounds]:
    """Implement `ports.Engine.file_bounds`. Raises OSError, or SubprocessError with RocksDB's text."""
    command = [sys.executable, "-m", __name__]
    request = msgspec.msgpack.encode(paths)
    done = subprocess.run(command, input=request, capture_output=True, timeout=SECONDS_MAX, check=False)
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr.decode(errors="replace").strip()[-TEXT_MAX:])
    return _decode(done.stdout)


def read_bounds(paths: Sequence[Path]) -> list[Bounds]:
    """Read the bounds in this process. The files do not change."""
    with TemporaryDirectory(dir=paths[0].parent, prefix="bounds-") as folder:
        return _read(paths, Path(folder))


def _read(paths: Sequence[Path], folder: Path) -> list[Bounds]:
    database = Rdict(str(folder / "data"), Options(raw_mode=True))
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    bounds: dict[str, Bounds] = {}
    for number, path in enumerate(paths):
        link = folder / f"{number}.sst"
        link.hardlink_to(path)
        database.ingest_external_file([str(link)], options)
        for file in database.live_files():
            bounds.setdefault(file["name"], (file["start_key"], file["end_key"]))
    database.close()
    return list(bounds.values())


if __name__ == "__main__":
    try:
        given = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[str])
        sys.stdout.buffer.write(msgspec.msgpack.encode(read_bounds([Path(each) for each in given])))
    except Exception as error:  # noqa: BLE001  rocksdict raises bare Exception
        sys.exit(f"{error}")
