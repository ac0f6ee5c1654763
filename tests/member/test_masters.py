"""Real members and the master's real loop, which ends again and again while a member joins."""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stele.adapters.members.client import MemberClient
from stele.core.control import commands as m
from stele.core.control.failure_detector import Timing
from stele.core.table.ids import MemberIndex
from stele.master.loop import ClusterLoop, Pace
from stele.wire.configmap import decode_head
from tests.fakes.copier import NoCopier
from tests.fakes.members import FakeNet
from tests.fakes.spec import desired_spec
from tests.fakes.table_store import MemoryTableStore, StoredObjects
from tests.master.world import FakeWorld, Pod
from tests.member.harness.cluster import (
    CLUSTER,
    HASTY,
    WAIT_SECONDS,
    Client,
    Cluster,
    MemberProcess,
    eventually,
)
from tests.worker import WORKER

MEMBERS, PARTITIONS, REPLICAS = 2, 8, 2
KEYS, VALUE_BYTES = 96, 64 * 1024
BANDWIDTH = 512 * 1024
"""A third of all copies is 4 MiB, so they take 8 s, in which the master ends every half second."""

LIFE_SECONDS = 0.5
TIMING = Timing(heartbeat=0.5, lease=10.0, grace=60.0)


class Exchanges:
    """ports.Members over HTTP; notes the session of each copy that a destination began, and who asked for it.

    What an answer that was lost began is seen by its reports. `bytes_copied` are those that the destination
    reports, by session; `epochs` those of all who asked.
    """

    def __init__(self, client: MemberClient) -> None:
        self._client = client
        self.sessions: dict[int, set[str]] = {}
        self.bytes_copied: Counter[str] = Counter()
        self.bytes_of: dict[int, int] = {}
        self.epochs: set[int] = set()
        self._asked: dict[str, tuple[m.CopyItem, ...]] = {}

    async def exchange(
        self, address: str, request: m.ExchangeRequest, deadline_seconds: float
    ) -> m.ExchangeReply:
        fetches = [each for each in request.commands if isinstance(each, m.FetchDirect)]
        self._asked |= {each.session: each.items for each in fetches}
        reply = await self._client.exchange(address, request, deadline_seconds)
        for command, result in zip(request.commands, reply.results, strict=False):
            if isinstance(command, m.FetchDirect) and result.code == m.OK:
                self._note_begun(command.session)
        for fetch in reply.fetches:
            self._note_begun(fetch.session)
            self.bytes_copied[fetch.session] = max(self.bytes_copied[fetch.session], fetch.copied_bytes)
        self.epochs.add(request.epoch)
        return reply

    def _note_begun(self, session: str) -> None:
        for item in self._asked.get(session, ()):
            self.sessions.setdefault(item.partition, set()).add(session)
            self.bytes_of[item.partition] = item.bytes

    async def begun(self) -> int:
        """Return how many tablets are being copied, or were."""
        return len(self.sessions)


class LocalWorld(FakeWorld):
    """Pods are processes of this machine."""

    def __init__(self, made: Cluster) -> None:
        desired = desired_spec(MEMBERS, REPLICAS, TIMING, engine="Direct", bandwidth_per_member=BANDWIDTH)
        super().__init__(FakeNet(), desired, PARTITIONS)
        self._made = made

    @property
    def volumes_uid(self) -> str:
        return CLUSTER

    async def ensure_member(self, index: MemberIndex) -> None:
        self.members[index] = True
        if index in self.pods:
            return
        made = self._made
        host = f"127.0.{WORKER}.{200 + index}"
        member = MemberProcess(index, host, made.folder / f"m{index}", made.ports, made.env)
        made.members[index] = member
        self.pods[index] = Pod(f"pod-{index}", host)
        await member.start(STELE_POD_UID=f"pod-{index}")
        await member.start_transfer()


class Masters:
    """One master after the other, on one table."""

    def __init__(self, world: LocalWorld, exchanges: Exchanges) -> None:
        self.world, self._exchanges = world, exchanges
        self.shared = StoredObjects()
        self._loop: ClusterLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        store, pace = MemoryTableStore(self.shared), Pace(report=0.1)
        self._loop = ClusterLoop(
            store, self._exchanges, self.world, NoCopier(), now=time.monotonic, pace=pace
        )
        self._task = asyncio.create_task(self._loop.run())

    async def end(self) -> None:
        """It knows nothing any more; what it sent may still be under way."""
        assert self._loop is not None
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._loop.close()

    async def has_asked(self) -> bool:
        """Return whether this master has asked a member: a busy machine may need longer for that."""
        state = None if self._loop is None else self._loop.state
        return state is not None and state.epoch in self._exchanges.epochs

    async def members_at_rest(self) -> int:
        """Return how many members the rows name; 0 while anything is under way."""
        state = None if self._loop is None else self._loop.state
        if state is None or not state.recovered or state.operations.migrations or len(state.rebalance.queues):
            return 0
        rows = state.table.partitions
        full = all(len(row.members) == REPLICAS for row in rows)
        return len(frozenset[int]().union(*(row.members for row in rows))) if full else 0


@asynccontextmanager
async def masters(folder: Path) -> AsyncIterator[tuple[Masters, Exchanges, Cluster]]:
    made = Cluster(folder, PARTITIONS, REPLICAS, HASTY)
    async with MemberClient(port=made.ports[2]) as client:
        exchanges = Exchanges(client)
        found = Masters(LocalWorld(made), exchanges)
        found.start()
        try:
            await eventually(found.members_at_rest, lambda members: members == MEMBERS)
            yield found, exchanges, made
        finally:
            await found.end()
            await made.close()


async def changed_until(found: Masters, members: int) -> int:
    """Let one master follow the other until rows name so many members; return how many masters ended."""
    async with asyncio.timeout(WAIT_SECONDS):
        for ended in itertools.count():
            await asyncio.sleep(LIFE_SECONDS)
            await eventually(found.has_asked, bool)
            if await found.members_at_rest() == members:
                return ended
            await found.end()
            found.start()
    raise AssertionError("never")


async def test_no_byte_is_copied_twice_while_one_master_follows_the_other(tmp_path: Path) -> None:
    async with masters(tmp_path) as (found, exchanges, made):
        client = Client(made)
        for number in range(KEYS):
            await client.set(0, b"key-%d" % number, bytes([number]) * VALUE_BYTES)
        found.world.wanted = desired_spec(
            MEMBERS + 1, REPLICAS, TIMING, engine="Direct", bandwidth_per_member=BANDWIDTH
        )
        await eventually(exchanges.begun, bool)
        assert await changed_until(found, MEMBERS + 1) >= 2
        assert exchanges.epochs == set(range(1, decode_head(found.shared.objects["head"][1]).epoch + 1))
        assert len(exchanges.sessions) > PARTITIONS // 2
        assert {len(names) for names in exchanges.sessions.values()} == {1}, exchanges.sessions
        assert sum(exchanges.bytes_copied.values()) == pytest.approx(
            sum(exchanges.bytes_of.values()), rel=0.02
        )
        await client.check(MEMBERS)
        await client.close()
