"""Files of a volume: what is not as it was written is refused, with the file's name."""

from contextlib import suppress

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stele.core.control.commands import MemberInfo, OpId, Row
from stele.core.formats import FIRST, RANGES
from stele.core.table.ids import VERSION_MAX
from stele.errors import Corrupt
from stele.wire.storage.volume import (
    Consensus,
    CopyRecord,
    DataState,
    Frozen,
    Instance,
    LegacyTableFile,
    LogEnd,
    Quarantined,
    StoredRow,
    Superblock,
    TableFile,
    Waited,
    decode_file,
    decode_state,
    decode_table,
    encode_file,
    encode_state,
)

MEMBERS = (MemberInfo(0, "m", "u", "1.2.3.4"), MemberInfo(3, "n", "v", "1.2.3.5"))
TABLE = TableFile(9, 1, 2, "Passive", 4, MEMBERS, (StoredRow(1, (0,)), StoredRow(0, ())), features=RANGES)
LEGACY = LegacyTableFile(7, MEMBERS, ((0, None, 3), (), (3,)))
FILES = [
    Instance("c", "u", 3),
    LogEnd("0000000007.seg", 2**33),
    Superblock("READY", 2, 5, OpId(1, 2), (Quarantined(1, 5.5),)),
    Consensus(
        7, Row(1, 2, (3, None, 4)), "a", Waited("b", 1, 2), Frozen("c", 3), CopyRecord("d", 1, 2, 3, True)
    ),
    TABLE,
    LEGACY,
]
File = Instance | LogEnd | Superblock | Consensus | TableFile | LegacyTableFile


def framed(title: bytes, body: bytes) -> bytes:
    """A file whose checksum is right, whatever is in it."""
    covered = title + body if title == b"stele TableFile 3\n" else body
    return title + crc32c(covered).to_bytes(4, "big") + body


@pytest.mark.parametrize("value", FILES, ids=lambda value: type(value).__name__)
def test_files_come_back_as_they_were(value: File) -> None:
    assert decode_file(type(value), encode_file(value), "name") == value


@given(st.sampled_from(FILES), st.data())
def test_any_changed_byte_is_refused(value: File, data: st.DataObject) -> None:
    content = bytearray(encode_file(value))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt, match="some/file"):
        decode_file(type(value), bytes(content), "some/file")


@given(st.sampled_from(FILES), st.binary(max_size=200), st.integers(0, 200))
def test_any_body_with_a_right_checksum_is_read_or_refused(value: File, noise: bytes, at: int) -> None:
    """Both pure noise and a good body that noise was put into."""
    title, body = encode_file(value).split(b"\n", 1)
    for changed in (noise, body[4 : 4 + at] + noise + body[4 + at :]):
        with suppress(Corrupt):
            decode_file(type(value), framed(title + b"\n", changed), "f")
        with suppress(Corrupt):
            decode_table(framed(title + b"\n", changed), "f")


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with suppress(Corrupt):
        decode_table(content, "f")
    with suppress(Corrupt):
        decode_state(content)


@pytest.mark.parametrize(
    "body", [b"\x91" * 100_000, b"\x81\xa1x" + b"\x91" * 100_000, b"\x81\xa5state\xa1\xff"]
)
def test_nested_and_undecodable_bodies_are_refused(body: bytes) -> None:
    with pytest.raises(Corrupt, match="table/current"):
        decode_table(framed(b"stele TableFile 3\n", body), "table/current")
    with pytest.raises(Corrupt, match="tablet state"):
        decode_state(body)


def test_another_kind_or_format_is_named() -> None:
    with pytest.raises(Corrupt, match="stele Superblock 1"):
        decode_file(Superblock, encode_file(FILES[0]), "f")
    newer = encode_file(FILES[0]).replace(b"Instance 1\n", b"Instance 2\n")
    with pytest.raises(Corrupt, match="Instance 2"):
        decode_file(Instance, newer, "f")


def test_a_table_says_its_format_in_its_first_line() -> None:
    assert encode_file(TABLE).startswith(b"stele TableFile 3\n")
    assert encode_file(LEGACY).startswith(b"stele TableFile 1\n")


TABLE_0_1_0 = (
    b"stele TableFile 2\n\xad\x1d\xd7\x11\x87\xa5epoch\t\xaaself_index\x01\xa8replicas\x02\xa5state"
    b"\xa7Passive\xb3member_list_version\x04\xa7members\x91\x85\xa5index\x00\xa4name\xa1m\xa4uuid\xa1u\xa7address"
    b"\xa71.2.3.4\xa4lite\xc2\xa4rows\x92\x92\x01\x91\x00\x92\x00\x90"
)
"""What release 0.1.0 writes."""


