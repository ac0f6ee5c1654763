"""What several connections ask for in one turn: the order of their commands, and what is held afterwards."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from stele.core.kv.keyspaces import NO_CATALOG
from stele.core.table.groups import NO_GROUPS
from stele.errors import Corrupt, Unavailable
from stele.member import limits
from stele.member.replication.keyspaces import Keyspaces
from stele.member.replication.request import Request, RequestKind
from stele.member.replication.routes import Routes
from stele.member.resp.budget import ReplyBytes
from stele.member.resp.server import RespServer, start_resp_server
from stele.member.serving.router import RequestRouter
from stele.wire.resp import encode_request
from tests.fakes.key_value_service import FakeKeyValueService

HALF_ROOM = 400_000
"""Two replies of so many bytes do not fit into one answer of an owner."""


class Wire:
    """One connection, whose replies are read by their length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, data: bytes, length: int) -> bytes:
        self._writer.write(data)
        return await asyncio.wait_for(self._reader.readexactly(length), 20)

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@pytest.fixture
async def place() -> AsyncIterator[tuple[RespServer, Wire, Wire]]:
    """A door on a store of one partition, and two connections."""
    server = await start_resp_server(FakeKeyValueService(1), "127.0.0.1", 0)
    wires = [Wire(*await asyncio.open_connection("127.0.0.1", server.port)) for _ in range(2)]
    yield server, wires[0], wires[1]
    for wire in wires:
        await wire.close()
    await server.close()


def bulk_length(size: int) -> int:
    return len(f"${size}\r\n\r\n") + size


async def large(wire: Wire, *keys: bytes, size: int = HALF_ROOM) -> None:
    for key in keys:
        await wire.ask(encode_request((b"SET", key, bytes(size))), len(b"+OK\r\n"))


async def test_writes_of_one_pipeline_keep_their_order_whatever_others_ask_in_the_same_turn(
    place: tuple[RespServer, Wire, Wire],
) -> None:
    """The replies that others get fill the room of the requests that come before."""
    _, one, other = place
    await large(one, b"a", b"b")
    noise = encode_request((b"SET", b"z", b"0"))
    gets = encode_request((b"GET", b"a")) + encode_request((b"GET", b"b"))
    first, second = encode_request((b"SET", b"k", b"first")), encode_request((b"SET", b"k", b"second"))
    answers = await asyncio.gather(
        one.ask(noise + gets + noise * 197, 198 * len(b"+OK\r\n") + 2 * bulk_length(HALF_ROOM)),
        other.ask(first * 56 + second * 10, 66 * len(b"+OK\r\n")),
    )
    assert answers[1] == b"+OK\r\n" * 66
    assert await other.ask(encode_request((b"GET", b"k")), bulk_length(6)) == b"$6\r\nsecond\r\n"


@pytest.mark.parametrize(
    ("many", "keys", "size"), [(5120, (b"a", b"b"), HALF_ROOM), (5000, (b"a",), 8_000_000)]
)
async def test_a_long_pipeline_that_ends_with_large_replies_is_followed_by_others(
    place: tuple[RespServer, Wire, Wire], many: int, keys: tuple[bytes, ...], size: int
) -> None:
    server, wire, _ = place
    await large(wire, *keys, size=size)
    data = encode_request((b"GET", b"none")) * many + b"".join(encode_request((b"GET", key)) for key in keys)
    await wire.ask(data, many * len(b"$-1\r\n") + len(keys) * bulk_length(size))
    assert await wire.ask(encode_request((b"PING",)), 7) == b"+PONG\r\n"
    assert server.waiting_bytes == 0


async def test_nothing_is_held_once_large_replies_were_read(place: tuple[RespServer, Wire, Wire]) -> None:
    server, wire, _ = place
    await large(wire, b"a", b"b")
    for _ in range(5):
        gets = encode_request((b"GET", b"a")) + encode_request((b"GET", b"b"))
        await wire.ask(gets, 2 * bulk_length(HALF_ROOM))
    await asyncio.sleep(0.05)
    assert (server.waiting_bytes, server.replies.held) == (0, 0)


async def test_room_that_comes_as_the_wait_for_it_ends_is_not_lost() -> None:
    held = ReplyBytes()
    held.add(limits.LARGE_REPLIES_BYTES_MAX)
    loop = asyncio.get_running_loop()
    # Both moments come while the loop is blocked, so it learns of both in one turn.
    loop.call_later(0.019, held.add, -limits.LARGE_REPLIES_BYTES_MAX)
    loop.call_later(0.005, time.sleep, 0.05)
    await held.take(1000, 0.02)
    held.add(-1000)
    assert (held.held, held.scarce) == (0, False)


async def test_who_waits_for_room_in_vain_holds_none() -> None:
    held = ReplyBytes()
    held.add(limits.LARGE_REPLIES_BYTES_MAX)
    with pytest.raises(Unavailable):
        await held.take(1000, 0.02)
    assert not held.scarce
    held.add(-limits.LARGE_REPLIES_BYTES_MAX)
    assert held.held == 0


