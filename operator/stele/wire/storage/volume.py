"""Files on a member's volume, and the tablet's own state in the database (docs/design/tablets.md).

A file is one line that names its kind and format (readable with `head -1`), the crc32c of the rest (4 bytes,
big-endian), and msgpack. Reading refuses what it does not know; nothing is guessed.
"""

from typing import Annotated, Literal, TypeVar

import msgspec
from crc32c import crc32c

from stele.core.control.commands import MemberInfo, OpId, Row, Slots, VersionNumber
from stele.core.table.ids import PARTITIONS_MAX
from stele.core.table.table import row_fault
from stele.errors import Corrupt
from stele.wire.unreadable import UNREADABLE

TABLE_FILE = "table/current"
APPLIED = b"applied"
TabletStateName = Literal["COPYING", "READY", "DELETED"]


class Instance(msgspec.Struct, frozen=True):
    """Whose volume this is. `incarnation` counts the starts of its process."""

    cluster: str
    uuid: str
    incarnation: int


class LogEnd(msgspec.Struct, frozen=True):
    """The newest file of the write-ahead log at the last flush, and how much of it was synced then."""

    name: str
    bytes: int


class Quarantined(msgspec.Struct, frozen=True, array_like=True):
    """A generation that was given up, when its data goes (Unix seconds), and its last operation."""

    generation: int
    until_s: float
    last: OpId = OpId()


class Superblock(msgspec.Struct, frozen=True):
    """One tablet. `last` is its last OpId when it was deleted; `highest` no later generation ever has."""

    state: TabletStateName
    generation: int
    highest: int
    last: OpId = OpId()
    quarantined: tuple[Quarantined, ...] = ()

    @property
    def newest(self) -> int:
        """The greatest generation that it names: it may have taken one in and not raised `highest`."""
        return max(self.highest, self.generation, *(entry.generation for entry in self.quarantined))


class Waited(msgspec.Struct, frozen=True, array_like=True):
    """A learner that every write waits for, and the version that its migration starts from."""

    id: str
    member: int
    base: int


class Frozen(msgspec.Struct, frozen=True, array_like=True):
    """The migration that this partition is frozen for, and the version it starts from."""

    id: str
    base: int


class CopyRecord(msgspec.Struct, frozen=True):
    """A migration to this member. `kept`: the tablet was READY before it, so an abort keeps it."""

    id: str
    base: int
    owner: int
    generation: int
    kept: bool


class Consensus(msgspec.Struct, frozen=True):
    """What this member promised for one partition. Stays when the tablet is deleted.

    `refused` is a migration whose row it told the owner never to accept.
    """

    promised: int = 0
    accepted: Row | None = None
    accepted_id: str = ""
    waited: Waited | None = None
    frozen: Frozen | None = None
    copy: CopyRecord | None = None
    refused: Frozen | None = None


class ServiceMigration(msgspec.Struct, frozen=True):
    """A migration that services were told of and that is not over (`core.service_events.Begun`).

    `committed` is how it ended, when that is decided and only has to be told.
    """

    id: str
    type: Literal["MOVE", "COPY", "SHIFT_UP", "SHIFT_DOWN", "CLEAR"]
    endpoint: Literal["SOURCE", "DESTINATION"]
    partition: int
    base: int
    destination: int
    current: int
    new: int
    committed: bool | None = None


class ServicesFile(msgspec.Struct, frozen=True):
    """What services were told had begun and not yet that it ended; written before they are told."""

    begun: tuple[ServiceMigration, ...] = ()


class StoredRow(msgspec.Struct, frozen=True, array_like=True):
    """One partition of a persisted table; its place in the file is its number."""

    version: VersionNumber
    replicas: Slots


class TableFile(msgspec.Struct, frozen=True):
    """The published table as this member knows it, with the highest epoch that it saw.

    After the member dictionary (index, name, UUID, address) come as many rows as there are partitions.
    """

    epoch: int = 0
    self_index: int = -1
    replicas: int = 0
    state: str = "Active"
    member_list_version: int = 0
    members: tuple[MemberInfo, ...] = ()
    rows: Annotated[tuple[StoredRow, ...], msgspec.Meta(max_length=PARTITIONS_MAX)] = ()


