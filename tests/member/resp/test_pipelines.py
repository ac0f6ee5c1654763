"""Any pipeline through a member that does not own the keys: every frame fits, and no callback raises.

The replies are those of the commands one after the other.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import hypothesis.strategies as st

from stele.core.control import commands as m
from stele.core.kv.commands import VALUE_BYTES_MAX, Delete, Failure, Put, Reply, Stored, evaluate
from stele.member import limits
from stele.member.resp.limits import RespServerLimits
from stele.member.resp.multi_key import MANY_KEYS
from stele.member.resp.server import RespServer, start_resp_server
from stele.wire import peer
from stele.wire.frames import FrameDecoder, encode_frame
from stele.wire.resp import Request, encode_reply, encode_request
from tests.member.harness.single_member import ME, OTHER, SingleMember

MIB = 1024 * 1024
SIZES = (0, 3, 20_000, limits.REPLY_BYTES, limits.REPLY_BYTES + 1, 3 * MIB, VALUE_BYTES_MAX)
KEYS = [b"a", b"b", b"c", b"d", b"{a}2"]


class Wire:
    """What a message becomes on its way."""

    def __init__(self, take: Callable[[Any], None]) -> None:
        self._take = take
        self._decoder = FrameDecoder()
        self._loop = asyncio.get_running_loop()
        self.sender = OTHER
        self.full = False
        self.ready = self.takes_requests = True
        self.requests: dict[int, Any] = {}
        self.largest = 0

    def send(self, message: peer.Message) -> None:
        frame = encode_frame(peer.encode_message(message))
        self.largest = max(self.largest, len(frame))
        for body in self._decoder.feed(frame):
            self._loop.call_soon(self._take, peer.decode_message(body))


@asynccontextmanager
async def owner_and_asker(folder: Path) -> AsyncIterator[tuple[RespServer, Wire, Wire]]:
    """A RESP server at a member that owns nothing, and the connection to the owner of all, there and back."""
    owner, asker = SingleMember(folder / "owner"), SingleMember(folder / "asker")
    owner.rows = {p: m.Row(p, 1, (ME,)) for p in owner.rows}
    asker.rows = {p: m.Row(p, 1, (OTHER,)) for p in asker.rows}
    for each in (owner, asker):
        each.folder.mkdir()
        await each.start()
    back = Wire(lambda message: asker.node.peers.link_message(there, message))  # type: ignore[arg-type]
    there = Wire(lambda message: owner.node.peers.take_message(back, message))  # type: ignore[arg-type]
    asker.node.links[OTHER] = there  # type: ignore[assignment]
    server = await start_resp_server(asker.node.router, "127.0.0.1", 0, RespServerLimits())
    try:
        yield server, there, back
    finally:
        await server.close()
        asker.node.links.clear()
        for each in (owner, asker):
            await each.stop()


class Model:
    """Commands one after the other."""

    def __init__(self) -> None:
        self._data: dict[bytes, Stored] = {}

    def reply(self, request: Request) -> Reply:
        many = MANY_KEYS.get(request[0])
        if many is None:
            return self._one(request)
        split, combine = many
        replies = [self._one(command) for command in split(request)]
        if sum(len(reply) for reply in replies if isinstance(reply, bytes)) > limits.REQUEST_REPLY_BYTES_MAX:
            return Failure("ERR", "reply of")
        return combine(replies)

    def _one(self, command: Sequence[bytes]) -> Reply:
        made = evaluate(command, self._data.get(command[1]), 0)
        if isinstance(made.op, Put):
            self._data[made.op.key] = (made.op.value, made.op.expire_at_ms)
        elif isinstance(made.op, Delete):
            self._data.pop(made.op.key, None)
        return made.reply


def _value(size: int) -> bytes:
    return b"v" * size


keys = st.sampled_from(KEYS)
values = st.sampled_from(SIZES).map(_value)
requests = st.one_of(
    st.tuples(st.sampled_from([b"GET", b"GETDEL", b"DEL", b"STRLEN", b"INCR", b"TTL"]), keys),
    st.tuples(st.just(b"GET"), keys),
    st.tuples(st.sampled_from([b"SET", b"GETSET", b"APPEND", b"SETNX"]), keys, values),
    st.tuples(st.just(b"SET"), keys, values, st.just(b"GET")),
    st.lists(keys, min_size=1, max_size=12).map(lambda some: (b"MGET", *some)),
    st.tuples(st.just(b"MSET"), keys, values, keys, values),
)
pipelines = st.lists(requests.map(list), min_size=1, max_size=14)


async def _play(pipelines: Sequence[Sequence[Request]]) -> None:
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
    model = Model()
    with TemporaryDirectory() as folder:
        async with owner_and_asker(Path(folder)) as (server, there, back):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**20)
            for pipeline in pipelines:
                writer.write(b"".join(map(encode_request, pipeline)))
                for request in pipeline:
                    await _is_answered(reader, model.reply(request), request)
            writer.close()
            await writer.wait_closed()
    assert raised == []
    assert max(there.largest, back.largest) < VALUE_BYTES_MAX + 2 * limits.REPLY_BYTES


async def _is_answered(reader: asyncio.StreamReader, expected: Reply, request: Request) -> None:
    told = [request[0], *(len(arg) for arg in request[1:])]
    if isinstance(expected, Failure):
        line = await asyncio.wait_for(reader.readline(), 20)
        assert line.startswith(f"-{expected.code} {expected.text}".encode()), (told, line[:200], expected)
        return
    parts: list[bytes] = []
    encode_reply(expected, parts)
    whole = b"".join(parts)
    found = await asyncio.wait_for(reader.readexactly(len(whole)), 20)
    assert found == whole, (told, found[:80], whole[:80])


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.lists(pipelines, min_size=1, max_size=3))
def test_any_pipeline_is_answered_as_if_run_one_by_one(pipelines: list[list[Request]]) -> None:
    asyncio.run(_play(pipelines))


def test_a_reply_of_many_large_values_is_refused_and_the_next_is_given() -> None:
    fill = [[b"SET", key, _value(VALUE_BYTES_MAX)] for key in KEYS]
    asyncio.run(_play([fill, [[b"MGET", *KEYS * 2], [b"GET", b"a"], [b"MGET", *KEYS], [b"STRLEN", b"b"]]]))


async def test_a_read_whose_owner_is_lost_is_sent_again_once(tmp_path: Path) -> None:
    async with owner_and_asker(tmp_path) as (server, there, _):
        sent: list[int] = []
        there._take = lambda message: sent.append(message.id)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET a\r\nGET a\r\n")
        store: Any = server.store
        for times in (1, 2):
            async with asyncio.timeout(5):
                while len(sent) < times:
                    store.drain_all()
                    await asyncio.sleep(0.001)
            lost, there.requests = list(there.requests.values()), {}
            store.lost(lost)
        for _ in range(2):
            line = await asyncio.wait_for(reader.readline(), 5)
            assert line.startswith(b"-TRYAGAIN partition "), line
            assert b"2 owners were lost during this request" in line
        store.drain_all()
        await asyncio.sleep(0.01)
        assert len(sent) == 2
        writer.close()
        await writer.wait_closed()
