"""Files of bulk loads below `loads/`: receives pieces, and builds each tablet's run and SST file from them.

It depends neither on asyncio nor on HTTP. Repeated writes give the same content, and incomplete files have
temporary names. No external file ever enters the database: the SST file is built here, from validated
entries, for the generation of this volume's tablet.
"""

import errno
import heapq
import http.client
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import msgspec
from crc32c import crc32c
from rocksdict import SstFileWriter

from stele.adapters.folders import sync_folder
from stele.adapters.rocksdb.options import data_options
from stele.core.kv.commands import KEY_BYTES_MAX, VALUE_BYTES_MAX, text_of
from stele.core.kv.keyslot import partitions_of
from stele.errors import BadInput, Conflict, Corrupt, Refused, Unavailable
from stele.wire.copy.blocks import BlockReader, Entry
from stele.wire.copy.bulk import (
    FORMAT,
    HEAD_BYTES,
    BuildOrder,
    LoadManifest,
    PieceIndex,
    decode_index,
    encode_json,
    encode_run,
    file_name,
    index_bytes,
    run_name,
)
from stele.wire.storage.keys import EXPIRY_BYTES, user_prefix
from stele.wire.unreadable import UNREADABLE

READ_BYTES = 1024 * 1024
FETCH_SECONDS_MAX = 60.0
SPARE_BYTES = 256 * 1024 * 1024
"""Space of a volume that bulk loads leave free, for clients and a compaction."""
PIECES_MAX = 4096
"""Most pieces of one load; a build has a file open for each."""

_manifest = msgspec.json.Decoder(LoadManifest).decode
Columns = tuple[list[bytes], list[bytes]]
Sources = Callable[[int], http.client.HTTPConnection]
"""Connects to a member's transfer process."""


def _no_sources(member: int) -> http.client.HTTPConnection:
    raise Unavailable(f"source is member {member}, but this process cannot fetch", "SOURCE")


