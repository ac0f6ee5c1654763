"""Files on a member's volume, and a tablet's own state in the database.

A file is one line with its kind and format (readable with `head -1`), the crc32c of the rest (4 bytes,
big-endian), and msgpack. In later formats of a kind the checksum covers the first line, too, so that a newer
format is told from a damaged line. Unknown kinds and formats are rejected; nothing is guessed.
"""

import re
from typing import Annotated, Literal, TypeVar

import msgspec
from crc32c import crc32c

from stele.core.control.commands import ClusterState, MemberInfo, OpId, Row, Slots, VersionNumber
from stele.core.control.member_settings import ClientAuth, ClientCertificates, ClientTls
from stele.core.formats import FIRST, RANGES
from stele.core.kv.keyspaces import NO_CATALOG, Catalog, catalog_fault
from stele.core.security.level import InternalTls
from stele.core.table.groups import NO_GROUPS, PartitionGroups, groups_fault
from stele.core.table.ids import PARTITIONS_MAX
from stele.core.table.table import row_fault
from stele.core.tablet.lifecycle import TabletState
from stele.errors import Corrupt
from stele.wire.unreadable import UNREADABLE

TABLE_FILE = "table/current"
MEMBER_SECURITY = "member-security"
"""TLS with other members."""
APPLIED = b"applied"


class Instance(msgspec.Struct, frozen=True):
    """Identity of a volume. `incarnation` counts the starts of its process."""

    cluster: str
    uuid: str
    incarnation: int


class LogEnd(msgspec.Struct, frozen=True):
    """The newest file of a log at the last flush, and how many bytes of it were synced."""

    name: str
    bytes: int


class Quarantined(msgspec.Struct, frozen=True, array_like=True):
    """A dropped generation, when its data is deleted (Unix seconds), and its last operation.

    `unreported`: events that its entries departed have to follow, and have not begun.
    """

    generation: int
    until_s: float
    last: OpId = OpId()
    unreported: bool = False


class Superblock(msgspec.Struct, frozen=True):
    """One tablet. `last` is its last OpId when it was deleted. Later generations are above `highest`."""

    state: TabletState
    generation: int
    highest: int
    last: OpId = OpId()
    quarantined: tuple[Quarantined, ...] = ()

    @property
    def newest(self) -> int:
        """Greatest generation named here, which may exceed `highest` after an ingest."""
        return max(self.highest, self.generation, *(entry.generation for entry in self.quarantined))


class Waited(msgspec.Struct, frozen=True, array_like=True):
    """A learner that every write waits for, and the version that its migration starts from."""

    id: str
    member: int
    base: int


class Frozen(msgspec.Struct, frozen=True, array_like=True):
    """The migration for which this partition is frozen, and the version that it starts from."""

    id: str
    base: int


class CopyRecord(msgspec.Struct, frozen=True):
    """A migration to this member. `kept`: the tablet was READY before, so an abort keeps it."""

    id: str
    base: int
    owner: int
    generation: int
    kept: bool


class Consensus(msgspec.Struct, frozen=True):
    """Promises of this member for one partition; they outlive the tablet.

    `refused` is a migration whose row this member has told the owner it will never accept. `older` is the
    version of a row by which it owns a copy that the row before did not name: operations may be lost, so the
    data gets another name (docs/internals/transactions.md).
    """

    promised: int = 0
    accepted: Row | None = None
    accepted_id: str = ""
    waited: Waited | None = None
    frozen: Frozen | None = None
    copy: CopyRecord | None = None
    refused: Frozen | None = None
    older: int = 0


class LeaseFile(msgspec.Struct, frozen=True):
    """Durations of the leases that a member grants now, and of the longest that may still be valid."""

    current_ms: int
    longest_ms: int


class ClientSecurity(msgspec.Struct, frozen=True):
    """What a member demands of clients: TLS, their certificates, and that they authenticate.

    `auth` is None before a master has said it.
    """

    tls: ClientTls = ClientTls.OFF
    certificates: ClientCertificates = ClientCertificates.IGNORE
    auth: ClientAuth | None = None


class MemberSecurity(msgspec.Struct, frozen=True):
    """TLS with other members: the level, and whether certificates that ended lately are taken."""

    tls: InternalTls = InternalTls.OFF
    grace_expired: bool = True


