"""The master's process: the product's loop, world, cache and table store on the simulated API server."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from stele.adapters.kubernetes.api import CLUSTERS, Kind
from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.core.control.commands import ExchangeReply, ExchangeRequest
from stele.core.control.state import State
from stele.core.formats import SPOKEN, FormatRange
from stele.errors import SteleError, Unavailable
from stele.master import manifests
from stele.master.cache import Cache
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.loop import ClusterLoop, Deposed, Pace
from stele.master.settings import Settings
from stele.model import TabletCluster
from stele.ports.control_loop import Members
from stele.wire.control import decode_reply, decode_request, encode
from tests.fakes.api import NAMESPACE, ApiServer, SimApi
from tests.fakes.copier import NoCopier
from tests.fakes.loop import Defect, Handle, ProcessLoop
from tests.fakes.network import REFUSED_SECONDS, Network
from tests.simulation.kubelet import Kubelet

CLUSTER = "demo"
LIST_SECONDS = 8.0
LATE_SECONDS = 0.5
"""A watch event that takes longer counts as late."""
FAILED_SECONDS = 1.0
RESTART_SECONDS = 0.5
PACE = Pace(busy=0.1, idle=0.5, exchange=2.0, gather=0.02, report=1.0, objects=0.5, restart=0.5)
SETTINGS = Settings("member:1", "spark:1", (NAMESPACE,), NAMESPACE, "operator")
BEGAN = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)

Object = dict[str, Any]


class Listeners(NamedTuple):
    """`seen` hears of each answer where it is made: (place, request, reply).

    `heard` hears of each that obeys, where it arrives: (place, epoch, when it was asked for).
    `told` hears of each status as it is sent: (master, kind, what changes).
    `asked` hears of each question as it is sent: by a master of which epoch.
    """

    seen: Callable[[str, ExchangeRequest, ExchangeReply], None]
    heard: Callable[[str, int, float], None]
    told: Callable[["MasterProcess", Kind, Object], None] = lambda master, kind, status: None
    asked: Callable[[int], None] = lambda epoch: None


class SimMembers:
    """ports.Members over the simulated network, in the words that go over the real one."""

    def __init__(self, loop: ProcessLoop, kubelet: Kubelet, listeners: Listeners) -> None:
        self._loop, self._kubelet, self._listeners = loop, kubelet, listeners

    async def exchange(
        self, address: str, request: ExchangeRequest, deadline_seconds: float
    ) -> ExchangeReply:
        loop, network, body = self._loop, self._kubelet.network, encode(request)
        sent = self._kubelet.clock.now
        self._listeners.asked(request.epoch)
        answer = loop.create_future()
        timer = loop.call_later(deadline_seconds, _resolve, answer, None)
        place = network.addresses.get(address, "nowhere")
        network.send(loop.name, place, lambda: self._arrive(address, body, answer), once=False)
        found = await answer
        timer.cancel()
        if found is None:
            raise Unavailable(f"{address}: no answer")
        reply = decode_reply(found)
        if reply.code == "OK":
            self._listeners.heard(place, request.epoch, sent)
        return reply

    def _arrive(self, address: str, body: bytes, answer: "asyncio.Future[bytes | None]") -> None:
        machine = self._kubelet.at_address(address)
        process = None if machine is None else machine.process
        if machine is None or process is None or not process.listens:
            self._kubelet.clock.call_later(REFUSED_SECONDS, self._loop.call_soon, _resolve, answer, None)
            return
        place = machine.place

        async def handle() -> None:
            request = decode_request(body)
            reply = await process.answer(request)
            self._listeners.seen(place, request, reply)
            content = encode(reply)
            back = self._kubelet.network.send
            back(place, self._loop.name, partial(self._loop.call_soon, _resolve, answer, content), back=True)

        self._kubelet.clock.soon(Handle(process.loop, lambda: process.loop.create_task(handle()), ()))


def _resolve(answer: Any, value: bytes | None) -> None:
    if not answer.done():
        answer.set_result(value)


class MasterProcess:
    """One start of the operator's container; there may be several at a time, and only one leads."""

    pace = PACE
    list_seconds = LIST_SECONDS

    def __init__(
        self,
        network: Network,
        server: ApiServer,
        kubelet: Kubelet,
        name: str,
        listeners: Listeners,
        *,
        spoken: FormatRange = SPOKEN,
    ) -> None:
        self._spoken = spoken
        self.loop = ProcessLoop(network.clock, name, network)
        self.cache = Cache(self._changed)
        self._server = server
        self._api = SimApi(server, self.loop)
        self._api.told = partial(listeners.told, self)
        self._members: Members = SimMembers(self.loop, kubelet, listeners)
        self._clock = network.clock
        self.cluster: ClusterLoop | None = None
        self.over = ""
        self.ended: Callable[[], None] = lambda: None
        server.changed.append(self._event)
        self.loop.create_task(self._run())

    @property
    def state(self) -> State | None:
        return None if self.cluster is None else self.cluster.state

    @property
    def leads(self) -> bool:
        return self.loop.alive and not self.over

    def kill(self) -> None:
        if not self.loop.alive:
            return
        self.over = self.over or "killed"
        self.loop.kill()
        self._server.changed.remove(self._event)
        self.ended()

    # -- what supervisor.py does, for one cluster

    async def _run(self) -> None:
        self.loop.create_task(self._list())
        while not self.over:
            found = self.cache.get(CLUSTERS, NAMESPACE, CLUSTER)
            if found is None:
                await asyncio.sleep(0.1)
                continue
            cluster = TabletCluster.read(found)
            assert isinstance(cluster, TabletCluster), cluster
            self.cluster = self._loop_of(cluster)
            await self._leadership(self.cluster)
            await asyncio.sleep(FAILED_SECONDS)

    async def _leadership(self, cluster: ClusterLoop) -> None:
        try:
            await cluster.run()
        except Deposed as error:
            # Another process has the Lease by then: this one ends, and its container starts again.
            self.over = str(error)
            self._clock.call_later(RESTART_SECONDS, self.kill)
        except SteleError as error:
            if error.code in ("CORRUPT", "ILLEGAL_STATE"):
                self._clock.fail(Defect(f"{self.loop.name}: {error}"))
        except Exception as error:
            self._clock.fail(Defect(f"{self.loop.name}: {error!r}"))
            raise
        finally:
            await cluster.close()

    def _loop_of(self, cluster: TabletCluster) -> ClusterLoop:
        marks = manifests.labels(CLUSTER, "table")
        api: Any = self._api
        owner = manifests.owned_by_cluster(cluster)
        store = KubernetesTableStore(api, NAMESPACE, CLUSTER, owner, marks)
        now, spoken = self.loop.time, self._spoken
        world = KubernetesClusterObjects(api, self.cache, SETTINGS, cluster, self._wall, now=now)
        return ClusterLoop(store, self._members, world, NoCopier(), now=now, pace=self.pace, spoken=spoken)

    def _wall(self, seconds: float) -> datetime:
        return BEGAN + timedelta(seconds=seconds + self.loop.wall_seconds)

    # -- what watches and lists bring

    async def _list(self) -> None:
        while True:
            try:
                for kind in self._server.kinds:
                    before = self.cache.newest()
                    self.cache.replace(kind, NAMESPACE, await self._api.list(kind, NAMESPACE), before)
            except SteleError:
                await asyncio.sleep(1.0)
                continue
            await asyncio.sleep(self.list_seconds)

    def _event(self, kind: Kind, stored: Object, gone: bool) -> None:
        """Events come late, may be forgotten, and may come again."""
        if kind not in self._server.kinds:
            return
        faults, random = self._server.faults, self._clock.random
        if random.random() < faults.watch_lost:
            self._server.count("watch event lost")
            return
        self._deliver(random.random() * faults.watch_seconds, kind, stored, gone)
        if random.random() < faults.watch_repeated:
            self._server.count("watch event repeated")
            self._deliver(random.random() * 3.0, kind, stored, gone)

    def _deliver(self, seconds: float, kind: Kind, stored: Object, gone: bool) -> None:
        if seconds > LATE_SECONDS:
            self._server.count("watch late")
        take = self.cache.remove if gone else self.cache.put
        self._clock.later(seconds, Handle(self.loop, take, (kind, stored)))

    def _changed(self, kind: Kind, stored: Object) -> None:
        if self.cluster is not None:
            self.cluster.wake()