class LoadFiles:
    """The directory `loads` of one volume. Methods block; they are thread-safe."""

    def __init__(self, root: Path, sources: Sources = _no_sources) -> None:
        self._root, self._sources = root, sources
        self._coming_bytes = 0
        self._lock = threading.Lock()

    # -- pieces

    @contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Reserve space for a file, in addition to the reservations of other files.

        Raises Refused (NO_SPACE) when that would leave too little for clients. The written part of other
        files counts twice, so at worst a load waits needlessly.
        """
        with self._lock:
            self._check_room(size)
            self._coming_bytes += size
        try:
            yield
        finally:
            with self._lock:
                self._coming_bytes -= size

    def _check_room(self, size: int) -> None:
        usage = os.statvfs(self._root.parent)
        free = usage.f_bavail * usage.f_frsize - self._coming_bytes
        if free - size < SPARE_BYTES:
            raise Refused(
                f"the volume has {free} bytes free: a bulk load of {size} more would leave less than "
                f"{SPARE_BYTES}; enlarge the volume, or wait for other loads",
                "NO_SPACE",
            )

    @contextmanager
    def receiving(self, load: str, piece: str, size: int) -> Iterator["Announced"]:
        """Yield a file for a piece of `size` bytes, which becomes the piece at the end of the block."""
        with self._room(size):
            folder = self._make_folder(load)
            part = folder / f"{piece}.{os.urandom(4).hex()}.part"
            try:
                with part.open("xb") as file:
                    announced = Announced(file, size)
                    yield announced
                    announced.check_end()
                    file.flush()
                    os.fsync(file.fileno())
                _check_piece(part)
                part.rename(self._piece(load, piece))
                sync_folder(folder)
            finally:
                part.unlink(missing_ok=True)

    def _make_folder(self, load: str) -> Path:
        folder = self._root / load
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._root)
        return folder

    def _piece(self, load: str, piece: str) -> Path:
        return self._root / load / f"{piece}.piece"

    def drop_pieces(self, load: str) -> None:
        """Delete the pieces of a finished load; files that the log names stay."""
        for path in (self._root / load).glob("*.piece"):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            (self._root / load).rmdir()

    # -- runs and their SST files

    def manifest(self, load: str, partition: int, generation: int, crc32c: int) -> LoadManifest | None:
        """Return the manifest of a complete file, None when there is none."""
        path = self._root / load / file_name(partition, generation, crc32c, "json")
        try:
            return _manifest(path.read_bytes())
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise Corrupt(f"loads/{load}/{path.name}: {error}") from None

    def run_path(self, load: str, partition: int, crc32c: int) -> Path:
        """Return the path of a tablet's run, whether it exists or not."""
        return self._root / load / run_name(partition, crc32c)

    def build(self, load: str, partition: int, order: BuildOrder) -> LoadManifest:
        """Build a tablet's run and SST file and return the manifest, at once if the run of `source` is here.

        Raises BadInput for invalid entries or pieces, Conflict (DUPLICATE_KEY), Refused (NOT_STAGED,
        NO_SPACE), and Unavailable or Corrupt when the run cannot be fetched from `source`.
        """
        fetched = order.source >= 0
        done = self.manifest(load, partition, order.generation, order.crc32c) if fetched else None
        if done is not None:
            return done
        self._make_folder(load)
        try:
            if fetched:
                self._fetch(load, partition, order)
            return self._build(load, partition, order)
        except OSError as error:
            raise disk_error(error) from error

    def _build(self, load: str, partition: int, order: BuildOrder) -> LoadManifest:
        folder = self._root / load
        unique = os.urandom(4).hex()
        temporary = folder / f"{partition}.{unique}.part"
        sst = folder / f"{partition}-{order.generation}.{unique}.sst.part"
        try:
            with ExitStack() as stack:
                merged = self._entries(load, partition, order, stack)
                writer = _SstWriter(sst, user_prefix(partition, order.generation, order.keyspace.encode()))
                checked = _checked(merged, partition, order.group)
                run_crc = _write_run(temporary, encode_run(writer.passing(checked), partition))
            sst_bytes, sst_crc = writer.finish()
            if order.source >= 0 and run_crc != order.crc32c:
                raise Corrupt(f"the run of partition {partition} differs from that of its source")
            manifest = LoadManifest(
                format=FORMAT,
                load=load,
                partition=partition,
                generation=order.generation,
                keyspace=order.keyspace,
                entries=writer.entries,
                bytes=writer.bytes,
                crc32c=run_crc,
                sst_bytes=sst_bytes,
                sst_crc32c=sst_crc,
            )
            sst.rename(folder / file_name(partition, order.generation, run_crc, "sst"))
            temporary.rename(self.run_path(load, partition, run_crc))
            self._publish(folder / file_name(partition, order.generation, run_crc, "json"), manifest)
            return manifest
        finally:
            temporary.unlink(missing_ok=True)
            sst.unlink(missing_ok=True)

    @staticmethod
    def _publish(path: Path, manifest: LoadManifest) -> None:
        part = path.with_name(path.name + ".part")
        with part.open("wb") as file:
            file.write(encode_json(manifest))
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        sync_folder(path.parent)

    def _entries(self, load: str, partition: int, order: BuildOrder, stack: ExitStack) -> Iterator[Entry]:
        """Iterate the tablet's entries in order of keys, each key once."""
        if order.source >= 0:
            run = stack.enter_context(self.run_path(load, partition, order.crc32c).open("rb"))
            return _rows(BlockReader(run.read))
        if not 1 <= len(order.pieces) <= PIECES_MAX:
            raise BadInput(f"{len(order.pieces)} pieces are named; expected 1 to {PIECES_MAX}")
        streams = [self._section(load, piece, partition, stack) for piece in order.pieces]
        # Entries with equal keys stay in the order of the pieces.
        return _once(heapq.merge(*streams, key=itemgetter(0)), order.duplicates)

    def _section(self, load: str, piece: str, partition: int, stack: ExitStack) -> Iterator[Entry]:
        try:
            file = stack.enter_context(self._piece(load, piece).open("rb"))
        except FileNotFoundError:
            raise Refused(f"piece {piece} of load {load} is not at this member", "NOT_STAGED") from None
        index, begin = _read_index(file)
        section = next((s for s in index.sections if s.partition == partition), None)
        if section is None:
            # The piece was uploaded when this member held no replica of the partition.
            raise Refused(f"piece {piece} of load {load} has no rows of partition {partition}", "NOT_STAGED")
        file.seek(begin + section.offset)
        return _rows(BlockReader(_Limited(file, section.bytes).read))

    def _fetch(self, load: str, partition: int, order: BuildOrder) -> None:
        """Fetch the run from another member's transfer process."""
        target = self.run_path(load, partition, order.crc32c)
        if target.exists() and sum_file(target)[1] == order.crc32c:
            return
        part = target.with_name(f"{target.name}.{os.urandom(4).hex()}.part")
        try:
            path = f"/v1/bulk/loads/{load}/partitions/{partition}?crc32c={order.crc32c}"
            opened = _opened(partial(self._sources, order.source), path, f"member {order.source}")
            with opened as run, self._room(run.length or 0):
                crc = _write_run(part, iter(lambda: run.read(READ_BYTES), b""))
            if crc != order.crc32c:
                raise Corrupt(f"the run of partition {partition} from member {order.source} has crc32c {crc}")
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)


