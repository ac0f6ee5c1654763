"""Calls of bulk loads to members: what is repeated on another connection, and what is not."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stele.client import members as module
from stele.client.members import Members
from stele.errors import Unavailable

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
