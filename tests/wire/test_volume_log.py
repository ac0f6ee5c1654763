"""Records of operations: what comes from another process is checked before it is taken."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.kv.commands import EXPIRE_AT_MS_MAX, KEY_BYTES_MAX
from stele.errors import Corrupt, Unavailable
from stele.wire.copy.bulk import encode_packed
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX, pack_value, user_head, user_key, user_tail
from stele.wire.storage.load_value import LoadValue
from stele.wire.storage.log_record import (
    BATCH,
    CLEAR,
    LOAD,
    Change,
    batch_record,
    check_record,
    clear_record,
    delete_record,
    load_record,
    noop_record,
    put_record,
    split_batch,
    split_put,
    split_record,
    term_of,
)

CHANGES = [Change(b"default", b"k", b"v", 5), Change(b"", b"client", None)]


def test_a_batch_is_read_as_it_was_written() -> None:
    record = batch_record(7, CHANGES)
    check_record(record)
    kind, keyspace, key, value, expire_at_ms = split_record(record)
    assert (term_of(record), kind, keyspace, key, expire_at_ms) == ((7,), BATCH, b"", b"", 0)
    assert split_batch(value) == CHANGES


@pytest.mark.parametrize(
    "changes",
    [
        b"\xc1",
        [[b"a" * 64, b"k", b"v", 0]],
        [[b"a", b"k" * (KEY_BYTES_MAX + 1), b"v", 0]],
        [[b"a", b"k", b"v", -1]],
        [[b"a", b"k", "text", 0]],
        {"a": 1},
    ],
)
def test_a_batch_that_is_none_is_refused(changes: object) -> None:
    body = changes if isinstance(changes, bytes) else msgspec.msgpack.encode(changes)
    with pytest.raises(Corrupt):
        check_record(batch_record(7, []).removesuffix(b"\x90") + body)


def test_records_that_are_cut_short_or_unknown_are_refused() -> None:
    for record in (put_record(1, b"default", b"key", b"", 0), delete_record(1, b"default", b"key")):
        check_record(record)
        for size in range(len(record)):
            with pytest.raises(Corrupt):
                check_record(record[:size])
    unknown = bytearray(noop_record(1))
    unknown[8] = CLEAR + 1
    with pytest.raises(Unavailable, match=r"UNKNOWN_FORMAT: log record of kind 6.*: upgrade this member"):
        check_record(bytes(unknown))


def test_a_load_is_read_as_it_was_written_and_refused_when_it_is_none() -> None:
    value = encode_packed(LoadValue(5, 100, 7))
    record = load_record(7, b"default", b"load-1", value)
    check_record(record)
    assert split_record(record) == (LOAD, b"default", b"load-1", value, 0)
    wrong = [(b"", b"load-1", value), (b"default", b"../up", value), (b"default", b"load-1", b"\x93\x01\x02")]
    for keyspace, load, body in wrong:
        with pytest.raises(Corrupt):
            check_record(load_record(7, keyspace, load, body))


def test_a_clear_names_one_keyspace_or_all_of_users() -> None:
    for keyspace in (b"default", b""):
        record = clear_record(7, keyspace)
        check_record(record)
        assert (term_of(record), split_record(record)) == ((7,), (CLEAR, keyspace, b"", b"", 0))
    assert clear_record(7, b"db1") == b"\0" * 7 + b"\7\5" + b"\0" * 8 + b"\3" + b"\0" * 4 + b"db1"


@pytest.mark.parametrize("keyspace", [b"@@tx", b"@quota"])
def test_a_clear_never_names_what_services_keep(keyspace: bytes) -> None:
    with pytest.raises(Corrupt, match="clears keyspace"):
        check_record(clear_record(7, keyspace))


def test_a_clear_with_a_key_or_a_value_is_refused() -> None:
    with pytest.raises(Corrupt, match="clears keyspace"):
        check_record(clear_record(7, b"a") + b"more")
    with_key = bytearray(put_record(7, b"a", b"k", b"", 0))
    with_key[8] = CLEAR
    with pytest.raises(Corrupt, match="clears keyspace"):
        check_record(bytes(with_key))


@given(
    keyspace=st.binary(max_size=KEYSPACE_BYTES_MAX),
    key=st.binary(max_size=300),
    value=st.binary(max_size=300),
    expire_at_ms=st.integers(0, EXPIRE_AT_MS_MAX),
)
def test_a_put_is_taken_apart_as_keys_are_put_together(
    keyspace: bytes, key: bytes, value: bytes, expire_at_ms: int
) -> None:
    tail, stored = split_put(put_record(9, keyspace, key, value, expire_at_ms))
    assert user_head(3, 5) + tail == user_key(3, 5, keyspace, key)
    assert tail == user_tail(keyspace, key)
    assert stored == pack_value(value, expire_at_ms)