class LegacyTableFile(msgspec.Struct, frozen=True):
    """The table as it was persisted before partitions had versions of their own; it is only read."""

    version: VersionNumber
    members: tuple[MemberInfo, ...]
    rows: Annotated[tuple[Slots, ...], msgspec.Meta(max_length=PARTITIONS_MAX)]


class DataState(msgspec.Struct, array_like=True):
    """In `data`, under meta_key(APPLIED), in the same batch as what was applied.

    `keyspaces` maps a name to its number of entries and their bytes (key and value).
    """

    applied: OpId
    keyspaces: dict[bytes, tuple[int, int]]


T = TypeVar("T", Instance, LogEnd, Superblock, Consensus, ServicesFile, TableFile, LegacyTableFile)
_encoder = msgspec.msgpack.Encoder()
_kinds = (Instance, LogEnd, Superblock, Consensus, ServicesFile, TableFile, LegacyTableFile, DataState)
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in _kinds}
_TITLES = {
    Instance: b"stele Instance 1\n",
    LogEnd: b"stele LogEnd 1\n",
    Superblock: b"stele Superblock 1\n",
    Consensus: b"stele Consensus 1\n",
    ServicesFile: b"stele ServicesFile 1\n",
    LegacyTableFile: b"stele TableFile 1\n",
    TableFile: b"stele TableFile 2\n",
}
"""The first line of each file: its kind and format."""

encode_state = _encoder.encode


def decode_state(stored: bytes) -> DataState:
    """Raise Corrupt when the bytes are no tablet state."""
    try:
        found = _decoders[DataState].decode(stored)
    except UNREADABLE as error:
        raise Corrupt(f"tablet state: {error}") from error
    assert isinstance(found, DataState)
    return found


def encode_file(
    value: Instance | LogEnd | Superblock | Consensus | ServicesFile | TableFile | LegacyTableFile,
) -> bytes:
    """The whole content of the file."""
    body = _encoder.encode(value)
    return _TITLES[type(value)] + crc32c(body).to_bytes(4, "big") + body


def decode_file(kind: type[T], content: bytes, name: str) -> T:
    """Raise Corrupt, with the file's `name`, for another kind or format, a wrong checksum or wrong fields."""
    title = _TITLES[kind]
    if not content.startswith(title):
        raise Corrupt(
            f"{name}: it begins with {content[:40]!r}, {title!r} was expected", code="UNKNOWN_FORMAT"
        )
    body = content[len(title) + 4 :]
    if crc32c(body).to_bytes(4, "big") != content[len(title) : len(title) + 4]:
        raise Corrupt(f"{name}: the checksum is wrong; the file is damaged")
    try:
        found = _decoders[kind].decode(body)
    except UNREADABLE as error:
        raise Corrupt(f"{name}: {error}") from error
    assert isinstance(found, kind)
    return found


def decode_table(content: bytes, name: str) -> TableFile:
    """A persisted table of the present format or of the legacy one, whose version every partition gets.

    Raises Corrupt as `decode_file` does, and for a row or a dictionary that breaks a rule of
    `core.table.table`."""
    if content.startswith(_TITLES[LegacyTableFile]):
        old = decode_file(LegacyTableFile, content, name)
        rows = tuple(StoredRow(old.version, replicas) for replicas in old.rows)
        table = TableFile(members=old.members, rows=rows)
    else:
        table = decode_file(TableFile, content, name)
    _check_table(table, name)
    return table


def _check_table(table: TableFile, name: str) -> None:
    """Rows may name members that the dictionary lacks: an owner's row can arrive before the master's word."""
    for number, row in enumerate(table.rows):
        fault = row_fault(row.replicas)
        if fault is not None:
            raise Corrupt(f"{name}: partition {number} {fault}")
        if row.version == 0 and row.replicas:
            raise Corrupt(f"{name}: partition {number} has version 0 (never assigned) and replicas")
    indexes = {info.index for info in table.members}
    if len(indexes) != len(table.members) or len({info.uuid for info in table.members}) != len(indexes):
        raise Corrupt(f"{name}: two members have one index or one UUID")