class Announced:
    """A file that accepts exactly the announced number of bytes."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size, self._left = file, size, size

    def write(self, data: bytes) -> None:
        """Write data. Raises BadInput, before writing, when it exceeds the announced size."""
        self._left -= len(data)
        if self._left < 0:
            raise BadInput(
                f"received more than the {self._size} bytes of Content-Length; send the piece again"
            )
        self._file.write(data)

    def check_end(self) -> None:
        """Raise BadInput when data is missing."""
        if self._left:
            raise BadInput(f"{self._left} of {self._size} bytes are missing; send the piece again")


class _Limited:
    """The next `size` bytes of a file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int) -> bytes:
        data = self._file.read(min(size, self._left))
        self._left -= len(data)
        return data


class _SstWriter:
    """Writes an SST file of the entries that pass through; without entries RocksDB writes none."""

    def __init__(self, path: Path, prefix: bytes) -> None:
        self.entries = 0
        self.bytes = 0
        self._path, self._prefix = path, prefix
        self._sst = SstFileWriter(data_options())
        self._sst.open(str(path))

    def passing(self, columns: Iterable[Columns]) -> Iterator[Entry]:
        sst, prefix = self._sst, self._prefix
        for keys, values in columns:
            try:
                for key, value in zip(keys, values, strict=True):
                    sst[prefix + key] = value
            except Exception as error:  # rocksdict raises bare Exception
                raise _sst_error(error) from error
            self.entries += len(keys)
            self.bytes += sum(map(len, keys)) + sum(map(len, values))
            yield from zip(keys, values, strict=True)

    def finish(self) -> tuple[int, int]:
        """Return (bytes, crc32c) of the file, which is on disk."""
        if not self.entries:
            raise BadInput("no piece holds an entry of the partition")
        try:
            self._sst.finish()
        except Exception as error:  # rocksdict raises bare Exception
            raise _sst_error(error) from error
        return sum_file(self._path, sync=True)


COLUMN_ENTRIES = 512


def _checked(entries: Iterator[Entry], partition: int, group: range) -> Iterator[Columns]:
    """Iterate the entries in batches. Raises BadInput for entries that no client could have written."""
    while batch := list(islice(entries, COLUMN_ENTRIES)):
        keys = [key for key, _ in batch]
        values = [value for _, value in batch]
        elsewhere = set(partitions_of(keys, group)) - {partition}
        if elsewhere:
            raise BadInput(f"partition {partition}: a piece contains keys of partition {min(elsewhere)}")
        longest, largest, least = max(map(len, keys)), max(map(len, values)), min(map(len, values))
        if longest > KEY_BYTES_MAX:
            raise BadInput(f"a key has {longest} bytes; at most {KEY_BYTES_MAX} are allowed", "TOO_LARGE")
        if largest - EXPIRY_BYTES > VALUE_BYTES_MAX:
            text = f"a value has {largest - EXPIRY_BYTES} bytes; at most {VALUE_BYTES_MAX} are allowed"
            raise BadInput(text, "TOO_LARGE")
        if least < EXPIRY_BYTES or max(values)[0] > 0x7F:
            raise BadInput(f"partition {partition}: a value does not begin with an expiry time")
        yield keys, values


