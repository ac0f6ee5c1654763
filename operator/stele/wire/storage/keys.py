"""Layout of keys and values in a member's database and in the files of copies.

Data keys sort by (partition, generation, kind, keyspace, key), so that a tablet is one contiguous range, and
each keyspace of it (a fragment) is one too. Log keys sort by (partition, index). `core.kv.commands` limits
the sizes of keys and values.
"""

import struct

from stele.errors import Corrupt

KEYSPACE_BYTES_MAX = 63
SERVICE = b""
"""Keyspace of a partition's own state, which is logged, copied and counted like those of users."""

SERVICE_MARK = b"@"
"""First byte of the keyspaces of services, which clients cannot select."""

META = 0
USER = 1

_TABLET = struct.Struct(">HI")
_LOG = struct.Struct(">HQ")
split_log_key = _LOG.unpack
"""Return (partition, index) of the key of a logged operation."""

_EXPIRY = struct.Struct(">Q")
TABLET_PREFIX_BYTES = _TABLET.size
EXPIRY_BYTES = _EXPIRY.size


def tablet_prefix(partition: int, generation: int) -> bytes:
    """Return the prefix of every data key of one generation of a tablet."""
    return _TABLET.pack(partition, generation)


def tablet_range(partition: int, generation: int) -> tuple[bytes, bytes]:
    """Return the range [begin, end) of one generation of a tablet."""
    return _TABLET.pack(partition, generation), _TABLET.pack(partition, generation + 1)


def tablet_of(data_key: bytes) -> bytes:
    """Return the prefix that a data key shares with all others of one generation of a tablet."""
    return data_key[:TABLET_PREFIX_BYTES]


def generation_of(data_key: bytes) -> int:
    """Return the generation that a data key belongs to."""
    return int.from_bytes(data_key[2:TABLET_PREFIX_BYTES], "big")


def user_prefix(partition: int, generation: int, keyspace: bytes) -> bytes:
    """Return the prefix of every key of one keyspace in a tablet."""
    return _TABLET.pack(partition, generation) + bytes((USER, len(keyspace))) + keyspace


def user_head(partition: int, generation: int) -> bytes:
    """Return the prefix of every key of all keyspaces in a tablet."""
    return _TABLET.pack(partition, generation) + bytes((USER,))


def user_tail(keyspace: bytes, key: bytes) -> bytes:
    """Return the part of an entry's data key that follows `user_head`."""
    return bytes((len(keyspace),)) + keyspace + key


def split_tail(name: bytes) -> tuple[bytes, bytes]:
    """Return (keyspace, key) of what `user_tail` returned; of no bytes, which others may send, none."""
    end = 1 + name[0] if name else 0
    return name[1:end], name[end:]


def user_key(partition: int, generation: int, keyspace: bytes, key: bytes) -> bytes:
    """Return the data key of a user's entry."""
    return user_prefix(partition, generation, keyspace) + key


def meta_key(partition: int, generation: int, name: bytes) -> bytes:
    """Return the data key of a tablet's own state, such as `applied`."""
    return _TABLET.pack(partition, generation) + bytes((META,)) + name


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key after all that begin with the prefix."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,))


def split_user(data_key: bytes) -> tuple[bytes, bytes] | None:
    """Return (keyspace, key) of a user's entry, or None for a tablet's own state. Raises Corrupt."""
    begin = TABLET_PREFIX_BYTES + 2
    try:
        if data_key[TABLET_PREFIX_BYTES] != USER:
            return None
        end = begin + data_key[begin - 1]
    except IndexError:
        raise Corrupt(f"data key of {len(data_key)} bytes: {data_key.hex()}") from None
    return data_key[begin:end], data_key[end:]


def is_service(keyspace: bytes) -> bool:
    """Return whether the keyspace belongs to the partition itself or to an installed service."""
    return keyspace == SERVICE or keyspace.startswith(SERVICE_MARK)


def log_key(partition: int, index: int) -> bytes:
    """Return the key of one logged operation."""
    return _LOG.pack(partition, index)


def next_log_key(key: bytes) -> bytes:
    """Return the key of the operation that follows one."""
    partition, index = split_log_key(key)
    return _LOG.pack(partition, index + 1)


def pack_value(value: bytes, expire_at_ms: int) -> bytes:
    """Encode a stored value: expiry time (Unix milliseconds, 0 for never), then the bytes."""
    return _EXPIRY.pack(expire_at_ms) + value


def is_expired(stored: bytes, now_ms: int) -> bool:
    """Return whether the time of a stored value is over."""
    return 0 < int.from_bytes(stored[:EXPIRY_BYTES], "big") <= now_ms


def value_of(stored: bytes) -> bytes:
    """Return the value of a stored one, whose length is not checked."""
    return stored[EXPIRY_BYTES:]


def unpack_value(stored: bytes) -> tuple[bytes, int]:
    """Decode a stored value into (value, expire_at_ms). Raises Corrupt."""
    try:
        return stored[EXPIRY_BYTES:], _EXPIRY.unpack_from(stored)[0]
    except struct.error:
        text = f"stored value of {len(stored)} bytes; at least {EXPIRY_BYTES} were expected"
        raise Corrupt(text) from None
