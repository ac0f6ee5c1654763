"""The partition table as a value: rows of replicas with a version each, and the member dictionary.

Rules that hold for every table (`check_invariants`) and for every change of one (`check_changes`):
a row has at most 7 replica indexes and no empty one at its end; a member appears at most once in a row and
is in the dictionary; lite members are in no row; a partition of version 0 was never assigned, so its row
is empty; versions only grow, up to VERSION_MAX.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import pack, pack_into, unpack_from
from types import MappingProxyType

import mmh3

from stele.core.table.ids import MAX_REPLICAS, PARTITIONS_MAX, VERSION_MAX, MemberIndex, PartitionId, Version
from stele.errors import BadInput, Corrupt, Refused

SHARD_PARTITIONS = 512
"""Partitions that are stored together; a shard of 512 rows of 7 replicas stays below 40 KiB of text."""

Replicas = tuple[MemberIndex | None, ...]
"""Index 0 is the owner. No None at the end, at most MAX_REPLICAS long."""

_VERSION_BYTES = 4


def shard_of(partition: PartitionId) -> int:
    """The number of the shard that holds a partition."""
    return partition // SHARD_PARTITIONS


def trimmed(slots: Iterable[MemberIndex | None]) -> Replicas:
    """The slots without the empty ones at the end."""
    row = tuple(slots)
    while row and row[-1] is None:
        row = row[:-1]
    return row


@dataclass(frozen=True, slots=True)
class Partition:
    """One row. The row is the in-sync set: every member in it holds every acknowledged write."""

    version: Version
    replicas: Replicas

    @property
    def owner(self) -> MemberIndex | None:
        return self.replicas[0] if self.replicas else None

    @property
    def members(self) -> frozenset[MemberIndex]:
        return frozenset(member for member in self.replicas if member is not None)

    def index_of(self, member: MemberIndex) -> int:
        """The member's replica index, -1 when it has none."""
        return self.replicas.index(member) if member in self.replicas else -1