def test_a_table_is_written_in_the_format_that_its_features_allow() -> None:
    """And in the one before it is the same bytes as that build's own."""
    before = TableFile(9, 1, 2, "Passive", 4, MEMBERS[:1], TABLE.rows)
    assert encode_file(before) == TABLE_0_1_0
    assert decode_table(TABLE_0_1_0, "f") == before
    assert decode_table(encode_file(TABLE), "f") == TABLE


def test_a_whole_table_of_a_later_format_is_no_damage() -> None:
    line, body = b"stele TableFile 4\n", b"whatever it holds"
    later = line + crc32c(line + body).to_bytes(4, "big") + body
    with pytest.raises(Corrupt, match=r"TableFile 4.*reads up to.*TableFile 3") as refused:
        decode_table(later, "f")
    assert refused.value.code == "UNKNOWN_FORMAT"


@given(st.sampled_from([TABLE, msgspec.structs.replace(TABLE, features=FIRST)]), st.data())
def test_a_table_with_any_wrong_bit_is_damage_and_never_a_later_format(
    table: TableFile, data: st.DataObject
) -> None:
    content = bytearray(encode_file(table))
    at = data.draw(st.integers(0, 8 * len(content) - 1))
    content[at // 8] ^= 1 << at % 8
    with pytest.raises(Corrupt) as refused:
        decode_table(bytes(content), "f")
    assert refused.value.code == "CORRUPT"


def test_every_partition_of_a_legacy_table_gets_the_version_of_the_table() -> None:
    read = decode_table(encode_file(LEGACY), "f")
    assert read.rows == (StoredRow(7, (0, None, 3)), StoredRow(7, ()), StoredRow(7, (3,)))
    assert (read.members, read.epoch, read.self_index) == (MEMBERS, 0, -1)
    assert decode_table(encode_file(read), "f") == read, "written anew, it is a table of the present format"


rows = st.lists(
    st.builds(
        StoredRow,
        st.integers(1, VERSION_MAX),
        st.lists(st.integers(0, 9), unique=True, max_size=7).map(tuple),
    ),
    max_size=20,
)


@given(rows, st.integers(0, 2**63 - 1))
def test_any_table_comes_back_as_it_was(some: list[StoredRow], epoch: int) -> None:
    table = msgspec.structs.replace(TABLE, rows=tuple(some), epoch=epoch)
    assert decode_table(encode_file(table), "f") == table


def body_of(table: TableFile | LegacyTableFile, **changes: object) -> bytes:
    title = encode_file(table).split(b"\n", 1)[0] + b"\n"
    return framed(title, msgspec.msgpack.encode({**msgspec.structs.asdict(table), **changes}))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (body_of(TABLE, rows=[[1, [0, 0]]]), "partition 0 names a member twice"),
        (body_of(TABLE, rows=[[0, []], [1, [0, None]]]), "partition 1 ends with an empty replica index"),
        (body_of(TABLE, rows=[[0, [0]]]), "never assigned"),
        (body_of(TABLE, rows=[[VERSION_MAX + 1, [0]]]), "<= 2147483647"),
        (body_of(TABLE, rows=[[-1, [0]]]), ">= 0"),
        (body_of(TABLE, rows=[[1, [-1]]]), ">= 0"),
        (body_of(TABLE, rows=[[1, list(range(8))]]), "length <= 7"),
        (body_of(TABLE, rows=[[0, []]] * 65_537), "length <= 65536"),
        (body_of(TABLE, members=[MEMBERS[0], MEMBERS[0]]), "two members have the same index or UUID"),
        (body_of(LEGACY, version=VERSION_MAX + 1), "<= 2147483647"),
        (body_of(LEGACY, version=0), "never assigned"),
        (body_of(LEGACY, rows=[[0, 0]]), "partition 0 names a member twice"),
    ],
)
def test_tables_that_break_a_rule_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(Corrupt, match=reason):
        decode_table(content, "f")


def test_tablet_states() -> None:
    state = DataState(OpId(1, 2), {b"default": (3, 4)})
    assert decode_state(encode_state(state)) == state
    with pytest.raises(Corrupt, match="tablet state"):
        decode_state(b"\xc1")
