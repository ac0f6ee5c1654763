"""The stream of a copy arrives as it was sent, or is refused: no cut, flip or swap goes unseen."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.control.commands import OpId
from stele.errors import Corrupt
from stele.wire.copy import blocks
from stele.wire.copy.blocks import BlockReader, End, encode_end, encode_entries, encode_stream

APPLIED = OpId(3, 99)
entries_strategy = st.dictionaries(st.binary(min_size=1, max_size=20), st.binary(max_size=50), max_size=30)


def stream(entries):
    return list(encode_stream(entries, lambda count, size: End(7, 2, APPLIED, count, size)))


def read(data):
    reader = BlockReader(io.BytesIO(data).read)
    got = [entry for keys, values in reader for entry in zip(keys, values, strict=True)]
    return got, reader.end


@given(entries_strategy, st.integers(1, 200))
def test_round_trip_in_blocks_of_any_size(entries, block_bytes):
    entries = sorted(entries.items())
    before, blocks.BLOCK_BYTES = blocks.BLOCK_BYTES, block_bytes
    try:
        sent = stream(entries)
    finally:
        blocks.BLOCK_BYTES = before
    got, end = read(b"".join(sent))
    assert got == entries
    assert end == End(7, 2, APPLIED, len(entries), sum(len(k) + len(v) for k, v in entries))


def test_blocks_are_about_a_mebibyte():
    sent = stream((b"%08d" % number, b"v" * 1000) for number in range(4000))
    assert 4 <= len(sent) <= 6
    assert all(len(block) < 1100 * 1024 for block in sent)


@given(st.data())
def test_every_cut_and_every_flipped_bit_is_seen(data):
    sent = b"".join(stream([(b"a", b"1"), (b"b", b"22"), (b"c", b"")]))
    cut = data.draw(st.integers(0, len(sent) - 1))
    with pytest.raises(Corrupt):
        read(sent[:cut])
    flipped = bytearray(sent)
    flipped[cut] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Corrupt):
        read(bytes(flipped))


@given(st.binary(max_size=100))
def test_no_bytes_crash_the_reader(garbage):
    with pytest.raises(Corrupt):
        read(garbage)


@given(st.binary(min_size=1, max_size=60))
def test_a_body_with_a_right_checksum_is_still_checked(body):
    with pytest.raises(Corrupt):
        read(blocks._sealed((body,)))


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([[(b"b", b""), (b"a", b"")]], "keys do not ascend after 0 entries"),
        ([[(b"a", b""), (b"a", b"")]], "keys do not ascend"),
        ([[(b"b", b"")], [(b"a", b"")]], "keys do not ascend after 1 entries"),
        ([[(b"b", b"")], [(b"b", b"")]], "keys do not ascend after 1 entries"),
        ([[(b"a", b"1")]], "received 1 entries of 2 bytes, but 9 entries of 9 bytes were sent"),
    ],
)
def test_order_and_totals_are_checked(parts, error):
    sent = b"".join(encode_entries(*zip(*part, strict=True)) for part in parts) + encode_end(
        End(7, 2, APPLIED, 9, 9)
    )
    with pytest.raises(Corrupt, match=error):
        read(sent)


def test_nothing_may_follow_the_end():
    with pytest.raises(Corrupt, match="continues after its last block"):
        read(b"".join(stream([])) + b"x")


def test_a_length_beyond_the_limit_is_not_allocated():
    with pytest.raises(Corrupt, match="block of 4294967295 bytes, expected 1 to 16777216"):
        read(b"\xff" * 8)
