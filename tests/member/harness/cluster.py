"""A small master for tests: speaks exchange to real member processes on 127.0.0.x, and nothing else.

It keeps the table in memory and drives one step at a time, so that a test can stop between any two.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from e2e.bench.member_stage import free_ports
from stele.adapters.tls.identity import TlsIdentity
from stele.core.control import commands as m
from stele.core.control.member_settings import MemberSettings
from stele.core.formats import FIRST, GROUPS, KEYSPACES
from stele.core.kv.keyslot import partition_of
from stele.core.kv.keyspaces import Catalog, Reads, Settings
from stele.core.placement.migration import swapped
from stele.core.security.level import InternalTls
from stele.core.table.groups import NO_GROUPS
from stele.core.table.table import Replicas
from stele.wire import control as wire
from tests.member.harness.clients import Client
from tests.member.harness.forked import Forked, fork_server
from tests.worker import WORKER

CLUSTER = "11111111-2222-3333-4444-555555555555"
WAIT_SECONDS = 30.0
ASK_AGAIN_SECONDS = 0.01
_hosts = count(2)
T = TypeVar("T")
HASTY = {
    "LIMITS": json.dumps(
        {
            "FLUSH_SECONDS": 0.2,
            "LOG_RETAINED_BYTES": 0,
            "GC_INTERVAL_SECONDS": 0.3,
            "RECONNECT_SECONDS_MAX": 0.2,
        }
    )
}
"""For the environment of members whose periods are not what is looked at."""
Process = Forked | asyncio.subprocess.Process


@dataclass
class MemberProcess:
    """One member as a process; `start` after `kill` is a restart on the same volume.

    `source` is where the modules of its build are, None for this one.
    """

    index: int
    host: str
    folder: Path
    ports: list[int]
    env: dict[str, str] = field(default_factory=dict)
    process: Process | None = None
    transfer: Process | None = None
    uuid: str = ""
    source: Path | None = None

    def environment(self) -> dict[str, str]:
        resp, peer, admin, transfer, metrics, cluster, read = self.ports
        return {
            **os.environ,
            "STELE_DATA_DIR": str(self.folder),
            "STELE_CLUSTER_UID": CLUSTER,
            "STELE_MEMBER_NAME": f"m{self.index}",
            "STELE_BIND": self.host,
            "STELE_RESP_PORT": str(resp),
            "STELE_CLUSTER_PORT": str(cluster),
            "STELE_READ_PORT": str(read),
            "STELE_PEER_PORT": str(peer),
            "STELE_ADMIN_PORT": str(admin),
            "STELE_TRANSFER_PORT": str(transfer),
            "STELE_METRICS_PORT": str(metrics),
            "STELE_HEARTBEAT_MS": "50",
            "STELE_LEASE_MS": "500",
            **self.env,
        }

    async def start(self, **extra: str) -> None:
        """With `extra` in its environment, this time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        env = {**self.environment(), **extra}
        self.process = fork_server(self.source).fork("member", env, self.folder.parent / f"m{self.index}.log")

    async def start_transfer(self) -> None:
        log = self.folder.parent / f"t{self.index}.log"
        self.transfer = fork_server(self.source).fork("transfer", self.environment(), log)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def kill(self) -> None:
        await _end(self.process, signal.SIGKILL)
        self.process = None

    async def stop(self) -> int:
        """End politely; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return await self.process.wait()

    async def close(self) -> None:
        await _end(self.process, signal.SIGKILL)
        await _end(self.transfer, signal.SIGKILL)

    def log(self) -> str:
        return (self.folder.parent / f"m{self.index}.log").read_text()


async def _end(process: Process | None, number: signal.Signals) -> None:
    if process is not None and process.returncode is None:
        process.send_signal(number)
        await process.wait()


class RefusedError(AssertionError):
    """A member refused an exchange."""


class Cluster:
    """Members, and the master's side of the protocol. `rows` is what the master stored, `orders` what each
    member was last told to do; members that are added run the build at `source`, None for this one, and have
    their certificates in folders below `tls`, by their name, and the master has one in `master`.
    """

    def __init__(self, folder: Path, partitions: int, replicas: int, env: dict[str, str]) -> None:
        self.folder = folder
        self.partitions = partitions
        self.replicas = replicas
        self.env = env
        self.ports = free_ports(7)
        self.members: dict[int, MemberProcess] = {}
        self.rows: dict[int, m.Row] = {}
        self.epoch = 1
        self.settings: MemberSettings | None = None
        self.without_copy: tuple[int, ...] | None = None
        self.features = FIRST
        self.catalog: Catalog | None = None
        self.over_quota: tuple[str, ...] | None = None
        self.groups = NO_GROUPS
        self.source: Path | None = None
        self.tls: Path | None = None
        self.orders: dict[int, m.Command] = {}
        self.state = "Active"
        self.lite: set[int] = set()
        self.may_stop: set[int] = set()
        self.left: set[int] = set()
        self.list_version = 0
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20))
        self._ids = count(1)
        self.clients: list[Client] = []

    # -- members

    async def add(self) -> MemberProcess:
        """Start a member and put it into the dictionary."""
        index = len(self.members)
        member = MemberProcess(
            index, f"127.0.{WORKER}.{next(_hosts) % 200 + 2}", self.folder / f"m{index}", self.ports, self.env
        )
        member.source = self.source
        if self.tls is not None:
            member.env = {**self.env, "STELE_TLS_DIR": str(self.tls / f"m{index}")}
        await member.start()
        reply = await self.hello(member)
        member.uuid = reply.uuid
        self.members[index] = member
        self.list_version += 1
        return member

    async def restart(self, index: int) -> None:
        """Kill it, start it on its volume, and wait until it answers."""
        await self.members[index].kill()
        await self.members[index].start()
        await self.hello(self.members[index])

    async def hello(self, member: MemberProcess) -> m.ExchangeReply:
        """First contact, as soon as the process answers."""
        request = m.ExchangeRequest(format=self.features, cluster=CLUSTER, epoch=self.epoch, recipient="")
        return await eventually(lambda: self.post(member, request), lambda reply: reply.code == "OK")

    async def post(self, member: MemberProcess, request: m.ExchangeRequest) -> m.ExchangeReply:
        place, more = f"{member.host}:{member.ports[2]}", {}
        if self.settings is not None and (self.settings.member_tls or InternalTls.OFF).dials_tls:
            await asyncio.to_thread(self.master.look)
            assert self.master.contexts is not None
            more = {"ssl": self.master.contexts.dialling}
        url = f"{'https' if more else 'http'}://{place}/v1/exchange"
        async with self.http.post(url, data=wire.encode(request), **more) as response:
            return wire.decode_reply(await response.read())

    @cached_property
    def master(self) -> TlsIdentity:
        """The master's certificate, in the folder of that name."""
        assert self.tls is not None
        return TlsIdentity(self.tls / "master")

    def plain_request(self, index: int) -> m.ExchangeRequest:
        """What the master tells a member of the others, without rows."""
        return m.ExchangeRequest(
            format=self.features,
            cluster=CLUSTER,
            epoch=self.epoch,
            recipient=self.members[index].uuid,
            self_index=index,
            partitions=self.groups.end(self.partitions),
            replicas=self.replicas,
            member_list_version=self.list_version,
            members=self.dictionary(),
        )

    async def exchange(
        self, index: int, *commands: m.Command, rows: Iterable[m.Row] | None = None, want: bool = False
    ) -> m.ExchangeReply:
        """One tick for one member, with the whole table unless `rows` are given."""
        request = msgspec.structs.replace(
            self.plain_request(index),
            state=self.state,
            rows=tuple(self.rows.values() if rows is None else rows),
            full=rows is None,
            commands=commands,
            want_tablets=want,
            may_stop=index in self.may_stop,
            settings=self.settings,
            without_copy=self.without_copy,
            catalog=self.catalog,
            over_quota=self.over_quota,
            groups=self.groups if self.groups.version else None,
            groups_version=self.groups.version,
        )
        reply = await eventually(
            lambda: self.post(self.members[index], request),
            lambda made: made.code != "STARTING" and not made.adopting,
        )
        if reply.code != "OK":
            raise RefusedError(f"member {index}: {reply.code}: {reply.detail}")
        return reply

    def dictionary(self) -> tuple[m.MemberInfo, ...]:
        return tuple(
            m.MemberInfo(i, f"m{i}", p.uuid, p.host, i in self.lite)
            for i, p in self.members.items()
            if i not in self.left
        )

    async def command(self, index: int, command: m.Command) -> m.Result:
        """The result of one command, asked again while it is WAIT."""
        self.orders[index] = command
        while True:
            result = (await self.exchange(index, command)).results[0]
            if result.code != "WAIT":
                return result
            await asyncio.sleep(result.wait_ms / 1000)

    async def order(self, index: int, command: m.Command) -> m.Result:
        """A command that is obeyed."""
        result = await self.command(index, command)
        assert result.code == "OK", (command, result)
        return result

    async def publish(self, only: Iterable[int] | None = None) -> None:
        """Tell every running member the stored table."""
        running = [i for i, p in self.members.items() if p.process is not None]
        await asyncio.gather(*(self.exchange(i) for i in (running if only is None else only)))

    def store(self, partition: int, replicas: Replicas, by: int = 1) -> m.Row:
        """Store a changed row: from here on it is the truth."""
        row = m.Row(partition, self.version(partition) + by, replicas)
        self.rows[partition] = row
        return row

    def version(self, partition: int) -> int:
        return self.rows[partition].version if partition in self.rows else 0

    def owner(self, partition: int) -> int:
        owner = self.rows[partition].replicas[0]
        assert owner is not None
        return owner

    async def form(self, members: int) -> None:
        """Start members, assign all partitions in turn, wait until all is served."""
        for _ in range(members):
            await self.add()
        for partition in range(self.partitions):
            row = tuple((partition + i) % members for i in range(self.replicas))
            self.store(partition, row)
        await self.publish()
        await self.served()

    async def served(self, only: Iterable[int] | None = None) -> None:
        """Wait until no running member has a partition that it owns and does not serve."""
        for index in self.members if only is None else only:
            if self.members[index].process is not None:
                await eventually(lambda i=index: self.exchange(i, rows=()), lambda reply: not reply.unserved)

    async def declare(self, keyspaces: Mapping[str, str | Settings]) -> None:
        """Publish a catalog of keyspaces with these settings; a text is their field `reads`."""
        version = 1 if self.catalog is None else self.catalog.version + 1
        made = {n: Settings(reads=Reads(s)) if isinstance(s, str) else s for n, s in keyspaces.items()}
        self.catalog = Catalog(version, made)
        self.features = max(self.features, KEYSPACES)
        await self.publish()

    async def add_group(self, keyspace: str, partitions: int, replicas: int) -> range:
        """Add partitions of a keyspace to the table, tell every member, and wait until all are served."""
        first = self.groups.end(self.partitions)
        self.groups = self.groups.with_group(first, keyspace, partitions, replicas)
        self.features = max(self.features, GROUPS)
        await self.publish()
        for partition in range(first, first + partitions):
            self.store(partition, tuple((partition + n) % len(self.members) for n in range(replicas)))
        await self.publish()
        await self.served()
        return range(first, first + partitions)

    # -- steps of the protocol

    def id(self) -> str:
        return f"migration-{next(self._ids)}"

    async def start_learner(
        self, id: str, partition: int, destination: int, kind: str = "MOVE", result: Replicas | None = None
    ) -> None:
        """Both sides of a migration's start; of a MOVE of index 0 unless it is said what it is."""
        owner, base = self.owner(partition), self.version(partition)
        result = (destination, *self.rows[partition].replicas[1:]) if result is None else result
        await self.order(destination, m.StartTabletCopy(id, partition, base, owner, kind, result))
        await self.order(owner, m.AddLearner(id, partition, base, destination, kind, result))

    async def learn(
        self,
        partition: int,
        destination: int,
        kind: str = "MOVE",
        result: tuple[int | None, ...] | None = None,
    ) -> str:
        """A migration up to the moment when its destination has everything; its id."""
        id = self.id()
        await self.start_learner(id, partition, destination, kind, result)
        await self.until_learner(self.owner(partition), id, "IN_SYNC")
        return id

    async def learner(self, owner: int, id: str) -> m.LearnerReport | None:
        reply = await self.exchange(owner, rows=())
        return next((learner for learner in reply.learners if learner.id == id), None)

    async def until_learner(self, owner: int, id: str, *states: str) -> m.LearnerReport:
        """Wait until the owner reports the learner in one of these states."""
        found = await eventually(
            lambda: self.learner(owner, id), lambda report: report is not None and report.state in states
        )
        assert found is not None
        return found

    async def move_owner(self, partition: int, destination: int) -> None:
        """MOVE of index 0 by the log (and Direct copy when the log does not reach back)."""
        id = self.id()
        await self.start_learner(id, partition, destination)
        await self.catch_up(id, partition, destination)
        await self.finish_move(id, partition, destination)

    async def catch_up(self, id: str, partition: int, destination: int) -> None:
        """Until the learner is IN_SYNC, by a copy when the log does not reach back."""
        owner = self.owner(partition)
        found = await self.until_learner(owner, id, "IN_SYNC", "NEEDS_COPY")
        if found.state == "NEEDS_COPY":
            await self.copy(partition, owner, destination)
            await self.until_learner(owner, id, "IN_SYNC")

    async def migrate(self, partition: int, destination: int, kind: str, result: Replicas) -> None:
        """A whole migration by the log."""
        await self.finish(
            await self.learn(partition, destination, kind, result), partition, destination, result
        )

    async def finish(self, id: str, partition: int, destination: int, result: Replicas) -> None:
        """From IN_SYNC on: hand over when the owner changes, accept, store, publish."""
        owner, last = self.owner(partition), None
        if result[0] != owner:
            last = (await self.order(owner, m.HandOver(id, partition))).last
        await self.accept(destination, m.Row(partition, self.version(partition) + 1, result), id, last)
        await self.publish([destination])
        await self.publish()

    async def finish_move(self, id: str, partition: int, destination: int) -> None:
        """The same of a MOVE of index 0; then the source's tablet is deleted."""
        owner, *others = self.rows[partition].replicas
        assert owner is not None
        await self.finish(id, partition, destination, (destination, *others))
        await self.order(owner, m.DeleteTablet(partition, self.version(partition)))

    async def accept(self, index: int, row: m.Row, id: str = "", last: m.OpId | None = None) -> None:
        """A member accepts the row, which is stored then."""
        await self.order(index, m.Accept(id or self.id(), row, last))
        self.rows[row.partition] = row

    async def hand_over(self, id: str, partition: int, backup: int) -> m.Result:
        """The first step of a SWAP."""
        order = m.HandOver(id, partition, self.version(partition), backup)
        return await self.command(self.owner(partition), order)

    async def swap(self, partition: int, backup: int, id: str = "") -> None:
        """SWAP: the owner and a backup change places. As a master does, wait for a backup that is behind."""
        id, row = id or self.id(), self.rows[partition]
        handed = await eventually(
            lambda: self.hand_over(id, partition, backup), lambda result: result.code != "BACKUP_BEHIND"
        )
        assert handed.code == "OK", handed
        result = m.Row(partition, row.version + 1, swapped(row.replicas, backup))
        await self.accept(backup, result, id, handed.last)
        await self.publish()

    async def copy(self, partition: int, source: int, destination: int) -> None:
        """A session, FetchDirect, Ingest: needs the transfer processes of both."""
        session = await self.fetch(partition, source, destination)
        await self.order(destination, m.Ingest(session, (partition,)))
        for index in (source, destination):
            await self.command(index, m.CloseSession(session))

    async def fetch(self, partition: int, source: int, destination: int, *, fragments: bool = True) -> str:
        """Up to the files in staging, of a copy that was begun; the session's name."""
        session = f"session-{next(self._ids)}"
        opening = m.OpenSession(session, (partition,), fragments=fragments)
        opened = (await self.order(source, opening)).session
        assert opened is not None
        (tablet,) = opened.tablets
        copies = (await self.exchange(destination, rows=())).copies
        generation = next(copy.generation for copy in copies if copy.partition == partition)
        item = m.CopyItem(partition, tablet.generation, generation, tablet.bytes)
        await self.order(destination, m.FetchDirect(session, source, opened.token, (item,)))

        async def state() -> str:
            reply = await self.exchange(destination, rows=())
            return next(fetch.state for fetch in reply.fetches if fetch.session == session)

        assert await eventually(state, lambda state: state != "RUNNING") == "DONE"
        return session

    async def promote(self, partition: int, lost: int, *, dead: bool = True) -> int:
        """Take the owner's place away: fence, choose, accept, store, publish. The new owner."""
        row = self.rows[partition]
        live = [r for r in row.replicas if r is not None and r != lost]
        term = row.version + 2
        lasts = {i: (await self.command(i, m.Fence(partition, term, dead))).last for i in live}
        chosen = max(live, key=lambda i: lasts[i] or m.OpId())
        await self.accept(chosen, m.Row(partition, term, (chosen, *(i for i in live if i != chosen))))
        return chosen

    async def lose(self, lost: int, *, dead: bool = True) -> None:
        """What the master does when a member is gone: promote where it owned, drop it where it backed up."""
        for partition, row in list(self.rows.items()):
            if row.replicas[0] == lost:
                await self.promote(partition, lost, dead=dead)
            elif lost in row.replicas:
                self.store(partition, tuple(r for r in row.replicas if r != lost), by=2)
        await self.publish([i for i, p in self.members.items() if p.process is not None and i != lost])

    # -- data

    async def digest(self, index: int, partition: int, keyspace: str = "default") -> tuple[object, ...]:
        member = self.members[index]
        url = f"http://{member.host}:{member.ports[2]}/v1/digest"
        query = {"partition": str(partition), "keyspace": keyspace}
        # Refused for up to 10 s after a volume was full: RocksDB has to recover before it takes a snapshot.
        async with self.http.get(url, params=query, raise_for_status=True) as response:
            lines = (await response.text()).splitlines()
        head = msgspec.json.decode(lines[0])
        return tuple(head["applied"]), tuple(map(tuple, map(msgspec.json.decode, lines[1:])))

    async def same(self, partition: int, *members: int, keyspace: str = "default") -> None:
        """These members' copies hold the same, once what the owner logged has reached them."""

        async def digests() -> list[tuple[object, ...]]:
            return [await self.digest(index, partition, keyspace) for index in members]

        await eventually(digests, lambda found: all(each == found[0] for each in found))

    async def same_everywhere(self) -> None:
        """Every replica of every row holds the same, once commits have travelled."""
        for partition, row in self.rows.items():
            await self.same(partition, *(each for each in row.replicas if each is not None))

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))
        await asyncio.gather(*(member.close() for member in self.members.values()))
        await self.http.close()


