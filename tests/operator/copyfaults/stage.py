"""One cluster for all faults: real operator, members, transfer processes, copier, and clients that write."""

import asyncio
import contextlib
import hashlib
import itertools
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from e2e.bench.member_stage import free_ports
from e2e.cluster.control_plane import ControlPlane
from e2e.demo import verify
from e2e.demo.clients import Clients, config_of, ledger_of
from e2e.demo.judge import Hashes, by_partition
from e2e.demo.loader import load
from e2e.demo.resp import Endpoint
from e2e.demo.settings import LEDGER_KEYSPACE
from e2e.demo.workload import hash_of
from stele.adapters.kubernetes.api import CLUSTERS, EVENTS, REBALANCES, Api
from stele.adapters.kubernetes.login import log_in
from tests.fakes.objects import body
from tests.operator.copyfaults.kubelet import FaultKubelet
from tests.operator.copyfaults.wire import Touch, Wire
from tests.operator.test_operator import Operator, Stage, cluster

TRANSFER_PORT, RESP_PORT, ADMIN_PORT = 7002, 6379, 7001
KEYSPACE = "bulk"
ENTRIES, VALUE_BYTES = 2_400, 16_384
"""About 1.2 MB for each of 31 partitions: three blocks, and more than an owner sends from its log."""
DISK_BYTES = 640 << 20
LEASE_SECONDS = 4.0
# Leases that end while a test waits, and Spark is given another chance at once.
SOON = (
    "import stele.core.control.operations.copy_session as w; "
    f"w.SESSION_LEASE_SECONDS, w.RENEW_SECONDS, w.SPARK_PATIENCE_SECONDS = {LEASE_SECONDS}, 1.0, 0.5"
)
RUN = "faults"
SMALL_DISK = "demo-2"

Status = dict[str, Any]


class FaultStage(Stage):
    """Moves replicas by TabletRebalances, one wave each, and knows what must be true whatever struck."""

    kubelet: FaultKubelet
    wire: Wire
    clients: Clients
    directory: Path
    endpoint: Endpoint

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._moves = itertools.count(1)
        self.fewest: dict[int, int] = {}
        self.member_died = False
        self._http = aiohttp.ClientSession()

    # -- moves

    async def plan(self, *, destination: str | None = None, tablets: int = 1) -> "Move":
        """Backups of one owner that shall go from one member to another, and as many the other way.

        So the cluster stays balanced, and the master moves nothing besides. None is left where it shall go:
        that would come up to date from the log.
        """
        await self.until_converged(3)
        await self.until("tablets as the rows say", self.nothing_doubled)
        ways: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
        for number, row in enumerate((await self.rows()).rows):
            owner, backup = row.replicas
            (third,) = {0, 1, 2} - {owner, backup}
            ways[owner, backup, third].append(number)
        for (owner, giver, taker), there in ways.items():
            back = ways[owner, taker, giver]
            if min(len(there), len(back)) >= tablets and destination in (None, f"demo-{taker}"):
                return Move(self, (owner, giver, taker), there[:tablets], back[:tablets])
        raise AssertionError(f"no {tablets} partitions can change places: {dict(ways)}")

    def new_number(self) -> int:
        return next(self._moves)

    async def events(self) -> set[tuple[str, str]]:
        return {(each["reason"], each["message"]) for each in await self.api.list(EVENTS, self.namespace)}

    async def safe(self) -> bool:
        """Whether every partition has its two copies, as the status says."""
        status = (await self.cluster()).get("status") or {}
        conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
        return conditions.get("ReplicationSatisfied") == "True"

    async def start_operator(self) -> None:
        await self.operator.start(SOON)

    async def restart_operator(self, before: str = "pass") -> None:
        """Kill it, and let the next run a statement of Python first."""
        await self.operator.end(signal.SIGKILL)
        await self.operator.start(f"{SOON}; {before}")

    async def kill_member(self, name: str) -> None:
        """Rows may do without it until the cluster has converged again."""
        self.member_died = True
        await self.kubelet.kill(name, 0.2)

    async def until_converged(self, members: int) -> None:
        await super().until_converged(members)
        self.member_died = False

    # -- what must be true

    async def watch_rows(self) -> None:
        """Note the fewest replicas that each partition ever had in what was stored; until cancelled."""
        while True:
            rows = (await self.rows()).rows
            if not self.member_died:
                for number, row in enumerate(rows):
                    self.fewest[number] = min(len(row.members), self.fewest.get(number, 99))
            await asyncio.sleep(0.05)

    def left_behind(self) -> list[str]:
        """Folders of sessions and their checkpoints, at any member."""
        folders = [
            path
            for name in self.kubelet.running()
            for part in ("staging", "checkpoints")
            for path in (self.directory / name / part).glob("*")
        ]
        return [str(path.relative_to(self.directory)) for path in folders]

    async def nothing_left(self) -> None:
        async def clean() -> bool:
            return not self.left_behind()

        try:
            await self.until("a sweep of all that copies left", clean)
        except AssertionError:
            raise AssertionError(f"left behind: {self.left_behind()}") from None

    async def nothing_doubled(self) -> bool:
        """Whether tablets live exactly at the members that their rows name."""
        rows = (await self.rows()).rows
        for member, address in self.kubelet.running().items():
            async with self._http.get(f"http://{address}:{ADMIN_PORT}/v1/tablets") as answer:
                told = (await answer.json())["tablets"]
            held = {each["partition"] for each in told if each["state"] in ("READY", "COPYING")}
            if held != {p for p, row in enumerate(rows) if int(member.split("-")[1]) in row.members}:
                return False
        return True

    async def hashes(self, member: str, partition: int, keyspace: str) -> Hashes:
        """See verify.ReplicaReader."""
        url = f"http://{self.kubelet.addresses[member]}:{ADMIN_PORT}/v1/digest"
        async with self._http.get(url, params={"partition": partition, "keyspace": keyspace}) as answer:
            return verify.parse_digest(await answer.text())

    async def close(self) -> None:
        await self._http.close()