EMPTY = Partition(0, ())


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of the member dictionary. `address` is an IP address without a port."""

    index: MemberIndex
    name: str
    uuid: str
    address: str
    lite: bool = False


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """All rows, by partition id, and who the member indexes are."""

    partitions: tuple[Partition, ...]
    members: Mapping[MemberIndex, Member]

    @staticmethod
    def empty(partitions: int, members: Iterable[Member] = ()) -> "PartitionTable":
        """A table in which nothing was assigned yet; raises BadInput for an impossible number of
        partitions.
        """
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise BadInput(f"partitions is {partitions}; it must be 1 to {PARTITIONS_MAX}")
        known = {member.index: member for member in members}
        return PartitionTable((EMPTY,) * partitions, MappingProxyType(known))


EPOCHS_APART = 16
"""So many leaderships, one after the other, never choose the same version for rows that may never be
stored."""


def version_for_epoch(epoch: int, least: Version) -> Version:
    """The first version from `least` on that is left to the leadership with this epoch.

    A member may have accepted a row that was never stored, and its next masters may not reach it: what they
    choose must not have that version too, or one version would name two rows.
    """
    return least + (epoch - least) % EPOCHS_APART


def checked_version(number: PartitionId, version: Version) -> Version:
    """The version, when a row may have it; Refused (VERSION_LIMIT) above VERSION_MAX."""
    if version > VERSION_MAX:
        raise Refused(
            f"partition {number} would get version {version}, the last one is {VERSION_MAX}: "
            "copy the data to a new cluster",
            "VERSION_LIMIT",
        )
    return version


def row_fault(replicas: Replicas, members: Mapping[MemberIndex, Member] | None = None) -> str | None:
    """What is wrong with a row, as the end of a sentence, or None; without `members` only its shape is
    checked.
    """
    if len(replicas) > MAX_REPLICAS:
        return f"has {len(replicas)} replica indexes; at most {MAX_REPLICAS} are possible"
    if replicas and replicas[-1] is None:
        return "ends with an empty replica index; those are not stored"
    named = [member for member in replicas if member is not None]
    if len(set(named)) != len(named):
        return "names a member twice"
    return None if members is None else _member_fault(named, members)


def _member_fault(named: list[MemberIndex], members: Mapping[MemberIndex, Member]) -> str | None:
    for member in named:
        entry = members.get(member)
        if entry is None:
            return f"names member index {member}, which is not in the member dictionary"
        if entry.lite:
            return f"names {entry.name} (index {member}), which is a lite member and holds no data"
    return None


def check_invariants(table: PartitionTable, replicas: int = MAX_REPLICAS) -> None:
    """Raise Corrupt with the partition and the rule when a rule of this module does not hold.

    `replicas` is the number of replica indexes that a row may have: pass the greater of the old and the
    new number while a cluster's replica count is being lowered.
    """
    if not 1 <= len(table.partitions) <= PARTITIONS_MAX:
        raise Corrupt(f"the table has {len(table.partitions)} partitions; 1 to {PARTITIONS_MAX} are possible")
    _check_dictionary(table.members)
    for number, partition in enumerate(table.partitions):
        _check_partition(number, partition, table.members, replicas)


def check_changes(
    table: PartitionTable, rows: Mapping[PartitionId, Partition], members: Mapping[MemberIndex, Member]
) -> None:
    """Raise Corrupt when one of `rows` may not take the place of the table's row of that partition.

    `members` is the dictionary that holds together with the new rows. Costs only what the rows cost.
    """
    for number, row in rows.items():
        if not 0 <= number < len(table.partitions):
            raise Corrupt(f"there is no partition {number} in a table of {len(table.partitions)}")
        _check_partition(number, row, members, MAX_REPLICAS)
        before = table.partitions[number].version
        if row.version <= before:
            raise Corrupt(
                f"partition {number} cannot go from version {before} to {row.version}: versions only grow"
            )


def _check_dictionary(members: Mapping[MemberIndex, Member]) -> None:
    for index, member in members.items():
        if index != member.index or index < 0:
            raise Corrupt(f"the member dictionary has {member.name} (index {member.index}) at index {index}")
    if len({member.uuid for member in members.values()}) != len(members):
        raise Corrupt("the member dictionary has two members with one UUID")


def _check_partition(
    number: PartitionId, partition: Partition, members: Mapping[MemberIndex, Member], replicas: int
) -> None:
    fault = row_fault(partition.replicas, members)
    if fault is not None:
        raise Corrupt(f"partition {number} {fault}")
    if len(partition.replicas) > replicas:
        raise Corrupt(
            f"partition {number} has {len(partition.replicas)} replica indexes, {replicas} are wanted"
        )
    if not 0 <= partition.version <= VERSION_MAX:
        raise Corrupt(_no_version(number, partition.version))
    if partition.version == 0 and partition.replicas:
        raise Corrupt(f"partition {number} has version 0 (never assigned) and replicas")


def merge(a: PartitionTable, b: PartitionTable) -> PartitionTable:
    """Per partition the higher version wins; equal versions with different replicas are Corrupt.

    The dictionaries are united; one index that means two members is Corrupt. Where both know a member, `a` is
    believed (addresses change), so pass the table of the higher member-list version first.
    """
    if len(a.partitions) != len(b.partitions):
        raise Corrupt(f"tables of {len(a.partitions)} and {len(b.partitions)} partitions cannot be merged")
    for index in a.members.keys() & b.members.keys():
        if a.members[index].uuid != b.members[index].uuid:
            raise Corrupt(
                f"member index {index} is {a.members[index].uuid} here, {b.members[index].uuid} there"
            )
    rows = tuple(
        newer(number, *pair) for number, pair in enumerate(zip(a.partitions, b.partitions, strict=True))
    )
    return PartitionTable(rows, MappingProxyType({**b.members, **a.members}))


def newer(number: PartitionId, known: Partition, found: Partition) -> Partition:
    """Of two rows of one partition the one that holds: `known` itself unless `found` has a higher version.

    Raises Corrupt for different rows of one version: only one master writes, so one of them is damaged.
    """
    if known.version == found.version and known.replicas != found.replicas:
        raise Corrupt(
            f"partition {number} version {known.version} is {known.replicas} here and {found.replicas} "
            "there; stop the operator and compare the tables of its members"
        )
    return known if known.version >= found.version else found


def version_sum(table: PartitionTable) -> int:
    """Orders whole tables of one cluster, where a stamp can only tell equal from different."""
    return sum(partition.version for partition in table.partitions)


def stamp_of(versions: Iterable[Version]) -> int:
    """The stamp of a table whose partitions have these versions, in order: signed 64 bits."""
    return Stamp(versions).value


class Stamp:
    """The stamp of a table, kept up to date row by row.

    The first 64 bits (signed) of MurmurHash3 x64 128 with seed 0 over all versions as big-endian int32.
    Setting a version costs O(1) and forgets the hash only when the version is another one; the hash
    is computed when it is asked for, once per change (tens of microseconds for 65,536 partitions).
    Versions that are no int32 are refused with BadInput.
    """

    __slots__ = ("_buffer", "_value")

    def __init__(self, versions: Iterable[Version]) -> None:
        known = tuple(versions)
        for partition, version in enumerate(known):
            if not 0 <= version <= VERSION_MAX:
                raise BadInput(_no_version(partition, version))
        self._buffer = bytearray(pack(f">{len(known)}i", *known))
        self._value: int | None = None

    def set(self, partition: PartitionId, version: Version) -> None:
        """Raise BadInput when the partition is not in the table or the version is none."""
        offset = partition * _VERSION_BYTES
        if not 0 <= offset < len(self._buffer):
            raise BadInput(
                f"partition {partition} is not in a table of {len(self._buffer) // _VERSION_BYTES}"
            )
        if not 0 <= version <= VERSION_MAX:
            raise BadInput(_no_version(partition, version))
        if unpack_from(">i", self._buffer, offset)[0] != version:
            pack_into(">i", self._buffer, offset, version)
            self._value = None

    @property
    def value(self) -> int:
        if self._value is None:
            self._value = mmh3.hash64(bytes(self._buffer), 0, True, signed=True)[0]
        return self._value


def _no_version(partition: PartitionId, version: Version) -> str:
    return f"partition {partition} has version {version}; 0 to {VERSION_MAX} are possible"
