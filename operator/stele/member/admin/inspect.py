"""`stele-member inspect DIR`: shows the content of a volume that is not in use, without changing it."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from crc32c import crc32c

from stele.adapters.memory.engine import MemoryEngine
from stele.adapters.rocksdb.engine import RocksReader
from stele.core.tablet.follower import Tablet
from stele.core.tablet.lifecycle import TabletState
from stele.core.tablet.log import Log
from stele.errors import BadInput, Corrupt, Refused, SteleError
from stele.member.admin.tablet_info import tablet_facts
from stele.member.replication.replica import Replica
from stele.member.replication.stored_log import log_range
from stele.member.replication.table_cache import TableCache
from stele.member.replication.tablet_store import TabletStore
from stele.member.storage.volume import (
    CONSENSUS,
    DATA,
    INSTANCE,
    SERVICES,
    STAGING,
    TABLETS,
    WALS,
    Volume,
)
from stele.wire.admin import QuarantinedVolume, TabletFacts
from stele.wire.copy.jobs import decode_manifest
from stele.wire.storage import keys
from stele.wire.storage.log_record import check_record, term_of
from stele.wire.storage.volume import (
    TABLE_FILE,
    Consensus,
    DataState,
    Instance,
    ServiceMigration,
    ServicesFile,
    Superblock,
    TableFile,
    decode_file,
    decode_table,
)

PAGE_ENTRIES = 1000
PAGE_BYTES = 1024 * 1024
HEADS = (
    "PARTITION", "STATE", "ROLE", "GENERATION", "PROMISED", "LAST", "APPLIED", "LOG", "ENTRIES", "BYTES"
)  # fmt: skip
T = TypeVar("T")
F = TypeVar("F", Instance, ServicesFile)


class Inspection(msgspec.Struct):
    """Result of an inspection. `problems` is empty for a sound volume; `verified` if all data was read.

    `services` are migrations whose end has not been reported to installed services.
    """

    folder: str
    verified: bool
    instance: Instance | None = None
    epoch: int = 0
    partitions: int = 0
    tablets: list[TabletFacts] = []
    services: list[ServiceMigration] = []
    volumes: list[QuarantinedVolume] = []
    problems: list[str] = []


def inspect(folder: Path, *, verify: bool) -> Inspection:
    """Inspect a volume. Raises BadInput when it is not one, Refused (IN_USE) while a process uses it."""
    if not (folder / TABLETS).is_dir():
        raise BadInput(
            f"{folder} is not a member's volume: it has no directory {TABLETS}; pass the directory in "
            "STELE_DATA_DIR",
            "NOT_FOUND",
        )
    if Volume(folder).in_use():
        raise Refused(
            f"{folder} is in use by a running member; stop it, or query its port 7001 "
            "(/v1/tablets, /v1/quarantine)",
            "IN_USE",
        )
    with tempfile.TemporaryDirectory() as notes:
        return _Inspector(folder, Path(notes), verify).run()


class _Inspector:
    def __init__(self, folder: Path, notes: Path, verify: bool) -> None:
        self._volume = Volume(folder)
        self._notes = notes
        self._verify = verify
        self._found = Inspection(str(folder), verify)

    def run(self) -> Inspection:
        result, volume = self._found, self._volume
        result.instance = self._try(lambda: _read(Instance, volume.path(INSTANCE)))
        table = self._try(self._table) or TableCache(TableFile())
        result.epoch, result.partitions = table.epoch, len(table.rows)
        result.services = self._try(self._services) or []
        result.volumes = volume.quarantined_volumes()
        reader = self._try(lambda: RocksReader(volume.path(DATA), volume.path(WALS), self._notes))
        blocks, metas = self._files(TABLETS, Superblock), self._files(CONSENSUS, Consensus)
        try:
            self._check_families(reader)
            if reader is not None:
                self._try(partial(volume.check_segments, reader.log_end()))
            for partition in sorted(blocks.keys() | metas.keys()):
                meta = metas.get(partition) or Consensus()
                facts = self._tablet(reader, table, partition, blocks.get(partition), meta)
                result.tablets.append(facts)
        finally:
            if reader is not None:
                reader.close()
        if self._verify:
            self._verify_staging()
        return result

    def _check_families(self, reader: RocksReader | None) -> None:
        if reader is not None and (number := reader.default_keys()):
            self._found.problems.append(
                f"database: RocksDB's family 'default' has {number} keys that no tablet reads, written while "
                "a member of an older build was stopping; the next start removes them"
            )

    def _try(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (SteleError, OSError) as error:
            self._found.problems.append(str(error))
            return None

    def _table(self) -> TableCache:
        path = self._volume.path(TABLE_FILE)
        uuid = "" if self._found.instance is None else self._found.instance.uuid
        file = decode_table(path.read_bytes(), str(path)) if path.exists() else TableFile()
        return TableCache(file, uuid)

    def _services(self) -> list[ServiceMigration]:
        path = self._volume.path(SERVICES)
        return list(_read(ServicesFile, path).begun) if path.exists() else []

    def _files(self, folder: str, kind: type[T]) -> dict[int, T | None]:
        files: dict[int, T | None] = {}
        for partition, value in self._try(lambda: list(self._volume.load_all(folder, kind))) or ():  # type: ignore[type-var]
            if isinstance(value, Corrupt):
                self._found.problems.append(str(value))
            files[partition] = None if isinstance(value, Corrupt) else value
        return files

    # -- one tablet

    def _tablet(
        self,
        reader: RocksReader | None,
        table: TableCache,
        partition: int,
        block: Superblock | None,
        meta: Consensus,
    ) -> TabletFacts:
        replica = Replica(Tablet(partition, table.me, Log(), meta.promised), block, meta)
        if partition < len(table.rows):
            replica.tablet.row = table.rows[partition]
        tablets = TabletStore(MemoryEngine() if reader is None else reader, table)
        self._load(tablets, replica)
        return tablet_facts(tablets, replica)

    def _load(self, tablets: TabletStore, replica: Replica) -> None:
        """Load a tablet's log and data, also quarantined; errors become problems of this tablet."""
        if replica.block is None:
            return
        try:
            if self._verify:
                _verify_quarantined(tablets, replica.partition, replica.block)
            if replica.block.state is not TabletState.READY:
                return
            replica.tablet.log, state = tablets.load_data(replica.partition, replica.generation)
            replica.keyspaces = dict(state.keyspaces)
            if self._verify:
                _verify_log(tablets, replica)
                _verify_data(tablets, replica, state)
        except Corrupt as error:
            replica.broken = str(error)
            self._found.problems.append(f"partition {replica.partition}: {error}")

    def _verify_staging(self) -> None:
        for path in sorted(self._volume.path(STAGING).glob("*/*.json")):
            self._try(partial(_verify_copy, path))


