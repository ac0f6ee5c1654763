"""The partition table as readable ConfigMaps: one head, and a shard per 512 partitions.

`kubectl get configmap orders-table-0 -o yaml` shows

    data:
      epoch: "7"
      format: "1"
      rows: |
        0 3:0,1
        1 1:2,-,0

Each line is a partition: its number, its version, then the member indexes by replica index (`-`: empty;
nothing after the colon: no replica). The head's `members` maps indexes to members, one per line: `index name
uuid address data|lite` (address `-`: unknown).

Both carry a format number. A text of another format, or with an unknown key or line, is rejected as Corrupt
and never read in part. The head has format 2 and the key `features` once the cluster's features have RANGES;
with groups of partitions it has them, one per line (`keyspace first count replicas`), and their version; with
TLS among members, `memberTls` is its level.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stele.core.control.commands import ClusterState
from stele.core.formats import FIRST, RANGES, SPOKEN
from stele.core.security.level import STEPS, InternalTls
from stele.core.table.groups import NO_GROUPS, PartitionGroup, PartitionGroups, groups_fault
from stele.core.table.ids import EPOCH_MAX, MEMBERS_MAX, PARTITIONS_MAX, VERSION_MAX, PartitionId
from stele.core.table.table import SHARD_PARTITIONS, Member, Partition, Replicas, row_fault
from stele.errors import BadInput, Corrupt

FORMAT = "1"
HEAD_FORMAT = "2"
OBJECT_BYTES_MAX = 900 * 1024
"""Most bytes of one ConfigMap's keys and values; the API server's limit is 1 MiB, including metadata."""

_STATES = tuple(ClusterState)
_HEAD_KEYS = frozenset(
    {"format", "epoch", "state", "partitions", "replicas", "memberListVersion", "nextMemberIndex"}
    | {"stamp", "versionSum", "members"}
)
_KEYS_2 = _HEAD_KEYS | {"features"}
_GROUP_KEYS = frozenset({"groups", "groupsVersion"})
_TLS_KEY = frozenset({"memberTls"})
_SHARD_KEYS = frozenset({"format", "epoch", "rows"})
_NUMBER = re.compile(r"0|-?[1-9]\d{0,19}", re.ASCII)
_INDEX = re.compile(r"0|[1-9]\d{0,8}", re.ASCII)
_INDEX_MAX = 10**9 - 1
_SLOT = rf"(?:{_INDEX.pattern}|-)"
_ROW = re.compile(rf"(0|[1-9]\d{{0,4}}) (0|[1-9]\d{{0,9}}):((?:{_SLOT}(?:,{_SLOT}){{0,6}})?)", re.ASCII)
_WORD = re.compile(r"[!-~]+", re.ASCII)
_GROUP = re.compile(rf"([a-z0-9-]{{1,63}}) ({_INDEX.pattern}) ({_INDEX.pattern}) ([1-9])", re.ASCII)
_MEMBER_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Head:
    """Content of the head ConfigMap. `stamp` and `version_sum` cover all shards, `partitions` and `replicas`
    are those outside of groups.

    `features` are those in force in the cluster (`core.formats`), and never fall. `member_tls` is the level
    that members are told.
    """

    epoch: int
    state: str
    partitions: int
    replicas: int
    member_list_version: int
    next_member_index: int
    stamp: int
    version_sum: int
    members: tuple[Member, ...]
    features: int = FIRST
    groups: PartitionGroups = NO_GROUPS
    member_tls: InternalTls = InternalTls.OFF

    @property
    def rows(self) -> int:
        """The number of partitions, those of groups included."""
        return self.groups.end(self.partitions)

    def replicas_of(self, number: PartitionId) -> int:
        """Return how many replicas a partition should have."""
        group = self.groups.group_of(number)
        return self.replicas if group is None else group.replicas


@dataclass(frozen=True, slots=True)
class Shard:
    """Content of one shard; `rows` are in order of partitions."""

    epoch: int
    rows: tuple[Partition, ...]


def shard_count(partitions: int) -> int:
    """Return how many shards a table has."""
    return -(-partitions // SHARD_PARTITIONS)


def shard_range(number: int, partitions: int) -> range:
    """Return the partitions of one shard in a table of `partitions`."""
    return range(number * SHARD_PARTITIONS, min(partitions, (number + 1) * SHARD_PARTITIONS))


def encode_head(head: Head) -> dict[str, str]:
    """Return the data of the head ConfigMap. Raises BadInput when it cannot be stored."""
    if head.state not in _STATES:
        raise BadInput(f"state is {head.state!r}; it must be one of {', '.join(_STATES)}")
    if len(head.members) > MEMBERS_MAX:
        raise BadInput(f"the table names {len(head.members)} members; at most {MEMBERS_MAX} are possible")
    data = _sized(
        "the head of the table",
        _head_format(head)
        | {
            "epoch": str(head.epoch),
            "state": head.state,
            "partitions": str(head.partitions),
            "replicas": str(head.replicas),
            "memberListVersion": str(head.member_list_version),
            "nextMemberIndex": str(head.next_member_index),
            "stamp": str(head.stamp),
            "versionSum": str(head.version_sum),
            "members": "".join(
                _member_line(member) for member in sorted(head.members, key=lambda m: m.index)
            ),
        },
    )
    try:
        decode_head(data)
    except Corrupt as error:
        # Never store what could not be read back.
        text = f"the table head could not be read back: {error.text}"
        raise BadInput(
            f'{text}; see docs/internals/operator.md, "Numbers that jump", for the repair'
        ) from error
    return data


def _head_format(head: Head) -> dict[str, str]:
    if head.features < RANGES and not head.groups.version and head.member_tls is InternalTls.OFF:
        return {"format": FORMAT}
    data = {"format": HEAD_FORMAT, "features": str(head.features)}
    if head.member_tls is not InternalTls.OFF:
        data["memberTls"] = head.member_tls
    if head.groups.version:
        lines = (
            f"{each.keyspace} {each.first} {each.count} {each.replicas}\n" for each in head.groups.groups
        )
        data |= {"groupsVersion": str(head.groups.version), "groups": "".join(lines)}
    return data


def decode_head(data: Mapping[str, str]) -> Head:
    """Parse a head. Raises Corrupt with the key and what was expected."""
    newer = _check_format("table head", data, FORMAT, HEAD_FORMAT) == HEAD_FORMAT
    _check_keys("table head", data, _keys_2(data) if newer else _HEAD_KEYS)
    features = _number(data, "features", RANGES, EPOCH_MAX) if newer else FIRST
    if features > SPOKEN.most:
        problem = f"the cluster uses format {features}; this version of Stele speaks {SPOKEN}"
        raise Corrupt(f"table head: {problem}; use the version that wrote it", "UNKNOWN_FORMAT")
    if data["state"] not in _STATES:
        raise Corrupt(f"table head: state is {data['state']!r}; one of {', '.join(_STATES)} was expected")
    members = tuple(_read_member(number, line) for number, line in _lines("members", data["members"]))
    head = Head(
        epoch=_number(data, "epoch", 0, EPOCH_MAX),
        state=data["state"],
        partitions=_number(data, "partitions", 1, PARTITIONS_MAX),
        replicas=_number(data, "replicas", 1, 7),
        member_list_version=_number(data, "memberListVersion", 0, EPOCH_MAX),
        next_member_index=_number(data, "nextMemberIndex", 0, VERSION_MAX),
        stamp=_number(data, "stamp", -(2**63), 2**63 - 1),
        version_sum=_number(data, "versionSum", 0, PARTITIONS_MAX * VERSION_MAX),
        members=members,
        features=features,
        groups=_read_groups(data) if "groups" in data else NO_GROUPS,
        member_tls=_read_level(data.get("memberTls", InternalTls.OFF)),
    )
    _check_members(head)
    if fault := groups_fault(head.groups, head.rows, head.partitions):
        raise Corrupt(f"table head: {fault}")
    return head


def _keys_2(data: Mapping[str, str]) -> frozenset[str]:
    groups = _GROUP_KEYS if data.keys() & _GROUP_KEYS else frozenset[str]()
    return _KEYS_2 | groups | (_TLS_KEY & data.keys())


def _read_level(text: str) -> InternalTls:
    if text not in STEPS:
        raise Corrupt(f"table head: memberTls is {text[:40]!r}; one of {', '.join(STEPS)} was expected")
    return InternalTls(text)


def _read_groups(data: Mapping[str, str]) -> PartitionGroups:
    groups = tuple(_read_group(number, line) for number, line in _lines("groups", data["groups"]))
    return PartitionGroups(_number(data, "groupsVersion", 1, EPOCH_MAX), groups)


def _read_group(number: int, line: str) -> PartitionGroup:
    match = _GROUP.fullmatch(line)
    if match is None:
        found = f"line {number} of groups is {line[:120]!r}"
        raise Corrupt(f"table head: {found}; 'KEYSPACE FIRST COUNT REPLICAS' was expected")
    return PartitionGroup(match[1], int(match[2]), int(match[3]), int(match[4]))


def encode_shard(epoch: int, number: int, rows: Sequence[Partition]) -> dict[str, str]:
    """Return the data of shard `number`, given its rows in order.

    Raises BadInput when it cannot be stored.
    """
    if not 1 <= len(rows) <= SHARD_PARTITIONS:
        raise BadInput(f"shard {number} has {len(rows)} rows; it must have 1 to {SHARD_PARTITIONS}")
    if not 0 <= epoch <= EPOCH_MAX:
        raise BadInput(f"shard {number} has epoch {epoch}; at most {EPOCH_MAX}")
    first = number * SHARD_PARTITIONS
    for offset, row in enumerate(rows):
        fault = row_fault(row.replicas)
        if fault is not None:
            raise BadInput(f"partition {first + offset} {fault}")
        if not 0 <= row.version <= VERSION_MAX:
            raise BadInput(f"partition {first + offset} has version {row.version}; at most {VERSION_MAX}")
        if any(member is not None and not 0 <= member <= _INDEX_MAX for member in row.replicas):
            raise BadInput(f"partition {first + offset} names {row.replicas}; at most {_INDEX_MAX} each")
    lines = (_row_line(first + offset, row) for offset, row in enumerate(rows))
    return _sized(f"shard {number}", {"format": FORMAT, "epoch": str(epoch), "rows": "".join(lines)})


def decode_shard(data: Mapping[str, str], number: int, partitions: int) -> Shard:
    """Parse shard `number` of a table of `partitions`. Raises Corrupt with the invalid line.

    Rows behind the table's are those of a group that the head does not have yet: none is assigned.
    """
    shard, partition_range = decode_rows(data, number), shard_range(number, partitions)
    size = len(partition_range)
    if len(shard.rows) < size or any(row.version for row in shard.rows[size:]):
        expected = f"partitions {partition_range.start} to {partition_range.stop - 1}"
        raise Corrupt(f"shard {number} has {len(shard.rows)} rows; {expected} were expected")
    return Shard(shard.epoch, shard.rows[:size])


def decode_rows(data: Mapping[str, str], number: int) -> Shard:
    """Parse shard `number` with all the rows that it has. Raises Corrupt with the invalid line."""
    _check_format(f"shard {number}", data, FORMAT)
    _check_keys(f"shard {number}", data, _SHARD_KEYS)
    first, lines = number * SHARD_PARTITIONS, list(_lines("rows", data["rows"]))
    if len(lines) > SHARD_PARTITIONS:
        raise Corrupt(f"shard {number} has {len(lines)} rows; at most {SHARD_PARTITIONS} were expected")
    rows = tuple(_read_row(number, first + at, line) for at, (_, line) in enumerate(lines))
    return Shard(_number(data, "epoch", 0, EPOCH_MAX), rows)


def row_text(row: Partition) -> str:
    """Format a row as `version:idx,idx,-`, for shards and command output."""
    return f"{row.version}:{','.join('-' if member is None else str(member) for member in row.replicas)}"


def _row_line(partition: PartitionId, row: Partition) -> str:
    return f"{partition} {row_text(row)}\n"


def _read_row(shard: int, partition: PartitionId, line: str) -> Partition:
    match = _ROW.fullmatch(line)
    if match is None:
        raise Corrupt(
            f"shard {shard}: {line[:80]!r} is not a row; '{partition} VERSION:INDEX,...' was expected"
        )
    if int(match[1]) != partition:
        raise Corrupt(f"shard {shard}: found row {match[1]}, but partition {partition} was expected")
    version, replicas = int(match[2]), _replicas(match[3])
    fault = row_fault(replicas)
    if fault is not None:
        raise Corrupt(f"shard {shard}: the row of partition {partition} {fault}")
    if version > VERSION_MAX:
        raise Corrupt(f"shard {shard}: partition {partition} has version {version}, at most {VERSION_MAX}")
    return Partition(version, replicas)


def _replicas(text: str) -> Replicas:
    return tuple(None if part == "-" else int(part) for part in text.split(",")) if text else ()


def _member_line(member: Member) -> str:
    words = (
        str(member.index),
        member.name,
        member.uuid,
        member.address or "-",
        "lite" if member.lite else "data",
    )
    for word in words:
        if not _WORD.fullmatch(word):
            raise BadInput(f"member {member.index}: {word!r} must be printable ASCII without spaces")
    return " ".join(words) + "\n"


def _read_member(number: int, line: str) -> Member:
    words = line.split(" ")
    readable = len(words) == _MEMBER_FIELDS and all(map(_WORD.fullmatch, words))
    if not readable or not _INDEX.fullmatch(words[0]) or words[4] not in ("data", "lite"):
        found = f"line {number} of members is {line[:120]!r}"
        raise Corrupt(f"table head: {found}; 'INDEX NAME UUID ADDRESS data|lite' was expected")
    address = "" if words[3] == "-" else words[3]
    return Member(int(words[0]), words[1], words[2], address, words[4] == "lite")


def _check_members(head: Head) -> None:
    indexes = [member.index for member in head.members]
    if len(indexes) > MEMBERS_MAX:
        raise Corrupt(f"table head: {len(indexes)} members; at most {MEMBERS_MAX} were expected")
    if len(set(indexes)) != len(indexes) or len({member.uuid for member in head.members}) != len(indexes):
        raise Corrupt("table head: two lines of members have the same index or UUID")
    if indexes and max(indexes) >= head.next_member_index:
        problem = f"member index {max(indexes)} is not below nextMemberIndex {head.next_member_index}"
        raise Corrupt(f"table head: {problem}")


def _check_format(what: str, data: Mapping[str, str], *known: str) -> str:
    format = data.get("format")
    if format not in known:
        problem = f"format is {format!r}; this version of Stele reads {' and '.join(map(repr, known))}"
        raise Corrupt(f"{what}: {problem}; use the version that wrote it", "UNKNOWN_FORMAT")
    return format


def _check_keys(what: str, data: Mapping[str, str], known: frozenset[str]) -> None:
    if data.keys() != known:
        missing, unknown = sorted(known - data.keys()), sorted(data.keys() - known)
        raise Corrupt(f"{what}: missing keys {missing}, unknown keys {unknown}")


def _number(data: Mapping[str, str], key: str, least: int, most: int) -> int:
    text = data[key]
    if _NUMBER.fullmatch(text) and least <= int(text) <= most:
        return int(text)
    raise Corrupt(f"{key} is {text[:40]!r}; a whole number from {least} to {most} was expected")


def _lines(key: str, text: str) -> Sequence[tuple[int, str]]:
    if text and not text.endswith("\n"):
        raise Corrupt(f"{key}: the last line is cut off; each line ends with a newline")
    return list(enumerate(text.split("\n")[:-1], start=1))


def _sized(what: str, data: dict[str, str]) -> dict[str, str]:
    size = sum(len(key) + len(value.encode()) for key, value in data.items())
    if size > OBJECT_BYTES_MAX:
        text = f"{what} would take {size} bytes; at most {OBJECT_BYTES_MAX} fit into a ConfigMap"
        raise BadInput(text, "TOO_LARGE")
    return data