@pytest.mark.parametrize("how", ["gets", "mget between", "many"])
async def test_one_connection_waits_for_room_once(
    place: tuple[RespServer, Wire, Wire], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What follows fails at once, or takes the room that is there."""
    monkeypatch.setattr(limits, "WAIT_SECONDS_MAX", 0.05)
    server, wire, other = place
    await large(wire, b"a", b"b", b"c")
    waited, take = list[float](), server.replies.take

    async def taken(size: int, seconds: float) -> None:
        waited.append(seconds)
        await take(size, seconds)

    monkeypatch.setattr(server.replies, "take", taken)
    server.replies.add(limits.LARGE_REPLIES_BYTES_MAX)
    gets = b"".join(encode_request((b"GET", key)) for key in (b"a", b"b", b"c"))
    between = {"gets": b"", "mget between": encode_request((b"MGET", b"a", b"b")), "many": gets * 200}[how]
    wire._writer.write(gets + between + gets + encode_request((b"ECHO", b"end")))
    read = b""
    while not read.endswith(b"$3\r\nend\r\n"):
        read += await asyncio.wait_for(wire._reader.read(limits.REPLY_BYTES), 20)
    assert read.count(b"-TRYAGAIN replies of") == len(waited) > 3
    assert waited == [0.05] + [0.0] * (len(waited) - 1)
    server.replies.add(-limits.LARGE_REPLIES_BYTES_MAX)
    await other.ask(gets, 3 * bulk_length(HALF_ROOM))
    assert server.replies.held == 0


async def test_room_that_is_there_is_taken_without_waiting() -> None:
    held = ReplyBytes()
    await held.take(1000, 0.0)
    held.add(limits.LARGE_REPLIES_BYTES_MAX - 1000)
    with pytest.raises(Unavailable):
        await held.take(1000, 0.0)
    assert (held.held, held.scarce) == (limits.LARGE_REPLIES_BYTES_MAX, False)


@pytest.mark.plain
async def test_a_request_that_comes_back_while_another_runs_is_not_taken_for_it() -> None:
    """A read waits for a lease; the next request meets damage, and the tablet gives the read back."""
    loop = asyncio.get_running_loop()
    turn_budget = SimpleNamespace(fits=lambda entries: True, spend=lambda *_: None, later=lambda *_: None)
    serving: Any = SimpleNamespace(
        read=None,
        available_since=None,
        has_room=True,
        turn_budget=turn_budget,
        counters=SimpleNamespace(errors=0, forwarded=0),
    )
    replica = SimpleNamespace(
        owner=SimpleNamespace(serving=False),
        clearing=False,
        loads={},
        loading=False,
        partition=0,
        locks=None,
        unlocked=False,
    )
    row = SimpleNamespace(owner=0, version=1, replicas=(0,))
    table: Any = SimpleNamespace(me=0, rows=[row], row_of=lambda partition: row, keyspaces=Keyspaces())
    table.routes = Routes(NO_GROUPS, 1, NO_CATALOG)
    tablets: Any = SimpleNamespace(replicas={0: replica}, table=table)
    store = RequestRouter(tablets, {}, *[serving] * 7)
    older, newer = (Request(RequestKind.EXECUTE, 0, b"default", loop.create_future()) for _ in range(2))
    older.order, newer.order = 1, 2
    older.deadline = newer.deadline = loop.time() + 1

    def run(replica: object, request: Request) -> None:
        raise Corrupt("a damaged block")

    def break_off(damaged: Any, error: Corrupt) -> None:
        damaged.owner = None
        store.send_again([older])

    serving.run, tablets.break_off = run, break_off
    store._enqueue(newer)
    replica.owner.serving = True
    store.drain(0)
    assert isinstance(newer.future.exception(), Corrupt)
    assert list(store._waiting.queues[0]) == [older]
    assert store._waiting.requests == 1


async def test_commands_about_the_member_leave_turns_to_others(place: tuple[RespServer, Wire, Wire]) -> None:
    """Each of them is work; a pipeline of them is no one piece of it."""
    _, one, other = place
    command = encode_request((b"COMMAND", b"INFO", *[b"get"] * 300))
    length = len(await _reply_of_one(one, command))
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    watching = asyncio.create_task(watch())
    await one.ask(command * 50, 50 * length)
    watching.cancel()
    assert turns >= 50
    assert await other.ask(encode_request((b"PING",)), 7) == b"+PONG\r\n"


async def _reply_of_one(wire: Wire, command: bytes) -> bytes:
    """As long as the reply is, told by what follows it."""
    wire._writer.write(command + encode_request((b"PING",)))
    return (await asyncio.wait_for(wire._reader.readuntil(b"+PONG\r\n"), 20)).removesuffix(b"+PONG\r\n")
