"""Stele and Hazelcast behind one interface: clients in a JVM, events, memory and collections of members."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, Self

from e2e.bench.copy_join import moved
from e2e.bench.grid import CLIENTS, Grid, node
from e2e.bench.machine import resident_bytes
from e2e.bench.master_rig import rig
from e2e.bench.seed_cases import EVENT_SECONDS_MAX, FEW, MANY, Event, Measured, Series
from e2e.bench.seed_rig import SeedRig
from e2e.bench.talk import Talker
from e2e.cluster import cache

SYSTEMS = ("Stele", "Hazelcast")
SAMPLE_SECONDS = 0.5
Collections = dict[int, tuple[int, float]]
"""By process: how many garbage collections, and their seconds."""


class System(Protocol):
    """A cluster of four members with two copies; `Observe` is called with it in a thread of its own."""

    name: str
    clients: Talker

    def happen(self, event: Event) -> Measured:
        """Let it happen and wait until all is safe; raises BenchError when it does not get there."""
        ...

    def pids(self) -> Sequence[int]:
        """Processes of members."""
        ...

    def collections(self) -> Collections:
        """Of members that run; empty where they do not tell."""
        ...


Observe = Callable[[System], None]


def run(name: str, series: Series, observe: Observe) -> None:
    """Start the system, observe it, and end all its processes."""
    if name == "Stele":
        asyncio.run(_stele(series, observe))
    else:
        options = (f"-Dbench.maps={series.maps}", f"-Dbench.parallel={series.parallel}")
        with Grid("hazelcast", series.partitions, *options, members=MANY) as grid:
            observe(Hazelcast(grid))


class Memory:
    """Samples within a `with` block how many bytes of members are in RAM; `most` of them afterwards."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids, self.most = pids, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self.most = max(self.most, sum(map(_resident, self._pids())))
            if self._over.wait(SAMPLE_SECONDS):
                return


def _resident(pid: int) -> int:
    with suppress(OSError):
        return resident_bytes(pid)
    return 0  # It has ended meanwhile.


# -- Stele


class Stele:
    """Its cluster lives in the event loop of another thread."""

    name = "Stele"

    def __init__(self, made: SeedRig, clients: Talker, loop: asyncio.AbstractEventLoop) -> None:
        self._rig, self.clients, self._loop = made, clients, loop

    def happen(self, event: Event) -> Measured:
        return asyncio.run_coroutine_threadsafe(self._rig.happen(event), self._loop).result()

    def pids(self) -> Sequence[int]:
        return self._rig.pids()

    def collections(self) -> Collections:
        return {}


async def _stele(series: Series, observe: Observe) -> None:
    place = cache.root() / "work"
    place.mkdir(parents=True, exist_ok=True)
    async with rig(SeedRig, place) as made:
        await made.form(series)
        loop = asyncio.get_running_loop()
        options = (f"-Dstele.members={','.join(made.cluster_hosts())}", f"-Dbench.maps={series.maps}")
        with node("stele-cluster", CLIENTS, series.partitions, *options) as clients:
            await asyncio.to_thread(observe, Stele(made, clients, loop))


# -- Hazelcast


class Hazelcast:
    """A grid; its first member says when all is safe."""

    name = "Hazelcast"

    def __init__(self, grid: Grid) -> None:
        self._grid, self.clients = grid, grid.clients

    def happen(self, event: Event) -> Measured:
        first, members = self._grid.members[0], self._grid.members
        act, left = {
            Event.SCALE_DOWN: (self._leave, FEW),
            Event.SCALE_UP: (self._join, MANY),
            Event.SHUTDOWN: (self._return, MANY),
            Event.LOSS: (self._lose, FEW),
        }[event]
        before = first.ask("table")["rows"]
        first.ask("mark")
        begin = time.monotonic()
        first.send("await", left, EVENT_SECONDS_MAX)
        member_seconds = act(members.pop() if act is not self._join else None)
        told = first.answer("await", EVENT_SECONDS_MAX + 10.0)
        after = first.ask("table")["rows"]
        known = told["view"] / 1e9 if event is Event.SCALE_UP else begin
        return Measured(known, told["safe"] / 1e9, moved(before, after), member_seconds)

    def _leave(self, member: Talker | None) -> float | None:
        assert member is not None
        begin = time.monotonic()
        member.ask("leave", seconds=EVENT_SECONDS_MAX)
        member.__exit__()
        return time.monotonic() - begin

    def _join(self, _: Talker | None) -> float | None:
        self._grid.members.append(self._grid.start(MANY - 1))
        return None

    def _return(self, member: Talker | None) -> float | None:
        seconds = self._leave(member)
        self._join(None)
        return seconds

    def _lose(self, member: Talker | None) -> float | None:
        assert member is not None
        member.__exit__()
        return None

    def pids(self) -> Sequence[int]:
        return [each.pid for each in self._grid.members]

    def collections(self) -> Collections:
        told = {each.pid: each.ask("collections") for each in self._grid.members}
        return {pid: (each["count"], each["millis"] / 1e3) for pid, each in told.items()}