def _read(kind: type[F], path: Path) -> F:
    return decode_file(kind, path.read_bytes(), str(path))


def _verify_log(tablets: TabletStore, replica: Replica) -> None:
    """Read every operation: none is missing, each is valid, and terms never decrease."""
    index, term = replica.tablet.log.first, 0
    for key, record in _logged(tablets, replica.partition):
        check_record(record)
        log_index = int.from_bytes(key[2:], "big")
        if index != log_index or term_of(record)[0] < term:
            raise Corrupt(f"the log has {(term_of(record)[0], log_index)} after {(term, index - 1)}")
        index, term = log_index + 1, term_of(record)[0]


def _logged(tablets: TabletStore, partition: int) -> Iterator[tuple[bytes, bytes]]:
    begin, end = log_range(partition)
    while page := tablets.engine.scan_log(begin, end, PAGE_BYTES):
        yield from page
        begin = keys.next_log_key(page[-1][0])


def _verify_data(tablets: TabletStore, replica: Replica, state: DataState) -> None:
    """Read every entry of the tablet, and compare their number and bytes with the tablet's totals."""
    counts: dict[bytes, tuple[int, int]] = {}
    begin, end = keys.tablet_range(replica.partition, replica.generation)
    while page := tablets.engine.scan(begin, end, PAGE_ENTRIES):
        for data_key, value in page:
            if (split := keys.split_user(data_key)) is not None:
                count, size = counts.get(split[0], (0, 0))
                counts[split[0]] = (count + 1, size + len(split[1]) + len(value))
        begin = page[-1][0] + b"\0"
    totals = {keyspace: sizes for keyspace, sizes in state.keyspaces.items() if sizes[0]}
    if counts != totals:
        raise Corrupt(f"entries and bytes by keyspace are {counts}, but the tablet's totals are {totals}")


