"""The process that reads bounds of files: started once, again when it has ended, gone when it is closed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stele.adapters.rocksdb import bounds
from stele.adapters.rocksdb.bounds import BoundsReader
from stele.adapters.rocksdb.engine import RocksEngine
from stele.errors import Unavailable


@pytest.fixture
def file(tmp_path: Path) -> str:
    engine = RocksEngine(tmp_path / "data", tmp_path / "wals")
    path = tmp_path / "one.sst"
    engine.make_file(str(path), [(b"a", b"1"), (b"\xff\0", b"2")])
    engine.close()
    return str(path)


def process_of(reader: BoundsReader) -> "subprocess.Popen[bytes]":
    process = reader._process
    assert process is not None
    return process


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop it, and wait until it has stopped: until then it may answer."""
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_one_process_answers_all_requests_and_one_that_ended_is_replaced(file: str) -> None:
    reader = BoundsReader()
    assert reader.read([file]) == [(b"a", b"\xff\0")]
    first = process_of(reader)
    with pytest.raises(subprocess.SubprocessError, match="o such file"):
        reader.read([f"{file}.gone"])
    assert reader.read([file, file]) == [(b"a", b"\xff\0")] * 2
    assert process_of(reader) is first
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert reader.read([file]) == [(b"a", b"\xff\0")]
    second = process_of(reader)
    reader.close()
    assert second.returncode is not None
    with pytest.raises(Unavailable) as told:
        reader.read([file])
    assert told.value.code == "CLOSED"


@pytest.mark.parametrize(("idle_seconds", "ended"), [(0.1, False), (60.0, True)])
def test_the_process_ends_when_nobody_asks_and_with_its_input(idle_seconds: float, ended: bool) -> None:
    code = f"from stele.adapters.rocksdb.bounds import serve; serve({idle_seconds})"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        if ended and process.stdin is not None:
            process.stdin.close()
        assert process.wait(20) == 0


def test_who_waits_when_it_is_closed_is_told_so(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = BoundsReader()
    reader.read([file])
    stop(process_of(reader))
    told: list[Unavailable] = []

    def ask() -> None:
        with pytest.raises(Unavailable) as error:
            reader.read([file])
        told.append(error.value)

    waiting = threading.Thread(target=ask)
    waiting.start()
    while not reader._asking.locked():
        pass
    reader.close()
    waiting.join(20)
    assert [each.code for each in told] == ["CLOSED"]


def test_none_is_asked_in_place_of_one_that_was_just_closed(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = BoundsReader()
    reader.read([file])
    process = process_of(reader)

    def closed_meanwhile() -> int:
        reader._closed = True
        os.kill(process.pid, signal.SIGKILL)
        return process.wait()

    monkeypatch.setattr(process, "poll", closed_meanwhile)
    with pytest.raises(Unavailable) as told:
        reader.read([file])
    assert told.value.code == "CLOSED"
    reader.close()


def test_one_that_does_not_answer_is_ended(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = BoundsReader()
    reader.read([file])
    stopped = process_of(reader)
    stop(stopped)
    monkeypatch.setattr(bounds, "SECONDS_MAX", 0.01)
    with pytest.raises(subprocess.SubprocessError, match="ended without an answer"):
        reader.read([file])
    assert stopped.returncode == -signal.SIGKILL
    reader.close()


@pytest.mark.parametrize(("code", "again"), [(0, True), (3, False)])
def test_a_request_that_meets_the_end_of_an_idle_process_goes_to_the_next(
    file: str, code: int, again: bool
) -> None:
    """Only one that ended by itself, with 0, was certainly not at work on the request."""
    ending = [sys.executable, "-c", f"import sys; sys.stdin.readline(); sys.exit({code})"]
    reader = BoundsReader()
    reader._process = subprocess.Popen(ending, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if again:
        assert reader.read([file]) == [(b"a", b"\xff\0")]
    else:
        with pytest.raises(subprocess.SubprocessError, match="ended without an answer"):
            reader.read([file])
    assert reader.read([file]) == [(b"a", b"\xff\0")]
    reader.close()
