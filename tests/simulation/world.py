"""One simulated cluster: machines, an API server, masters and clients, made from a seed and a profile."""

import logging
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stele.adapters.kubernetes.api import CLUSTERS, CONFIG_MAPS, KEYSPACES, Kind
from stele.core.control.commands import ExchangeReply, ExchangeRequest
from stele.core.table.table import Partition, PartitionTable
from stele.master.watch import WATCHED
from stele.member.settings import Settings
from stele.wire.configmap import Head, decode_head, decode_shard
from tests.fakes.api import ApiServer
from tests.fakes.loop import Clock
from tests.fakes.network import Network
from tests.fakes.objects import body
from tests.simulation.async_clients import AsyncClient
from tests.simulation.asynchronous import Lists, OwnersLost
from tests.simulation.bank import Bank
from tests.simulation.clients import Client, Keys
from tests.simulation.cluster_clients import ClusterClient
from tests.simulation.crashes import points_told
from tests.simulation.expiring_clients import ExpiringClient
from tests.simulation.group_clients import SPECS, GroupClient, GroupKeys, own_partition
from tests.simulation.invalidations import Told
from tests.simulation.kinds import DECLARE
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.local_clients import KEYSPACE, SPEC, LocalClient, Source
from tests.simulation.master import CLUSTER, Listeners, MasterProcess
from tests.simulation.nodes import Nodes
from tests.simulation.profile import Profile
from tests.simulation.redis_clients import RedisClient
from tests.simulation.resp_subscribers import RespSubscribers
from tests.simulation.subscribers import Subscribers
from tests.simulation.trace import Trace
from tests.simulation.tracking_clients import TrackingClient
from tests.simulation.transfer_clients import TransferClient

SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())

C = TypeVar("C", bound=Client)