def _rows(reader: BlockReader) -> Iterator[Entry]:
    try:
        for keys, values in reader:
            yield from zip(keys, values, strict=True)
    except Corrupt as error:
        raise Corrupt(f"a piece or a run is damaged: {error}") from None


def _once(entries: Iterable[Entry], duplicates: str) -> Iterator[Entry]:
    """Iterate each key once, with its last value; or raise Conflict with the repeated key."""
    last: Entry | None = None
    for entry in entries:
        if last is not None:
            if entry[0] != last[0]:
                yield last
            elif duplicates == "error":
                raise Conflict(
                    f"key '{text_of(entry[0])}' is repeated in the load, and nothing was loaded: "
                    "remove the duplicates, or load with duplicates=last",
                    "DUPLICATE_KEY",
                )
        last = entry
    if last is not None:
        yield last


def _write_run(path: Path, blocks: Iterable[bytes | bytearray]) -> int:
    crc = 0
    with path.open("xb") as file:
        for block in blocks:
            file.write(block)
            crc = crc32c(block, crc)
        file.flush()
        os.fsync(file.fileno())
    return crc


def _read_index(file: BinaryIO) -> tuple[PieceIndex, int]:
    """Read the index; return it with the offset of the streams."""
    size = index_bytes(file.read(HEAD_BYTES))
    return decode_index(file.read(size)), HEAD_BYTES + size


def _check_piece(path: Path) -> None:
    with path.open("rb") as file:
        index, begin = _read_index(file)
        size, crc = _sum(file)
    if (size, crc) != (index.bytes, index.crc32c):
        raise BadInput(
            f"the piece has {size} bytes with crc32c {crc} after its {begin} bytes of index; "
            f"expected {index.bytes} with {index.crc32c}: send it again"
        )


def sum_file(path: Path, *, sync: bool = False) -> tuple[int, int]:
    """Return (bytes, crc32c) of a file; with `sync`, it is on disk on return."""
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return _sum(file)


def _sum(file: BinaryIO) -> tuple[int, int]:
    crc = size = 0
    while data := file.read(READ_BYTES):
        crc = crc32c(data, crc)
        size += len(data)
    return size, crc


@contextmanager
def _opened(
    dial: Callable[[], http.client.HTTPConnection], path: str, who: str
) -> Iterator[http.client.HTTPResponse]:
    """Yield another transfer process's response.

    Errors only repeat the status: the responder may not be a transfer process.
    """
    try:
        with closing(dial()) as connection:
            connection.request("GET", path)
            with connection.getresponse() as response:
                if response.status == 404:
                    raise Refused(f"{who} does not have the run (any more)", "NOT_FOUND")
                if response.status != 200 or response.length is None:
                    text = f"{who} answered {response.status}, expected 200 with Content-Length"
                    raise Unavailable(text, "SOURCE")
                yield response
    except http.client.HTTPException as error:
        raise Unavailable(f"{who}: {type(error).__name__}", "SOURCE") from error
    except OSError as error:
        raise Unavailable(f"{who}: {error or type(error).__name__}", "SOURCE") from error


def _sst_error(error: Exception) -> Refused:
    code = "NO_SPACE" if "No space left" in str(error) else "INTERNAL"
    return Refused(f"SST file of a bulk load: {error}", code)


def disk_error(error: OSError) -> Refused:
    """Return the error that a loader gets for an error of the volume."""
    return Refused(f"loads: {error}", "NO_SPACE" if error.errno == errno.ENOSPC else "DISK_ERROR")
