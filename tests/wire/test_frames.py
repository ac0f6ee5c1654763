"""Frames, and messages in them: whatever arrives, the decoder says so or gives what was sent."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.errors import Corrupt, Unavailable
from stele.wire import peer
from stele.wire.frames import FRAME_BYTES_MAX, FrameDecoder, FrameError, encode_frame
from stele.wire.storage.log_record import check_record, delete_record, put_record, split_record


@given(st.lists(st.binary(max_size=200), max_size=5), st.integers(1, 50))
def test_any_cut_of_the_stream_gives_the_same_bodies(bodies: list[bytes], piece: int) -> None:
    stream = b"".join(map(encode_frame, bodies))
    decoder = FrameDecoder()
    found = [body for at in range(0, len(stream), piece) for body in decoder.feed(stream[at : at + piece])]
    assert found == bodies


@given(st.binary(max_size=400))
def test_garbage_is_an_error_or_incomplete(data: bytes) -> None:
    decoder = FrameDecoder(bytes_max=1000)
    try:
        for body in decoder.feed(data):
            peer.decode_message(body)
    except (FrameError, peer.MessageError):
        pass


@given(st.binary(min_size=1, max_size=100), st.data())
def test_a_flipped_bit_is_seen(body: bytes, data: st.DataObject) -> None:
    frame = bytearray(encode_frame(body))
    at = data.draw(st.integers(4, len(frame) - 1))
    frame[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FrameError, match="checksum"):
        list(FrameDecoder().feed(bytes(frame)))


def test_too_long_frames_are_refused_on_both_sides() -> None:
    decoder = FrameDecoder(bytes_max=10)
    with pytest.raises(FrameError, match="at most 10"):
        list(decoder.feed((11).to_bytes(4, "big") + bytes(4)))
    with pytest.raises(FrameError, match="unusable after an earlier frame error"):
        list(decoder.feed(b""))
    with pytest.raises(FrameError, match="at most"):
        encode_frame(bytes(FRAME_BYTES_MAX + 1))


def test_a_frame_that_arrives_alone_is_judged_like_others() -> None:
    decoder = FrameDecoder(bytes_max=10)
    assert [list(decoder.feed(encode_frame(body))) for body in (b"", b"a", bytes(10))] == [
        [b""],
        [b"a"],
        [bytes(10)],
    ]
    assert list(decoder.feed(encode_frame(b"a")[:5])) == []
    assert list(decoder.feed(encode_frame(b"a")[5:] + encode_frame(b"b"))) == [b"a", b"b"]
    with pytest.raises(FrameError, match="at most 10"):
        list(decoder.feed(encode_frame(bytes(11))))


def test_longer_frames_are_taken_from_where_they_are_allowed() -> None:
    """What follows a greeting may arrive in the same bytes."""
    decoder, found = FrameDecoder(bytes_max=10), list[int]()
    for body in decoder.feed(encode_frame(bytes(5)) + encode_frame(bytes(5000)) + encode_frame(bytes(1))[:3]):
        found.append(len(body))
        decoder.allow(FRAME_BYTES_MAX)
    assert found == [5, 5000]
    assert [len(body) for body in decoder.feed(encode_frame(bytes(1))[3:])] == [1]


def test_bodies_that_were_not_asked_for_come_with_the_next_bytes() -> None:
    decoder = FrameDecoder()
    assert next(decoder.feed(encode_frame(b"a") + encode_frame(b"b"))) == b"a"
    assert list(decoder.feed(encode_frame(b"c"))) == [b"b", b"c"]


MESSAGES: list[peer.Message] = [
    peer.Hello(1, "c", 0, "u", "v"),
    peer.Append([peer.AppendItem(1, 2, 3, 4, 5, 6, [b"x"], (7, (0, None, 2)))]),
    peer.Acks([peer.AckItem(1, 2, 3, 4, 5)]),
    peer.Probe([peer.ProbeItem(1, 2, 3, True, (4, (1,)))]),
    peer.ProbeResult([peer.ProbeResultItem(1, 2, 0, (3, 4), (5, 6), 7, False)]),
    peer.Lease(1.5, 2.5, (3,)),
    peer.Forward(1, 2, 3, b"ks", [[b"SET", b"k", b"v"]], 4),
    peer.Forwarded(1, "", "", b"x", None),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_come_back_as_they_were(message: peer.Message) -> None:
    assert peer.decode_message(peer.encode_message(message)) == message


@given(st.sampled_from(MESSAGES), st.data())
def test_broken_messages_are_errors(message: peer.Message, data: st.DataObject) -> None:
    body = bytearray(peer.encode_message(message))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(peer.MessageError):
        peer.decode_message(bytes(body))


@given(st.binary(max_size=63), st.binary(max_size=99), st.binary(max_size=99), st.integers(0, 2**63))
def test_records_come_back_as_they_were(keyspace: bytes, key: bytes, value: bytes, expire: int) -> None:
    record = put_record(7, keyspace, key, value, expire)
    check_record(record)
    assert split_record(record) == (1, keyspace, key, value, expire)
    assert split_record(delete_record(7, keyspace, key)) == (2, keyspace, key, b"", 0)


@given(st.binary(max_size=60))
def test_records_of_garbage_are_refused_or_whole(data: bytes) -> None:
    try:
        check_record(data)
    except (Corrupt, Unavailable):
        return
    split_record(data)
