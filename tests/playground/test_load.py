"""The load finds what it is there to find."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from stele.playground.load import Counts, Place, run_load

Values = dict[bytes, bytes]
Answer = Callable[[list[bytes], Values], bytes]


class Member:
    """Answers SET and GET as `answer` says."""

    def __init__(self, answer: Answer) -> None:
        self.values: Values = {}
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                writer.write(self._answer(words, self.values))
        finally:
            writer.close()


def right(words: list[bytes], values: Values) -> bytes:
    if words[0] == b"SET":
        values[words[1]] = words[2]
        return b"+OK\r\n"
    found = values.get(words[1])
    return b"$-1\r\n" if found is None else b"$%d\r\n%s\r\n" % (len(found), found)


def forgets(words: list[bytes], values: Values) -> bytes:
    return b"+OK\r\n" if words[0] == b"SET" else right(words, values)


def keeps_the_first(words: list[bytes], values: Values) -> bytes:
    if words[0] == b"SET":
        values.setdefault(words[1], words[2])
        return b"+OK\r\n"
    return right(words, values)


def refuses(words: list[bytes], values: Values) -> bytes:
    return b"-CLUSTERDOWN away\r\n"


def breaks(words: list[bytes], values: Values) -> bytes:
    return b"$x\r\n"


@pytest.fixture
async def run(request: pytest.FixtureRequest) -> AsyncIterator[Counts]:
    """What two clients count in some seconds."""
    server = await asyncio.start_server(Member(request.param).serve, "127.0.0.1")
    place: Place = server.sockets[0].getsockname()[:2]
    total = Counts()

    def add(counts: Counts) -> None:
        total.writes += counts.writes
        total.reads += counts.reads
        total.errors += counts.errors
        total.wrong += counts.wrong
        total.last_error = counts.last_error

    await run_load(2, lambda: [place], 3.0, add)
    yield total
    server.close()


@pytest.mark.parametrize("run", [right], indirect=True)
async def test_a_right_member_has_no_errors(run: Counts) -> None:
    assert run.writes > 0
    assert run.reads > 0
    assert (run.errors, run.wrong) == (0, [])


@pytest.mark.parametrize("run", [forgets, keeps_the_first], indirect=True)
async def test_a_lost_write_is_found(run: Counts) -> None:
    assert run.wrong
    assert "acknowledged was" in run.wrong[0]


@pytest.mark.parametrize("run", [refuses, breaks], indirect=True)
async def test_errors_are_counted_and_are_no_loss(run: Counts) -> None:
    assert run.errors > 0
    assert run.last_error
    assert (run.writes, run.wrong) == (0, [])
