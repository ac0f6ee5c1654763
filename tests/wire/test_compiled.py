"""The compiled module does what plain Python does, and nothing needs it."""

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stele.core.kv import keyslot
from stele.core.kv.commands import OK, Failure, Simple
from stele.native import compiled
from stele.wire import resp
from stele.wire.storage import log_record

assert compiled is not None, "the compiled module is not installed: python -m e2e.supply native"

arguments = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"GET", b"get", b"\r\n", b"$1\r\n", b"x" * 999, b"x" * 70_000]),
)
sent = st.lists(
    st.one_of(
        st.lists(arguments, min_size=1, max_size=5).map(resp.encode_request),
        st.sampled_from(
            [
                b"PING\r\n",
                b"*0\r\n",
                b"*2\r\n$3\r\nGET\r\n",
                b"*1\r\n$01\r\nx\r\n",
                b"*-1\r\n",
                b"*1\r\n$1\r\nxx\r\n",
            ]
        ),
        st.binary(max_size=12),
    ),
    max_size=6,
).map(b"".join)


def read(chunks, split):
    reader, got = resp.RequestReader(split), []
    for chunk in chunks:
        got += reader.feed(chunk)
    return got, reader.error, reader.arguments, reader.buffered_bytes


@given(sent, st.data())
def test_the_same_requests_and_errors(data, draw):
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=3)))
    chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert read(chunks, compiled.split) == read(chunks, resp.split_plainly)


@pytest.mark.parametrize(
    ("data", "taken"),
    [
        (b"*1\r\n$4\r\nPING\r\n" * 3, 42),
        (b"*2\r\n$3\r\nGET\r\n$2\r\n\r\n\r\n", 21),
        (b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPIN", 14),
        (b"*1\r\n$65536\r\n" + b"x" * 65536 + b"\r\n", 65550),
        (b"*1\r\n$65537\r\n" + b"x" * 65537 + b"\r\n", 0),
        (resp.encode_request([b"x"] * 1024), 7175),
        (resp.encode_request([b"x"] * 1025), 0),
        (b"*1\r\n$18446744073709551617\r\nx\r\n", 0),
        (b"*1\r\n$-1\r\n", 0),
        (b"*1\r\n$\r\n", 0),
        (b"*\r\n", 0),
        (b"*", 0),
        (b"", 0),
    ],
)
def test_what_is_common_is_taken_and_all_else_left(data, taken):
    requests = []
    assert compiled.split(data, requests) == taken
    assert b"".join(map(resp.encode_request, requests)) == data[:taken]


replies = st.lists(
    st.one_of(
        st.none(),
        st.integers(-(2**70), 2**70),
        st.integers(-12, 12),
        st.booleans(),
        st.binary(max_size=12),
        st.sampled_from([OK, Simple("OK"), Failure("ERR", "no"), [b"a", None], b"x" * 100, b"x" * 12_345]),
    ),
    max_size=5,
)


@given(replies, st.booleans())
def test_the_same_replies(given_replies, resp3):
    assert resp.encode_all(given_replies, resp3) == resp.encode_plainly(given_replies, resp3)


def test_common_replies_are_encoded_by_the_compiled_module():
    common = [OK, None, 0, -7, 2**63 - 1, -(2**63), b"", b"x" * 10]
    assert compiled.encode_replies(common, OK, False) == resp.encode_plainly(common, False)
    assert compiled.encode_replies([2**63], OK, False) is None
    assert compiled.encode_replies([Simple("OK")], OK, False) is None


keys = st.lists(st.text("{}ab", max_size=8).map(str.encode) | st.binary(max_size=20), max_size=8)


@given(keys, st.integers(0, 60_000), st.integers(1, 16_384))
def test_the_same_partitions(some, first, count):
    group = range(first, first + count)
    assert keyslot.partitions_of(some, group) == keyslot.partitions_plainly(some, group)


@given(keys, st.integers(0, 6), st.sampled_from([b"GET", b"get", b"SET"]))
def test_only_reads_of_one_key_are_routed_at_once(some, most, name):
    requests = [[b"GET", key] for key in some] + [[name, b"a"], [b"GET"]]
    found = compiled.gets(requests, most, 7, 271)
    few = requests[:most]
    if all(len(each) == 2 and each[0] in (b"GET", b"get") for each in few):
        used = [each[1] for each in few]
        assert found == (used, keyslot.partitions_plainly(used, range(7, 278)))
    else:
        assert found is None


gets = st.tuples(st.sampled_from([b"GET", b"get", b"Get"]), arguments)


@given(st.one_of(sent, gets.map(resp.encode_request), gets.map(resp.encode_request).map(lambda one: one * 2)))
@example(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n")
@example(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n*")
@example(b"*2\r\n$3\r\nGET\r\n$1\r\na\r")
def test_bytes_are_one_get_when_they_are_that_and_nothing_else(data):
    requests, error, _, rest = read([data], resp.split_plainly)
    key = None
    if error is None and not rest and len(requests) == 1 and len(requests[0]) == 2:
        key = requests[0][1] if requests[0][0] in (b"GET", b"get") else None
    canonical = key is not None and resp.encode_request(requests[0]) == data
    expected = None
    if canonical and len(key) <= 64 * 1024:
        expected = (key, keyslot.partitions_plainly([key], range(7, 278))[0])
    assert compiled.one_get(data, 7, 271) == expected


numbers = st.integers(0, 2**64 - 1)


@given(numbers, st.binary(max_size=63), st.binary(max_size=300), st.binary(max_size=300), numbers)
def test_the_same_records(term, keyspace, key, value, expire_at_ms):
    parts = (term, keyspace, key, value, expire_at_ms)
    record = log_record.put_record_plainly(*parts)
    assert compiled.put_record(*parts) == record
    assert compiled.split_put(record) == log_record.split_put_plainly(record)
    assert compiled.split_record(record) == log_record.split_record_plainly(record)


def test_a_cut_record_is_refused_or_split_as_slices_are():
    record = log_record.put_record_plainly(1, b"default", b"key", b"", 0)
    for size in range(log_record.HEAD_BYTES):
        for split in (compiled.split_record, compiled.split_put):
            with pytest.raises(ValueError, match="shorter than its head of 22 bytes"):
                split(record[:size])
    for size in range(log_record.HEAD_BYTES, len(record)):
        cut = record[:size]
        assert compiled.split_record(cut) == log_record.split_record_plainly(cut)
        assert compiled.split_put(cut) == log_record.split_put_plainly(cut)


@pytest.mark.parametrize("wrong", [None, "text", bytearray(b"x"), 5])
def test_wrong_types_are_errors(wrong):
    for call in (
        lambda: compiled.split(wrong, []),
        lambda: compiled.encode_replies(wrong, OK, False),
        lambda: compiled.partitions_of([wrong], 0, 1),
        lambda: compiled.gets([[wrong, b"k"]], 1, 0, 1),
        lambda: compiled.one_get(wrong, 0, 1),
        lambda: compiled.split_record(wrong),
    ):
        with pytest.raises(TypeError):
            call()


def test_nothing_needs_the_compiled_module():
    """The suites of what it does pass without it."""
    code = """\
import sys
sys.modules["stele_native"] = None
import pytest
from stele.native import compiled
assert compiled is None
sys.exit(pytest.main(["-q", "-p", "no:randomly", *sys.argv[1:]]))
"""
    suites = [
        "tests/wire/test_resp.py",
        "tests/core/kv/test_keyslot.py",
        "tests/member/resp/test_pipelines.py",
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *suites], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
