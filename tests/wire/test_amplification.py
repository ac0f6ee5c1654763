"""A message of another member takes so many times its size of memory when decoded, or is refused."""

import struct
import tracemalloc
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stele.wire import peer
from stele.wire.frames import FRAME_BYTES_MAX, GREETING_BYTES_MAX
from stele.wire.replies import decode_replies

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


@settings(max_examples=60, deadline=None)
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


def test_answers_of_empty_lists() -> None:
    """What takes most: one byte each, as msgpack and then as replies. A frame bounds it."""
    body = b"\xdd" + struct.pack(">I", 100_000) + b"\x90" * 100_000
    tracemalloc.start()
    try:
        assert len(decode_replies(body)) == 100_000
        assert tracemalloc.get_traced_memory()[1] <= 160 * len(body)
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=GREETING_BYTES_MAX))
def test_a_greeting_is_one_or_refused(body: bytes) -> None:
    with suppress(peer.MessageError):
        assert isinstance(peer.decode_greeting(body), peer.Greeting)


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_before_the_greeting_nothing_else_is_decoded(before: list[object]) -> None:
    with pytest.raises(peer.MessageError, match="Invalid value"):
        peer.decode_greeting(body_of(before, [], 1, 1))