class World:
    """Nothing happens in it before `clock.run`. Use it as a context manager: it keeps a folder.

    `away` is the place of a member that stays away for good, "" for nobody; `surplus` says whether there were
    more members than desired, so that it may be the one that leaves. `stack` ends with the world. `operator`
    is what the build of masters speaks that start. `given_up` are partitions all of whose copies were.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.clock = Clock(profile.seed)
        self.trace = Trace(self.clock)
        self.network = Network(self.clock)
        self.api = ApiServer(self.clock, self.network)
        if DECLARE in profile.faults or profile.local_clients or profile.group_clients:
            self.api.kinds = WATCHED
        self.folder = Path(tempfile.mkdtemp(prefix="stele-simulation-", dir=SCRATCH))
        self.trace.folder = str(self.folder)
        self.kubelet = Kubelet(self.clock, self.network, self.api, self.folder, self._settings)
        self.kubelet.nodes = Nodes(self.api, self.kubelet, profile.volumes) if profile.volumes else None
        self.operator = self.kubelet.image = profile.build
        self.masters: list[MasterProcess] = []
        self.keys = Keys(self.clock, profile)
        self.clients: list[Client] = []
        self.redis_clients: list[RedisClient] = []
        self.cluster_clients: list[ClusterClient] = []
        self.expiring_clients: list[ExpiringClient] = []
        self.transfer_clients: list[TransferClient] = []
        self.async_clients: list[AsyncClient] = []
        self.group_clients: list[GroupClient] = []
        """One of each keyspace."""
        self.lists = Lists()
        self.owners_lost = OwnersLost(self.rows, lambda: self.clock.now)
        self.bank = Bank(apart=profile.apart, written_back=profile.written_back)
        self.invalidations = Told()
        self.subscribers: Subscribers | None = None
        self.exchanged: list[Any] = []
        self._cluster: dict[str, Any] = {}
        self._decoded: tuple[str, tuple[Partition, ...]] = "", ()
        self.told: list[Callable[[MasterProcess, Kind, dict[str, Any]], None]] = []
        self.heard: list[Callable[[str, int, float], None]] = []
        self.asked: list[Callable[[int], None]] = []
        self.reached: Callable[[str], None] = lambda name: None
        self.given_up: set[int] = set()
        self.away, self.surplus = "", False
        self.stack = ExitStack()
        self.kubelet.watch = self._noted
        self.network.count = self.api.count = self.trace.fault
        self._logger = logging.getLogger("stele")

    def __enter__(self) -> "World":
        self.stack.enter_context(points_told(self.clock, self._reached))
        self._logger.addHandler(self.trace)
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self.api.create(CLUSTERS, self.profile.cluster_object())
        self.start_master()
        for number in range(self.profile.clients):
            name = f"client-{number}"
            self.clients.append(Client(name, self.network, self.kubelet, self.keys, self.trace))
        self._start_redis_clients()
        if self.profile.listens:
            make = RespSubscribers if self.profile.resp_subscribers else Subscribers
            self.subscribers = make(self.network, self.kubelet.reached, self.keys)
        return self

    def _start_redis_clients(self) -> None:
        profile = self.profile
        self.redis_clients = self._start(RedisClient, "redis", profile.redis_clients)
        self.cluster_clients = self._start(ClusterClient, "cluster", profile.cluster_clients)
        self.expiring_clients = self._start(ExpiringClient, "expiring", profile.expiring_clients)
        if profile.async_clients:
            self.exchanged.append(self.owners_lost.exchanged)
            self.api.changed.append(self.owners_lost.stored)
            make_async = partial(AsyncClient, lists=self.lists, backups=profile.replicas - 1)
            self.async_clients = self._start(make_async, "async", profile.async_clients)
        make_transfer = partial(TransferClient, bank=self.bank)
        self.transfer_clients = self._start(make_transfer, "transfer", profile.transfer_clients)
        if profile.local_clients:
            spec = {"cluster": CLUSTER, "ttl": 0, **SPEC}
            self.api.create(KEYSPACES, body(KEYSPACES, KEYSPACE, spec))
            make_local = partial(LocalClient, source=Source())
            self._start(make_local, "local", profile.local_clients)
        if profile.group_clients:
            self._start_group_clients()
        if profile.tracking_clients:
            self.stack.enter_context(self.invalidations.watching())
            make = partial(TrackingClient, told=self.invalidations)
            self._start(make, "tracking", profile.tracking_clients)

    def _start_group_clients(self) -> None:
        self.keys.own = partial(own_partition, self)
        for keyspace, spec in SPECS.items():
            wanted = body(KEYSPACES, keyspace, {"cluster": CLUSTER, "ttl": 0, **spec})
            self.clock.call_later(self.profile.declared_seconds, partial(self.api.create, KEYSPACES, wanted))
            keys = GroupKeys(self.clock, self.profile, keyspace, self.keys.histories)
            keys.own = self.keys.own
            parts = self.network, self.kubelet, keys, self.trace
            made = [GroupClient(f"client-{keyspace}-{n}", *parts) for n in range(self.profile.group_clients)]
            self.group_clients.append(made[0])
            self.clients += made

    def _start(self, make: Callable[..., C], kind: str, count: int) -> list[C]:
        parts = self.network, self.kubelet, self.keys, self.trace
        made = [make(f"client-{kind}-{number}", *parts) for number in range(count)]
        self.clients += made
        return made

    def __exit__(self, *_: object) -> None:
        for machine in self.kubelet.machines.values():
            if machine.process is not None:
                machine.process.loop.kill()
            if machine.transfer is not None:
                machine.transfer.end()
        for master in self.masters:
            master.kill()
        for client in self.clients:
            client.stop()
        if self.subscribers is not None:
            self.subscribers.stop()
        self.stack.close()
        self._logger.removeHandler(self.trace)
        self._logger.setLevel(self._before[0])
        self._logger.propagate = self._before[1]
        shutil.rmtree(self.folder, ignore_errors=True)

    def _reached(self, name: str) -> None:
        self.reached(name)

    # -- processes

    def _settings(self, place: str) -> Settings:
        profile = self.profile
        return Settings(
            data_dir=Path(place),
            cluster=self.volumes_uid,
            name=place,
            heartbeat_ms=int(profile.heartbeat_seconds * 1000),
            lease_ms=int(profile.lease_seconds * 1000),
            retention_seconds=profile.retention_seconds,
            fsync=profile.fsync,
        )

    def missed(self) -> str:
        """The member that stays away, while it is one; "" for nobody."""
        names = {member.name for member in self.table().members.values()}
        return "" if self.surplus and self.away not in names else self.away

    def present(self) -> list[Machine]:
        """Those that run, without the one that is missed."""
        missed = self.missed()
        return [each for each in self.kubelet.running() if each.place != missed]

    def start_master(self) -> MasterProcess:
        name = f"master-{len(self.masters)}"
        self.trace.note(name, "starts")
        listeners = Listeners(self._exchanged, self._heard, self._told, self._asked)
        made = MasterProcess(self.network, self.api, self.kubelet, name, listeners, spoken=self.operator)
        self.masters.append(made)
        made.ended = self._master_ended
        return made

    def _master_ended(self) -> None:
        self.clock.call_later(self.clock.random.uniform(0.1, 5.0), self.ensure_master)

    def ensure_master(self) -> None:
        """A container that ended is started again; one that a second master replaced stays away."""
        if self.master is None:
            self.start_master()

    @property
    def master(self) -> MasterProcess | None:
        """The newest that runs."""
        return next((each for each in reversed(self.masters) if each.leads), None)

    def _exchanged(self, place: str, request: ExchangeRequest, reply: ExchangeReply) -> None:
        for each in self.exchanged:
            each(place, request, reply)

    def _heard(self, place: str, epoch: int, sent: float) -> None:
        for each in self.heard:
            each(place, epoch, sent)

    def _asked(self, epoch: int) -> None:
        for each in self.asked:
            each(epoch)

    def _told(self, master: MasterProcess, kind: Kind, status: dict[str, Any]) -> None:
        for each in self.told:
            each(master, kind, status)

    def _noted(self, machine: Machine, what: str) -> None:
        self.trace.note(machine.place, what)

    # -- what is stored

    @property
    def cluster(self) -> dict[str, Any]:
        """As it is stored, or was when it was deleted."""
        self._cluster = self.api.find(CLUSTERS, CLUSTER) or self._cluster
        return self._cluster

    @property
    def volumes_uid(self) -> str:
        """The UID that the cluster's volumes have: that of the first cluster."""
        bootstrap = self.cluster["spec"].get("bootstrap")
        return str(bootstrap["volumes"]["clusterUID"] if bootstrap else self.cluster["metadata"]["uid"])

    def head(self) -> Head | None:
        stored = self.api.find(CONFIG_MAPS, f"{CLUSTER}-table")
        return None if stored is None else decode_head(stored["data"])

    def rows(self) -> tuple[Partition, ...]:
        """The stored table; empty before there is one. One shard is enough for what is simulated.

        The rows of a group are stored, empty, before it is.
        """
        stored, head = self.api.find(CONFIG_MAPS, f"{CLUSTER}-table-0"), self.head()
        if stored is None:
            return ()
        count = self.profile.partitions if head is None else head.rows
        version = stored["metadata"]["resourceVersion"]
        if (version, count) != (self._decoded[0], len(self._decoded[1])):
            self._decoded = version, decode_shard(stored["data"], 0, count).rows
        return self._decoded[1]

    def table(self) -> PartitionTable:
        head = self.head()
        if head is None:
            return PartitionTable(self.rows(), {})
        return PartitionTable(self.rows(), {each.index: each for each in head.members}, head.groups)
