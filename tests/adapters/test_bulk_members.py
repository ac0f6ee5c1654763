"""Calls of bulk loads to members: what is repeated on another connection, and what is not."""

import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stele.client import members as module
from stele.client.members import Members, Place
from stele.core.security.identity import Role
from stele.core.security.level import STEPS, InternalTls
from stele.errors import BadInput, SteleError, Unavailable
from stele.wire.copy.bulk import BulkMember, BulkTable
from tests.fakes.pki import identity

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def member(*connections: tuple[bytes, ...]) -> Iterator[tuple[str, int]]:
    """Gives these answers, connection by connection, and closes each behind its last one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answers in connections:
                taken, _ = listener.accept()
                with taken:
                    for answer in answers:
                        taken.recv(1 << 16)
                        taken.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join()


def test_a_call_is_repeated_when_its_connection_is_closed_by_now() -> None:
    with member((ANSWER, b""), (ANSWER,)) as place:
        members = Members([place])
        assert [members.call(place, "PUT", "/x", b"body") for _ in range(2)] == [b"ok", b"ok"]
        members.close()


def test_an_answer_without_end_is_refused_and_an_error_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 100_000)
    long = b"HTTP/1.1 %d X\r\nContent-Length: 9000000000\r\n\r\n" + b"x" * 200_000
    for status, text in ((200, "more than 100000 bytes"), (503, "x{2000}$")):
        with member((long % status,)) as place, pytest.raises(SteleError, match=text):
            Members([place]).call(place, "GET", "/x")


def test_an_answer_of_the_greatest_size_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 100_000)
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000
    with member((whole,)) as place:
        assert Members([place]).call(place, "GET", "/x") == b"x" * 100_000


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", "2 bytes read, 7 more expected"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\nRetry-After: 9\r\n\r\nbusy", "busy"),
        (b"HTTP/1.1 302 No\r\nContent-Length: 4\r\nLocation: /y\r\n\r\ngone", "gone"),
    ],
)
def test_an_answer_that_breaks_off_or_says_no_is_not_repeated(answer: bytes, text: str) -> None:
    with member((answer,)) as place, pytest.raises(Exception, match=text):
        Members([place]).call(place, "GET", "/x")


def test_a_call_that_takes_too_long_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_SECONDS_MAX", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = silent.getsockname()
        with pytest.raises(Unavailable, match=f"127.0.0.1:{place[1]}: timed out"):
            Members([place]).call(place, "GET", "/x")
        silent.accept()[0].close()
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{place[1]}: .Errno 111. Connection refused"):
        Members([place]).call(place, "GET", "/x")


@pytest.mark.parametrize("level", STEPS)
def test_bulk_data_goes_by_tls_where_members_dial_with_it(tmp_path: Path, level: InternalTls) -> None:
    folder = str(identity(Role.ADMIN, "admin", "c").write(tmp_path / "admin"))
    # As Spark's tasks get it.
    with_tls, without = pickle.loads(pickle.dumps(Members([], folder))), Members([])
    table = BulkTable("c", 7001, 7002, (BulkMember(0, "demo-0", "10.0.0.1"),), ((1, (0,)),), tls=level)
    with_tls._known = without._known = table
    assert with_tls.transfer(0) == Place("10.0.0.1", 7002, level.dials_tls, "demo-0")
    if level is not InternalTls.REQUIRED:
        assert without.transfer(0) == Place("10.0.0.1", 7002, False, "demo-0")
        return
    with pytest.raises(BadInput, match=r"option tlsFolder \(--tls-folder\) is not set"):
        without.transfer(0)
