"""A member's process: the product's node, commands, exchange and connections on a simulated machine."""

import asyncio
import itertools
from collections.abc import Callable

from stele.core.control.commands import ExchangeReply, ExchangeRequest
from stele.core.formats import SPOKEN, FormatRange
from stele.errors import Conflict, Corrupt, SteleError
from stele.member import limits
from stele.member.node import Node
from stele.member.process import first_id
from stele.member.resp.limits import RespServerLimits
from stele.member.resp.server import RespServer
from stele.member.settings import Settings
from stele.member.storage.disk_full import raise_unless_disk_full
from stele.member.storage.write_back import WriteBack
from stele.ports.transfer import Transfer
from stele.wire.storage.volume import Instance
from tests.fakes.disk import NO_ROOM, Disk, SimVolume
from tests.fakes.loop import Defect, Handle, ProcessLoop
from tests.fakes.network import Network

PEER_PORT = 7000
RESP_PORT = 6379
CLUSTER_PORT = 6380
READ_PORT = 6381
BEGAN_UNIX_SECONDS = 1_800_000_000.0

_numbers = itertools.count(1)


class MemberProcess:
    """One start of a member's container, from opening the volume to its end.

    `ended` is called once, with why, when the process ends by itself.
    """

    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        loop: ProcessLoop,
        transfer: Callable[["MemberProcess"], Transfer],
        ended: Callable[["MemberProcess", str], None],
        *,
        formats: FormatRange = SPOKEN,
    ) -> None:
        self.settings, self.disk, self.loop, self.formats = settings, disk, loop, formats
        self._transfer, self._ended = transfer, ended
        self.place = loop.name
        self.node: Node | None = None
        self.clients: RespServer | None = None
        self._closed = False
        loop.before_slow = disk.before_slow
        loop.create_task(self._run())

    @property
    def network(self) -> Network:
        network: Network = self.loop.network
        return network

    async def _run(self) -> None:
        """What member/process.py does, without signals and HTTP."""
        try:
            await self._start()
        except (OSError, Conflict) as error:
            # A build before the one that has used the volume refuses it.
            self.end(f"cannot start: {error}")
        except Exception as error:
            self.loop.clock.fail(Defect(f"{self.place} cannot start: {error!r}"))
            raise

    async def _start(self) -> None:
        volume, instance = self._open()
        engine = WriteBack(self.disk.engine)
        node = self.node = Node(
            self.settings,
            (volume, instance),
            engine,
            transfer=self._transfer(self),
            failed=self._failed,
            wall=self._wall,
            formats=self.formats,
        )
        budget, pubsub = node.command_executor.turn_budget, node.broadcast.pubsub
        clients = RespServer(node.router, RespServerLimits(), budget, pubsub, first_id=first_id(node.uuid))
        self.clients = clients
        await clients.listen("0.0.0.0", RESP_PORT)
        await clients.listen_cluster("0.0.0.0", CLUSTER_PORT)
        await clients.listen_reads("0.0.0.0", READ_PORT)
        await node.load()
        node.start()
        await self.loop.create_server(node.peers.inbound.accept, "0.0.0.0", PEER_PORT)
        node.background.spawn(self._collect_garbage(node))
        node.exchange.start()

    def _open(self) -> tuple[SimVolume, Instance]:
        volume = self.disk.open()
        volume.check_features(self.formats)
        try:
            instance = volume.load_instance(self.settings.cluster, self._new_uuid())
        except Corrupt as error:
            volume.quarantine_volume(str(error))
            instance = volume.load_instance(self.settings.cluster, self._new_uuid())
        volume.make_database()
        return volume, instance

    def _new_uuid(self) -> str:
        return f"uuid-{self.place}-{self.loop.clock.random.getrandbits(32):08x}"

    async def _collect_garbage(self, node: Node) -> None:
        while True:
            await asyncio.sleep(limits.GC_INTERVAL_SECONDS)
            try:
                await node.migrations.collect_garbage()
                await node.sessions.collect_garbage()
            except (OSError, SteleError) as error:
                raise_unless_disk_full(error)

    def _wall(self) -> float:
        return BEGAN_UNIX_SECONDS + self.loop.clock.now + self.loop.wall_seconds

    def _failed(self, reason: str) -> None:
        """The product ends its process for what it cannot repair: here only errors of the disk, and a log
        that takes nothing any more although there is room again.
        """
        if "simulated error of the disk" not in reason and NO_ROOM not in reason:
            self.loop.clock.fail(Defect(f"{self.place}: {reason}"))
        self.loop.clock.soon(Handle(None, self.end, (reason,)))

    # -- the end

    def end(self, reason: str, *, power_lost: bool = False) -> None:
        """Whatever it was doing, it does no more."""
        if not self.loop.alive:
            return
        begun = self.loop.kill()
        self.disk.crash(begun, power_lost=power_lost)
        self.network.place_gone(self.place)
        self._ended(self, reason)

    async def stop(self, leave_seconds: float = 0.0) -> None:
        """What `stele-member leave` does for so long, and the product after SIGTERM."""
        until = self.loop.time() + leave_seconds
        while (left := until - self.loop.time()) > 0 and self._waits(left):  # noqa: ASYNC110
            await asyncio.sleep(limits.LEAVE_LOOK_SECONDS)
        if self.node is not None:
            await self._answer_clients(self.node)
            await self.node.drain()
            self._closed = True
            if self.clients is not None:
                await self.clients.close()
            self.network.stop_listening((self.place, PEER_PORT))
            async with asyncio.timeout(limits.STOP_SECONDS_MAX):
                await self.node.stop()

    async def _answer_clients(self, node: Node) -> None:
        """Answer what clients on connections have sent."""
        if self.clients is not None and self.clients.sessions():
            self.clients.stop()
            await node.background.until(lambda: not self.clients.busy(), limits.DRAIN_SECONDS_MAX)

    def _waits(self, seconds: float) -> bool:
        """What the member answers its hook."""
        node = self.node
        return node is not None and node.exchange.started and node.planned_stop.announce(seconds).waiting

    # -- its ports

    async def answer(self, request: ExchangeRequest) -> ExchangeReply:
        if self.node is None:
            raise Defect("asked before it listens")
        return await self.node.exchange.handle(request)

    @property
    def listens(self) -> bool:
        return self.loop.alive and self.node is not None and not self._closed
