"""Reads of a RocksDB family with plain bytes, and the errors of reads and writes as Stele's own."""

from typing import Any

from rocksdict import DbClosedError, ReadOptions, WriteBatch

from stele.errors import Corrupt, SteleError, Unavailable
from stele.ports.engine import SCAN_BYTES_MAX

FULL = ("No space left on device", "Disk quota exceeded", "Writer has previous error")
"""Parts of RocksDB's errors for a full volume, now or when a file first failed.

After any other first error the process ends before it could get the last of these.
"""


def empty_batch(family: Any) -> WriteBatch:
    """Return an empty batch; without a family's handle rocksdict would write to the family `default`."""
    if family is None:
        raise Unavailable.closed()
    batch = WriteBatch(raw_mode=True)
    batch.set_default_column_family(family)
    return batch


def unavailable(what: str, error: Exception) -> Unavailable:
    """Return the error of a failed write: closed, full, or a failing disk."""
    if isinstance(error, DbClosedError):
        return Unavailable.closed()
    full = any(sign in str(error) for sign in FULL)
    return Unavailable(f"{what}: {error}", "NO_SPACE" if full else "DISK_ERROR")


def until(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def corrupt(error: Exception) -> SteleError:
    """Return the error of a failed read; rocksdict raises bare exceptions."""
    if isinstance(error, SteleError):
        return error
    return Unavailable.closed() if isinstance(error, DbClosedError) else Corrupt(f"database: {error}")


def get(family: Any, key: bytes) -> bytes | None:
    try:
        value: bytes | None = family.get(key)
    except Exception as error:
        raise corrupt(error) from error
    return value


def walk(family: Any, *options: ReadOptions) -> Any:
    try:
        return family.iter(*options)
    except Exception as error:
        raise corrupt(error) from error


def scan(
    walk: Any, begin: bytes, end: bytes, limit: int, bytes_max: int = SCAN_BYTES_MAX
) -> list[tuple[bytes, bytes]]:
    entries: list[tuple[bytes, bytes]] = []
    size = 0
    walk.seek(begin)
    while len(entries) < limit and size < bytes_max and walk.valid():
        key = walk.key()
        if key >= end:
            return entries
        value = walk.value()
        entries.append((key, value))
        size += len(key) + len(value)
        walk.next()
    check(walk)
    return entries


def check(walk: Any) -> None:
    """Raise when an iterator ended at a damaged block rather than after the last entry."""
    if walk.valid():
        return
    try:
        walk.status()
    except Exception as error:
        raise corrupt(error) from error


def last_key(walk: Any, begin: bytes, end: bytes) -> bytes | None:
    walk.seek_for_prev(end)
    if walk.valid() and walk.key() == end:
        walk.prev()
    if not walk.valid():
        check(walk)
        return None
    key: bytes = walk.key()
    return key if key >= begin else None
