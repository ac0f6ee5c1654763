"""Layout of keys and values in a member's database and in the files that copies carry.

Data keys sort by (partition, generation, kind, keyspace, key), so that one tablet is one contiguous range,
and one keyspace of it (a fragment) too. Log keys sort by (partition, index). The sizes of keys and values are
limited in `core.kv.commands`.
"""

import struct

KEYSPACE_BYTES_MAX = 63
SERVICE = b""
"""The keyspace of what a partition keeps for itself: logged, copied and counted like those of users."""

SERVICE_MARK = b"@"
"""Keyspaces of services begin so; clients cannot select them."""

META = 0
USER = 1

_TABLET = struct.Struct(">HI")
_LOG = struct.Struct(">HQ")
_EXPIRY = struct.Struct(">Q")
TABLET_PREFIX_BYTES = _TABLET.size
EXPIRY_BYTES = _EXPIRY.size


def tablet_prefix(partition: int, generation: int) -> bytes:
    """First bytes of every data key of one generation of one tablet."""
    return _TABLET.pack(partition, generation)


def tablet_range(partition: int, generation: int) -> tuple[bytes, bytes]:
    """Half-open range [begin, end) that holds the whole tablet of that generation."""
    return _TABLET.pack(partition, generation), _TABLET.pack(partition, generation + 1)


def user_prefix(partition: int, generation: int, keyspace: bytes) -> bytes:
    """First bytes of every key of one keyspace in one tablet."""
    return _TABLET.pack(partition, generation) + bytes((USER, len(keyspace))) + keyspace


def user_head(partition: int, generation: int) -> bytes:
    """First bytes of every key of every keyspace in one tablet."""
    return _TABLET.pack(partition, generation) + bytes((USER,))


def user_tail(keyspace: bytes, key: bytes) -> bytes:
    """What follows `user_head` in the data key of an entry."""
    return bytes((len(keyspace),)) + keyspace + key


def user_key(partition: int, generation: int, keyspace: bytes, key: bytes) -> bytes:
    """Data key of a user's entry."""
    return user_prefix(partition, generation, keyspace) + key


def meta_key(partition: int, generation: int, name: bytes) -> bytes:
    """Data key of the tablet's own state, such as `applied`."""
    return _TABLET.pack(partition, generation) + bytes((META,)) + name


def after_prefix(prefix: bytes) -> bytes:
    """The first key behind all that begin with the prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,))


def split_user(data_key: bytes) -> tuple[bytes, bytes] | None:
    """(keyspace, key) of a user's entry, or None for the tablet's own state."""
    if data_key[TABLET_PREFIX_BYTES] != USER:
        return None
    begin = TABLET_PREFIX_BYTES + 2
    end = begin + data_key[begin - 1]
    return data_key[begin:end], data_key[end:]


def is_service(keyspace: bytes) -> bool:
    """Whether it is not of users: the partition's own, or that of an installed service."""
    return keyspace == SERVICE or keyspace.startswith(SERVICE_MARK)


def log_key(partition: int, index: int) -> bytes:
    """Key of one logged operation."""
    return _LOG.pack(partition, index)


def pack_value(value: bytes, expire_at_ms: int) -> bytes:
    """Stored value: when it expires (Unix milliseconds, 0 for never), then the bytes."""
    return _EXPIRY.pack(expire_at_ms) + value


def unpack_value(stored: bytes) -> tuple[bytes, int]:
    """(value, expire_at_ms)."""
    return stored[EXPIRY_BYTES:], _EXPIRY.unpack_from(stored)[0]
