"""Entries of 16 KB whose value can be made again from their key, so that no copy of them has to be kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

VALUE_BYTES = 16 * 1024


def key_of(number: int) -> bytes:
    """Key of the entry with this number."""
    return b"padded:%08d" % number


def value_of(key: bytes) -> bytes:
    """`VALUE_BYTES` bytes that depend on the key alone and that no compression makes smaller."""
    return hashlib.shake_128(key).digest(VALUE_BYTES)


def entries(count: int) -> Iterator[tuple[bytes, bytes]]:
    """The first `count` entries."""
    for number in range(count):
        key = key_of(number)
        yield key, value_of(key)
