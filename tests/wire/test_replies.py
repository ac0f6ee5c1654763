"""Replies survive the way between members, each kind as itself; garbage is refused."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.kv.commands import Failure, Simple
from stele.wire.replies import BadRepliesError, decode_replies, encode_replies

plain = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.binary(max_size=40)
    | st.text(max_size=9).map(Simple)
    | st.builds(Failure, st.text(max_size=9), st.text(max_size=9))
)
replies = st.recursive(plain, lambda inner: st.lists(inner, max_size=4), max_leaves=12)


@given(st.lists(replies, max_size=5))
def test_round_trip(sent):
    assert decode_replies(encode_replies(sent)) == sent


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(3),
        msgspec.msgpack.encode([True]),
        msgspec.msgpack.encode([1.5]),
        msgspec.msgpack.encode([{"a": 1}]),
        msgspec.msgpack.encode([{"a": "b", "c": "d"}]),
        b"\x91" * 2000 + b"\xc0",
        b"\x91\xa1\xff",
    ],
)
def test_garbage_is_refused(body):
    with pytest.raises(BadRepliesError, match="replies: "):
        decode_replies(body)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(body):
    with suppress(BadRepliesError):
        assert isinstance(decode_replies(body), list)
