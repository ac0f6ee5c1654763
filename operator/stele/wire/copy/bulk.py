"""Bulk loads: uploads to members, files below `loads/` on a volume, and what the log records of a load.

A loader divides its rows into *pieces*. A piece is a u32 (big-endian) with the length of its index, the index
(JSON of `PieceIndex`), and one stream of `wire.copy.blocks` per partition: keys as users know them, values as
they are stored. A member's transfer process merges the data of all pieces for one tablet into a *run* (one
stream, the same bytes at every replica) and builds an SST file from it. The log then names the run.

    loads/<load>/<piece>.piece
    loads/<load>/<partition>-<crc32c>.run
    loads/<load>/<partition>-<generation>-<crc32c>.sst, .json (a `LoadManifest`, written last)
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from stele.core.control.commands import INDEX_MAX, OpId, Slots
from stele.core.security.level import InternalTls
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import BadInput, Corrupt
from stele.wire.copy.blocks import End, Entry, encode_stream
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX
from stele.wire.storage.load_value import LOAD_ID, Checksum, Count
from stele.wire.unreadable import UNREADABLE

LOADS = "loads"
FORMAT = 1
PIECE_BYTES_MAX = 256 * 1024 * 1024
INDEX_BYTES_MAX = 4 * 1024 * 1024
EXPORT_PREFIX = "export-"
"""Prefix of the names of export sessions, which the master does not know and leaves alone."""
LOADED = b"loads"
"""Name of the tablet's entry with its latest loads; see `wire.storage.keys.meta_key`."""
LOADED_MAX = 64
"""Loads that one tablet remembers: an older load would be applied again if it was repeated."""

Duplicates = Literal["error", "last"]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
Generation = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Keyspace = Annotated[str, msgspec.Meta(min_length=1, max_length=KEYSPACE_BYTES_MAX, pattern="^[^@]")]
"""A keyspace of users: those of services begin with `wire.copy.fragments.SERVICE_MARK`."""
_LENGTH = struct.Struct(">I")
HEAD_BYTES = _LENGTH.size


class Section(msgspec.Struct, frozen=True, array_like=True):
    """Position of a partition's stream in a piece, counted from the end of the index."""

    partition: PartitionNumber
    offset: Count
    bytes: Count


class PieceIndex(msgspec.Struct, frozen=True):
    """Index of a piece. `crc32c` covers all streams; the partitions of `sections` ascend."""

    format: int
    sections: tuple[Section, ...]
    bytes: Count
    crc32c: Checksum


class BuildOrder(msgspec.Struct, frozen=True):
    """Request to build a tablet's run and SST file from pieces in order, or from the run of `source`.

    The keyspace has `partitions` from `first` on. `duplicates` decides about repeated keys: an error, or the
    last piece wins. `source` is the index of
    another member (-1: none), and `crc32c` that of its run.
    """

    generation: Generation
    keyspace: Keyspace
    partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
    pieces: tuple[str, ...] = ()
    duplicates: Duplicates = "error"
    source: Annotated[int, msgspec.Meta(ge=-1, le=INDEX_MAX)] = -1
    crc32c: Checksum = 0
    first: PartitionNumber = 0

    @property
    def group(self) -> range:
        """The partitions of the keyspace."""
        return range(self.first, self.first + self.partitions)


class LoadManifest(msgspec.Struct, frozen=True):
    """A complete run with its SST file.

    `entries` and `bytes` count keys and stored values; `crc32c` is that of the run, and part of the file
    names.
    """

    format: int
    load: str
    partition: int
    generation: int
    keyspace: str
    entries: int
    bytes: int
    crc32c: int
    sst_bytes: int
    sst_crc32c: int


class LoadList(msgspec.Struct, frozen=True):
    """Partitions that this member owns and that have applied a load.

    `token` is for requests about the load to the transfer process in this member's pod.
    """

    partitions: tuple[int, ...]
    token: str = ""


class LoadOrder(msgspec.Struct, frozen=True):
    """Request to the owner to apply a run. `members` of the row at `version` have the run."""

    version: int
    members: tuple[int, ...]
    keyspace: Keyspace
    entries: Count
    bytes: Count
    crc32c: Checksum


class Loaded(msgspec.Struct, frozen=True, array_like=True):
    """A load that a tablet applied, and the index of its operation in the log."""

    load: str
    index: int
    entries: int
    crc32c: int


class LoadPlace(msgspec.Struct, frozen=True):
    """A member's answer to a loader about one partition. `members` is empty when it is not the owner.

    `generation` is the one to build this member's file for; -1 when it has no tablet.
    """

    version: int
    generation: int
    members: tuple[int, ...] = ()
    loaded: Loaded | None = None


class BulkMember(msgspec.Struct, frozen=True, array_like=True):
    """One member as loaders reach it."""

    index: int
    name: str
    address: str


