"""Ingests finished copies: checks manifests, moves files into the database, activates the tablets."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from crc32c import crc32c

from stele.core.control import commands as m
from stele.core.tablet.lifecycle import Event, TabletState, step
from stele.errors import Corrupt, Refused, Stale
from stele.member.background import Background
from stele.member.copy.copy_writer import CopyWriter, foreign
from stele.member.copy.quarantined_log import keep_log_tail
from stele.member.live_settings import LiveSettings
from stele.member.replication.gc import quarantine
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.member.storage import failpoints
from stele.member.storage.volume import STAGING, Volume
from stele.ports.engine import Engine
from stele.wire.copy.bulk import LOADED
from stele.wire.copy.jobs import BLOCKS_BYTES_MAX, BLOCKS_SUFFIX, Fragment, Manifest, decode_manifest
from stele.wire.storage import keys
from stele.wire.storage.volume import CopyRecord, DataState, Superblock

log = logging.getLogger("stele.ingest")

READ_BYTES = 1024 * 1024
COUNT_ENTRIES = 1000
INGESTED_TOGETHER_MAX = 4
"""Files that RocksDB ingests in one call, 1 to 2 ms each."""


@dataclass(eq=False)
class Ingester:
    """Ingests copies: a tablet becomes READY under its new generation, or stays as it was.

    `_announce` is called with a tablet that has become READY.
    """

    _settings: LiveSettings
    _volume: Volume
    _tablets: TabletStore
    _metadata: MetadataStore
    _background: Background
    _announce: Callable[[Replica], None]

    def __post_init__(self) -> None:
        self._queue = _IngestQueue(self._tablets.engine, self._background)
        self._writer = CopyWriter(self._tablets.engine, self._background)

    async def ingest(self, command: m.Ingest) -> m.Result:
        """Ingest all partitions of the command. Raises the error of the first that failed."""
        folder = self._folder(command.session)
        for partition in command.partitions:
            if not 0 <= partition < len(self._tablets.rows):
                raise Refused(f"partition {partition} is not in this member's table", "BAD_REQUEST")
        work = (self._ingest_one(folder, command.session, partition) for partition in command.partitions)
        # Wait for all of them, so that none continues after the reply.
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return m.Result()

    def _folder(self, session: str) -> Path:
        if not session or "/" in session or session.startswith("."):
            raise Refused(f"session is {session!r}; it must be a plain name", "BAD_REQUEST")
        return self._volume.path(STAGING) / session

    async def _ingest_one(self, folder: Path, session: str, partition: int) -> None:
        replica = self._tablets.replica_of(partition)
        async with replica.lock:
            copy = replica.meta.copy
            if copy is None:
                rows, me = self._tablets.rows, self._tablets.me
                if partition < len(rows) and me in rows[partition].replicas:
                    return
                raise Refused(f"partition {partition}: no copy was started here", "ILLEGAL_STATE")
            if replica.received:
                return
            step(replica.state, Event.INGEST)
            replica.busy = True
            try:
                await self._ingest_copy(folder, session, replica, copy)
            finally:
                replica.busy = False
            self._announce(replica)

    async def _ingest_copy(self, folder: Path, session: str, replica: Replica, copy: CopyRecord) -> None:
        expected = (session, replica.partition, copy.generation)
        manifest = await self._background.in_thread(self._check, folder, expected)
        begin, end = keys.tablet_range(replica.partition, copy.generation)
        if await self._background.in_thread(self._holds, begin, end):
            self._tablets.engine.drop_data(begin, end)
        failpoints.hit("ingest.dropped")
        files = [folder / file for file in manifest.files]
        blocks = [file for file in files if file.suffix == BLOCKS_SUFFIX]
        if ingested := [str(file) for file in files if file not in blocks]:
            await self._queue.ingest(ingested, (begin, end))
        if blocks:
            await self._writer.write(blocks, (begin, end))
        failpoints.hit("ingest.ingested")
        state = await self._background.in_thread(self._check_state, manifest)
        # The old log goes first: its operations must never be taken for successors of the new data.
        await keep_log_tail(self._tablets, self._background, replica)
        self._tablets.clear_log(replica)
        await self._metadata.sync_log()
        until_s = self._background.wall() + self._settings.retention_seconds
        await self._metadata.save_block(replica, self._next_block(replica, copy, until_s))
        self._tablets.reset(replica, (state.applied.term, state.applied.index), dict(state.keyspaces))
        log.info(
            "partition %d: ingested %d fragments, %d entries, %d bytes, up to %s",
            replica.partition,
            len(manifest.fragments),
            manifest.entries,
            manifest.bytes,
            manifest.applied,
        )

    @staticmethod
    def _next_block(replica: Replica, copy: CopyRecord, until_s: float) -> Superblock:
        """Return the superblock after the ingest; a serving tablet is quarantined as if it was deleted."""
        block = replica.block
        assert block is not None
        if block.state is TabletState.READY:
            block = quarantine(block, until_s, replica.last)
        state = step(block.state, Event.INGEST)
        highest = max(block.highest, copy.generation)
        return msgspec.structs.replace(block, state=state, generation=copy.generation, highest=highest)

    # -- in the executor

    def _holds(self, begin: bytes, end: bytes) -> bool:
        """Return whether an earlier attempt left data.

        An empty range must not be deleted: RocksDB would then flush its memtables before it ingests the file.
        """
        try:
            return bool(self._tablets.engine.scan(begin, end, 1))
        except Corrupt:
            return True

    @staticmethod
    def _check(folder: Path, expected: tuple[str, int, int]) -> Manifest:
        """Return the manifest if it is complete and that of `wanted`: (session, partition, generation)."""
        session, partition, _ = expected
        path = folder / f"{partition}.json"
        try:
            manifest = decode_manifest(path.read_bytes(), f"{session}/{path.name}")
        except FileNotFoundError:
            raise Refused(f"{path.name} is not in staging/{session}", "NOT_FOUND") from None
        actual = (manifest.session, manifest.partition, manifest.generation)
        if actual != expected:
            raise Stale(f"the manifest is of {actual}, but {expected} was expected", "STALE_COPY")
        for fragment in manifest.fragments:
            if fragment.file:
                _check_file(folder, fragment)
        return manifest

    def _check_state(self, manifest: Manifest) -> DataState:
        """Return the state of the ingested data, recounted if the copy dropped expired entries."""
        state = self._tablets.read_state(manifest.partition, manifest.generation)
        if state.applied != manifest.applied:
            raise Corrupt(
                f"partition {manifest.partition}: the data is at {state.applied}, but its manifest says "
                f"{manifest.applied}"
            )
        counted = sum(count for count, _ in state.keyspaces.values())
        loaded = keys.meta_key(manifest.partition, manifest.generation, LOADED)
        own = 1 if self._tablets.engine.get(loaded) is None else 2
        if manifest.files and counted != manifest.entries - own:
            return self._recount(manifest)
        return state

    def _recount(self, manifest: Manifest) -> DataState:
        engine, counts = self._tablets.engine, dict[bytes, tuple[int, int]]()
        begin, end = keys.tablet_range(manifest.partition, manifest.generation)
        while page := engine.scan(begin, end, COUNT_ENTRIES):
            for data_key, value in page:
                split = keys.split_user(data_key)
                if split is not None:
                    count, size = counts.get(split[0], (0, 0))
                    counts[split[0]] = (count + 1, size + len(split[1]) + len(value))
            begin = page[-1][0] + b"\0"
        return DataState(manifest.applied, counts)


@dataclass
class _Waiting:
    """Files of one tablet, the range of its keys, and the future of their ingest."""

    paths: list[str]
    within: tuple[bytes, bytes]
    ended: asyncio.Future[None]

    def fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


class _IngestQueue:
    """Ingests files of several tablets at once, since most of the cost is per call.

    At most `INGESTED_TOGETHER_MAX` files, because RocksDB's Python binding holds the GIL meanwhile and
    clients wait.
    """

    def __init__(self, engine: Engine, background: Background) -> None:
        self._engine, self._background = engine, background
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def ingest(self, paths: list[str], within: tuple[bytes, bytes]) -> None:
        """Ingest files, returning when they are in the database.

        Raises the error of the ingest, and Corrupt for keys outside of [begin, end).
        """
        request = _Waiting(paths, within, self._background.loop.create_future())
        self._waiting.append(request)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await request.ended

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            # A faulty request fails alone, without affecting the others.
            remaining = await self._each(self._within, batch)
            while remaining:
                count = _together(remaining)
                await self._each(self._ingest_together, remaining[:count])
                remaining = remaining[count:]
        self._task = None

    async def _each(
        self, work: Callable[[list[_Waiting]], Awaitable[list[_Waiting]]], requests: list[_Waiting]
    ) -> list[_Waiting]:
        """Run `work` on all requests, or on each if that fails; return those that succeeded."""
        try:
            return await work(requests)
        except Exception as error:  # noqa: BLE001  it is raised where it is waited for
            if len(requests) == 1:
                requests[0].fail(error)
                return []
        return [succeeded for request in requests for succeeded in await self._each(work, [request])]

    async def _within(self, requests: list[_Waiting]) -> list[_Waiting]:
        """Return the requests whose files only hold keys of their own tablet, which a checksum does not
        show."""
        paths, loop = [path for request in requests for path in request.paths], self._background.loop
        # Not in the database's thread, so that concurrent requests are checked together next time.
        bounds_of = dict(
            zip(paths, await loop.run_in_executor(None, self._engine.file_bounds, paths), strict=True)
        )
        for request in requests:
            for path in request.paths:
                if not request.within[0] <= bounds_of[path][0] <= bounds_of[path][1] < request.within[1]:
                    request.fail(foreign(path, request.within, bounds_of[path]))
        return [request for request in requests if not request.ended.done()]

    async def _ingest_together(self, requests: list[_Waiting]) -> list[_Waiting]:
        paths = [path for request in requests for path in request.paths]
        await self._background.in_thread(self._engine.ingest, paths)
        for request in requests:
            if not request.ended.done():
                request.ended.set_result(None)
        return requests


def _together(waiting: list[_Waiting]) -> int:
    """Return how many requests are ingested together: one, or as many as fit."""
    files = count = 0
    for request in waiting:
        files += len(request.paths)
        if count and files > INGESTED_TOGETHER_MAX:
            break
        count += 1
    return count


def _check_file(folder: Path, fragment: Fragment) -> None:
    path = folder / fragment.file
    if path.suffix == BLOCKS_SUFFIX and fragment.file_bytes > BLOCKS_BYTES_MAX:
        text = f"{path.name}: {fragment.file_bytes} bytes of blocks; the limit is {BLOCKS_BYTES_MAX}"
        raise Corrupt(text)
    size = crc = 0
    try:
        with path.open("rb") as file:
            while piece := file.read(READ_BYTES):
                crc = crc32c(piece, crc)
                size += len(piece)
    except FileNotFoundError:
        raise Refused(f"{path.name} is missing from staging", "NOT_FOUND") from None
    if (size, crc) != (fragment.file_bytes, fragment.file_crc32c):
        raise Corrupt(f"{path.name}: {size} bytes with crc32c {crc}, which differs from its manifest")
