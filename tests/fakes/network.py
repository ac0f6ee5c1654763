"""The network between processes: byte streams in order (TCP), and single requests that may be lost or late.

A `place` is where a process runs: cuts, delays and addresses belong to places and outlive processes. A stream
whose way is cut keeps what was sent until the way is open again, as TCP does; a reset loses it.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from tests.fakes.loop import Clock, Handle, ProcessLoop

FAST = (0.0002, 0.002)
SEGMENT_BYTES_KEPT = 1 << 20
"""A stream that holds back more than this tells its writer to pause."""
REFUSED_SECONDS = 0.001
LATE_SECONDS_MAX = 12.0


class Network:
    """`delay` are the least and most seconds of one way; `cuts` the one-way pairs that nothing passes,
    `alone` places that reach nobody but clients, `gone` those for which that never ends.

    `noticed` counts what is too frequent, or too slight, for a line in the story each time.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.delay = FAST
        self.slow_places: dict[str, float] = {}
        self.slow_links: dict[tuple[str, str], float] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.alone: set[str] = set()
        self.gone: set[str] = set()
        self.messages = 0
        self.lost_part = 0.0
        self.repeated_part = 0.0
        self.late_part = 0.0
        self.torn_part = 0.0
        self.addresses: dict[str, str] = {}
        self._held: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._listeners: dict[tuple[str, int], tuple[ProcessLoop, Any]] = {}
        self._streams: list[Stream] = []
        self.noticed: Counter[str] = Counter()
        self._sent = 0
        self._arrived: dict[tuple[str, str], int] = {}
        self.count: Callable[..., None] = lambda fault, *places: None

    # -- ways

    def seconds(self, source: str, target: str) -> float:
        """How long the next message takes."""
        extra = self.slow_places.get(source, 0.0) + self.slow_places.get(target, 0.0)
        extra += self.slow_links.get((source, target), 0.0)
        return self.clock.random.uniform(*self.delay) + self.clock.random.random() * extra

    def is_cut(self, source: str, target: str) -> bool:
        """Clients reach every place."""
        ends = (source, target)
        if "client" in (source[:6], target[:6]):
            return False
        return ends in self.cuts or not (self.alone.isdisjoint(ends) and self.gone.isdisjoint(ends))

    def rejoin(self, place: str) -> None:
        """It is no longer alone."""
        self.alone.discard(place)
        for pair in [pair for pair in self._held if place in pair and not self.is_cut(*pair)]:
            self.heal(*pair)

    def cut(self, source: str, target: str) -> None:
        self.cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """What waited goes on its way."""
        self.cuts.discard((source, target))
        for go in self._held.pop((source, target), []):
            self.clock.call_later(self.seconds(source, target), go)

    def heal_all(self) -> None:
        for place in sorted(self.alone):
            self.rejoin(place)
        for source, target in sorted(self.cuts):
            self.heal(source, target)
        self.slow_places.clear()
        self.slow_links.clear()

    def hold(self, source: str, target: str, go: Callable[[], None]) -> None:
        self._held.setdefault((source, target), []).append(go)

    # -- single messages

    def send(
        self, source: str, target: str, deliver: Callable[[], None], *, once: bool = True, back: bool = False
    ) -> None:
        """A request, or `back` a response: it may be lost, or come very late, or twice where that can be."""
        random = self.clock.random
        deliver = self._in_turn(source, target, deliver)
        if self.is_cut(source, target):
            if random.random() < 0.5:
                self.hold(source, target, deliver)
            return
        if random.random() < self.lost_part:
            self.count("response lost" if back else "message lost", source, target)
            return
        self.messages += 1
        seconds = self.seconds(source, target)
        if random.random() < self.late_part:
            self.count("message late", source, target)
            seconds += random.uniform(1.0, LATE_SECONDS_MAX)
        self.clock.call_later(seconds, deliver)
        if not once and random.random() < self.repeated_part:
            self.count("message repeated", source, target)
            self.messages += 1
            self.clock.call_later(seconds + random.uniform(0.0, 2.0), deliver)

    def _in_turn(self, source: str, target: str, deliver: Callable[[], None]) -> Callable[[], None]:
        """The same, and it is noticed when what was sent later came before it."""
        self._sent += 1
        number, way = self._sent, (source, target)

        def arrive() -> None:
            if number < self._arrived.get(way, 0):
                self.noticed["message overtaken"] += 1
            self._arrived[way] = max(number, self._arrived.get(way, 0))
            deliver()

        return arrive

    # -- streams

    def listen(self, loop: ProcessLoop, factory: Any, port: int) -> "Listener":
        self._listeners[loop.name, port] = (loop, factory)
        return Listener(self, (loop.name, port))

    def stop_listening(self, place: tuple[str, int]) -> None:
        self._listeners.pop(place, None)

    def place_gone(self, place: str) -> None:
        """The process ended: its ports are closed and its streams are reset."""
        for key in [key for key in self._listeners if key[0] == place]:
            del self._listeners[key]
        for stream in self.streams_of(place):
            stream.reset()

    def streams_of(self, place: str) -> list["Stream"]:
        self._streams = [stream for stream in self._streams if not stream.over]
        return [stream for stream in self._streams if place in stream.places]

    async def connect(self, loop: ProcessLoop, factory: Any, host: str, port: int) -> Any:
        """Three ways; hangs while a way is cut, refused when nobody listens."""
        answered = loop.create_future()
        place = self.addresses.get(host, "nowhere")

        def arrived() -> None:
            listener = self._listeners.get((place, port))
            accepted = None
            if listener is not None and listener[0].alive:
                accepted = Stream(self, (loop, listener[0]))
                self._streams.append(accepted)
                accepted.ends[1].attach(listener[1])
            back(lambda: _tell(answered, accepted))

        def back(go: Callable[[], None]) -> None:
            self._pass(place, loop.name, go)

        self._pass(loop.name, place, arrived)
        stream = await answered
        if stream is None:
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        protocol = stream.ends[0].attach_now(factory)
        return stream.ends[0], protocol

    def _pass(self, source: str, target: str, go: Callable[[], None]) -> None:
        if self.is_cut(source, target):
            self.hold(source, target, go)
        else:
            self.messages += 1
            self.clock.call_later(self.seconds(source, target), go)


