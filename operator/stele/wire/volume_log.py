"""One logged operation as bytes: the same in the log and between members.

Layout, big-endian: term (8), kind (1), expire_at_ms (8), length of keyspace (1), length of key (4), then
keyspace, key and value. The index is in the log's key, and follows from the place in a message.
"""

import struct

from stele.core.commands import KEY_BYTES_MAX
from stele.core.errors import Corrupt
from stele.wire.keys import KEYSPACE_BYTES_MAX

NOOP = 0
PUT = 1
DELETE = 2

_HEAD = struct.Struct(">QBQBI")
HEAD_BYTES = _HEAD.size
_TERM = struct.Struct(">Q")
term_of = _TERM.unpack_from
"""(term,) of a record."""

_pack = _HEAD.pack
_unpack = _HEAD.unpack_from


def put_record(term: int, keyspace: bytes, key: bytes, value: bytes, expire_at_ms: int) -> bytes:
    return _pack(term, PUT, expire_at_ms, len(keyspace), len(key)) + keyspace + key + value


def delete_record(term: int, keyspace: bytes, key: bytes) -> bytes:
    return _pack(term, DELETE, 0, len(keyspace), len(key)) + keyspace + key


def noop_record(term: int) -> bytes:
    """The first operation of a term: it changes nothing."""
    return _pack(term, NOOP, 0, 0, 0)


def split_record(record: bytes) -> tuple[int, bytes, bytes, bytes, int]:
    """(kind, keyspace, key, value, expire_at_ms)."""
    _, kind, expire_at_ms, keyspace_bytes, key_bytes = _unpack(record)
    begin = HEAD_BYTES + keyspace_bytes
    end = begin + key_bytes
    return kind, record[HEAD_BYTES:begin], record[begin:end], record[end:], expire_at_ms


def check_record(record: bytes) -> None:
    """Raise Corrupt when the bytes are no operation: for what comes from another process."""
    if len(record) < HEAD_BYTES:
        raise Corrupt(f"log record of {len(record)} bytes; at least {HEAD_BYTES} were expected")
    _, kind, _, keyspace_bytes, key_bytes = _unpack(record)
    if kind > DELETE or keyspace_bytes > KEYSPACE_BYTES_MAX or key_bytes > KEY_BYTES_MAX:
        raise Corrupt(f"log record of kind {kind}, keyspace {keyspace_bytes} and key {key_bytes} bytes")
    if len(record) < HEAD_BYTES + keyspace_bytes + key_bytes:
        raise Corrupt("log record is shorter than its keyspace and key")