class Move:
    """A user's plan: backups change places between `giver` and `destination`."""

    def __init__(
        self, stage: FaultStage, way: tuple[int, int, int], there: list[int], back: list[int]
    ) -> None:
        """`way`: the owner of all of them, who gives up and who gets the partitions `there`."""
        self._stage, self.name = stage, f"move-{stage.new_number()}"
        _, self._giver, self._taker = way
        self.giver, self.destination = f"demo-{self._giver}", f"demo-{self._taker}"
        self.partitions, self._back = there, back

    async def start(self) -> None:
        """Ask for it."""
        moves = [{"partition": p, "from": self.giver, "to": self.destination} for p in self.partitions]
        moves += [{"partition": p, "from": self.destination, "to": self.giver} for p in self._back]
        plan = body(REBALANCES, self.name, {"cluster": "demo", "moves": moves})
        await self._stage.api.create(REBALANCES, self._stage.namespace, plan)

    def at(self, block: int, strike: Touch) -> asyncio.Event:
        """Let `strike` have the block of that number, of those that this plan moves."""
        return self._stage.wire.at(block, strike, self.partitions)

    async def survives(self, strike: Touch, engine: str | None = None) -> None:
        """Let `strike` have the second block; the move is committed all the same, by that engine if named."""
        struck = self.at(2, strike)
        status = await self.done()
        assert struck.is_set()
        assert engine in (None, status["engine"]), status

    async def status(self) -> Status:
        found = await self._stage.api.get(REBALANCES, self._stage.namespace, self.name)
        status: Status = found.get("status") or {}
        return status

    async def done(self) -> Status:
        """Ask for it when nobody did; wait for its commit, after which the rows are as it asked."""
        if await self._stage.api.find(REBALANCES, self._stage.namespace, self.name) is None:
            await self.start()

        async def over() -> bool:
            return (await self.status()).get("phase") in ("Done", "Failed")

        await self._stage.until(f"the end of {self.name}", over)
        assert not self._stage.wire.errors, self._stage.wire.errors
        status = await self.status()
        assert status["phase"] == "Done", status
        rows = (await self._stage.rows()).rows
        for partition in self.partitions:
            members = rows[partition].members
            assert self._taker in members, (partition, members)
            assert self._giver not in members, (partition, members)
        await self._forget()
        return status

    async def _forget(self) -> None:
        """Let nothing hold the replicas where they are now."""
        found = await self._stage.api.get(REBALANCES, self._stage.namespace, self.name)
        await self._stage.api.delete(REBALANCES, self._stage.namespace, self.name, found["metadata"]["uid"])

    async def cancel(self) -> Status:
        """Undo it; wait for the end."""
        await self._stage.api.patch_spec(
            REBALANCES, self._stage.namespace, self.name, {"cancel": True, "rollBack": True}
        )

        async def over() -> bool:
            return (await self.status()).get("phase") in ("Done", "Failed", "Superseded")

        await self._stage.until(f"the end of {self.name}", over)
        status = await self.status()
        await self._forget()
        return status


