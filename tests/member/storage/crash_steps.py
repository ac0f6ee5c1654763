"""What a member does to its volume, step by step, each on partitions of its own (`test_crash.py`).

The member that dies is TARGET. Partitions come in kinds, by who is in their row at first.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count

import aiohttp

from stele.core.control import commands as m
from stele.member.storage.volume import TABLETS
from stele.wire.copy.bulk import EXPORT_PREFIX
from stele.wire.storage.volume import Superblock, decode_file
from tests.member.admin.test_tablet_info import tablet
from tests.member.harness.cluster import Client, Cluster, eventually, key_in

TARGET, OWNER, OTHER = 2, 0, 1
KINDS: dict[str, tuple[int, ...]] = {
    "owned": (TARGET, OWNER),
    "backed up": (OWNER, TARGET),
    "elsewhere": (OWNER, OTHER),
    "alone": (TARGET,),
    "new": (),
}
BIG = 4000
WRITTEN = (("backed up", OWNER), ("owned", TARGET), ("alone", TARGET))
WRITES_MAX = 300
REACHED_SECONDS = 15.0
"""A step that only has to be waited for waits so long; the death it waits for ends it."""


class World:
    """A cluster, its free partitions, what one round did. `told`: what the target promised, by partition."""

    def __init__(self, made: Cluster) -> None:
        self.made = made
        self._free = {
            kind: [p for p in range(made.partitions) if p % len(KINDS) == n] for n, kind in enumerate(KINDS)
        }
        self._values = count()
        self.begin_round()

    def begin_round(self) -> None:
        self.client = Client(self.made)
        self.used: list[int] = []
        self.ids: list[tuple[str, int]] = []
        self.told: dict[int, int] = {}
        self.made.orders.clear()

    @property
    def target(self) -> str:
        place = self.made.members[TARGET]
        return f"http://{place.host}:{place.ports[2]}"

    async def form(self) -> None:
        """Assign every partition but the new ones, and start to serve."""
        for _ in range(3):
            await self.made.add()
        for number, row in enumerate(KINDS.values()):
            for partition in range(number, self.made.partitions, len(KINDS)):
                if row:
                    self.made.store(partition, row)
        await self.made.publish()
        await self.made.served()

    def take(self, kind: str) -> int:
        """A partition that nothing was done to yet."""
        partition = self._free[kind].pop()
        self.used.append(partition)
        return partition

    async def write(self, partition: int, through: int = OWNER, size: int = 20, keys: int = 3) -> None:
        for seed in range(keys):
            key = key_in(partition, self.made.partitions, seed)
            value = (b"%d-" % next(self._values)).ljust(size, b"x")
            self.client.unknown.setdefault(key, set()).add(value)
            await self.client.set(through, key, value)

    def id(self, partition: int) -> str:
        made = self.made.id()
        self.ids.append((made, partition))
        return made

    async def start_learner(self, partition: int, destination: int) -> str:
        id = self.id(partition)
        await self.made.start_learner(id, partition, destination)
        return id

    async def start_copy(self, partition: int, size: int = 20) -> None:
        """The target is told to receive a partition of the owner's, with three values of this size."""
        await self.write(partition, size=size)
        version = self.made.version(partition)
        await self.command(TARGET, m.StartTabletCopy(self.id(partition), partition, version, OWNER))

    async def command(self, index: int, command: m.Command) -> m.Result:
        result = await self.made.order(index, command)
        if isinstance(command, m.Fence) and index == TARGET:
            self.told[command.partition] = command.term
        return result

    async def leave(self, partition: int) -> None:
        """Take the target out of a row; then its tablet is deleted."""
        row = self.made.store(partition, (OWNER,), by=2)
        await self.made.publish()
        await self.command(TARGET, m.DeleteTablet(partition, row.version))

    async def call(self, method: str, path: str) -> None:
        async with self.made.http.request(method, self.target + path) as response:
            assert response.status == 200, await response.text()

    async def repeat(self, order: m.Command) -> None:
        """Send the target an order again that it died in; a copy that it begins goes on."""
        made, result = self.made, await self.made.command(TARGET, order)
        if not isinstance(order, m.StartTabletCopy) or result.code != "OK":
            return
        file = made.members[TARGET].folder / TABLETS / str(order.partition)
        assert decode_file(Superblock, file.read_bytes(), str(file)).highest >= result.generation
        learn = m.AddLearner(order.id, order.partition, order.base, TARGET)
        await self.command(order.owner, learn)
        await made.catch_up(order.id, order.partition, TARGET)

    async def until_quiet(self) -> None:
        """What a new master does when the target is back: adopt what was accepted, abort, lift fences."""
        made, promised = self.made, dict.fromkeys(self.used, 0)
        for index in made.members:
            reply = await made.exchange(index, rows=())
            for row in reply.accepted:
                if row.version > made.version(row.partition):
                    made.rows[row.partition] = row
            for each in reply.tablets:
                promised[each.partition] = max(promised.get(each.partition, 0), each.promised)
        await made.publish()
        for id, partition in self.ids:
            for index in made.members:
                with suppress(AssertionError):
                    await made.command(index, m.Abort(id, partition))
        for partition in self.used:
            version = made.version(partition)
            if 0 < version < promised[partition]:
                by = max(2, promised[partition] - version)
                made.store(partition, made.rows[partition].replicas, by=by)
        await made.publish()
        await made.served()


Step = Callable[[World], Awaitable[None]]


async def create(world: World) -> None:
    """The table gives the target a partition for the first time."""
    partition = world.take("new")
    world.made.store(partition, (TARGET, OWNER))
    await world.made.publish()
    await world.write(partition)


