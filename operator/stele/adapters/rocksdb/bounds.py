"""First and last keys of finished SST files, read by a process of its own (`python -m` this module).

RocksDB's Python binding reads a file only as a part of a database, and holds Python's lock while it takes it
in, so clients would wait. The process takes second names of the files into a database that it throws away.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rocksdict import IngestExternalFileOptions, Options, Rdict

SECONDS_MAX = 60.0
"""The process starts in a quarter of a second and takes some milliseconds for a file."""

TEXT_MAX = 500
"""Characters of what it said went wrong."""

Bounds = tuple[bytes, bytes]
_decode = msgspec.msgpack.Decoder(list[Bounds]).decode


def file_bounds(paths: Sequence[str]) -> list[Bounds]:
    """See `ports.Engine`. Raise OSError or subprocess.SubprocessError, with RocksDB's text if it has any."""
    command = [sys.executable, "-m", __name__]
    given = msgspec.msgpack.encode(paths)
    done = subprocess.run(command, input=given, capture_output=True, timeout=SECONDS_MAX, check=False)
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr.decode(errors="replace").strip()[-TEXT_MAX:])
    return _decode(done.stdout)


def read_bounds(paths: Sequence[Path]) -> list[Bounds]:
    """In this process. The files stay as they are."""
    with TemporaryDirectory(dir=paths[0].parent, prefix="bounds-") as folder:
        return _read(paths, Path(folder))


def _read(paths: Sequence[Path], folder: Path) -> list[Bounds]:
    database = Rdict(str(folder / "data"), Options(raw_mode=True))
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    found: dict[str, Bounds] = {}
    for number, path in enumerate(paths):
        link = folder / f"{number}.sst"
        link.hardlink_to(path)
        database.ingest_external_file([str(link)], options)
        for file in database.live_files():
            found.setdefault(file["name"], (file["start_key"], file["end_key"]))
    database.close()
    return list(found.values())


if __name__ == "__main__":
    try:
        given = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[str])
        sys.stdout.buffer.write(msgspec.msgpack.encode(read_bounds([Path(each) for each in given])))
    except Exception as error:  # noqa: BLE001  rocksdict raises bare Exception
        sys.exit(f"{error}")
