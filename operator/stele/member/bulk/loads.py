"""Bulk loads at a member: the owner logs an operation that names a file, and every replica ingests its own.

The transfer process builds a file below `loads/` before the log names it. A replica accepts such an operation
only when it has the file, so every in-sync replica can apply it. Files stay until the operation is trimmed
from the log. The data and the tablet's state (applied OpId, totals, list of loads) enter the database
atomically.
"""

import asyncio
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from stele.core.control.commands import OpId
from stele.core.kv.keyspaces import homeless_text, load_failure, undeclared_failure
from stele.errors import Conflict, Corrupt, Refused, Stale, SteleError, Unavailable
from stele.member import limits
from stele.member.background import Background
from stele.member.bulk.local_loads import LoadJob, LocalLoads
from stele.member.replication import passes
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.replica import Replica
from stele.member.replication.replicator import Replicator
from stele.member.replication.request import Request, RequestKind
from stele.member.replication.stored_log import log_range
from stele.member.replication.tablet_store import TabletStore
from stele.member.serving.executor import CommandExecutor
from stele.member.serving.router import RequestRouter
from stele.member.storage import failpoints
from stele.member.storage.disk_full import raise_unless_disk_full
from stele.ports.engine import View
from stele.transfer.bulk.files import sum_file
from stele.wire.copy import bulk
from stele.wire.copy.blocks import BlockReader
from stele.wire.copy.bulk import Loaded, LoadManifest, LoadOrder, LoadPlace, file_name
from stele.wire.storage import keys
from stele.wire.storage.load_value import LoadValue
from stele.wire.storage.log_record import KIND_AT, LOAD, load_record, noop_record, split_record
from stele.wire.storage.volume import APPLIED, DataState, encode_state

log = logging.getLogger("stele.bulk")

BATCH_MAX = 16
"""Tablets whose files are ingested with one flush and one call of the database, which clients wait for."""
RETRY_SECONDS = 1.0