def _verify_quarantined(tablets: TabletStore, partition: int, block: Superblock) -> None:
    """Read quarantined data: that of each generation, and the log, which may lack its front."""
    for each in block.quarantined:
        begin, end = keys.tablet_range(partition, each.generation)
        while page := tablets.engine.scan(begin, end, PAGE_ENTRIES):
            begin = page[-1][0] + b"\0"
    if block.state is TabletState.DELETED:
        for _, record in _logged(tablets, partition):
            check_record(record)


def _verify_copy(path: Path) -> None:
    for fragment in decode_manifest(path.read_bytes(), str(path)).fragments:
        content = (path.parent / fragment.file).read_bytes() if fragment.file else b""
        if fragment.file and (len(content), crc32c(content)) != (fragment.file_bytes, fragment.file_crc32c):
            raise Corrupt(f"{path.parent / fragment.file}: its size or checksum differs from its manifest")


def text_of(inspection: Inspection) -> str:
    """Render an inspection for people: the volume, a line per tablet, quarantine, problems."""
    instance = inspection.instance
    lines = [f"volume {inspection.folder}"]
    if instance is not None:
        lines.append(
            f"member {instance.uuid}, cluster {instance.cluster}, started {instance.incarnation} times"
        )
    lines.append(
        f"table: epoch {inspection.epoch}, {inspection.partitions} partitions; "
        f"{len(inspection.tablets)} tablets"
    )
    rows = [HEADS, *map(_row, inspection.tablets)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    for row in rows:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for each in (entry for tablet in inspection.tablets for entry in tablet.quarantined):
        lines.append(
            f"quarantined: partition {each.partition}, generation {each.generation}, {each.entries} entries"
        )
    lines += [_service_line(each) for each in inspection.services]
    lines += [
        f"quarantined volume: {each.name}, {each.bytes} bytes: {each.reason}" for each in inspection.volumes
    ]
    lines += [f"PROBLEM: {each}" for each in inspection.problems]
    how = (
        "all data was read"
        if inspection.verified
        else "only files were read; --verify also reads data and logs"
    )
    lines.append(f"{len(inspection.problems)} problems ({how})")
    return "\n".join(lines)


def _service_line(each: ServiceMigration) -> str:
    """Format a migration whose begin services were notified of."""
    ends = {None: "not ended yet", True: "committed", False: "rolled back"}
    return (
        f"services: partition {each.partition}, {each.type} {each.id} of row {each.base}, here "
        f"{each.endpoint} from index {each.current} to {each.new}: {ends[each.committed]}"
    )


def _row(tablet: TabletFacts) -> tuple[str, ...]:
    log = tablet.log
    return (
        str(tablet.partition),
        tablet.state + (" (offline)" if tablet.offline else ""),
        tablet.role,
        str(tablet.generation),
        str(tablet.promised),
        f"{tablet.last.term}.{tablet.last.index}",
        f"{tablet.applied.term}.{tablet.applied.index}",
        "empty" if log.last < log.first else f"{log.first}..{log.last}",
        str(tablet.entries),
        str(tablet.bytes),
    )