async def write(world: World) -> None:
    """As owner with a backup, as backup, and as the only replica; for some syncs of every mode."""
    used = [(world.take(kind), member) for kind, member in WRITTEN]
    for _ in range(WRITES_MAX):
        for partition, through in used:
            await world.write(partition, through)
        await asyncio.sleep(0.02)


async def write_alone(world: World) -> None:
    """Until the target dies."""
    partition = world.take("alone")
    for _ in range(20):
        await world.write(partition, TARGET)


async def flush(world: World) -> None:
    """So much that the front of the log goes after the flush."""
    partition = world.take("owned")
    for _ in range(20):
        await world.write(partition, TARGET, BIG, keys=2)
    await asyncio.sleep(REACHED_SECONDS)


async def copy(world: World) -> None:
    """COPYING, then READY from the owner's log alone, then given up."""
    partition = world.take("elsewhere")
    await world.write(partition)
    id = await world.start_learner(partition, TARGET)
    await world.made.until_learner(OWNER, id, "IN_SYNC")
    await world.command(TARGET, m.Abort(id, partition))


async def receive(world: World, partition: int, size: int = 20) -> str:
    """Up to the files in staging; the session's name."""
    await world.start_copy(partition, size)
    return await world.made.fetch(partition, OWNER, TARGET)


async def ingest(world: World) -> None:
    partition = world.take("elsewhere")
    session = await receive(world, partition)
    await world.command(TARGET, m.Ingest(session, (partition,)))


async def replace(world: World) -> None:
    """A READY tablet that the row does not name any more gives way to a copy."""
    partition = world.take("backed up")
    await world.write(partition)
    world.made.store(partition, (OWNER,), by=2)
    await world.made.publish()
    session = await receive(world, partition)
    await world.command(TARGET, m.Ingest(session, (partition,)))


async def source(world: World, prefix: str = "session-") -> None:
    """A session at the target, opened and closed."""
    partition = world.take("owned")
    await world.write(partition, TARGET)
    session = f"{prefix}{world.made.id()}"
    await world.command(TARGET, m.OpenSession(session, (partition,)))
    await world.command(TARGET, m.CloseSession(session))


async def export(world: World) -> None:
    """A session of an export, which reads a checkpoint."""
    await source(world, EXPORT_PREFIX)


async def delete(world: World) -> None:
    """A tombstone, restored, deleted again, purged."""
    partition = world.take("owned")
    await world.write(partition, TARGET)
    await world.leave(partition)
    path = f"/v1/quarantine/tablets/{partition}/1"
    await world.call("POST", path + "/restore")
    await world.command(TARGET, m.DeleteTablet(partition, world.made.version(partition)))
    await world.call("DELETE", path)


async def promote(world: World) -> None:
    """The target was a backup and becomes the owner."""
    partition = world.take("backed up")
    await world.write(partition)
    term = world.made.version(partition) + 2
    for index in (OWNER, TARGET):
        await world.command(index, m.Fence(partition, term, True))
    await world.made.accept(TARGET, m.Row(partition, term, (TARGET, OWNER)))
    await world.made.publish()
    await world.write(partition, TARGET)


async def hand_over(world: World) -> None:
    """The target is the owner, lets writes wait for a learner, freezes, and thaws again."""
    partition = world.take("owned")
    await world.write(partition, TARGET)
    id = await world.start_learner(partition, OTHER)
    await world.made.until_learner(TARGET, id, "IN_SYNC")
    await world.command(TARGET, m.HandOver(id, partition))
    await world.command(TARGET, m.Abort(id, partition))


async def swap(world: World) -> None:
    """The target is the owner and freezes for a backup, thaws, then changes places with it, and back."""
    partition = world.take("owned")
    await world.write(partition, TARGET)
    id = world.id(partition)
    await world.command(TARGET, m.HandOver(id, partition, world.made.version(partition), OWNER))
    await world.command(TARGET, m.Abort(id, partition))
    await world.made.swap(partition, OWNER, world.id(partition))
    await world.write(partition)
    await world.made.swap(partition, TARGET, world.id(partition))
    await world.write(partition, TARGET)


async def diverge(world: World) -> None:
    """The target has a tail that nobody else took, and is left out of the row."""
    made, partition = world.made, world.take("owned")
    await world.write(partition, TARGET)
    term = made.version(partition) + 2
    before = (await tablet(made, TARGET, partition)).last
    # Nothing may be under way when the other is fenced: its refusal would tell the target too early.
    await eventually(lambda: tablet(made, OWNER, partition), lambda t: t.committed == before.index)
    await world.command(OWNER, m.Fence(partition, term, True))
    lonely = asyncio.ensure_future(world.write(partition, TARGET, keys=1))
    await eventually(lambda: tablet(made, TARGET, partition), lambda t: t.last > before)
    lonely.cancel()
    await asyncio.gather(lonely, return_exceptions=True)
    await made.members[TARGET].kill()
    await made.accept(OWNER, m.Row(partition, term, (OWNER,)))
    await made.publish()
    await world.write(partition)


async def come_back(world: World) -> None:
    """It rejoins from the log: what nobody else took goes."""
    await world.start_learner(world.used[-1], TARGET)
    await asyncio.sleep(REACHED_SECONDS)


async def interrupted_copy(world: World) -> None:
    """The target dies while it is COPYING."""
    await world.start_copy(world.take("elsewhere"))
    await world.made.members[TARGET].kill()


async def nothing(world: World) -> None:
    """For points of the start itself."""
    await world.made.members[TARGET].kill()


TROUBLE = (aiohttp.ClientError, OSError, AssertionError, TimeoutError)
"""What a step may raise because the target died."""
