"""Encoding of a logged operation, the same in the log and between members.

Layout, big-endian: term (8), kind (1), expire_at_ms (8), length of keyspace (1), length of key (4), then
keyspace, key and value. The index is in the log's key, or follows from the position in a message. A BATCH has
neither keyspace nor key; its value is msgpack of changes that are applied atomically, in order. A LOAD names
a file to ingest (`wire.copy.bulk`): its key is the load's id. A CLEAR deletes all entries of its keyspace,
without one of all keyspaces of users, and has neither key nor value.
"""

import struct
from typing import Annotated

import msgspec

from stele.core.kv.commands import EXPIRE_AT_MS_MAX, KEY_BYTES_MAX
from stele.errors import Corrupt, Unavailable
from stele.native import compiled
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX, SERVICE_MARK
from stele.wire.storage.load_value import LOAD_ID, decode_load
from stele.wire.unreadable import UNREADABLE

NOOP = 0
PUT = 1
DELETE = 2
BATCH = 3
LOAD = 4
CLEAR = 5
KINDS = frozenset({NOOP, PUT, DELETE, BATCH, LOAD, CLEAR})

_HEAD = struct.Struct(">QBQBI")
HEAD_BYTES = _HEAD.size
KIND_AT = 8
_EXPIRY_AT = 9
_KEYSPACE_AT = 17
_TERM = struct.Struct(">Q")
term_of = _TERM.unpack_from
"""Return (term,) of a record."""

_pack = _HEAD.pack
_unpack = _HEAD.unpack_from


def put_record_plainly(term: int, keyspace: bytes, key: bytes, value: bytes, expire_at_ms: int) -> bytes:
    return _pack(term, PUT, expire_at_ms, len(keyspace), len(key)) + keyspace + key + value


def delete_record(term: int, keyspace: bytes, key: bytes) -> bytes:
    return _pack(term, DELETE, 0, len(keyspace), len(key)) + keyspace + key


def noop_record(term: int) -> bytes:
    """Encode the first operation of a term, which changes nothing."""
    return _pack(term, NOOP, 0, 0, 0)


def clear_record(term: int, keyspace: bytes) -> bytes:
    """Encode the deletion of all entries of a keyspace; b"" stands for all keyspaces of users."""
    return _pack(term, CLEAR, 0, len(keyspace), 0) + keyspace


class Change(msgspec.Struct, array_like=True, frozen=True):
    """Change of one entry in a batch; a `value` of None removes it."""

    keyspace: Annotated[bytes, msgspec.Meta(max_length=KEYSPACE_BYTES_MAX)]
    key: Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES_MAX)]
    value: bytes | None
    expire_at_ms: Annotated[int, msgspec.Meta(ge=0, le=EXPIRE_AT_MS_MAX)] = 0


_changes = msgspec.msgpack.Decoder(list[Change])
_encode = msgspec.msgpack.Encoder().encode


def batch_record(term: int, changes: list[Change]) -> bytes:
    """Encode several changes as one operation."""
    return _pack(term, BATCH, 0, 0, 0) + _encode(changes)


def load_record(term: int, keyspace: bytes, load: bytes, value: bytes) -> bytes:
    """Encode a bulk load; `value` is a packed `load_value.LoadValue`."""
    return _pack(term, LOAD, 0, len(keyspace), len(load)) + keyspace + load + value


def split_batch(value: bytes) -> list[Change]:
    """Decode the changes of a batch from its value. Raises Corrupt."""
    try:
        return _changes.decode(value)
    except UNREADABLE as error:
        raise Corrupt(f"log record of a batch: {error}") from error


def split_record_plainly(record: bytes) -> tuple[int, bytes, bytes, bytes, int]:
    """Decode a record into (kind, keyspace, key, value, expire_at_ms)."""
    _, kind, expire_at_ms, keyspace_bytes, key_bytes = _unpack(record)
    begin = HEAD_BYTES + keyspace_bytes
    end = begin + key_bytes
    return kind, record[HEAD_BYTES:begin], record[begin:end], record[end:], expire_at_ms


def entry_of(record: bytes) -> tuple[bytes, bytes, bool]:
    """Return (keyspace, key, whether it is removed) of a PUT or DELETE, without its value."""
    _, kind, _, keyspace_bytes, key_bytes = _unpack(record)
    begin = HEAD_BYTES + keyspace_bytes
    return record[HEAD_BYTES:begin], record[begin : begin + key_bytes], kind == DELETE


def split_batch_record(record: bytes) -> list[tuple[bytes, bytes, bool]]:
    """Return the same for each change of a BATCH. Raises Corrupt."""
    return [(each.keyspace, each.key, each.value is None) for each in split_batch(record[HEAD_BYTES:])]


def split_put_plainly(record: bytes) -> tuple[bytes, bytes]:
    """Return (data key after the tablet's prefix and USER, stored value) of a PUT without unpacking it.

    Data key and stored value have the same parts in the same order as the record (`wire.storage.keys`).
    """
    end = HEAD_BYTES + record[_KEYSPACE_AT] + int.from_bytes(record[_KEYSPACE_AT + 1 : HEAD_BYTES])
    key = record[_KEYSPACE_AT : _KEYSPACE_AT + 1] + record[HEAD_BYTES:end]
    return key, record[_EXPIRY_AT:_KEYSPACE_AT] + record[end:]


if compiled is None:
    put_record, split_record, split_put = put_record_plainly, split_record_plainly, split_put_plainly
else:
    put_record, split_record, split_put = compiled.put_record, compiled.split_record, compiled.split_put


def check_record(record: bytes) -> None:
    """Raise Corrupt when bytes from another process are not an operation.

    Raises Unavailable (UNKNOWN_FORMAT) for one of a kind that only later builds know.
    """
    if len(record) < HEAD_BYTES:
        raise Corrupt(f"log record of {len(record)} bytes; at least {HEAD_BYTES} were expected")
    _, kind, _, keyspace_bytes, key_bytes = _unpack(record)
    check_kind(kind)
    if kind == BATCH:
        if keyspace_bytes or key_bytes:
            raise Corrupt(f"log record of a batch with keyspace {keyspace_bytes} and key {key_bytes} bytes")
        split_batch(record[HEAD_BYTES:])
    elif kind == LOAD:
        _check_load(record)
    if keyspace_bytes > KEYSPACE_BYTES_MAX or key_bytes > KEY_BYTES_MAX:
        raise Corrupt(f"log record of kind {kind}, keyspace {keyspace_bytes} and key {key_bytes} bytes")
    if len(record) < HEAD_BYTES + keyspace_bytes + key_bytes:
        raise Corrupt("log record is shorter than its keyspace and key")
    if kind == CLEAR:
        _check_clear(record, key_bytes)


def check_kind(kind: int) -> None:
    if kind not in KINDS:
        text = f"log record of kind {kind}, which this build does not know: upgrade this member"
        raise Unavailable(text, "UNKNOWN_FORMAT")


def _check_clear(record: bytes, key_bytes: int) -> None:
    keyspace = record[HEAD_BYTES:]
    if key_bytes or len(keyspace) != record[_KEYSPACE_AT] or keyspace.startswith(SERVICE_MARK):
        raise Corrupt(f"log record that clears keyspace {keyspace[:80]!r}, with a key of {key_bytes} bytes")


def _check_load(record: bytes) -> None:
    _, keyspace, load, value, _ = split_record(record)
    decode_load(value)
    if not keyspace or not keyspace.isascii() or not LOAD_ID.fullmatch(load.decode("ascii", "replace")):
        raise Corrupt(f"log record of bulk load {load[:80]!r} into keyspace {keyspace[:80]!r}")
