"""Messages between members: a changed shape needs a new format, and greetings are read by every build."""

import hashlib
import typing

import msgspec
import pytest

from stele.core.formats import SPOKEN, UNSTATED, FormatRange
from stele.core.tablet.follower import Code
from stele.wire import peer
from stele.wire.storage import load_value, log_record

SHAPE = {2: "c78dbc296baf3278"}
"""What travels in each format: a member of another build must be able to tell."""


def shape() -> str:
    """A digest of tags, fields and types, of the codes of answers and the kinds of logged operations."""
    told: list[object] = [
        (
            kind.__name__,
            kind.__struct_config__.tag,
            [(f.name, str(f.type)) for f in msgspec.structs.fields(kind)],
        )
        for kind in (
            *typing.get_args(peer.Message),
            peer.AppendItem,
            peer.AckItem,
            peer.ProbeItem,
            peer.ProbeResultItem,
        )
    ]
    told += [(code.name, int(code)) for code in Code]
    kinds = (log_record.NOOP, log_record.PUT, log_record.DELETE, log_record.BATCH, log_record.LOAD)
    kinds = (*kinds, log_record.CLEAR)
    told.append((*kinds, log_record.HEAD_BYTES))
    told += [str(msgspec.structs.fields(kind)) for kind in (log_record.Change, load_value.LoadValue)]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def test_what_travels_is_that_of_the_format() -> None:
    assert {SPOKEN.most: shape()} == SHAPE, "add a format to core/formats.py, then note the new shape here"


HELLO_0_1_0 = b"\x96\xa2hi\x04\xa7cluster\x01\xa6uuid-1\xa6uuid-0"
WELCOME_0_1_0 = b"\x92\xa2ok\xa6uuid-0"
"""What release 0.1.0 sends."""

HELLO = peer.Hello(peer.GREETING_FORMAT, "cluster", 1, "uuid-1", "uuid-0", FormatRange(1, 2), 5)
WELCOME = peer.Welcome("uuid-0", FormatRange(1, 2))


def test_greetings_are_these_bytes_in_every_build() -> None:
    """Those of 0.1.0, which ignores what follows its own fields: the range and the incarnation."""
    assert peer.encode_message(HELLO) == b"\x98" + HELLO_0_1_0[1:] + b"\x92\x01\x02\x05"
    assert peer.encode_message(WELCOME) == b"\x93" + WELCOME_0_1_0[1:] + b"\x92\x01\x02"


def test_a_greeting_of_0_1_0_states_no_range() -> None:
    assert peer.decode_greeting(HELLO_0_1_0) == msgspec.structs.replace(
        HELLO, formats=UNSTATED, incarnation=0
    )
    assert peer.decode_greeting(WELCOME_0_1_0) == msgspec.structs.replace(WELCOME, formats=UNSTATED)


def test_what_follows_in_later_builds_is_ignored() -> None:
    later = ["hi", peer.GREETING_FORMAT, "cluster", 1, "uuid-1", "uuid-0", [2, 3], 5, "whatever"]
    read = peer.decode_greeting(msgspec.msgpack.encode(later))
    assert read == msgspec.structs.replace(HELLO, formats=FormatRange(2, 3))


def test_an_unknown_kind_of_message_asks_for_an_upgrade() -> None:
    for body in (["zz", 1], ["zz"]):
        with pytest.raises(peer.MessageError, match=r"UNKNOWN_FORMAT: .*'zz'.*upgrade this member"):
            peer.decode_message(msgspec.msgpack.encode(body))
    for wrong in (["hb", "no time"], ["hb"], [["zz"]], [7]):
        with pytest.raises(peer.MessageError, match="message of") as refused:
            peer.decode_message(msgspec.msgpack.encode(wrong))
        assert "UNKNOWN_FORMAT" not in str(refused.value)
