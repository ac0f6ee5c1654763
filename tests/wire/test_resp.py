"""The request reader gives the same requests however the bytes are cut, and refuses what is no request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.kv.commands import VALUE_BYTES_MAX, Failure, Simple
from stele.wire.resp import (
    ARGUMENTS_MAX,
    REQUEST_BYTES_MAX,
    RequestReader,
    encode_reply,
    encode_request,
)

requests_strategy = st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=5), max_size=6)


def read(*chunks):
    reader, got = RequestReader(), []
    for chunk in chunks:
        got += reader.feed(chunk)
    return got, reader


@given(requests_strategy, st.data())
def test_any_cut_gives_the_same_requests(requests, data):
    sent = b"".join(encode_request(request) for request in requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    chunks = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    got, reader = read(*chunks)
    assert got == requests
    assert reader.error is None
    assert reader.buffered_bytes == 0


@given(st.binary(max_size=80), st.integers(0, 80))
def test_any_bytes_are_read_or_refused(data, cut):
    got, reader = read(data[:cut], data[cut:])
    assert all(isinstance(arg, bytes) for request in got for arg in request)
    assert reader.error is None or reader.error.startswith("Protocol error: ")


def test_inline_requests_and_empty_ones():
    got, reader = read(b"PING\r\n\r\n*0\r\n*-1\r\nset a  b\n*1\r\n$4\r\nPING\r\n")
    assert got == [[b"PING"], [b"set", b"a", b"b"], [b"PING"]]
    assert reader.error is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (rb'set key "a b"', [b"set", b"key", b"a b"]),
        (b"set key 'a \"b\" c'", [b"set", b"key", b'a "b" c']),
        (rb'set key "a\n\x00\"\q\xZZ\\"', [b"set", b"key", b'a\n\0"qxZZ\\']),
        (rb"set key 'it\'s \n'", [b"set", b"key", rb"it's \n"]),
        (rb'set key ""', [b"set", b"key", b""]),
        (rb'set k"e y" v', [b"set", b"ke y", b"v"]),
    ],
)
def test_inline_requests_have_the_quotes_of_redis(line, words):
    got, reader = read(line + b"\r\n")
    assert (got, reader.error) == ([words], None)


@pytest.mark.parametrize(
    "line", [b'set """k""" v', b'set "k', b"set 'k", b'set "k"v', rb"set 'k\' v", b'set "k\\']
)
def test_unbalanced_quotes_are_refused(line):
    _, reader = read(line + b"\r\n")
    assert reader.error == "Protocol error: unbalanced quotes in request"


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"\x16\x03\x01\x00", "expected '*', got 0x16"),
        (b"$3\r\nfoo\r\n", "expected '*', got '$'"),
        (b"*1\r\n:3\r\n", "expected '$', got ':'"),
        (b"*x\r\n", "invalid multibulk length: 'x'"),
        (b"*" + b"1" * 30, "too big multibulk count string"),
        (b"*%d\r\n" % (ARGUMENTS_MAX + 1), f"invalid multibulk length: {ARGUMENTS_MAX + 1} exceeds"),
        (b"*1\r\n$-1\r\n", "invalid bulk length: -1, expected 0 to 8388608 bytes"),
        (b"*1\r\n$%d\r\n" % (VALUE_BYTES_MAX + 1), "invalid bulk length: 8388609, expected"),
        (b"*1\r\n$2\r\nabcd", "a bulk string of 2 bytes does not end with CRLF"),
        (b"a" * 70_000, "too big inline request: more than 65536 bytes"),
        (b"get \x01\r\n", "an inline request must be printable ASCII"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", "this port speaks RESP, not HTTP"),
    ],
)
def test_garbage_is_named(sent, error):
    _, reader = read(sent)
    assert reader.error.startswith(f"Protocol error: {error}")
    assert reader.feed(b"PING\r\n") == []


def test_requests_before_garbage_are_still_given():
    got, reader = read(b"PING\r\n*1\r\n$4\r\nPING\r\n!")
    assert got == [[b"PING"], [b"PING"]]
    assert reader.error == "Protocol error: expected '*', got '!'"


def test_one_request_is_limited_in_bytes():
    value = b"v" * VALUE_BYTES_MAX
    reader = RequestReader()
    reader.feed(b"*20\r\n")
    for _ in range(REQUEST_BYTES_MAX // VALUE_BYTES_MAX):
        reader.feed(b"$%d\r\n%b\r\n" % (len(value), value))
    assert reader.error is None
    reader.feed(b"$1\r\nx\r\n")
    assert "split it" in reader.error


@pytest.mark.parametrize(
    ("reply", "resp2", "resp3"),
    [
        (None, b"$-1\r\n", b"_\r\n"),
        (7, b":7\r\n", b":7\r\n"),
        (b"a\r\nb", b"$4\r\na\r\nb\r\n", b"$4\r\na\r\nb\r\n"),
        (Simple("OK"), b"+OK\r\n", b"+OK\r\n"),
        (Failure("ERR", "two\r\nlines"), b"-ERR two  lines\r\n", b"-ERR two  lines\r\n"),
        ([b"a", [None, 1]], b"*2\r\n$1\r\na\r\n*2\r\n$-1\r\n:1\r\n", b"*2\r\n$1\r\na\r\n*2\r\n_\r\n:1\r\n"),
    ],
)
def test_replies(reply, resp2, resp3):
    for version, expected in ((False, resp2), (True, resp3)):
        out = []
        encode_reply(reply, out, version)
        assert b"".join(out) == expected


def test_maps():
    out = []
    encode_reply({b"a": 1}, out, resp3=True)
    encode_reply({b"a": 1}, out, resp3=False)
    assert b"".join(out) == b"%1\r\n$1\r\na\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n"
