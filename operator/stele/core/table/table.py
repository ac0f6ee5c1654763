"""The partition table as a value: rows of replicas with a version each, and the member dictionary.

Invariants of every table (`check_invariants`) and of every change to one (`check_changes`):

- A row has at most 7 replica indexes, and its last one is not empty.
- A member appears at most once in a row and is in the dictionary. Lite members are in no row.
- A partition with version 0 was never assigned, so its row is empty.
- Versions only grow, up to VERSION_MAX.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import pack, pack_into, unpack_from
from types import MappingProxyType

import mmh3

from stele.core.table.groups import NO_GROUPS, PartitionGroups, groups_fault
from stele.core.table.ids import MAX_REPLICAS, PARTITIONS_MAX, VERSION_MAX, MemberIndex, PartitionId, Version
from stele.errors import BadInput, Corrupt, Refused

SHARD_PARTITIONS = 512
"""Rows per shard; a shard of 512 rows with 7 replicas stays below 40 KiB of text."""

Replicas = tuple[MemberIndex | None, ...]
"""Index 0 is the owner. Never ends with None; at most MAX_REPLICAS long."""

_VERSION_BYTES = 4


def shard_of(partition: PartitionId) -> int:
    """Return the number of the shard that stores a partition."""
    return partition // SHARD_PARTITIONS


def trimmed(slots: Iterable[MemberIndex | None]) -> Replicas:
    """Drop the empty slots at the end."""
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
        """Return the member's replica index, or -1 when the row does not name it."""
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
    """All rows, by partition id, the member dictionary, and the groups of partitions."""

    partitions: tuple[Partition, ...]
    members: Mapping[MemberIndex, Member]
    groups: PartitionGroups = NO_GROUPS

    @staticmethod
    def empty(partitions: int, members: Iterable[Member] = ()) -> "PartitionTable":
        """Return a table without assignments.

        Raises BadInput when `partitions` is not 1 to PARTITIONS_MAX.
        """
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise BadInput(f"partitions is {partitions}; expected 1 to {PARTITIONS_MAX}")
        known = {member.index: member for member in members}
        return PartitionTable((EMPTY,) * partitions, MappingProxyType(known))

    def extended(self, groups: PartitionGroups) -> "PartitionTable":
        """Return the table with these groups; the rows of new ones are empty."""
        new = groups.end(len(self.partitions)) - len(self.partitions)
        return PartitionTable((*self.partitions, *(EMPTY,) * new), self.members, groups)

    @property
    def main(self) -> range:
        """The partitions outside of groups."""
        return range(self.groups.main(len(self.partitions)))

    def replicas_of(self, number: PartitionId, replicas: int) -> int:
        """Return how many replicas a partition should have, those outside of groups `replicas`."""
        group = self.groups.group_of(number)
        return replicas if group is None else group.replicas


EPOCHS_APART = 16
"""Any 16 consecutive epochs choose different versions for rows that may never be stored."""


def version_for_epoch(epoch: int, least: Version) -> Version:
    """Return the first version, `least` or above, that is reserved for this epoch.

    A member may have accepted a row that was never stored, and later masters may not reach that member. Their
    own rows must not reuse its version, or one version would name two rows.
    """
    return least + (epoch - least) % EPOCHS_APART


def checked_version(number: PartitionId, version: Version) -> Version:
    """Return `version`. Raises Refused (VERSION_LIMIT) above VERSION_MAX."""
    if version > VERSION_MAX:
        raise Refused(
            f"partition {number} would get version {version}; the greatest is {VERSION_MAX}: "
            "copy the data to a new cluster",
            "VERSION_LIMIT",
        )
    return version


def row_fault(replicas: Replicas, members: Mapping[MemberIndex, Member] | None = None) -> str | None:
    """Return what is wrong with a row, as the end of a sentence, or None.

    Without `members`, check only its shape.
    """
    if len(replicas) > MAX_REPLICAS:
        return f"has {len(replicas)} replica indexes; expected at most {MAX_REPLICAS}"
    if replicas and replicas[-1] is None:
        return "ends with an empty replica index, which is never stored"
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
    """Raise Corrupt, naming the partition and the rule, when the table breaks an invariant of this module.

    `replicas` is the number of replica indexes that a row may have. While a cluster's replica count is being
    lowered, pass the old number.
    """
    if not 1 <= len(table.partitions) <= PARTITIONS_MAX:
        raise Corrupt(f"the table has {len(table.partitions)} partitions; expected 1 to {PARTITIONS_MAX}")
    _check_dictionary(table.members)
    if (fault := groups_fault(table.groups, len(table.partitions))) is not None:
        raise Corrupt(f"the table does not fit its groups: {fault}")
    for number, partition in enumerate(table.partitions):
        _check_partition(number, partition, table.members, replicas)


