"""Files of bulk loads at this member: those named by its logs, and the loads to apply next.

The transfer process builds a file below `loads/` before the log names it. A replica accepts such an operation
only when it has the file, so every in-sync replica can apply it. Files stay until the operation is trimmed.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from stele.core.tablet.log import Log
from stele.errors import Refused, Unavailable
from stele.member import limits
from stele.member.background import Background
from stele.member.replication.replica import Replica
from stele.member.replication.table_cache import TableCache
from stele.member.storage.volume import files_in
from stele.ports.transfer import Transfer
from stele.transfer.bulk.files import LoadFiles
from stele.wire.copy import bulk
from stele.wire.copy.bulk import BuildOrder, LoadManifest, file_name
from stele.wire.storage.load_value import LoadValue, decode_load
from stele.wire.storage.log_record import split_record

log = logging.getLogger("stele.bulk")


@dataclass(slots=True)
class LoadJob:
    """A load to apply next. It is obsolete when the tablet has another log or generation."""

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


class LocalLoads:
    """`due` are the loads to apply next; `files` those that the transfer process has built."""

    def __init__(self, folder: Path, table: TableCache, transfer: Transfer, background: Background) -> None:
        self._folder, self._table, self._transfer = folder, table, transfer
        self._background = background
        self._wanted: set[tuple[int, str]] = set()
        self.files = LoadFiles(folder)
        self.due: asyncio.Queue[LoadJob] = asyncio.Queue()

    def folder(self, load: str) -> Path:
        return self._folder / load

    def manifest(self, job: LoadJob) -> LoadManifest | None:
        """Return the manifest of the job's file; None when the file is missing."""
        return self.files.manifest(job.load, job.replica.partition, job.generation, job.value.crc32c)

    def partitions(self) -> set[int]:
        """Return the partitions with files here."""
        return {partition_of(path) for path in self._folder.glob("*/*.json")}

    # -- what the log says

    def has_load(self, replica: Replica, record: bytes, source: int) -> bool:
        """Return whether the file of a logged load is here; if not, have the transfer process fetch it."""
        job = _job(replica, 0, record)
        if self.manifest(job) is not None:
            return True
        place = (replica.partition, job.load)
        if place not in self._wanted:
            self._wanted.add(place)
            self._background.spawn(self._fetch(job, source))
        return False

    def apply_next(self, replica: Replica, index: int, record: bytes) -> None:
        self.due.put_nowait(_job(replica, index, record))

    def trimmed(self, replica: Replica, loads: list[str]) -> None:
        for load in loads:
            self._background.slow.submit(self._drop, load, replica.partition)

    # -- files

    async def _fetch(self, job: LoadJob, source: int) -> None:
        """Fetch the file.

        The owner resends the operation until it is here; without a file a copy is needed.
        """
        await self.fetch(job, (source,))

    async def fetch(self, job: LoadJob, sources: tuple[int, ...]) -> bool:
        """Have the transfer process build this member's file, from a local run or one of `sources`.

        Returns False when none of them has it (any more).
        """
        partition, gone = job.replica.partition, True
        try:
            for source in sources:
                if source not in self._table.members:
                    gone = False
                    continue
                group = self._table.routes.group(job.keyspace.encode())
                order = BuildOrder(
                    generation=job.generation,
                    keyspace=job.keyspace,
                    partitions=len(group),
                    first=group.start,
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

    def delete_damaged(self, job: LoadJob) -> None:
        """Delete a damaged SST file and its manifest, so that it is built again from the run."""
        for kind in ("json", "sst"):
            name = file_name(job.replica.partition, job.generation, job.value.crc32c, kind)
            (self.folder(job.load) / name).unlink(missing_ok=True)

    def _drop(self, load: str, partition: int) -> None:
        """Delete manifests first: a file without one counts as missing."""
        folder = self.folder(load)
        for pattern in (f"{partition}-*.json", f"{partition}-*"):
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)
        _remove_empty(folder)

    async def collect_garbage(self, replicas: Iterable[Replica]) -> None:
        """Delete files that no log names and that have been untouched for long: those of abandoned loads."""
        named = {(load, replica.partition) for replica in replicas for load in replica.loads.values()}
        await self._background.in_thread(self._delete_unnamed, named)

    def _delete_unnamed(self, named: set[tuple[str, int]]) -> None:
        for folder in self._folder.iterdir():
            paths = [folder / name for name in files_in(folder)]
            # A load may send pieces for hours; it is abandoned once nothing new has arrived for long.
            if min(map(self._age_seconds, [folder, *paths])) <= limits.LOAD_AGE_SECONDS:
                continue
            for path in paths:
                if (folder.name, partition_of(path)) not in named:
                    path.unlink(missing_ok=True)
            _remove_empty(folder)

    def _age_seconds(self, path: Path) -> float:
        try:
            return self._background.wall() - path.stat().st_mtime
        except FileNotFoundError:
            return 0.0


def _job(replica: Replica, index: int, record: bytes) -> LoadJob:
    _, keyspace, name, value, _ = split_record(record)
    return LoadJob(replica, index, name.decode(), decode_load(value), keyspace.decode())


def partition_of(path: Path) -> int:
    """Return the partition of a run, SST file or manifest; -1 for a piece."""
    if path.suffix == ".piece":
        return -1
    number = path.name.partition(".")[0].partition("-")[0]
    return int(number) if number.isdigit() else -1


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
