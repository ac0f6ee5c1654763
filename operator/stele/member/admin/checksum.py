"""Checksums of a stretch of one tablet, by which replicas are compared while clients write."""

import base64
import binascii
from collections.abc import Callable, Mapping

import mmh3

from stele.core.control import commands as m
from stele.core.kv.commands import KEY_BYTES_MAX
from stele.errors import BadInput
from stele.member import limits
from stele.member.node import Node
from stele.member.replication.replica import Replica
from stele.wire.admin import CHECKSUM_ENTRIES_MAX, TabletChecksum
from stele.wire.storage import keys
from stele.wire.storage.volume import APPLIED, decode_state

_WHOLE = 1 << 128
_NAME_BYTES_MAX = 1 + keys.KEYSPACE_BYTES_MAX + KEY_BYTES_MAX


def tablet_checksum(node: Node, replica: Replica, query: Mapping[str, str]) -> TabletChecksum:
    """Return the checksum of the entries after a name, up to another one or as far as one answer goes.

    It runs in one turn of the event loop, so data and applied OpId belong together. Entries that had expired
    at `now_ms` of the query, by default this member's time, are left out: copies lack some of them. Raises
    BadInput for names that are none.
    """
    after, until = _name(query, "after"), _name(query, "until")
    partition, generation = replica.partition, replica.generation
    head, end = keys.user_head(partition, generation), keys.tablet_range(partition, generation)[1]
    begin = head if after is None else head + after + b"\0"
    last = end if until is None else min(end, head + until + b"\0")
    now_ms, times = _now_ms(query, node.background.wall), 1 if until is None else 2
    most, bytes_max = CHECKSUM_ENTRIES_MAX * times, limits.SCAN_BYTES * times
    stored = node.engine.get(keys.meta_key(partition, generation, APPLIED))
    page = node.engine.scan(begin, last, most, bytes_max) if begin < last else []
    size = sum(len(key) + len(value) for key, value in page)
    hashes = [
        (key[len(head) :], _hash(key[len(head) :], value))
        for key, value in page
        if not 0 < keys.unpack_value(value)[1] <= now_ms
    ]
    return TabletChecksum(
        partition,
        generation,
        m.OpId() if stored is None else decode_state(stored).applied,
        _text(page[-1][0][len(head) :]) if page else "",
        len(page) >= most or size >= bytes_max,
        len(hashes),
        size,
        f"{sum(number for _, number in hashes) % _WHOLE:032x}",
        tuple((_text(name), f"{number:032x}") for name, number in hashes) if "entries" in query else (),
        now_ms,
    )


def _hash(name: bytes, stored: bytes) -> int:
    return int(mmh3.hash128(len(name).to_bytes(4, "big") + name + stored))


def _text(name: bytes) -> str:
    return base64.urlsafe_b64encode(name).decode()


def _now_ms(query: Mapping[str, str], wall: Callable[[], float]) -> int:
    text = query.get("now_ms")
    if text is None:
        return int(wall() * 1000)
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise BadInput(f"now_ms is {text[:40]!r}; expected milliseconds since 1970")
    return int(text)


def _name(query: Mapping[str, str], field: str) -> bytes | None:
    text = query.get(field)
    if text is None:
        return None
    try:
        name = base64.b64decode(text.encode(), b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise BadInput(f"{field} is {text[:40]!r}; expected base64 for URLs, as `end` has it") from None
    if len(name) > _NAME_BYTES_MAX:
        raise BadInput(f"{field} has {len(name)} bytes; expected at most {_NAME_BYTES_MAX}")
    return name