def value_of(key: bytes) -> bytes:
    return hashlib.shake_128(key).digest(VALUE_BYTES)


class Service:
    """Gives each connection of a client to the next member that takes it, as a Service does."""

    def __init__(self, kubelet: FaultKubelet) -> None:
        self._kubelet = kubelet
        self._turn = itertools.count()
        self._server: asyncio.Server | None = None

    async def start(self) -> Endpoint:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        members = list(self._kubelet.running().values())
        for _ in members:
            with contextlib.suppress(OSError):
                there, onward = await asyncio.open_connection(
                    members[next(self._turn) % len(members)], RESP_PORT
                )
                await asyncio.gather(_pump(reader, onward), _pump(there, writer))
                return
        writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()


@contextlib.contextmanager
def small_disk(folder: Path) -> Any:
    """A file system of its own for one volume, where this user may mount one."""
    folder.mkdir()
    if os.geteuid() != 0:
        yield False
        return
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "stele-test", str(folder)], check=False
    )
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


@asynccontextmanager
async def staged(plane: ControlPlane, namespace: str, directory: Path) -> AsyncIterator[FaultStage]:
    """The cluster, converged, with data and clients; members and copier end with the block."""
    wire = Wire(TRANSFER_PORT)
    async with Api(await log_in(str(plane.kubeconfig))) as api:
        spec = {"engine": "Spark"}
        made = cluster("demo", 3, migration=spec, spark={"executors": 1, "cores": 1, "idleSeconds": 60})
        # A busy machine is no fault: what is told of a container that ended is known without a lease.
        made["spec"]["failureDetection"] |= {"leaseSeconds": 6, "rejoinGracePeriodSeconds": 120}
        await api.create(CLUSTERS, namespace, made)
        operator = Operator(plane, namespace, directory, free_ports(1)[0])
        async with FaultKubelet(api, namespace, directory, wire) as kubelet:
            stage = FaultStage(api, namespace, kubelet, operator)
            stage.wire, stage.directory = wire, directory
            await stage.start_operator()
            service = Service(kubelet)
            try:
                await stage.until_converged(3)
                stage.endpoint = await service.start()
                pairs = ((key, value_of(key)) for key in map(b"bulk:%d".__mod__, range(ENTRIES)))
                await load(stage.endpoint, KEYSPACE, pairs, lambda _: None)
                async with clients(stage):
                    yield stage
            finally:
                await service.close()
                await operator.end(signal.SIGKILL)
                await stage.close()
    await wire.close()


@asynccontextmanager
async def clients(stage: FaultStage) -> AsyncIterator[None]:
    config = config_of(stage.endpoint, stage.directory, RUN, clients=4, rate=100.0)
    stage.clients = Clients(config, stage.directory)
    await stage.clients.start()
    watcher = asyncio.create_task(stage.watch_rows())
    try:
        yield
    finally:
        watcher.cancel()
        await stage.clients.kill()


async def verified(stage: FaultStage) -> tuple[dict[str, Any], Any, list[Any]]:
    """What the clients saw, the comparison of all replicas, and what the ledger says that breaks a rule."""
    result = await stage.clients.stop()
    ledger = ledger_of(stage.directory)
    shard = await stage.rows()
    rows = tuple(tuple(f"demo-{m}" for m in row.replicas if m is not None) for row in shard.rows)
    bulk = {key: frozenset((hash_of(value_of(key)),)) for key in map(b"bulk:%d".__mod__, range(ENTRIES))}
    wanted = verify.expected({}, 0, ledger, RUN, len(rows))
    wanted = {KEYSPACE: by_partition(bulk, len(rows)), LEDGER_KEYSPACE: wanted[LEDGER_KEYSPACE]}
    tally = await verify.ReplicaCheck(stage, verify.Table(rows), wanted, lambda _: None).run()  # type: ignore[arg-type]
    return result, tally, await verify.read_ledger(stage.endpoint, ledger)