class ServiceMigration(msgspec.Struct, frozen=True):
    """A migration that was announced to services and has not ended (`core.service_events.Begun`).

    `committed` is its outcome, when that is decided and only the event is outstanding.
    """

    id: str
    type: Literal["MOVE", "COPY", "SHIFT_UP", "SHIFT_DOWN", "CLEAR", "SWAP"]
    endpoint: Literal["SOURCE", "DESTINATION"]
    partition: int
    base: int
    destination: int
    current: int
    new: int
    committed: bool | None = None


class ServicesFile(msgspec.Struct, frozen=True):
    """Migrations whose begin services know and whose end they do not; written before services are called."""

    begun: tuple[ServiceMigration, ...] = ()


class StoredRow(msgspec.Struct, frozen=True, array_like=True):
    """One partition of a stored table; its position in the file is its number."""

    version: VersionNumber
    replicas: Slots


class TableFile2(msgspec.Struct, frozen=True):
    """The published table as this member knows it, and the highest epoch that it has seen.

    The member dictionary (index, name, UUID, address) is followed by one row per partition.
    """

    epoch: int = 0
    self_index: int = -1
    replicas: int = 0
    state: str = ClusterState.ACTIVE
    member_list_version: int = 0
    members: tuple[MemberInfo, ...] = ()
    rows: Annotated[tuple[StoredRow, ...], msgspec.Meta(max_length=PARTITIONS_MAX)] = ()


class TableFile(TableFile2, frozen=True):
    """The same with the cluster's features, the catalog of keyspaces and the groups of partitions; written
    once the features have RANGES, as TableFile2 before.

    All members had this one under the index `known_as` on their lists; -1 when that was not seen.
    """

    features: Annotated[int, msgspec.Meta(ge=FIRST)] = FIRST
    catalog: Catalog = NO_CATALOG
    groups: PartitionGroups = NO_GROUPS
    known_as: int = -1


class LegacyTableFile(msgspec.Struct, frozen=True):
    """The stored table from before partitions had their own versions; read only."""

    version: VersionNumber
    members: tuple[MemberInfo, ...]
    rows: Annotated[tuple[Slots, ...], msgspec.Meta(max_length=PARTITIONS_MAX)]


class DataState(msgspec.Struct, array_like=True):
    """State of a tablet in `data`, under meta_key(APPLIED), written in one batch with the applied operations.

    `keyspaces` maps a name to its number of entries and their bytes (key and value).
    """

    applied: OpId
    keyspaces: dict[bytes, tuple[int, int]]


T = TypeVar(
    "T",
    Instance,
    LogEnd,
    Superblock,
    Consensus,
    ServicesFile,
    LeaseFile,
    ClientSecurity,
    MemberSecurity,
    TableFile,
    TableFile2,
    LegacyTableFile,
)
_encoder = msgspec.msgpack.Encoder()
_kinds = (
    *(Instance, LogEnd, Superblock, Consensus, ServicesFile, LeaseFile, ClientSecurity, MemberSecurity),
    *(TableFile, TableFile2, LegacyTableFile, DataState),
)
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in _kinds}
_TITLES = {
    Instance: b"stele Instance 1\n",
    LogEnd: b"stele LogEnd 1\n",
    Superblock: b"stele Superblock 1\n",
    Consensus: b"stele Consensus 1\n",
    ServicesFile: b"stele ServicesFile 1\n",
    LeaseFile: b"stele LeaseFile 1\n",
    ClientSecurity: b"stele ClientSecurity 1\n",
    MemberSecurity: b"stele MemberSecurity 1\n",
    LegacyTableFile: b"stele TableFile 1\n",
    TableFile2: b"stele TableFile 2\n",
    TableFile: b"stele TableFile 3\n",
}
"""First line of each file: its kind and format."""

_LINE_CHECKED = frozenset({TableFile})
"""Kinds whose checksum covers the first line."""

_TABLE_LINE = re.compile(rb"stele TableFile (\d{1,9})\n")

encode_state = _encoder.encode


def decode_state(stored: bytes) -> DataState:
    """Decode a tablet's state. Raises Corrupt."""
    try:
        state = _decoders[DataState].decode(stored)
    except UNREADABLE as error:
        raise Corrupt(f"tablet state: {error}") from error
    assert isinstance(state, DataState)
    return state