def check_changes(
    table: PartitionTable, rows: Mapping[PartitionId, Partition], members: Mapping[MemberIndex, Member]
) -> None:
    """Raise Corrupt when one of `rows` may not replace the table's row of its partition.

    `members` is the dictionary that becomes valid together with the rows. The cost is that of the rows alone.
    """
    for number, row in rows.items():
        if not 0 <= number < len(table.partitions):
            raise Corrupt(
                f"partition {number} is out of range: the table has {len(table.partitions)} partitions"
            )
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
            f"partition {number} has {len(partition.replicas)} replica indexes; expected at most {replicas}"
        )
    if not 0 <= partition.version <= VERSION_MAX:
        raise Corrupt(_no_version(number, partition.version))
    if partition.version == 0 and partition.replicas:
        raise Corrupt(f"partition {number} has version 0 (never assigned) but names replicas")


def merge(a: PartitionTable, b: PartitionTable) -> PartitionTable:
    """Merge two tables of the same groups: the higher version of each row wins, and the dictionaries are
    united.

    Where both tables know a member, the entry of `a` wins (addresses change), so pass the table with the
    higher member-list version first. Raises Corrupt for rows of equal version and different replicas, and for
    one index with two UUIDs.
    """
    if len(a.partitions) != len(b.partitions):
        raise Corrupt(f"tables of {len(a.partitions)} and {len(b.partitions)} partitions cannot be merged")
    for index in a.members.keys() & b.members.keys():
        if a.members[index].uuid != b.members[index].uuid:
            raise Corrupt(
                f"member index {index} is {a.members[index].uuid} in one table "
                f"and {b.members[index].uuid} in the other"
            )
    rows = tuple(
        newer(number, *pair) for number, pair in enumerate(zip(a.partitions, b.partitions, strict=True))
    )
    return PartitionTable(rows, MappingProxyType({**b.members, **a.members}), a.groups)


def newer(number: PartitionId, known: Partition, other: Partition) -> Partition:
    """Return the valid one of two rows of a partition: `known`, unless `other` has a higher version.

    Raises Corrupt for different rows of one version: there is one writer per version, so one row is damaged.
    """
    if known.version == other.version and known.replicas != other.replicas:
        raise Corrupt(
            f"partition {number} version {known.version} is {known.replicas} in one table "
            f"and {other.replicas} in another; stop the operator and compare the tables of its members"
        )
    return known if known.version >= other.version else other


def version_sum(table: PartitionTable) -> int:
    """Return a number that orders the tables of one cluster; stamps only compare for equality.

    Source: Hazelcast, Parallel Independent Migrations, "Cluster State Management Changes".
    """
    return sum(partition.version for partition in table.partitions)


def stamp_of(versions: Iterable[Version]) -> int:
    """Return the stamp (signed 64 bits) of a table whose partitions have these versions, in order."""
    return Stamp(versions).value


class Stamp:
    """The stamp of a table, kept up to date row by row.

    The stamp is the first 64 bits (signed) of MurmurHash3 x64 128 with seed 0 over all versions as big-endian
    int32. Setting a version costs O(1). The hash is computed on demand, once per change (tens of microseconds
    for 65,536 partitions). Raises BadInput for versions out of range.
    """

    __slots__ = ("_buffer", "_value")

    def __init__(self, versions: Iterable[Version]) -> None:
        versions_given = tuple(versions)
        for partition, version in enumerate(versions_given):
            if not 0 <= version <= VERSION_MAX:
                raise BadInput(_no_version(partition, version))
        self._buffer = bytearray(pack(f">{len(versions_given)}i", *versions_given))
        self._value: int | None = None

    def set(self, partition: PartitionId, version: Version) -> None:
        """Set the version of one partition.

        Raises BadInput when the partition or the version is out of range.
        """
        offset = partition * _VERSION_BYTES
        if not 0 <= offset < len(self._buffer):
            raise BadInput(
                f"partition {partition} is out of range: {len(self._buffer) // _VERSION_BYTES} partitions"
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
    return f"partition {partition} has version {version}; expected 0 to {VERSION_MAX}"
