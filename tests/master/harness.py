"""A cluster in memory: table store, members, pods, and masters that may die at any write or exchange."""

import asyncio
import itertools
from collections.abc import Callable

from stele.core.control.commands import ExchangeReply, ExchangeRequest
from stele.core.control.state import DesiredSpec, RebalanceProgress, State
from stele.core.formats import SPOKEN, UNSTATED
from stele.core.security.level import can_dial
from stele.core.table.table import Partition, PartitionTable
from stele.errors import Conflict, Stale, Unavailable, Uncertain
from stele.master.loop import ClusterLoop, Pace
from stele.wire.configmap import Head, decode_head, decode_shard, shard_count
from tests.fakes.copier import NoCopier
from tests.fakes.members import FakeMember, FakeNet, Tablet
from tests.fakes.spec import desired_spec
from tests.fakes.table_store import MemoryTableStore, StoredObjects
from tests.master.fuse import Crash, Fuse
from tests.master.world import CLUSTER, TIMING, FakeWorld


class FusedStore(MemoryTableStore):
    """Dies before or after a write; notes every row that was ever stored."""

    def __init__(self, shared: StoredObjects, fuse: Fuse, harness: "Harness") -> None:
        super().__init__(shared)
        self._fuse, self._harness = fuse, harness

    def put(self, name: str, data: dict[str, str], expected: int | None) -> int:
        self._fuse.burn(name, done=False)
        version = super().put(name, data, expected)
        self._harness.check_stored()
        self._fuse.burn(name, done=True)
        return version


class FusedMembers:
    def __init__(self, net: FakeNet, fuse: Fuse) -> None:
        self._net, self._fuse = net, fuse
        self.crashed = False
        self.deaf: list[str] = []

    async def exchange(
        self, address: str, request: ExchangeRequest, deadline_seconds: float
    ) -> ExchangeReply:
        brings = bool(request.commands or request.rows or request.members or self._changes(address, request))
        try:
            if brings:
                self._fuse.burn("exchange", done=False)
            reply = await self._net.exchange(address, request, deadline_seconds)
            self._check_levels()
            if brings:
                self._fuse.burn("exchange", done=True)
        except Crash:
            self.crashed = True
            await asyncio.sleep(3600)
        return reply

    def _changes(self, address: str, request: ExchangeRequest) -> bool:
        member, settings = self._net.members.get(address), request.settings
        return member is not None and settings is not None and settings.member_tls not in (None, member.tls)

    def _check_levels(self) -> None:
        """Note members that know each other and cannot dial each other, whoever was told last."""
        for member in self._net.members.values():
            for info in member.members:
                other = next((each for each in self._net.members.values() if each.uuid == info.uuid), None)
                if other is not None and other.members and not can_dial(member.tls, other.tls):
                    self.deaf.append(f"{member.tls} does not reach {other.tls}")


