"""A message of another member takes so many times its size of memory when decoded, or is refused."""

import struct
import tracemalloc
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.core.kv.commands import Simple
from stele.core.kv.transaction import TRANSACTION_COMMANDS_MAX
from stele.member.limits import REQUEST_COMMANDS_MAX
from stele.wire import peer
from stele.wire.frames import FRAME_BYTES_MAX, GREETING_BYTES_MAX
from stele.wire.replies import ITEMS_MAX, BadRepliesError, decode_replies, encode_replies

FACTOR = 16
"""Bytes of memory for each byte of a message."""

SPARE_BYTES = 4 * 1024 * 1024
"""Beside that: the lists of most items, of the smallest items."""

ROW = [1, [1]]
BEFORE = {
    "append": ["ap"],
    "records": ["ap", [[1, 1, 1, 1, 1, 1]]],
    "row": ["as", [[1, 1, 1, False, [1]]]],
    "acks": ["ak"],
    "ask": ["as"],
    "answers": ["an"],
    "excluded": ["le", 1.0, 1.0],
    "tail": ["lt", 1, 1, [1, 1], True],
    "commands": ["fw", 1, 1, 1, b"k"],
    "arguments": ["fw", 1, 1, 1, b"k", []],
    "forwarded": ["fd", 1, "", "", b""],
    "too many fields": ["hb", 1.0],
}
"""What stands before the list that is long; every list of the messages is here."""

UNITS = [
    [],
    b"",
    b"ab",
    "",
    1,
    2**40,
    None,
    [1] * 5,
    [1, 1, 1, 1, 1, 1, []],
    [1, 1, 1, False, ROW],
    [b"ab"] * 9,
]
UNITS += [[1, 1, 0, [1, 1], [1, 1], 1, False]]


def body_of(before: list[object], unit: object, count: int, told: int) -> bytes:
    """A message that ends in `count` units, of which its header tells `told`."""
    opened = []
    while before and isinstance(before[-1], list):
        opened.append(before[:-1])
        before = before[-1]
    opened.append(before)
    heads = b"".join(
        struct.pack("B", 0x91 + len(fields)) + b"".join(map(msgspec.msgpack.encode, fields))
        for fields in opened
    )
    return heads + b"\xdd" + struct.pack(">I", told) + msgspec.msgpack.encode(unit) * count


def memory_of(body: bytes) -> int:
    """The most that decoding takes."""
    tracemalloc.start()
    try:
        with suppress(peer.MessageError):
            peer.decode_message(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("place", BEFORE)
@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_the_largest_frame_of_the_smallest_items(place: str, unit: object) -> None:
    count = (FRAME_BYTES_MAX - 100) // len(msgspec.msgpack.encode(unit))
    body = body_of(BEFORE[place], unit, count, count)
    assert memory_of(body) <= FACTOR * len(body) + SPARE_BYTES


@pytest.mark.parametrize("place", BEFORE)
@pytest.mark.parametrize("unit", UNITS, ids=repr)
def test_as_many_items_as_may_be(place: str, unit: object) -> None:
    body = body_of(BEFORE[place], unit, peer.COMMANDS_MAX, peer.COMMANDS_MAX)
    assert memory_of(body) <= FACTOR * len(body) + SPARE_BYTES


@settings(max_examples=60)
@given(
    st.sampled_from(list(BEFORE.values())),
    st.sampled_from(UNITS),
    st.integers(0, 200_000),
    st.one_of(st.none(), st.integers(0, 2**32 - 1)),
)
def test_so_many_items_or_a_header_that_lies(
    before: list[object], unit: object, count: int, told: int | None
) -> None:
    body = body_of(before, unit, count, count if told is None else told)
    assert memory_of(body) <= FACTOR * len(body) + SPARE_BYTES


ANSWERS: list[object] = [[], "", {"a": "ab"}]


def answer_of(unit: object, count: int) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + msgspec.msgpack.encode(unit) * count


def memory_of_answers(body: bytes) -> int:
    tracemalloc.start()
    try:
        with suppress(BadRepliesError):
            decode_replies(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("unit", ANSWERS, ids=repr)
def test_answers_of_as_many_values_as_may_be(unit: object) -> None:
    """What takes most is an empty list: one byte, and objects of msgpack and then of replies."""
    body = answer_of(unit, (ITEMS_MAX - 1) // (3 if unit == {"a": "ab"} else 1))
    assert memory_of_answers(body) <= FACTOR * len(body) + 160 * ITEMS_MAX


def test_the_largest_frame_of_answers_is_refused_without_making_them() -> None:
    for body in (
        answer_of([], FRAME_BYTES_MAX - 100),
        b"\xdd\xff\xff\xff\xff" + b"\x90" * 1000,
        b"\xdd\xff\xff\xff\xff",
    ):
        assert memory_of_answers(body) <= SPARE_BYTES


def test_more_values_than_a_request_can_have_are_refused() -> None:
    assert len(decode_replies(answer_of(None, ITEMS_MAX - 1))) == ITEMS_MAX - 1
    with pytest.raises(BadRepliesError, match=f"more than {ITEMS_MAX} values in {ITEMS_MAX + 5} bytes"):
        decode_replies(answer_of(None, ITEMS_MAX))
    assert TRANSACTION_COMMANDS_MAX * REQUEST_COMMANDS_MAX < ITEMS_MAX


def test_what_looks_like_values_inside_of_one_is_not_counted() -> None:
    for large in (b"\x90" * 8_000_000, "a" * 8_000_000, b"\x90" * 60_000):
        sent = [
            Simple(large) if isinstance(large, str) else large,
            1,
            2**40,
            -(2**40),
            -300,
            300,
            Simple("OK"),
        ] * 2
        assert decode_replies(encode_replies(sent)) == sent


@given(st.binary(max_size=GREETING_BYTES_MAX))
def test_a_greeting_is_one_or_refused(body: bytes) -> None:
    with suppress(peer.MessageError):
        assert isinstance(peer.decode_greeting(body), peer.Greeting)


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_before_the_greeting_nothing_else_is_decoded(before: list[object]) -> None:
    with pytest.raises(peer.MessageError, match="Invalid value"):
        peer.decode_greeting(body_of(before, [], 1, 1))
