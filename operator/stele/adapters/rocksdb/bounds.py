"""Reads the first and last keys of SST files in a process of its own (`python -m` this module).

RocksDB's Python binding reads a file only as part of a database, and holds the GIL while it ingests it, which
would block clients. The process ingests hard links to the files into a temporary database.

Requests and answers are lines of JSON. The process ends when its input ends, or when nobody asks for a while.
"""

import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Timer

import msgspec
from rocksdict import IngestExternalFileOptions, Options, Rdict

from stele.errors import Unavailable

SECONDS_MAX = 60.0
"""Timeout of one request; it takes some milliseconds per file."""

IDLE_SECONDS = 60.0
"""How long the process waits for the next request. Its start takes as much of the processor as reading the
keys of a hundred files, and while a member joins, requests follow each other within seconds."""

TEXT_MAX = 500
"""Characters of an error of RocksDB that are repeated."""

Bounds = tuple[bytes, bytes]


class Answer(msgspec.Struct, frozen=True):
    """Bounds in the order of the request's paths, or RocksDB's text."""

    bounds: list[Bounds] = []
    error: str = ""


_encode = msgspec.json.encode
_requested = msgspec.json.Decoder(list[str]).decode
_answered = msgspec.json.Decoder(Answer).decode


class BoundsReader:
    """The process that reads bounds, started when it is needed. Any thread may ask."""

    def __init__(self) -> None:
        self._asking = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def read(self, paths: Sequence[str]) -> list[Bounds]:
        """Implement `ports.Engine.file_bounds`. Raises OSError, or SubprocessError with RocksDB's text."""
        with self._asking:
            answer = self._ask(paths)
            if answer is None and self._end() == 0:
                # It had just ended because nobody asked.
                answer = self._ask(paths)
        if answer is None and self._closed:
            raise Unavailable.closed()
        if answer is None or answer.error:
            raise subprocess.SubprocessError(
                answer.error if answer else "their reader ended without an answer"
            )
        return answer.bounds

    def _ask(self, paths: Sequence[str]) -> Answer | None:
        """Return the answer, None when the process has ended or is too slow."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        timeout = Timer(SECONDS_MAX, process.kill)
        timeout.start()
        try:
            process.stdin.write(_encode(paths) + b"\n")
            process.stdin.flush()
            if line := process.stdout.readline():
                return _answered(line)
        except BrokenPipeError:
            pass
        finally:
            timeout.cancel()
        return None

    def _running(self) -> subprocess.Popen[bytes]:
        if not self._closed and (self._process is None or self._process.poll() is not None):
            self._end()
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # Looked at last: a `close` before has not seen this process, one from now on ends it.
        if self._closed or self._process is None:
            raise Unavailable.closed()
        return self._process

    def _end(self) -> int | None:
        """Wait for the process, which ends with its input, and return its exit code; None without one."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.communicate()
        return process.returncode

    def close(self) -> None:
        """End the process; who waits for its answer gets an error, Unavailable (CLOSED) from now on."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._asking:
            self._end()


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


def _answer(request: bytes) -> Answer:
    try:
        return Answer(read_bounds([Path(each) for each in _requested(request)]))
    except Exception as error:  # noqa: BLE001  rocksdict raises bare Exception
        return Answer(error=str(error)[-TEXT_MAX:])


def serve(idle_seconds: float) -> None:
    """Answer requests until the input ends, or none comes for so long."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent ends this process.
    # One request at a time is under way, so none is in the buffer while this waits.
    while select.select([sys.stdin], [], [], idle_seconds)[0] and (line := sys.stdin.buffer.readline()):
        sys.stdout.buffer.write(_encode(_answer(line)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve(IDLE_SECONDS)
