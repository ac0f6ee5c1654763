"""One whole member in this process: real code and files, the engine in memory, others played by the test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from crc32c import crc32c

from stele.adapters.memory.engine import MemoryEngine
from stele.core.control import commands as m
from stele.core.control.member_settings import MemberSettings
from stele.core.kv.keyslot import partition_of
from stele.core.kv.keyspaces import Catalog
from stele.core.security.level import InternalTls
from stele.member.node import Node
from stele.member.replication.replica import Replica
from stele.member.settings import Settings
from stele.member.storage.volume import DATA, STAGING, Volume
from stele.wire import peer
from stele.wire.copy.jobs import MANIFEST_FORMAT, Fragment, Manifest
from stele.wire.storage import keys
from stele.wire.storage.volume import APPLIED, DataState, encode_state
from tests.fakes.transfer import NoTransfer

CLUSTER = "11111111-2222-3333-4444-555555555555"
P = 0
ME, OTHER, THIRD = 0, 1, 2
COPIED = m.OpId(1, 5)
"""The last operation of what copies bring, where a test asks for nothing else."""


class Asker:
    """Another member's connection to this one; keeps what is answered."""

    def __init__(self, sender: int) -> None:
        self.sender = sender
        self.answers: list[peer.Message] = []

    def send(self, message: peer.Message, *, now: bool = False) -> None:
        self.answers.append(message)

    def close(self, reason: str, *, invalid: bool = False) -> None:
        raise AssertionError(reason)


