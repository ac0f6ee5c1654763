"""Table text: read back what was written, show it as people see it, refuse everything else with a reason."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.formats import RANGES
from stele.core.security.level import InternalTls
from stele.core.table.groups import PartitionGroup, PartitionGroups
from stele.core.table.ids import MAX_REPLICAS, VERSION_MAX
from stele.core.table.table import EMPTY, Member, Partition, row_fault, shard_of, trimmed
from stele.errors import BadInput, Corrupt
from stele.wire import configmap
from stele.wire.configmap import (
    SHARD_PARTITIONS,
    Head,
    decode_head,
    decode_rows,
    decode_shard,
    encode_head,
    encode_shard,
    shard_count,
    shard_range,
)

MEMBERS = (
    Member(0, "orders-0", "5f3a-0", "10.1.2.3"),
    Member(2, "orders-2", "5f3a-2", "", lite=True),
)
HEAD = Head(7, "Active", 3, 2, 12, 3, -4069959284402364209, 9, MEMBERS)
ROWS = (Partition(3, (0, 1)), Partition(0, ()), Partition(6, (2, None, 0)))


def test_a_person_can_read_it() -> None:
    assert encode_shard(7, 0, ROWS) == {"format": "1", "epoch": "7", "rows": "0 3:0,1\n1 0:\n2 6:2,-,0\n"}
    assert encode_head(HEAD) == {
        "format": "1",
        "epoch": "7",
        "state": "Active",
        "partitions": "3",
        "replicas": "2",
        "memberListVersion": "12",
        "nextMemberIndex": "3",
        "stamp": "-4069959284402364209",
        "versionSum": "9",
        "members": "0 orders-0 5f3a-0 10.1.2.3 data\n2 orders-2 5f3a-2 - lite\n",
    }


def test_what_was_written_is_read_back() -> None:
    assert decode_head(encode_head(HEAD)) == HEAD
    shard = decode_shard(encode_shard(7, 0, ROWS), 0, 3)
    assert (shard.epoch, shard.rows) == (7, ROWS)


row_values = st.builds(
    lambda version, slots: Partition(version, trimmed(slots)),
    st.integers(0, VERSION_MAX),
    st.lists(st.none() | st.integers(0, 999), max_size=MAX_REPLICAS),
).filter(lambda row: row_fault(row.replicas) is None)


@given(st.lists(row_values, min_size=1, max_size=30), st.integers(0, 127), st.integers(0, 2**40))
def test_any_rows_are_read_back(rows: list[Partition], number: int, epoch: int) -> None:
    partitions = number * SHARD_PARTITIONS + len(rows)
    shard = decode_shard(encode_shard(epoch, number, rows), number, partitions)
    assert (shard.epoch, list(shard.rows)) == (epoch, rows)


numbers = st.integers(-1, 9) | st.integers(2**31 - 2, 2**31) | st.integers(2**63 - 2, 2**63 + 1)
heads = st.builds(
    Head,
    epoch=numbers,
    state=st.just("Active"),
    partitions=numbers,
    replicas=numbers,
    member_list_version=numbers,
    next_member_index=numbers,
    stamp=numbers,
    version_sum=numbers,
    members=st.lists(numbers, max_size=2).map(
        lambda indexes: tuple(Member(index, "m", f"u{place}", "") for place, index in enumerate(indexes))
    ),
)


@given(heads)
def test_a_head_that_cannot_be_read_is_not_written(head: Head) -> None:
    with suppress(BadInput):
        data = encode_head(head)
        assert set(decode_head(data).members) == set(head.members)


@given(numbers, numbers, numbers)
def test_a_shard_that_cannot_be_read_is_not_written(epoch: int, version: int, member: int) -> None:
    row = Partition(version, (member,))
    with suppress(BadInput):
        data = encode_shard(epoch, 0, [row])
        assert decode_shard(data, 0, 1).rows == (row,)


written = st.text(max_size=60) | st.text(alphabet="0123456789 :,-\n", max_size=40)
row_lines = st.from_regex(r"0 \d:[0-3,-]{0,5}\n1 \d:[0-3,-]{0,5}\n2 \d:[0-3,-]{0,5}\n", fullmatch=True)
member_lines = st.from_regex(
    r"([0-4]{1,2} [a-c ]{0,2} [a-c]{0,2} [-1. ]{1,3} (data|lite)\n){1,2}", fullmatch=True
)


@given(written | row_lines)
def test_any_shard_is_refused_or_written_as_it_was_read(text: str) -> None:
    """One text for one value: whatever is read is what this version would write."""
    data = {"format": "1", "epoch": "1", "rows": text}
    with suppress(Corrupt):
        assert encode_shard(1, 0, decode_shard(data, 0, 3).rows) == data


@given(st.sampled_from(sorted(encode_head(HEAD))), written | member_lines)
def test_any_head_is_refused_or_written_as_it_was_read(key: str, text: str) -> None:
    data = {**encode_head(HEAD), key: text}
    with suppress(Corrupt):
        read = decode_head(data)
        lines = sorted(data["members"].splitlines(), key=lambda line: int(line.split()[0]))
        assert encode_head(read) == {**data, "members": "".join(f"{line}\n" for line in lines)}


@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(sorted(encode_head(HEAD))), st.text(max_size=8)))
def test_any_keys_are_read_or_refused(data: dict[str, str]) -> None:
    for read in (decode_head, lambda some: decode_shard(some, 0, 3)):
        with suppress(Corrupt):
            read({"format": "1", **data})


def test_shards_hold_512_partitions() -> None:
    assert [shard_of(partition) for partition in (0, 511, 512, 1024)] == [0, 0, 1, 2]
    assert [shard_count(partitions) for partitions in (1, 512, 513, 65_536)] == [1, 1, 2, 128]
    assert shard_range(0, 271) == range(271)
    assert shard_range(1, 1_000) == range(512, 1_000)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ("0 3:0,1\n1 0:\n", "shard 0 has 2 rows; partitions 0 to 2 were expected"),
        ("0 3:0,1\n2 0:\n1 0:\n", "found row 2, but partition 1 was expected"),
        ("0 3:0,1\n1 0:\n2 6:2,-,0", "last line is cut off"),
        ("0 3:0,1\n1 0:\n2 x\n", "'2 x' is not a row; '2 VERSION:INDEX,...' was expected"),
        ("0 3:0,1\n1 0:\n2 -1:\n", "is not a row"),
        ("0 3:0,1\n1 0:\n2 1:1,1\n", "the row of partition 2 names a member twice"),
        ("0 3:0,1\n1 0:\n2 1:1,-\n", "partition 2 ends with an empty replica index"),
        ("0 3:0,1\n1 0:\n2 2147483648:1\n", "version 2147483648"),
        ("0 3:0,1\n1 0:\n2 1:0,1,2,3,4,5,6,7\n", "is not a row"),
        ("0 3:0,1\n1 0:\n2 1:٣\n", "is not a row"),
        ("0 3:0,1\n1 0:\n2 1:01\n", "is not a row"),
        ("", "has 0 rows"),
    ],
)
def test_broken_rows_are_refused(rows: str, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        decode_shard({"format": "1", "epoch": "1", "rows": rows}, 0, 3)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"state": "Sleeping"}, "state is 'Sleeping'; one of Active, NoMigration, Frozen, Passive"),
        ({"epoch": "-1"}, "epoch is '-1'; a whole number from 0"),
        ({"partitions": "0"}, "partitions is '0'"),
        ({"partitions": "65537"}, "partitions is '65537'"),
        ({"replicas": "8"}, "replicas is '8'; a whole number from 1 to 7"),
        ({"stamp": "9223372036854775808"}, "stamp is"),
        ({"nextMemberIndex": "2"}, "member index 2 is not below nextMemberIndex 2"),
        ({"members": "0 orders-0 u 10.0.0.1\n"}, "line 1 of members is '0 orders-0 u 10.0.0.1'"),
        ({"members": "0 a u - data\n0 b v - data\n"}, "the same index or UUID"),
        ({"members": "0 a u - data\n1 b u - data\n"}, "the same index or UUID"),
        ({"members": "0 a u - data"}, "last line is cut off"),
        ({"members": "0  u - data\n"}, "line 1 of members is '0  u - data'"),
        ({"members": "0 a\tb u - data\n"}, "line 1 of members"),
        ({"surprise": "1"}, r"missing keys \[\], unknown keys \['surprise'\]"),
    ],
)
def test_broken_heads_are_refused(change: dict[str, str], reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        decode_head({**encode_head(HEAD), **change})


def test_missing_keys_are_named() -> None:
    data = encode_head(HEAD)
    del data["stamp"]
    with pytest.raises(Corrupt, match=r"missing keys \['stamp'\]"):
        decode_head(data)


def test_a_head_is_written_in_the_format_that_its_features_allow() -> None:
    assert encode_head(HEAD)["format"] == "1"
    assert "features" not in encode_head(HEAD)
    raised = replace(HEAD, features=RANGES)
    data = encode_head(raised)
    assert (data["format"], data["features"]) == ("2", "2")
    assert decode_head(data) == raised
    with pytest.raises(Corrupt, match=r"missing keys \['features'\]"):
        decode_head({name: value for name, value in data.items() if name != "features"})


def test_a_head_of_a_cluster_that_uses_a_later_format_is_refused() -> None:
    data = {**encode_head(replace(HEAD, features=RANGES)), "features": "3"}
    with pytest.raises(Corrupt, match=r"uses format 3; .* speaks formats 1 to 2") as refused:
        decode_head(data)
    assert refused.value.code == "UNKNOWN_FORMAT"


GROUPS = PartitionGroups(4, (PartitionGroup("sessions", 3, 4, 3), PartitionGroup("a-1", 7, 1, 1)))
GROUPED = replace(HEAD, features=RANGES, groups=GROUPS)


def test_a_head_with_groups_is_read_back() -> None:
    data = encode_head(GROUPED)
    assert data["groups"] == "sessions 3 4 3\na-1 7 1 1\n"
    assert (data["groupsVersion"], data["partitions"]) == ("4", "3")
    assert decode_head(data) == GROUPED
    assert GROUPED.rows == 8
    assert "groups" not in encode_head(replace(HEAD, features=RANGES))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"groups": "sessions 4 4 3\n"}, "the group of sessions has 4 partitions from 4, not 3"),
        ({"groups": "sessions 3 0 3\n"}, "has 0 partitions"),
        ({"groups": "sessions 3 4 8\n"}, "has 8 replicas; expected 1 to 7"),
        ({"groups": "sessions 3 4\n"}, "line 1 of groups is 'sessions 3 4'; 'KEYSPACE FIRST COUNT REPLICAS'"),
        ({"groups": "s 3 4 3\ns 7 1 1\n"}, "two groups belong to one keyspace"),
        ({"groups": ""}, "there are 0 groups of version 4"),
        ({"groups": "sessions 3 65534 3\n"}, "65537 partitions"),
        ({"groupsVersion": "0"}, "groupsVersion is '0'; a whole number from 1"),
    ],
)
def test_broken_groups_are_refused(change: dict[str, str], reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        decode_head({**encode_head(GROUPED), **change})
    data = encode_head(GROUPED)
    del data["groupsVersion"]
    with pytest.raises(Corrupt, match="missing keys"):
        decode_head(data)


def test_rows_of_a_group_that_the_head_lacks_are_left_out_and_never_assigned() -> None:
    rows = (*ROWS, EMPTY, EMPTY)
    assert decode_shard(encode_shard(7, 0, rows), 0, 3).rows == ROWS
    assert decode_rows(encode_shard(7, 0, rows), 0).rows == rows
    with pytest.raises(Corrupt, match="shard 0 has 4 rows; partitions 0 to 2 were expected"):
        decode_shard(encode_shard(7, 0, (*ROWS, Partition(1, (0,)))), 0, 3)


def test_a_head_names_the_level_of_tls_among_members_unless_it_is_off() -> None:
    head = replace(GROUPED, member_tls=InternalTls.DIAL)
    data = encode_head(head)
    assert data["memberTls"] == "Dial"
    assert decode_head(data) == head
    assert "memberTls" not in encode_head(GROUPED)
    with pytest.raises(Corrupt, match="memberTls is 'Maybe'; one of Off, Accept, Dial, Required"):
        decode_head({**data, "memberTls": "Maybe"})
    with pytest.raises(Corrupt, match=r"unknown keys \['memberTls'\]"):
        decode_head({**encode_head(HEAD), "memberTls": "Dial"})


@pytest.mark.parametrize("written", ["3", "", "one"])
def test_another_format_is_refused_before_anything_is_read(written: str) -> None:
    for read in (decode_head, lambda data: decode_shard(data, 0, 3)):
        with pytest.raises(Corrupt, match="use the version that wrote it") as refused:
            read({"format": written, "rows": "something new"})
        assert refused.value.code == "UNKNOWN_FORMAT"


def test_what_cannot_be_stored_is_refused_before_the_api_server_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="shard 0 has 513 rows"):
        encode_shard(1, 0, [Partition(0, ())] * 513)
    with pytest.raises(BadInput, match="partition 512 names a member twice"):
        encode_shard(1, 1, [Partition(1, (0, 0))])
    with pytest.raises(BadInput, match="partition 1 has version 2147483648; at most 2147483647"):
        encode_shard(1, 0, [Partition(0, ()), Partition(VERSION_MAX + 1, ())])
    with pytest.raises(BadInput, match="state is 'Sleeping'"):
        encode_head(Head(7, "Sleeping", 3, 2, 12, 3, 0, 9, ()))
    crowd = tuple(Member(index, f"m{index}", f"u{index}", "") for index in range(1_001))
    with pytest.raises(BadInput, match="the table names 1001 members; at most 1000"):
        encode_head(Head(7, "Active", 3, 2, 12, 1_001, 0, 9, crowd))
    spaced = Member(0, "two words", "u", "")
    with pytest.raises(BadInput, match="'two words' must be printable ASCII without spaces"):
        encode_head(Head(7, "Active", 3, 2, 12, 3, 0, 9, (spaced,)))
    monkeypatch.setattr(configmap, "OBJECT_BYTES_MAX", 100)
    with pytest.raises(BadInput, match=r"TOO_LARGE: the head of the table would take \d+ bytes; at most 100"):
        encode_head(HEAD)


def test_the_largest_table_fits() -> None:
    widest = Partition(VERSION_MAX, tuple(range(100_000_000, 100_000_007)))
    data = encode_shard(2**62, 127, [widest] * SHARD_PARTITIONS)
    assert sum(len(value) for value in data.values()) < 60_000
