"""Bulk loads: what a loader sends to members, what lies below `loads/` on a volume, what the log says of one.

A loader cuts its rows into *pieces*. A piece is a u32 (big-endian) with the length of its index, the index
(JSON of `PieceIndex`), and one stream of `wire.copy.blocks` for each partition that it has rows of: keys as
users know them, values as they are stored. A member's transfer process merges what all pieces hold of one
tablet into a *run* (one stream, the same bytes at every replica) and makes an SST file of it. The log then
names the run.

    loads/<load>/<piece>.piece
    loads/<load>/<partition>-<crc32c>.run
    loads/<load>/<partition>-<generation>-<crc32c>.sst, .json (a `LoadManifest`, written last)
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from stele.core.control.commands import INDEX_MAX, OpId, Slots
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
"""What the names of export's sessions begin with: the master does not know of them, and lets them be."""
LOADED = b"loads"
"""Name of the tablet's own entry that remembers its last loads; see `wire.storage.keys.meta_key`."""
LOADED_MAX = 64
"""Loads that one tablet remembers: an older one, repeated, would be applied again."""

Duplicates = Literal["error", "last"]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
Generation = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Keyspace = Annotated[str, msgspec.Meta(min_length=1, max_length=KEYSPACE_BYTES_MAX, pattern="^[^@]")]
"""One of users: those of services begin with `wire.copy.fragments.SERVICE_MARK`."""
_LENGTH = struct.Struct(">I")
HEAD_BYTES = _LENGTH.size


class Section(msgspec.Struct, frozen=True, array_like=True):
    """Where a piece's stream of one partition lies, from the first byte behind the index on."""

    partition: PartitionNumber
    offset: Count
    bytes: Count


class PieceIndex(msgspec.Struct, frozen=True):
    """`crc32c` is that of all streams together; the partitions of `sections` ascend."""

    format: int
    sections: tuple[Section, ...]
    bytes: Count
    crc32c: Checksum


class BuildOrder(msgspec.Struct, frozen=True):
    """Make one tablet's run and SST file of these pieces, in this order; or of the run of member `source`.

    `duplicates` says what a key is that comes twice: an error, or the one in the last piece wins. `source` is
    the index of another member (-1: none), and `crc32c` that of its run.
    """

    generation: Generation
    keyspace: Keyspace
    partitions: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
    pieces: tuple[str, ...] = ()
    duplicates: Duplicates = "error"
    source: Annotated[int, msgspec.Meta(ge=-1, le=INDEX_MAX)] = -1
    crc32c: Checksum = 0


class LoadManifest(msgspec.Struct, frozen=True):
    """A complete run with its SST file.

    `entries` and `bytes` count keys and stored values; `crc32c` is the run's, and a part of the files' names.
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
    """Partitions that this member owns and that took a load in."""

    partitions: tuple[int, ...]


class LoadOrder(msgspec.Struct, frozen=True):
    """To the owner: take the run in. `members` are those that have it, of the row of that `version`."""

    version: int
    members: tuple[int, ...]
    keyspace: Keyspace
    entries: Count
    bytes: Count
    crc32c: Checksum


class Loaded(msgspec.Struct, frozen=True, array_like=True):
    """A load that a tablet took in, and the operation of its log that it is."""

    load: str
    index: int
    entries: int
    crc32c: int


class LoadPlace(msgspec.Struct, frozen=True):
    """What a member says of one partition to a loader. `members` is empty where it is not the owner.

    `generation` is the one that a file for this member is made for; -1 when it has no tablet.
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


class BulkTable(msgspec.Struct, frozen=True):
    """The table as a member knows it: `rows` are (version, replicas) by partition."""

    cluster: str
    admin_port: int
    transfer_port: int
    members: tuple[BulkMember, ...]
    rows: tuple[tuple[int, Slots], ...]


class SnapshotOrder(msgspec.Struct, frozen=True):
    """Make a checkpoint of this owner's partitions, to be read. Asked again it renews the lease."""

    partitions: tuple[PartitionNumber, ...]
    lease_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 60.0


_loaded = msgspec.msgpack.Decoder(list[Loaded]).decode
_index = msgspec.json.Decoder(PieceIndex).decode
encode_packed = msgspec.msgpack.Encoder().encode
encode_json = msgspec.json.Encoder().encode


def encode_run(entries: Iterable[Entry], partition: int) -> Iterator[bytearray]:
    """The blocks of ascending entries of one partition: a piece's section, or a run."""
    return encode_stream(entries, lambda count, size: End(partition, 0, OpId(), count, size))


def run_name(partition: int, crc32c: int) -> str:
    """Name of a run: by its content, so that another try of a load never replaces what a log names."""
    return f"{partition}-{crc32c:08x}.run"


def file_name(partition: int, generation: int, crc32c: int, kind: str) -> str:
    """Name of what belongs to one generation of a tablet: kind `sst` or `json`."""
    return f"{partition}-{generation}-{crc32c:08x}.{kind}"


def decode_loaded(stored: bytes) -> list[Loaded]:
    """What a tablet remembers of its loads, oldest first."""
    try:
        return _loaded(stored)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"what a tablet remembers of its bulk loads: {error}") from None


def piece_head(sections: Sequence[Section], crc32c: int) -> bytes:
    """What a piece begins with, before its streams."""
    size = sum(section.bytes for section in sections)
    index = encode_json(PieceIndex(FORMAT, tuple(sections), size, crc32c))
    return _LENGTH.pack(len(index)) + index


def index_bytes(head: bytes) -> int:
    """Length of the index, from a piece's first HEAD_BYTES bytes. Raise BadInput when it cannot be."""
    size = int(_LENGTH.unpack(head)[0]) if len(head) == HEAD_BYTES else 0
    if not 1 <= size <= INDEX_BYTES_MAX:
        raise BadInput(f"the piece's index has {size} bytes; 1 to {INDEX_BYTES_MAX} are expected")
    return size


def decode_index(body: bytes) -> PieceIndex:
    """Raise BadInput when it is no index of this format, or its sections do not follow one another."""
    try:
        found = _index(body)
    except UNREADABLE as error:
        raise BadInput(f"the piece's index: {error}") from None
    if found.format != FORMAT:
        raise BadInput(f"the piece's index has format {found.format}; {FORMAT} is expected")
    at, last = 0, -1
    for section in found.sections:
        if section.offset != at or section.partition <= last:
            raise BadInput(f"the piece's section of partition {section.partition} is not in its place")
        at, last = at + section.bytes, section.partition
    if at != found.bytes or at > PIECE_BYTES_MAX:
        raise BadInput(f"the piece has {found.bytes} bytes, its sections {at}; at most {PIECE_BYTES_MAX}")
    return found


def check_load_id(load: str) -> str:
    """The id itself. Raise BadInput for one that cannot be the name of a folder."""
    if not LOAD_ID.fullmatch(load):
        raise BadInput(f"load is {load[:80]!r}; expected 1 to 63 of a-z, 0-9 and -, not beginning with -")
    return load
