"""Files of a volume: what is not as it was written is refused, with the file's name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.errors import Corrupt
from stele.wire.messages import MemberInfo, OpId, Row
from stele.wire.volume import (
    Consensus,
    CopyRecord,
    DataState,
    Frozen,
    Instance,
    Quarantined,
    Superblock,
    TableFile,
    Waited,
    decode_file,
    decode_state,
    encode_file,
    encode_state,
)

FILES = [
    Instance("c", "u", 3),
    Superblock("READY", 2, 5, OpId(1, 2), (Quarantined(1, 5.5),)),
    Consensus(
        7, Row(1, 2, (3, None, 4)), "a", Waited("b", 1, 2), Frozen("c", 3), CopyRecord("d", 1, 2, 3, True)
    ),
    TableFile(9, 1, 2, 2, "Passive", 4, (MemberInfo(0, "m", "u", "1.2.3.4"),), (Row(0, 1, (0,)),)),
]


@pytest.mark.parametrize("value", FILES, ids=lambda value: type(value).__name__)
def test_files_come_back_as_they_were(value: Instance | Superblock | Consensus | TableFile) -> None:
    assert decode_file(type(value), encode_file(value), "name") == value


@given(st.sampled_from(FILES), st.data())
def test_any_changed_byte_is_refused(
    value: Instance | Superblock | Consensus | TableFile, data: st.DataObject
) -> None:
    content = bytearray(encode_file(value))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt, match="some/file"):
        decode_file(type(value), bytes(content), "some/file")


def test_another_kind_or_format_is_named() -> None:
    with pytest.raises(Corrupt, match="stele Superblock 1"):
        decode_file(Superblock, encode_file(FILES[0]), "f")
    newer = encode_file(FILES[0]).replace(b"Instance 1\n", b"Instance 2\n")
    with pytest.raises(Corrupt, match="Instance 2"):
        decode_file(Instance, newer, "f")


def test_tablet_states() -> None:
    state = DataState(OpId(1, 2), {b"default": (3, 4)})
    assert decode_state(encode_state(state)) == state
    with pytest.raises(Corrupt, match="tablet state"):
        decode_state(b"\xc1")