class Harness:
    """Runs ticks by hand on a clock of its own; writes go on all the time and are checked."""

    def __init__(self, members: int = 3, partitions: int = 8, replicas: int = 2, **desired: object) -> None:
        self.net = FakeNet()
        desired: dict[str, object] = {"timing": TIMING, **desired}
        self.world = FakeWorld(self.net, desired_spec(members, replicas, **desired), partitions)  # type: ignore[arg-type]
        self.shared = StoredObjects()
        self.clock = 1000.0
        self.world.seconds = lambda: self.clock
        self.written: dict[int, set[int]] = {}
        self.values = itertools.count(1)
        self.fuse = Fuse()
        self.last: tuple[Partition, ...] = ()
        self.masters = 0
        self.start_master()

    def start_master(self, fuse: Fuse | None = None, copier: object = None) -> None:
        """A fresh process: nothing is known but what is stored and what members answer."""
        self.fuse = fuse or Fuse()
        self.masters += 1
        store = FusedStore(self.shared, self.fuse, self)
        self.members = FusedMembers(self.net, self.fuse)
        self.loop = ClusterLoop(
            store,
            self.members,
            self.world,
            copier or NoCopier(),  # type: ignore[arg-type]
            now=lambda: self.clock,
            pace=Pace(busy=0.0, exchange=5.0),
            spoken=self.world.build,
        )

    def change_spec(self, **changes: object) -> None:
        fields = {name: getattr(self.world.wanted, name) for name in self.world.wanted.__dataclass_fields__}
        self.world.wanted = DesiredSpec(**(fields | changes))  # type: ignore[arg-type]

    async def apply(self, **changes: object) -> None:
        """Change the spec, and let the master do all that follows."""
        self.change_spec(**changes)
        await self.until_quiet()

    # -- reading what is stored

    def table(self) -> PartitionTable:
        head = self.head()
        rows = [
            row
            for number in range(shard_count(head.rows))
            for row in decode_shard(self.shared.objects[f"shard-{number}"][1], number, head.rows).rows
        ]
        return PartitionTable(tuple(rows), {member.index: member for member in head.members}, head.groups)

    def head(self) -> Head:
        return decode_head(self.shared.objects["head"][1])

    def check_stored(self) -> None:
        """After each write of the table: versions grow, one row per version, and no acknowledged write is
        lost.
        """
        if "head" not in self.shared.objects or "shard-0" not in self.shared.objects:
            return
        rows = self.table().partitions
        for number, row in enumerate(rows):
            if row.version:
                from stele.core.control.table_view import row_of

                self.net.note_row(row_of(number, row))
            if number < len(self.last):
                assert row.version >= self.last[number].version
        self.last = rows

    def check_data(self) -> None:
        """Every acknowledged write is on every member of the stored row."""
        for number, row in enumerate(self.table().partitions):
            for index in row.members:
                tablet = self.world.volumes[index].tablets.get(number, Tablet())
                missing = self.written.get(number, set()) - set(tablet.data)
                assert not missing, f"partition {number}: member {index} of {row} lacks {missing}"

    # -- what the master knows

    @property
    def state(self) -> State:
        assert self.loop.state is not None
        return self.loop.state

    @property
    def progress(self) -> RebalanceProgress:
        """Of the plan under way."""
        assert self.state.rebalance.progress is not None
        return self.state.rebalance.progress

    def held(self, index: int) -> set[int]:
        """The partitions of which this member has a copy by the stored table."""
        return {number for number, row in enumerate(self.table().partitions) if index in row.members}

    def copies(self) -> set[int]:
        """How many copies partitions have by the stored table."""
        return {len(row.members) for row in self.table().partitions}

    def check_balanced(self, members: int, replicas: int) -> None:
        counts, total = self.counts(), self.world.number
        assert len(counts) == members
        for index, (owned, held) in counts.items():
            assert abs(owned - total / members) < 1.01, (index, counts)
            assert abs(held - total * replicas / members) < 2.01, (index, counts)
        assert self.copies() == {min(replicas, members)}

    # -- what its user does

    def approve(self) -> None:
        self.world.ask(f"demo-{self.state.plan_id}", approved=True)

    async def proposed(self, **desired: object) -> RebalanceProgress:
        """The plan that waits for approval after this change."""
        await self.apply(**desired)
        assert self.progress.phase == "Proposed"
        return self.progress

    def stored(self) -> dict[str, dict[str, str]]:
        """All that is stored, for `restore`."""
        return {key: data for key, (_, data) in self.shared.objects.items()}

    async def restore(self, older: dict[str, dict[str, str]]) -> None:
        """The master ends, and what is stored is what was stored then."""
        await self.loop.close()
        for key in self.shared.objects.keys() - older.keys():
            del self.shared.objects[key]
        for key, data in older.items():
            self.shared.put(key, data, self.shared.objects[key][0])
        self.last = ()

    async def restart(self) -> None:
        await self.loop.close()
        self.start_master()

    # -- running

    def write(self) -> None:
        for number in range(max(self.world.number, len(self.last))):
            for member in list(self.net.members.values()):
                value = next(self.values)
                if member.owns(number) and member.write(number, value):
                    self.written.setdefault(number, set()).add(value)

    async def tick(self, seconds: float = 0.05) -> bool:
        """One round of the master and of its exchanges; raises Crash when the fuse ended."""
        self.notice_deaths()
        try:
            busy = await self.loop.tick()
        except (Conflict, Uncertain, Unavailable, Stale):
            # As in ClusterLoop.run; Deposed ends it.
            await self.loop.step_down()
            busy = True
        for _ in range(4):
            await asyncio.sleep(0)
        assert self.members.deaf == []
        if self.members.crashed:
            raise Crash
        self.clock += seconds
        self.write()
        return busy

    async def ticks(self, number: int, seconds: float = 0.05) -> None:
        for _ in range(number):
            await self.tick(seconds)

    async def until(self, held: Callable[[], object]) -> None:
        """Tick until that holds; fails when it never does."""
        for _ in range(400):
            if held():
                return
            await self.tick()
        raise AssertionError("it never came")

    def updating(self) -> bool:
        """A member is emptied or restarts, and all are there: what follows comes when its process does."""
        absent = self.net.cut or any(not member.alive for member in self.world.volumes.values())
        if absent or self.loop.state is None:
            return False
        return bool(self.world.restarting or self.loop.state.stops.since)

    async def until_quiet(self, ticks: int = 400, quiet: int = 8) -> int:
        """Tick until nothing happened for some time; fails when that does not come."""
        still = 0
        for count in range(ticks):
            busy = await self.tick(0.05 if still == 0 else 0.6)
            still = 0 if busy or self.updating() else still + 1
            if still >= quiet:
                self.check_data()
                return count
        state = self.loop.state
        raise AssertionError(f"still busy after {ticks} ticks: {state}")

    def counts(self) -> dict[int, tuple[int, int]]:
        """Owned partitions and replicas of each member in the table."""
        rows = self.table().partitions
        return {
            index: (sum(row.owner == index for row in rows), sum(index in row.members for row in rows))
            for index in self.table().members
        }

    def notice_deaths(self) -> None:
        """The kubelet tells of processes that died on their own, or ended because they may stop."""
        for index in self.world.pods.keys() & self.world.volumes.keys():
            if self.world.volumes[index].may_stop:
                self.kill(index)
        for index, pod in self.world.pods.items():
            pod.ended = pod.ended or (index in self.world.volumes and not self.world.volumes[index].alive)

    def kill(self, index: int) -> None:
        """SIGKILL: the process is gone, Kubernetes tells of it at once."""
        pod = self.world.pods[index]
        pod.ended = True
        self.world.volumes[index].alive = False

    def cut(self, index: int) -> None:
        """It runs on, and neither the master nor another member reaches it."""
        self.net.cut.add(self.world.pods[index].address)

    def revive(self, index: int) -> None:
        pod = self.world.pods[index]
        pod.ended, pod.process = False, pod.process + 1
        self.world.volumes[index].restart()
        self.world.volumes[index].runs_in(pod.uid, pod.started_seconds)

    def wipe(self, index: int) -> None:
        """The volume comes back empty: another identity in the same pod."""
        pod = self.world.pods[index]
        pod.process += 1
        member = FakeMember(self.net, pod.address, f"uuid-new-{pod.address}", CLUSTER)
        self.world.volumes[index].alive = False
        self.world.volumes[index] = member
        member.runs_in(pod.uid, pod.started_seconds)
        self.net.members[pod.address] = member


async def formed(members: int = 3, partitions: int = 12, **desired: object) -> Harness:
    """A cluster that is at rest, with some writes."""
    harness = Harness(members=members, partitions=partitions, **desired)  # type: ignore[arg-type]
    await harness.until_quiet()
    return harness


async def of_the_format_before(members: int = 3, partitions: int = 8, **desired: object) -> Harness:
    """A cluster that operator and members of the format before have formed; the operator is upgraded."""
    harness = Harness(members=members, partitions=partitions, **desired)  # type: ignore[arg-type]
    harness.world.build = UNSTATED
    harness.start_master()
    await harness.until_quiet()
    harness.world.build = SPOKEN
    await harness.restart()
    await harness.until_quiet()
    return harness