async def eventually(
    ask: Callable[[], Awaitable[T]], good: Callable[[T], bool], seconds: float = WAIT_SECONDS
) -> T:
    """Ask until the answer is good; AssertionError with the last answer when it takes too long."""
    end = time.monotonic() + seconds
    while True:
        answer: object
        try:
            found = answer = await ask()
            if good(found):
                return found
        except (aiohttp.ClientError, OSError) as error:
            answer = error
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s; the last answer was {answer}")
        await asyncio.sleep(ASK_AGAIN_SECONDS)


@asynccontextmanager
async def cluster(
    folder: Path, members: int, partitions: int = 16, replicas: int = 2, **env: str
) -> AsyncIterator[Cluster]:
    """A formed cluster; its processes end with the block."""
    made = Cluster(folder, partitions, replicas, env)
    try:
        await made.form(members)
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def hasty_cluster(folder: Path, partitions: int, **env: str) -> AsyncIterator[Cluster]:
    """A cluster without members yet; those that it gets flush, sweep and connect again after short times."""
    made = Cluster(folder, partitions, 2, {**HASTY, **env})
    try:
        yield made
    finally:
        await made.close()


def key_in(partition: int, partitions: int, seed: int = 0) -> bytes:
    """A key that lives in the partition."""
    return next(
        key for n in count(seed * 100_000) if partition_of(key := b"key-%d" % n, partitions) == partition
    )
