"""One suite for the connections between members: over TCP on loopback, plain and in TLS, and in the
simulation's network.

What replication rests on: whole messages in order or none, and an end that both sides hear of once.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from stele.adapters.rpc.connection import Connection
from stele.adapters.tls.identity import TlsIdentity
from stele.adapters.tls.layer import TlsLayer
from stele.wire.frames import FRAME_BYTES_MAX, GREETING_BYTES_MAX, encode_frame
from stele.wire.peer import Heartbeat, HelloRejected, Message, encode_message
from tests.fakes.bridge import finish, pass_time
from tests.fakes.loop import Clock, Handle, ProcessLoop
from tests.fakes.network import Network
from tests.fakes.pki import shared_ca

PORT = 7000
LOOKS_MAX = 1000
SIZES = (0, 1, 70_000, 3, 400_000, 20)


@dataclass
class Notes:
    """A handler that writes down what it is told."""

    connection: Connection | None = None
    messages: list[Message] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    drains: int = 0
    greeted: bool = True

    def opened(self, connection: Connection) -> None:
        self.connection = connection
        if self.greeted:
            connection.greeted()

    def received(self, connection: Connection, message: Message) -> None:
        assert not self.reasons, "told after its end"
        self.messages.append(message)

    def drained(self, connection: Connection) -> None:
        self.drains += 1

    def closed(self, connection: Connection, reason: str) -> None:
        self.reasons.append(reason)

    @property
    def link(self) -> Connection:
        assert self.connection is not None
        return self.connection


class Raw(asyncio.Protocol):
    """Whatever bytes one likes."""

    def __init__(self) -> None:
        self.over = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.over = True


class Case(Protocol):
    """Two places; `dial` goes from the first to the second."""

    async def listen(self, factory: Callable[[], Any]) -> Callable[[], None]:
        """The second takes connections; what is returned ends that."""
        ...

    async def dial(self, factory: Callable[[], Any]) -> Any: ...

    async def do(self, work: Callable[[], object], *, there: bool = False) -> None:
        """In the process of the first, or of the second."""
        ...

    async def step(self) -> None: ...

    def reset(self, notes: Notes) -> None: ...

    def half_close(self, raw: Raw) -> None: ...

    def hold(self, notes: Notes) -> None:
        """Nothing reaches the second."""
        ...

    def let_go(self, notes: Notes) -> None: ...


class Real:
    def __init__(self) -> None:
        self.ends: list[Any] = []
        self.server: asyncio.Server | None = None

    def _kept(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        def make() -> Any:
            self.ends.append(factory())
            return self.ends[-1]

        return make

    async def close(self) -> None:
        if self.server is not None:
            self.server.close()
        for each in self.ends:
            transport = each.transport if isinstance(each, Raw) else each._transport
            # One that is closing ends by itself, and asyncio does not take `abort` after that.
            if not transport.is_closing():
                transport.abort()
        await self.step()

    async def listen(self, factory: Callable[[], Any]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self._kept(factory), "127.0.0.1", 0)
        self.port: int = self.server.sockets[0].getsockname()[1]
        return self.server.close

    async def dial(self, factory: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(self._kept(factory), "127.0.0.1", self.port))[1]

    async def do(self, work: Callable[[], object], *, there: bool = False) -> None:
        work()

    async def step(self) -> None:
        await asyncio.sleep(0.002)

    def reset(self, notes: Notes) -> None:
        transport: Any = notes.link._transport
        linger = struct.pack("ii", 1, 0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()

    def half_close(self, raw: Raw) -> None:
        raw.transport.write_eof()

    def hold(self, notes: Notes) -> None:
        transport: Any = notes.link._transport
        transport.pause_reading()

    def let_go(self, notes: Notes) -> None:
        transport: Any = notes.link._transport
        transport.resume_reading()


class Encrypted(Real):
    """The same inside of TLS: both show a certificate of the cluster's CA."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        identity = TlsIdentity(shared_ca().leaf().write(folder))
        identity.look()
        assert identity.contexts is not None
        self._contexts = identity.contexts

    async def listen(self, factory: Callable[[], Any]) -> Callable[[], None]:
        context, make = self._contexts.dialled, self._kept(factory)
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(
            lambda: TlsLayer(context, make, lambda failure: None, server_side=True), "127.0.0.1", 0
        )
        self.port = self.server.sockets[0].getsockname()[1]
        return self.server.close

    async def dial(self, factory: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        done, make = loop.create_future(), self._kept(factory)
        _, layer = await loop.create_connection(
            lambda: TlsLayer(self._contexts.dialling, make, done.set_result, server_side=False),
            "127.0.0.1",
            self.port,
        )
        assert await done == ""
        await self.step()
        return layer.inner


class Simulated:
    def __init__(self) -> None:
        self.clock = Clock(1)
        self.network = Network(self.clock)
        self.network.addresses = {"10.0.0.2": "there"}
        self.network.torn_part = 0.3
        self.loops = [ProcessLoop(self.clock, place, self.network) for place in ("here", "there")]

    async def listen(self, factory: Callable[[], Any]) -> Callable[[], None]:
        loop = self.loops[1]
        listener = finish(loop, lambda: loop.create_server(factory, "0.0.0.0", PORT))
        close: Callable[[], None] = listener.close
        return close

    async def dial(self, factory: Callable[[], Any]) -> Any:
        loop = self.loops[0]
        return finish(loop, lambda: loop.create_connection(factory, "10.0.0.2", PORT))[1]

    async def do(self, work: Callable[[], object], *, there: bool = False) -> None:
        self.clock.soon(Handle(self.loops[there], work, ()))
        await self.step()

    async def step(self) -> None:
        pass_time(self.clock, 0.01)

    def reset(self, notes: Notes) -> None:
        for stream in self.network.streams_of("here"):
            stream.reset()

    def half_close(self, raw: Raw) -> None:
        raw.transport.close()

    def hold(self, notes: Notes) -> None:
        self.network.cut("here", "there")

    def let_go(self, notes: Notes) -> None:
        self.network.heal("here", "there")


@pytest.fixture(params=["real", "encrypted", "simulated"])
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    cases: dict[str, Callable[[], Any]] = {"real": Real, "simulated": Simulated}
    made = cases.get(request.param, lambda: Encrypted(tmp_path))()
    yield made
    if isinstance(made, Real):
        await made.close()


async def until(case: Case, condition: Callable[[], object]) -> None:
    for _ in range(LOOKS_MAX):
        if condition():
            return
        await case.step()
    raise AssertionError("it does not come")


async def linked(case: Case) -> tuple[Notes, Notes]:
    """The dialling and the dialled side."""
    here, there = Notes(), Notes()
    await case.listen(lambda: Connection(there))
    await case.dial(lambda: Connection(here))
    await until(case, lambda: there.connection)
    return here, there


async def raw_to(case: Case, *, greeted: bool = True) -> tuple[Raw, Notes]:
    there = Notes(greeted=greeted)
    await case.listen(lambda: Connection(there))
    raw = await case.dial(Raw)
    await until(case, lambda: there.connection)
    return raw, there


def message(number: int, size: int = 0) -> HelloRejected:
    return HelloRejected(str(number), "x" * size)


async def test_messages_arrive_whole_and_in_order_both_ways(case: Case) -> None:
    here, there = await linked(case)
    sent = [message(number, SIZES[number % len(SIZES)]) for number in range(60)]
    for each in sent:
        await case.do(lambda each=each: here.link.send(each))  # type: ignore[misc]
        await case.do(lambda each=each: there.link.send(each), there=True)  # type: ignore[misc]
    await until(case, lambda: len(here.messages) == len(there.messages) == len(sent))
    assert here.messages == there.messages == sent
    assert (here.reasons, there.reasons) == ([], [])


async def test_what_ends_a_turn_goes_out_behind_what_was_sent_before(case: Case) -> None:
    here, there = await linked(case)

    def turn() -> None:
        here.link.send(message(1))
        here.link.send(message(2), now=True)
        here.link.send(message(3))

    await case.do(turn)
    await until(case, lambda: len(there.messages) == 3)
    assert there.messages == [message(1), message(2), message(3)]


async def test_where_nobody_listens_a_connection_is_refused(case: Case) -> None:
    close = await case.listen(Raw)
    close()
    await case.step()
    with pytest.raises(ConnectionRefusedError):
        await case.dial(Raw)


async def test_what_was_sent_before_the_end_arrives_and_nothing_after(case: Case) -> None:
    here, there = await linked(case)

    def last_words() -> None:
        here.link.send(message(1, 400_000))
        here.link.send(message(2))
        here.link.close("enough")
        here.link.send(message(3))

    await case.do(last_words)
    await until(case, lambda: there.reasons)
    assert [each.code for each in there.messages if isinstance(each, HelloRejected)] == ["1", "2"]
    await case.do(lambda: there.link.send(message(4)), there=True)
    for _ in range(5):
        await case.step()
    assert (here.reasons, len(there.reasons), here.messages) == (["enough"], 1, [])


async def test_of_a_reset_both_sides_hear_once(case: Case) -> None:
    here, there = await linked(case)
    await case.do(lambda: here.link.send(message(1)))
    await until(case, lambda: there.messages)
    case.reset(here)
    await until(case, lambda: here.reasons and there.reasons)
    await case.do(lambda: here.link.close("again"))
    await case.do(lambda: there.link.send(message(2)), there=True)
    assert (len(here.reasons), len(there.reasons), here.messages) == (1, 1, [])


async def test_a_side_that_says_no_more_is_gone(case: Case) -> None:
    raw, there = await raw_to(case)
    whole = encode_frame(encode_message(message(1)))
    await case.do(lambda: raw.transport.write(whole + whole[:-1]))
    await case.do(lambda: case.half_close(raw))
    await until(case, lambda: there.reasons)
    assert there.messages == [message(1)]
    await until(case, lambda: raw.over)


GARBAGE = {
    "too large a frame": struct.pack(">II", FRAME_BYTES_MAX + 1, 0),
    "a wrong checksum": encode_frame(encode_message(message(2)))[:-1] + b"\0",
    "no message": encode_frame(b"\xc1"),
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_ends_the_connection_after_what_came_before_it(case: Case, what: str) -> None:
    raw, there = await raw_to(case)
    whole = encode_frame(encode_message(message(1)))
    await case.do(lambda: raw.transport.write(whole))
    await until(case, lambda: there.messages)
    await case.do(lambda: raw.transport.write(GARBAGE[what] + whole))
    await until(case, lambda: there.reasons and raw.over)
    assert there.messages == [message(1)]
    (reason,) = there.reasons
    assert reason.startswith("invalid bytes from")


EARLY = {
    "a frame that is too large for a greeting": encode_frame(encode_message(message(2, GREETING_BYTES_MAX))),
    "a message of another kind": encode_frame(encode_message(Heartbeat(1.0))),
    **GARBAGE,
}


@pytest.mark.parametrize("what", EARLY)
async def test_before_the_greeting_only_a_greeting_is_read(case: Case, what: str) -> None:
    raw, there = await raw_to(case, greeted=False)
    whole = encode_frame(encode_message(message(1)))
    await case.do(lambda: raw.transport.write(whole + EARLY[what]))
    await until(case, lambda: there.reasons and raw.over)
    assert there.messages in ([], [message(1)])
    (reason,) = there.reasons
    assert reason.startswith("invalid bytes from")


async def test_the_largest_frame_passes(case: Case) -> None:
    here, there = await linked(case)
    room = FRAME_BYTES_MAX - len(encode_message(message(1, FRAME_BYTES_MAX // 2))) + FRAME_BYTES_MAX // 2
    await case.do(lambda: here.link.send(message(1, room)))
    await until(case, lambda: there.messages)
    assert there.messages == [message(1, room)]


async def test_who_sends_more_than_goes_out_is_full_until_it_went(case: Case) -> None:
    here, there = await linked(case)
    case.hold(there)
    sent = 0
    while not here.link.full:
        assert sent < 1000, "never full"
        sent += 1
        await case.do(lambda number=sent: here.link.send(message(number, 100_000)))  # type: ignore[misc]
        await case.step()
    assert (here.drains, here.reasons) == (0, [])
    case.let_go(there)
    await until(case, lambda: here.drains and len(there.messages) == sent)
    assert not here.link.full
    assert [each.code for each in there.messages if isinstance(each, HelloRejected)] == [
        str(number) for number in range(1, sent + 1)
    ]


async def test_a_message_that_does_not_fit_ends_the_connection_and_raises_nothing(case: Case) -> None:
    here, there = await linked(case)
    await case.do(lambda: here.link.send(message(1)))
    await case.do(lambda: here.link.send(message(2, FRAME_BYTES_MAX + 1)))
    await until(case, lambda: here.reasons and there.reasons)
    assert there.messages == [message(1)]
    assert "HelloRejected to" in here.reasons[0]
    assert f"at most {FRAME_BYTES_MAX} are allowed" in here.reasons[0]
