"""Bulk loads at a member: the owner logs one operation that names a file, every replica ingests its own.

A file is made by the transfer process below `loads/` before the log names it; a replica takes such an
operation only when it has the file, so whoever is in sync can apply it. Files stay until the log lets the
operation go. The data and the tablet's state (applied OpId, totals, which loads it took in) come into the
database as one.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from stele.core.control.commands import OpId
from stele.core.tablet.log import Log
from stele.errors import Conflict, Corrupt, Refused, Stale, SteleError, Unavailable
from stele.member import limits
from stele.member.node import Node
from stele.member.replication.replica import Replica
from stele.member.replication.request import Kind, Request
from stele.member.replication.tablet_store import log_range
from stele.member.storage import failpoints
from stele.ports.engine import View
from stele.ports.transfer import Transfer
from stele.transfer.bulk.files import LoadFiles, sum_file
from stele.wire.copy import bulk
from stele.wire.copy.blocks import BlockReader
from stele.wire.copy.bulk import (
    LOADS,
    BuildOrder,
    Loaded,
    LoadManifest,
    LoadOrder,
    LoadPlace,
    file_name,
)
from stele.wire.storage import keys
from stele.wire.storage.load_value import LoadValue, decode_load
from stele.wire.storage.log_record import KIND_AT, LOAD, load_record, noop_record, split_record
from stele.wire.storage.volume import APPLIED, DataState, encode_state

log = logging.getLogger("stele.bulk")

BATCH_MAX = 16
"""So many tablets' files are taken in with one flush, and one call of the database: clients wait for it."""
AGAIN_SECONDS = 1.0
R = TypeVar("R")


@dataclass(slots=True)
class _Job:
    """One load that is next to be applied. It is over when the tablet has another log or generation."""

    replica: Replica
    index: int
    load: str
    value: LoadValue
    keyspace: str
    log: Log = field(init=False)
    generation: int = field(init=False)

    def __post_init__(self) -> None:
        self.log, self.generation = self.replica.tablet.log, self.replica.generation

    @property
    def current(self) -> bool:
        replica = self.replica
        same = replica.tablet.log is self.log and replica.generation == self.generation
        return same and replica.ready and self.log.applied[1] == self.index - 1