def encode_file(
    value: Instance
    | LogEnd
    | Superblock
    | Consensus
    | ServicesFile
    | LeaseFile
    | ClientSecurity
    | MemberSecurity
    | TableFile2
    | LegacyTableFile,
) -> bytes:
    """Encode a file, a table in the format that its features allow."""
    if isinstance(value, TableFile) and value.features < RANGES:
        value = TableFile2(*(getattr(value, name) for name in TableFile2.__struct_fields__))
    title, body = _TITLES[type(value)], _encoder.encode(value)
    return title + _checksum(type(value), body) + body


def _checksum(kind: type, body: bytes) -> bytes:
    covered = _TITLES[kind] + body if kind in _LINE_CHECKED else body
    return crc32c(covered).to_bytes(4, "big")


def decode_file(kind: type[T], content: bytes, name: str) -> T:
    """Decode a file. Raises Corrupt with `name` for a wrong kind, format or checksum, or invalid fields."""
    title = _TITLES[kind]
    if not content.startswith(title):
        raise Corrupt(
            f"{name}: it begins with {content[:40]!r}; {title!r} was expected", code="UNKNOWN_FORMAT"
        )
    body = content[len(title) + 4 :]
    if _checksum(kind, body) != content[len(title) : len(title) + 4]:
        raise Corrupt(f"{name}: the checksum is wrong; the file is damaged")
    try:
        value = _decoders[kind].decode(body)
    except UNREADABLE as error:
        raise Corrupt(f"{name}: {error}") from error
    assert isinstance(value, kind)
    return value


def decode_table(content: bytes, name: str) -> TableFile:
    """Decode a stored table of the present format, the one before, or the legacy one.

    The version of a legacy table applies to every partition. Raises Corrupt as `decode_file` does, and for a
    row or dictionary that breaks a rule of `core.table.table`; with UNKNOWN_FORMAT only for a whole file.
    """
    _check_table_line(content, name)
    if content.startswith(_TITLES[LegacyTableFile]):
        old = decode_file(LegacyTableFile, content, name)
        rows = tuple(StoredRow(old.version, replicas) for replicas in old.rows)
        table = TableFile(members=old.members, rows=rows)
    elif content.startswith(_TITLES[TableFile2]):
        table = TableFile(*msgspec.structs.astuple(decode_file(TableFile2, content, name)))
    else:
        table = decode_file(TableFile, content, name)
    _check_table(table, name)
    return table


def _check_table_line(content: bytes, name: str) -> None:
    """Raise Corrupt for a first line of another kind, a damaged one, or a whole file of a later format."""
    found = _TABLE_LINE.match(content)
    if found is not None and found[0] in (_TITLES[TableFile], _TITLES[TableFile2], _TITLES[LegacyTableFile]):
        return
    line, known = content[:40] if found is None else found[0], _TITLES[TableFile]
    checksum, body = content[len(line) : len(line) + 4], content[len(line) + 4 :]
    if found is None or int.from_bytes(checksum, "big") != crc32c(line + body):
        raise Corrupt(f"{name}: it begins with {line!r}; {known!r} was expected")
    raise Corrupt(f"{name}: it is {line!r}, this build reads up to {known!r}", "UNKNOWN_FORMAT")


def _check_table(table: TableFile, name: str) -> None:
    """Check rows and keyspaces. Rows may name unknown members: an owner's row can arrive before the
    dictionary."""
    if (problem := catalog_fault(table.catalog)) is not None:
        raise Corrupt(f"{name}: {problem}")
    if (problem := groups_fault(table.groups, len(table.rows))) is not None:
        raise Corrupt(f"{name}: {problem}")
    for number, row in enumerate(table.rows):
        fault = row_fault(row.replicas)
        if fault is not None:
            raise Corrupt(f"{name}: partition {number} {fault}")
        if row.version == 0 and row.replicas:
            raise Corrupt(f"{name}: partition {number} has version 0 (never assigned) but names replicas")
    indexes = {info.index for info in table.members}
    if len(indexes) != len(table.members) or len({info.uuid for info in table.members}) != len(indexes):
        raise Corrupt(f"{name}: two members have the same index or UUID")