def _tell(future: "asyncio.Future[Any]", value: object) -> None:
    loop = future.get_loop()
    loop.call_soon(lambda: None if future.done() else future.set_result(value))


class Listener:
    def __init__(self, network: Network, place: tuple[str, int]) -> None:
        self._network, self._place = network, place

    @property
    def sockets(self) -> "tuple[Listener]":
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return self._place

    def close(self) -> None:
        self._network.stop_listening(self._place)


class Stream:
    """One connection: two ends, each with the process that it belongs to."""

    def __init__(self, network: Network, loops: tuple[ProcessLoop, ProcessLoop]) -> None:
        self.network = network
        self.places = (loops[0].name, loops[1].name)
        self.ends = (End(self, loops[0], 0), End(self, loops[1], 1))
        self.over = False

    def reset(self) -> None:
        """Both sides lose the connection, and what was on its way."""
        if not self.over:
            self.over = True
            for end in self.ends:
                end.lost(ConnectionResetError("connection reset"))


class End(asyncio.Transport):
    """A transport: what is written arrives at the other end, later and in order."""

    def __init__(self, stream: Stream, loop: ProcessLoop, side: int) -> None:
        super().__init__()
        self._stream, self._loop, self._side = stream, loop, side
        self._protocol: Any = None
        self._closing = False
        self._last = 0.0
        self._way: deque[bytes] = deque()
        self._flying = 0
        self._paused = False
        self._unread: list[bytes] | None = None

    def attach(self, factory: Any) -> None:
        self._loop.clock.soon(Handle(self._loop, self.attach_now, (factory,)))

    def attach_now(self, factory: Any) -> Any:
        self._protocol = factory()
        self._protocol.connection_made(self)
        if self._stream.over:
            self.lost(ConnectionResetError("connection reset"))
        return self._protocol

    # -- asyncio.Transport

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._stream.places[1 - self._side], 0) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._closing or self._stream.over

    def write(self, data: Any) -> None:
        if self.is_closing():
            return
        random = self._loop.clock.random
        if len(data) > 1 and random.random() < self._stream.network.torn_part:
            self._stream.network.noticed["segment torn"] += 1
            middle = random.randrange(1, len(data))
            self._send(data[:middle])
            self._send(data[middle:])
        else:
            self._send(data)

    def close(self) -> None:
        """What was written still arrives, then the end."""
        if not self._closing:
            self._closing = True
            self._send(b"")
            self._loop.call_soon(self._ended, None)

    abort = write_eof = close

    def get_write_buffer_size(self) -> int:
        return self._flying

    def pause_reading(self) -> None:
        self._unread = self._unread or []

    def resume_reading(self) -> None:
        unread, self._unread = self._unread or [], None
        for data in unread:
            self._loop.clock.soon(Handle(self._loop, self._received, (data,)))

    # -- on the way

    def _send(self, data: bytes) -> None:
        stream = self._stream
        source, target = stream.places[self._side], stream.places[1 - self._side]
        self._flying += len(data)
        if self._flying > SEGMENT_BYTES_KEPT and not self._paused and self._protocol is not None:
            self._paused = True
            self._protocol.pause_writing()

        def arrive() -> None:
            """The first that is on its way, whichever was to arrive now: a stream keeps its order."""
            if stream.network.is_cut(source, target):
                stream.network.hold(source, target, arrive)
            elif not stream.over:
                first = self._way.popleft()
                stream.ends[1 - self._side].take(first)
                self._went(len(first))

        self._way.append(data)

        clock = self._loop.clock
        self._last = max(self._last, clock.now + stream.network.seconds(source, target))
        stream.network.messages += 1
        clock.call_later(self._last - clock.now, arrive)

    def _went(self, size: int) -> None:
        self._flying -= size
        if self._paused and self._flying < SEGMENT_BYTES_KEPT // 2:
            self._paused = False
            self._loop.call_soon(self._protocol.resume_writing)

    def take(self, data: bytes) -> None:
        """Bytes from the other end, b"" for its end."""
        if data:
            self._loop.clock.soon(Handle(self._loop, self._received, (data,)))
        else:
            self._stream.over = True
            self.lost(None)

    def _received(self, data: bytes) -> None:
        if self._unread is not None:
            self._unread.append(data)
        elif self._protocol is not None and not self._closing:
            self._protocol.data_received(data)

    def lost(self, error: Exception | None) -> None:
        self._loop.call_soon(self._ended, error)

    def _ended(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)