class BulkGroup(msgspec.Struct, frozen=True, array_like=True):
    """The partitions of a keyspace that has some of its own."""

    keyspace: str
    first: int
    partitions: int


class BulkTable(msgspec.Struct, frozen=True):
    """The table as a member knows it, rows are (version, replicas) by partition.

    `rows` are those outside of groups, `group_rows` the following ones, which belong to `groups`. `tls` is
    the level by which transfer processes take connections.
    """

    cluster: str
    admin_port: int
    transfer_port: int
    members: tuple[BulkMember, ...]
    rows: tuple[tuple[int, Slots], ...]
    group_rows: tuple[tuple[int, Slots], ...] = ()
    groups: tuple[BulkGroup, ...] = ()
    tls: InternalTls = InternalTls.OFF

    def group(self, keyspace: str) -> range:
        """Return the partitions of a keyspace."""
        own = next((each for each in self.groups if each.keyspace == keyspace), None)
        return range(len(self.rows)) if own is None else range(own.first, own.first + own.partitions)

    def replicas(self, partition: int) -> Slots:
        """Return the replicas in the row of a partition."""
        main = len(self.rows)
        return self.rows[partition][1] if partition < main else self.group_rows[partition - main][1]

    @property
    def versions(self) -> int:
        """The sum of all rows' versions: that of a newer table is larger."""
        return sum(version for version, _ in (*self.rows, *self.group_rows))


class SnapshotOrder(msgspec.Struct, frozen=True):
    """Request for a readable checkpoint of this owner's partitions. A repetition renews the lease."""

    partitions: tuple[PartitionNumber, ...]
    lease_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 60.0


_loaded = msgspec.msgpack.Decoder(list[Loaded]).decode
_index = msgspec.json.Decoder(PieceIndex).decode
encode_packed = msgspec.msgpack.Encoder().encode
encode_json = msgspec.json.Encoder().encode


def encode_run(entries: Iterable[Entry], partition: int) -> Iterator[bytearray]:
    """Encode ascending entries of one partition: a section of a piece, or a run."""
    return encode_stream(entries, lambda count, size: End(partition, 0, OpId(), count, size))


def run_name(partition: int, crc32c: int) -> str:
    """Return the name of a run.

    It depends on the content, so a retry never replaces a run that a log names.
    """
    return f"{partition}-{crc32c:08x}.run"


def file_name(partition: int, generation: int, crc32c: int, kind: str) -> str:
    """Return the name of a file for one generation of a tablet, of kind `sst` or `json`."""
    return f"{partition}-{generation}-{crc32c:08x}.{kind}"


def decode_loaded(stored: bytes) -> list[Loaded]:
    """Decode a tablet's latest loads, oldest first. Raises Corrupt."""
    try:
        return _loaded(stored)
    except UNREADABLE as error:
        raise Corrupt(f"a tablet's list of bulk loads: {error}") from None


def piece_head(sections: Sequence[Section], crc32c: int) -> bytes:
    """Encode the beginning of a piece, up to its streams."""
    size = sum(section.bytes for section in sections)
    index = encode_json(PieceIndex(FORMAT, tuple(sections), size, crc32c))
    return _LENGTH.pack(len(index)) + index


def index_bytes(head: bytes) -> int:
    """Return the length of the index from a piece's first HEAD_BYTES bytes. Raises BadInput."""
    size = int(_LENGTH.unpack(head)[0]) if len(head) == HEAD_BYTES else 0
    if not 1 <= size <= INDEX_BYTES_MAX:
        raise BadInput(f"the piece's index has {size} bytes; expected 1 to {INDEX_BYTES_MAX}")
    return size


def decode_index(body: bytes) -> PieceIndex:
    """Decode an index. Raises BadInput for another format, or sections that are not contiguous."""
    try:
        index = _index(body)
    except UNREADABLE as error:
        raise BadInput(f"the piece's index: {error}") from None
    if index.format != FORMAT:
        raise BadInput(f"the piece's index has format {index.format}; expected {FORMAT}")
    at, last = 0, -1
    for section in index.sections:
        if section.offset != at or section.partition <= last:
            raise BadInput(
                f"the piece's section of partition {section.partition} is out of order or not contiguous"
            )
        at, last = at + section.bytes, section.partition
    if at != index.bytes or at > PIECE_BYTES_MAX:
        raise BadInput(f"the piece has {index.bytes} bytes, its sections {at}; at most {PIECE_BYTES_MAX}")
    return index


def check_load_id(load: str) -> str:
    """Return the id. Raises BadInput when it is not valid as a directory name."""
    if not LOAD_ID.fullmatch(load):
        raise BadInput(f"load is {load[:80]!r}; expected 1 to 63 of a-z, 0-9 and -, not beginning with -")
    return load