class SingleMember:
    """`rows` is what the master stored, for two partitions. A restart keeps volume and engine."""

    def __init__(self, folder: Path, retention_seconds: int = 0) -> None:
        self.folder = folder
        self.retention_seconds = retention_seconds
        self.engine = MemoryEngine()
        self.rows = {p: m.Row(p, 1, (OTHER, THIRD)) for p in (P, 1)}
        self.failures: list[str] = []
        self.format = 1
        self.tls_dir, self.first_member_tls = "", InternalTls.OFF

    async def start(self) -> None:
        volume = Volume(self.folder)
        volume.create_folders()
        instance = volume.load_instance(CLUSTER, "uuid-0")
        # What a database on the disk would have left: the engine is in memory.
        volume.path(DATA).mkdir(exist_ok=True)
        (volume.path(DATA) / "CURRENT").touch()
        kept = self.retention_seconds
        settings = Settings(
            self.folder,
            CLUSTER,
            "m0",
            retention_seconds=kept,
            bind="127.0.0.1",
            tls_dir=self.tls_dir,
            first_member_tls=self.first_member_tls,
        )
        self.node = Node(
            settings, (volume, instance), self.engine, transfer=NoTransfer(), failed=self.failures.append
        )
        self.exchange = self.node.exchange
        # The other members are there, though nothing connects to them.
        self.node.last_copies._near = lambda partition: True  # type: ignore[method-assign]
        self.node.metadata.load()
        for replica in self.node.replicas.values():
            self.node.roles.take_role(replica)
        self.exchange.start()
        await self.publish()

    async def stop(self) -> None:
        await self.until_quiet()
        await self.node.stop()
        for executor in (self.node.background.slow, self.node._sync_thread, self.node._meta_thread):
            executor.shutdown()
        assert self.failures == []

    async def restart(self, *, power_lost: bool = False) -> None:
        engine = self.engine.crashed(power_lost=power_lost)
        await self.stop()
        self.engine = engine
        await self.start()

    # -- the master

    async def ask(
        self,
        *commands: m.Command,
        rows: tuple[m.Row, ...] = (),
        catalog: Catalog | None = None,
        clear: m.ClearKeyspaces | None = None,
        known: int = 0,
        over_quota: tuple[str, ...] | None = None,
        settings: MemberSettings | None = None,
        patient: bool = True,
    ) -> m.ExchangeReply:
        """Ask, again while it adopts if `patient`, as a master does."""
        request = m.ExchangeRequest(
            format=self.format,
            cluster=CLUSTER,
            epoch=1,
            recipient="uuid-0",
            self_index=ME,
            partitions=2,
            replicas=2,
            member_list_version=1,
            members=(m.MemberInfo(ME, "m0", "uuid-0", "127.0.0.1"),),
            rows=rows,
            commands=commands,
            catalog=catalog,
            clear=clear,
            known=known,
            over_quota=over_quota,
            settings=settings,
        )
        while True:
            reply = await self.exchange.handle(request)
            assert reply.code == "OK", reply
            if not (reply.adopting and patient):
                return reply

    async def publish(self) -> m.ExchangeReply:
        return await self.ask(rows=tuple(self.rows.values()))

    async def store(self, replicas: tuple[int | None, ...], by: int = 1) -> None:
        self.rows[P] = m.Row(P, self.rows[P].version + by, replicas)
        await self.publish()

    async def command(self, command: m.Command) -> m.Result:
        """The result of one command, asked again while it is WAIT."""
        while True:
            result = (await self.ask(command)).results[0]
            if result.code != "WAIT":
                return result
            await asyncio.sleep(result.wait_ms / 1000)

    async def code(self, command: m.Command) -> str:
        """The answer's code, once bulk work is done."""
        while True:
            result = (await self.ask(command)).results[0]
            if result.detail != "still under way":
                return result.code
            await asyncio.sleep(result.wait_ms / 1000)

    # -- the owner, which is another member

    @property
    def replica(self) -> Replica:
        return self.node.tablets.replica_of(P)

    def tell(self, message: peer.Message, sender: int = OTHER) -> Asker:
        asker = Asker(sender)
        self.node.peers.take_message(asker, message)  # type: ignore[arg-type]
        return asker

    def append(self, prev: tuple[int, int], records: list[bytes], **changes: object) -> Asker:
        """An Append of the present owner under the present row, or with these fields otherwise."""
        row = self.rows[P]
        item = peer.AppendItem(P, row.version, row.version, *prev, 0, records)
        sender = row.replicas[0]
        assert sender is not None
        return self.tell(peer.Append([msgspec.structs.replace(item, **changes)]), sender)

    async def receive(self, id: str = "copy", applied: m.OpId = COPIED) -> None:
        """Begin a copy and take it in."""
        assert await self.code(m.StartTabletCopy(id, P, self.rows[P].version, OTHER)) == "OK"
        await self.take_in(id, applied)

    async def take_in(self, id: str = "copy", applied: m.OpId = COPIED) -> None:
        """Ingest what a copy engine brought for a copy that was begun."""
        self.stage(f"s-{id}", applied)
        assert await self.code(m.Ingest(f"s-{id}", (P,))) == "OK"
        assert self.get(b"copied") == b"yes"

    async def delete(self) -> None:
        assert await self.code(m.DeleteTablet(P, self.rows[P].version)) == "OK"

    def stage(
        self,
        session: str,
        applied: m.OpId = COPIED,
        change: Callable[[Manifest], Manifest] = lambda made: made,
    ) -> None:
        """What a copy engine leaves in staging: one entry, and the tablet's own state."""
        copy = self.replica.meta.copy
        assert copy is not None
        state = DataState(applied, {b"default": (1, 12)})
        prefix = keys.tablet_prefix(P, copy.generation)
        entries = [
            (keys.meta_key(P, copy.generation, APPLIED), encode_state(state)),
            (keys.user_key(P, copy.generation, b"default", b"copied"), keys.pack_value(b"yes", 0)),
        ]
        assert all(key.startswith(prefix) for key, _ in entries)
        folder = self.node.volume.path(STAGING) / session
        folder.mkdir(exist_ok=True)
        path = folder / f"{session}.sst"
        path.write_bytes(b"sst")
        self.engine.files[str(path)] = entries
        fragment = Fragment("0", "", {"default": (applied.index,)}, 2, 20, path.name, 3, crc32c(b"sst"))
        manifest = Manifest(MANIFEST_FORMAT, session, P, 1, copy.generation, applied, (fragment,))
        (folder / f"{P}.json").write_bytes(msgspec.json.encode(change(manifest)))

    async def until_quiet(self) -> None:
        """Let what was begun come to its end, disk and all."""
        for _ in range(20):
            self.node.replicator.apply_delayed()
            await asyncio.sleep(0)
            for executor in (self.node._sync_thread, self.node._meta_thread):
                await asyncio.get_running_loop().run_in_executor(executor, lambda: None)

    async def acked(self, asker: Asker) -> peer.AckItem:
        """The answer to one Append of one item."""
        await self.until_quiet()
        (acks,) = asker.answers
        assert isinstance(acks, peer.Acks)
        return acks.items[0]

    def get(self, key: bytes) -> bytes | None:
        stored = self.engine.get(self.replica.prefix(b"default") + key)
        return None if stored is None else keys.unpack_value(stored)[0]


@asynccontextmanager
async def single_member(folder: Path, retention_seconds: int = 0) -> AsyncIterator[SingleMember]:
    made = SingleMember(folder, retention_seconds)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def key_here(seed: int = 0) -> bytes:
    """A key of partition P."""
    return next(key for n in range(seed, seed + 100) if partition_of(key := b"key%d" % n, 2) == P)