@dataclass(eq=False)
class BulkLoads:
    """Bulk loads of one member. Work on the event loop is bounded; files are read and built in threads."""

    _local: LocalLoads
    _tablets: TabletStore
    _replicator: Replicator
    _executor: CommandExecutor
    _delayed_replies: DelayedReplies
    _router: RequestRouter
    _background: Background

    def start(self) -> None:
        """Find loads in the logs, and apply those that are due.

        Only logs of partitions with files here are read.
        """
        for partition in self._local.partitions() & self._tablets.replicas.keys():
            replica = self._tablets.replicas[partition]
            begin, end = log_range(partition, replica.tablet.log.first)
            while page := self._tablets.engine.scan_log(begin, end, limits.ENGINE_WRITE_BYTES_MAX):
                for log_key, record in page:
                    if record[KIND_AT] == LOAD:
                        index = int.from_bytes(log_key[2:], "big")
                        replica.loads[index] = split_record(record)[2].decode()
                begin = keys.next_log_key(page[-1][0])
        self._background.spawn(self._run())

    # -- what loaders ask

    def place(self, load: str, partition: int) -> LoadPlace:
        """Return for which generation to build files, and whether this tablet has applied the load."""
        replica = self._tablets.replicas.get(partition)
        version = self._tablets.rows[partition].version
        if replica is None or replica.broken:
            return LoadPlace(version, -1)
        copy, owner = replica.meta.copy, replica.owner
        if copy is not None and not replica.received:
            return LoadPlace(version, copy.generation)
        if not replica.ready:
            return LoadPlace(version, -1)
        members: tuple[int, ...] = ()
        if owner is not None and owner.serving:
            members = (self._tablets.me, *owner.progress)
        return LoadPlace(version, replica.generation, members, self._remembered(replica, load))

    def _remembered(self, replica: Replica, load: str) -> Loaded | None:
        stored = self._tablets.engine.get(_loaded_key(replica))
        found = [] if stored is None else bulk.decode_loaded(stored)
        return next((entry for entry in found if entry.load == load), None)

    def applied(self, load: str) -> tuple[int, ...]:
        """Return the partitions that this member owns and that have applied the load."""
        mine = passes.serving(self._tablets.replicas)
        return tuple(r.partition for r in mine if self._remembered(r, load) is not None)

    async def apply(self, load: str, partition: int, order: LoadOrder) -> Loaded:
        """Log the load once, and wait until all in-sync replicas have it and it is applied here.

        Raises Stale (NOT_OWNER, STALE_VERSION: stage the files again), Refused (NOT_STAGED, BUSY, or why
        writes are refused), Conflict (the id was used for other rows), Uncertain (retry).
        """
        replica = self._serving(partition)
        known = self._remembered(replica, load)
        if known is None:
            applied = replica.tablet.log.applied[1]
            index = next((i for i, name in replica.loads.items() if name == load and i > applied), 0)
            await self._until_applied(replica, index or self._log(replica, load, order))
            known = self._remembered(replica, load)
        if known is None:
            raise Unavailable(
                f"partition {partition}: load {load} was applied but is no longer listed; retry with a new id"
            )
        if (known.entries, known.crc32c) != (order.entries, order.crc32c):
            raise Conflict(
                f"partition {partition}: load {load} has applied {known.entries} entries with crc32c "
                f"{known.crc32c} already; use another id for other rows",
                "LOAD_CONFLICT",
            )
        return known

    def _serving(self, partition: int) -> Replica:
        replica = self._tablets.replicas.get(partition)
        owner = None if replica is None else replica.owner
        if replica is None or owner is None or not owner.serving:
            raise Stale(f"member {self._tablets.me} does not serve partition {partition} now", "NOT_OWNER")
        return replica

    def _log(self, replica: Replica, load: str, order: LoadOrder) -> int:
        """Append the operation and return its index."""
        self._check(replica, load, order)
        owner = replica.owner
        assert owner is not None
        value = bulk.encode_packed(LoadValue(order.entries, order.bytes, order.crc32c))
        record = load_record(owner.term, order.keyspace.encode(), load.encode(), value)
        index = replica.tablet.log.last[1] + 1
        replica.loads[index] = load
        # A trailing no-op: a log's last operation is never trimmed, and the load's files are kept as long as
        # it.
        self._replicator.append(replica, [record, noop_record(owner.term)])
        return index

    def _check(self, replica: Replica, load: str, order: LoadOrder) -> None:
        owner, row = replica.owner, replica.tablet.row
        assert owner is not None
        missing = {self._tablets.me, *owner.waited_for} - set(order.members)
        if order.version != row.version or missing:
            text = (
                f"row {row.version} {row.replicas} needs the files, but members {sorted(missing)} lack them"
            )
            raise Stale(f"partition {replica.partition}: {text}")
        refusal = self._executor.refusal_at(owner)
        if refusal is not None:
            raise Refused(refusal.text, refusal.code)
        self._check_keyspace(replica.partition, order.keyspace.encode())
        if replica.loading:
            raise Refused(f"partition {replica.partition} is applying another load: retry", "BUSY")
        if replica.locks is not None and replica.locks.any_in(order.keyspace.encode()):
            text = "transactions across partitions have locked keys of this keyspace: retry"
            raise Refused(f"partition {replica.partition}: {text}", "BUSY")
        made = self._local.files.manifest(load, replica.partition, replica.generation, order.crc32c)
        wanted = (order.keyspace, order.entries, order.bytes)
        if made is None or (made.keyspace, made.entries, made.bytes) != wanted:
            raise Refused(
                f"partition {replica.partition}: load {load} is not staged with these rows", "NOT_STAGED"
            )

    def _check_keyspace(self, partition: int, keyspace: bytes) -> None:
        known, group = self._tablets.table.keyspaces, self._tablets.table.routes.group(keyspace)
        if not group:
            raise Unavailable(homeless_text(keyspace))
        if partition not in group:
            text = f"partition {partition} has no keys of {keyspace.decode()}, they are in {group.start} to "
            raise Refused(
                f"{text}{group.stop - 1}: upgrade the loader, and repeat the load", "WRONG_PARTITION"
            )
        refusal = known.full.get(keyspace)
        if known.only and keyspace not in known.only:
            refusal = undeclared_failure(keyspace)
        if keyspace in known.local:
            refusal = load_failure(keyspace)
        if refusal is not None:
            raise Refused(refusal.text, refusal.code)

    async def _until_applied(self, replica: Replica, index: int) -> None:
        request = Request(RequestKind.EXECUTE, replica.partition, b"", self._background.loop.create_future())
        request.index, request.wrote = index, True
        request.deadline = self._background.now() + limits.WAIT_SECONDS_MAX
        self._delayed_replies.wait(replica, request)
        await request.future

    # -- applying

    async def _run(self) -> None:
        due = self._local.due
        while True:
            batch = [await due.get()]
            while not due.empty() and len(batch) < BATCH_MAX:
                batch.append(due.get_nowait())
            await asyncio.wait([self._background.spawn(self._apply_batch(batch))])

    async def _apply_batch(self, batch: list[LoadJob]) -> None:
        ready = [(job, made) for job in batch if (made := await self._prepare(job)) is not None]
        if not ready:
            return
        try:
            # Otherwise the ingest would flush the memtable itself, and block all requests meanwhile.
            await self._background.in_thread(self._tablets.engine.flush)
        except SteleError as error:
            raise_unless_disk_full(error)
            self._delay([job for job, _ in ready], error)
        else:
            self._ingest(ready)

    def _delay(self, jobs: list[LoadJob], error: Exception) -> None:
        log.error("%d bulk loads are delayed: %s", len(jobs), error)
        for job in jobs:
            self._background.spawn(self._retry(job))

    async def _prepare(self, job: LoadJob) -> "tuple[list[str], DataState] | None":
        """Return the files to ingest and the resulting state; None when the job is obsolete or will be
        retried."""
        if not job.current:
            self._end(job)
            return None
        try:
            return await self._background.in_thread(self._make, job)
        except (SteleError, OSError) as error:
            if isinstance(error, Corrupt):
                self._local.delete_damaged(job)
            log.warning("partition %d: load %s is delayed: %s", job.replica.partition, job.load, error)
            self._background.spawn(self._retry(job))
            return None

    async def _retry(self, job: LoadJob) -> None:
        """Rebuild a lost or damaged file from the run of a member of the row, and retry.

        When no member has it, the tablet goes offline, to be replaced by a copy.
        """
        replica, row = job.replica, job.replica.tablet.row
        there = self._local.manifest(job) is not None
        if not there and not await self._local.fetch(job, tuple(sorted(row.members))) and job.current:
            text = f"the file of bulk load {job.load} is lost and no member of row {row.version} has it"
            self._tablets.break_off(replica, Corrupt(text))
        await asyncio.sleep(RETRY_SECONDS)
        self._end(job)

    def _end(self, job: LoadJob) -> None:
        job.replica.ingesting = False
        self._replicator.to_apply(job.replica)

    def _make(self, job: LoadJob) -> tuple[list[str], DataState]:
        """Read and build files in a thread.

        Nothing of the tablet is applied meanwhile, so reads stay valid.
        """
        partition, generation, folder = job.replica.partition, job.generation, self._local.folder(job.load)
        manifest = self._local.manifest(job)
        if manifest is None:
            raise Refused(f"the file of partition {partition} is missing", "NOT_STAGED")
        term = job.log.term_at(job.index)
        assert term is not None
        view = self._tablets.engine.view()
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
        self._tablets.engine.make_file(paths[0], entries)
        if not again:
            paths.append(self._linked(folder, manifest))
        return paths, state

    @staticmethod
    def _linked(folder: Path, manifest: LoadManifest) -> str:
        """Return a hard link to the SST file: the ingest consumes it, while the file stays as long as the
        log."""
        path = folder / file_name(manifest.partition, manifest.generation, manifest.crc32c, "sst")
        if sum_file(path) != (manifest.sst_bytes, manifest.sst_crc32c):
            raise Corrupt(f"{path.name} of load {manifest.load} does not match its manifest")
        link = path.with_suffix(".in")
        link.unlink(missing_ok=True)
        os.link(path, link)
        return str(link)

    def _totals(self, job: LoadJob, manifest: LoadManifest, view: View) -> dict[bytes, tuple[int, int]]:
        """Return entries and bytes by keyspace after the load, less the entries that it replaces."""
        totals, keyspace = dict(job.replica.keyspaces), manifest.keyspace.encode()
        count, size = totals.get(keyspace, (0, 0))
        if count:
            prefix = keys.user_prefix(manifest.partition, manifest.generation, keyspace)
            path = self._local.files.run_path(manifest.load, manifest.partition, manifest.crc32c)
            with path.open("rb") as run:
                for found, _ in BlockReader(run.read):
                    for key in found:
                        old = view.get(prefix + key)
                        if old is not None:
                            count, size = count - 1, size - len(key) - len(old)
        totals[keyspace] = (count + manifest.entries, size + manifest.bytes)
        return totals

    def _ingest(self, ready: "list[tuple[LoadJob, tuple[list[str], DataState]]]") -> None:
        """Ingest on the event loop, so that no reader sees a part, and no cached value outlives it."""
        for job, _ in ready:
            if not job.current:
                self._end(job)
        current = [(job, made) for job, made in ready if job.replica.ingesting and job.current]
        if not current:
            return
        failpoints.hit("load.prepared")
        try:
            self._tablets.engine.ingest([path for _, (paths, _) in current for path in paths])
        except SteleError as error:
            self._delay([job for job, _ in current], error)
            return
        failpoints.hit("load.ingested")
        for job, (_, state) in current:
            self._tablets.applied_load(job.replica, state, job.value.bytes)
            self._end(job)
            self._router.drain(job.replica.partition)
            log.info("partition %d: load %s, %d entries", job.replica.partition, job.load, job.value.entries)


def _loaded_key(replica: Replica) -> bytes:
    return keys.meta_key(replica.partition, replica.generation, bulk.LOADED)