class BulkLoads:
    """See the module. What it does on the event loop is bounded; files are read and made in threads."""

    def __init__(self, node: Node, transfer: Transfer) -> None:
        self._node, self._transfer = node, transfer
        self._files = LoadFiles(node.volume.path(LOADS))
        self._queue: list[_Job] = []
        self._running = False
        self._wanted: set[tuple[int, str]] = set()
        node.loads = self
        node.tablets.on_load, node.tablets.on_loads_gone = self._on_load, self._gone

    async def _in_executor(self, work: Callable[[], R]) -> R:
        return await self._node.loop.run_in_executor(self._node.slow, work)

    def _folder(self, load: str) -> Path:
        return self._node.volume.path(LOADS) / load

    def recover(self) -> None:
        """Find the loads that the logs still hold. Only logs of partitions that have files here are read."""
        found = {_partition_of(path) for path in self._node.volume.path(LOADS).glob("*/*.json")}
        for partition in found & self._node.replicas.keys():
            replica = self._node.replicas[partition]
            begin, end = log_range(partition, replica.tablet.log.first)
            while page := self._node.engine.scan_log(begin, end, limits.ENGINE_WRITE_BYTES_MAX):
                for log_key, record in page:
                    if record[KIND_AT] == LOAD:
                        index = int.from_bytes(log_key[2:], "big")
                        replica.loads[index] = split_record(record)[2].decode()
                begin = page[-1][0] + b"\0"

    # -- what loaders ask

    def place(self, load: str, partition: int) -> LoadPlace:
        """Where files are to be made, and whether this tablet has the load already."""
        replica = self._node.replicas.get(partition)
        version = self._node.rows[partition].version
        if replica is None or replica.broken:
            return LoadPlace(version, -1)
        copy, owner = replica.meta.copy, replica.owner
        if copy is not None and not replica.received:
            return LoadPlace(version, copy.generation)
        if not replica.ready:
            return LoadPlace(version, -1)
        members: tuple[int, ...] = ()
        if owner is not None and owner.serving:
            members = (self._node.me, *owner.progress)
        return LoadPlace(version, replica.generation, members, self._remembered(replica, load))

    def _remembered(self, replica: Replica, load: str) -> Loaded | None:
        stored = self._node.engine.get(_loaded_key(replica))
        found = [] if stored is None else bulk.decode_loaded(stored)
        return next((entry for entry in found if entry.load == load), None)

    def taken(self, load: str) -> tuple[int, ...]:
        """Partitions that this member owns and that took the load in."""
        mine = [r for r in self._node.replicas.values() if r.owner is not None and r.owner.serving]
        return tuple(r.partition for r in mine if self._remembered(r, load) is not None)

    async def take_in(self, load: str, partition: int, order: LoadOrder) -> Loaded:
        """Log the load, once, and wait until all that are in sync have it and it is applied here.

        Raise Stale (NOT_OWNER, STALE_VERSION: place the files again), Refused (NOT_STAGED, BUSY, and why
        nothing may be written), Conflict (the id was used for something else), Uncertain (ask again).
        """
        replica = self._serving(partition)
        known = self._remembered(replica, load)
        if known is None:
            applied = replica.tablet.log.applied[1]
            index = next((i for i, name in replica.loads.items() if name == load and i > applied), 0)
            await self._until_applied(replica, index or self._log(replica, load, order))
            known = self._remembered(replica, load)
        if known is None:
            raise Unavailable(f"partition {partition}: load {load} is applied, and not remembered; try again")
        if (known.entries, known.crc32c) != (order.entries, order.crc32c):
            raise Conflict(
                f"partition {partition}: load {load} brought {known.entries} entries with crc32c "
                f"{known.crc32c} before; take another id for other rows",
                "LOAD_CONFLICT",
            )
        return known

    def _serving(self, partition: int) -> Replica:
        replica = self._node.replicas.get(partition)
        owner = None if replica is None else replica.owner
        if replica is None or owner is None or not owner.serving:
            raise Stale(f"member {self._node.me} does not serve partition {partition} now", "NOT_OWNER")
        return replica

    def _log(self, replica: Replica, load: str, order: LoadOrder) -> int:
        """Append the operation; its index."""
        self._check(replica, load, order)
        owner = replica.owner
        assert owner is not None
        value = bulk.encode_packed(LoadValue(order.entries, order.bytes, order.crc32c))
        record = load_record(owner.term, order.keyspace.encode(), load.encode(), value)
        index = replica.tablet.log.last[1] + 1
        replica.loads[index] = load
        # The log's last operation cannot be trimmed, and the load's files go with the load.
        self._node.replicator.append(replica, [record, noop_record(owner.term)])
        return index

    def _check(self, replica: Replica, load: str, order: LoadOrder) -> None:
        owner, row = replica.owner, replica.tablet.row
        assert owner is not None
        missing = {self._node.me, *owner.waited_for} - set(order.members)
        if order.version != row.version or missing:
            text = f"row {row.version} {row.replicas} needs the files, and {sorted(missing)} lack them"
            raise Stale(f"partition {replica.partition}: {text}")
        refusal = self._node.command_executor.refusal_at(owner)
        if refusal is not None:
            raise Refused(refusal.text, refusal.code)
        if replica.loading:
            raise Refused(f"partition {replica.partition} takes another load in: try again", "BUSY")
        made = self._files.manifest(load, replica.partition, replica.generation, order.crc32c)
        wanted = (order.keyspace, order.entries, order.bytes)
        if made is None or (made.keyspace, made.entries, made.bytes) != wanted:
            raise Refused(f"partition {replica.partition}: load {load} is not staged like this", "NOT_STAGED")

    async def _until_applied(self, replica: Replica, index: int) -> None:
        node = self._node
        request = Request(Kind.EXECUTE, replica.partition, b"", node.loop.create_future())
        request.index, request.wrote = index, True
        request.deadline = node.loop.time() + limits.WAIT_SECONDS_MAX
        replica.waiters.append(request)
        await request.future

    # -- replicas that lack a file

    def has_load(self, replica: Replica, record: bytes, source: int) -> bool:
        """Whether the file of a logged load is here; if not, the transfer process is to get it."""
        _, keyspace, name, value, _ = split_record(record)
        load, wanted = name.decode(), decode_load(value)
        if self._files.manifest(load, replica.partition, replica.generation, wanted.crc32c) is not None:
            return True
        place = (replica.partition, load)
        if place not in self._wanted:
            self._wanted.add(place)
            job = _Job(replica, 0, load, wanted, keyspace.decode())
            self._node.spawn(self._fetch(job, source))
        return False

    async def _fetch(self, job: _Job, source: int) -> None:
        """The owner sends the operation again until the file is here; when it has none, a copy is needed."""
        await self._get(job, (source,))

    async def _get(self, job: _Job, sources: tuple[int, ...]) -> bool:
        """Let the transfer process make this member's file: of a run here, or one of `sources`.

        False when all of them say that they do not have it (any more).
        """
        node, partition, gone = self._node, job.replica.partition, True
        try:
            for source in sources:
                if source not in node.table.members:
                    gone = False
                    continue
                order = BuildOrder(
                    generation=job.generation,
                    keyspace=job.keyspace,
                    partitions=len(node.rows),
                    source=source,
                    crc32c=job.value.crc32c,
                )
                path = f"/v1/bulk/loads/{job.load}/partitions/{partition}"
                try:
                    await self._transfer.call("POST", path, bulk.encode_json(order))
                    return True
                except (Unavailable, Refused) as error:
                    gone = gone and isinstance(error, Refused)
                    log.warning("partition %d: load %s of member %d: %s", partition, job.load, source, error)
        finally:
            self._wanted.discard((partition, job.load))
        return not gone

    # -- applying

    def _on_load(self, replica: Replica, index: int, record: bytes) -> None:
        _, keyspace, name, value, _ = split_record(record)
        replica.ingesting = True
        replica.loads[index] = name.decode()
        self._queue.append(_Job(replica, index, name.decode(), decode_load(value), keyspace.decode()))
        if not self._running:
            self._running = True
            self._node.spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._queue:
                batch, self._queue = self._queue[:BATCH_MAX], self._queue[BATCH_MAX:]
                ready = [(job, made) for job in batch if (made := await self._prepare(job)) is not None]
                if ready:
                    # What waits in memory would be flushed by the ingest itself, and hold everybody up.
                    await self._in_executor(self._node.engine.flush)
                    self._ingest(ready)
        finally:
            self._running = False

    async def _prepare(self, job: _Job) -> "tuple[list[str], DataState] | None":
        """The files to take in and the state that they lead to; None when the job is over, or tried again."""
        if not job.current:
            self._end(job)
            return None
        try:
            return await self._in_executor(partial(self._make, job))
        except (SteleError, OSError) as error:
            if isinstance(error, Corrupt):
                self._distrust(job)
            log.warning("partition %d: load %s waits: %s", job.replica.partition, job.load, error)
            self._node.spawn(self._again(job))
            return None

    def _distrust(self, job: _Job) -> None:
        """The SST file is damaged: without its manifest it is not there, and made again of the run."""
        for kind in ("json", "sst"):
            name = file_name(job.replica.partition, job.generation, job.value.crc32c, kind)
            (self._folder(job.load) / name).unlink(missing_ok=True)

    async def _again(self, job: _Job) -> None:
        """Its file is lost or damaged: make it of the run, which a member of the row has, and try again.

        When none has it, the tablet goes offline: a copy brings what the load brought.
        """
        replica, row = job.replica, job.replica.tablet.row
        there = (
            self._files.manifest(job.load, replica.partition, job.generation, job.value.crc32c) is not None
        )
        if not there and not await self._get(job, tuple(sorted(row.members))) and job.current:
            text = f"the file of bulk load {job.load} is lost, and no member of row {row.version} has it"
            self._node.tablets.break_off(replica, Corrupt(text))
        await asyncio.sleep(AGAIN_SECONDS)
        self._end(job)

    def _end(self, job: _Job) -> None:
        job.replica.ingesting = False
        self._node.replicator.to_apply(job.replica)

    def _make(self, job: _Job) -> tuple[list[str], DataState]:
        """In the executor. Nothing of the tablet is applied meanwhile, so what is read stays true."""
        partition, generation, folder = job.replica.partition, job.generation, self._folder(job.load)
        manifest = self._files.manifest(job.load, partition, generation, job.value.crc32c)
        if manifest is None:
            raise Refused(f"the file of partition {partition} is not here", "NOT_STAGED")
        term = job.log.term_at(job.index)
        assert term is not None
        view = self._node.engine.view()
        try:
            stored = view.get(_loaded_key(job.replica))
            loaded = [] if stored is None else bulk.decode_loaded(stored)
            again = any(entry.load == job.load for entry in loaded)
            totals = dict(job.replica.keyspaces) if again else self._totals(job, manifest, view)
        finally:
            view.close()
        state = DataState(OpId(term, job.index), totals)
        if not again:
            loaded.append(Loaded(job.load, job.index, manifest.entries, manifest.crc32c))
        paths = [str(folder / f"{partition}-{generation}.state")]
        entries = [
            (keys.meta_key(partition, generation, APPLIED), encode_state(state)),
            (_loaded_key(job.replica), bulk.encode_packed(loaded[-bulk.LOADED_MAX :])),
        ]
        self._node.engine.make_file(paths[0], entries)
        if not again:
            paths.append(self._linked(folder, manifest))
        return paths, state

    @staticmethod
    def _linked(folder: Path, manifest: LoadManifest) -> str:
        """A second name of the SST file: the database takes it away; the first stays as long as the log."""
        path = folder / file_name(manifest.partition, manifest.generation, manifest.crc32c, "sst")
        if sum_file(path) != (manifest.sst_bytes, manifest.sst_crc32c):
            raise Corrupt(f"{path.name} of load {manifest.load} is not what its manifest says")
        link = path.with_suffix(".in")
        link.unlink(missing_ok=True)
        os.link(path, link)
        return str(link)

    def _totals(self, job: _Job, manifest: LoadManifest, view: View) -> dict[bytes, tuple[int, int]]:
        """Entries and bytes by keyspace, once the load is in: less those that it replaces."""
        totals, keyspace = dict(job.replica.keyspaces), manifest.keyspace.encode()
        count, size = totals.get(keyspace, (0, 0))
        if count:
            prefix = keys.user_prefix(manifest.partition, manifest.generation, keyspace)
            with self._files.run_path(manifest.load, manifest.partition, manifest.crc32c).open("rb") as run:
                for found, _ in BlockReader(run.read):
                    for key in found:
                        old = view.get(prefix + key)
                        if old is not None:
                            count, size = count - 1, size - len(key) - len(old)
        totals[keyspace] = (count + manifest.entries, size + manifest.bytes)
        return totals

    def _ingest(self, ready: "list[tuple[_Job, tuple[list[str], DataState]]]") -> None:
        """On the event loop: no reader sees a part, and no cached value outlives it."""
        node = self._node
        for job, _ in ready:
            if not job.current:
                self._end(job)
        current = [(job, made) for job, made in ready if job.replica.ingesting and job.current]
        if not current:
            return
        failpoints.hit("load.prepared")
        try:
            node.engine.ingest([path for _, (paths, _) in current for path in paths])
        except SteleError as error:
            log.error("%d bulk loads wait: %s", len(current), error)
            for job, _ in current:
                node.spawn(self._again(job))
            return
        failpoints.hit("load.ingested")
        for job, (_, state) in current:
            node.tablets.applied_load(job.replica, state)
            node.tablets.applied_bytes += job.value.bytes
            self._end(job)
            node.router.drain(job.replica.partition)
            log.info("partition %d: load %s, %d entries", job.replica.partition, job.load, job.value.entries)

    # -- files that are not needed

    def _gone(self, replica: Replica, loads: list[str]) -> None:
        for load in loads:
            self._node.slow.submit(self._drop, load, replica.partition)

    def _drop(self, load: str, partition: int) -> None:
        """The manifests first: a file without one counts as not there."""
        folder = self._folder(load)
        for pattern in (f"{partition}-*.json", f"{partition}-*"):
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)
        _remove_empty(folder)

    async def collect_garbage(self) -> None:
        """Remove what no log names and nobody touched for long: loads that were given up."""
        named = {(load, p) for p, r in self._node.replicas.items() for load in r.loads.values()}
        await self._in_executor(partial(self._delete_unnamed, named))

    def _delete_unnamed(self, named: set[tuple[str, int]]) -> None:
        for folder in self._node.volume.path(LOADS).iterdir():
            paths = list(folder.iterdir())
            # A load may send pieces for hours: it is given up when nothing new came for long.
            if min(map(self._age_seconds, [folder, *paths])) <= limits.LOAD_AGE_SECONDS:
                continue
            for path in paths:
                if (folder.name, _partition_of(path)) not in named:
                    path.unlink(missing_ok=True)
            _remove_empty(folder)

    def _age_seconds(self, path: Path) -> float:
        try:
            return self._node.wall() - path.stat().st_mtime
        except FileNotFoundError:
            return 0.0


def _loaded_key(replica: Replica) -> bytes:
    return keys.meta_key(replica.partition, replica.generation, bulk.LOADED)


def _partition_of(path: Path) -> int:
    """Of a run, an SST file or a manifest; -1 for a piece."""
    if path.suffix == ".piece":
        return -1
    number = path.name.partition(".")[0].partition("-")[0]
    return int(number) if number.isdigit() else -1


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
