"""Entries of the deduplication table of `STELE.ONCE`: in the service keyspace, under the client's id."""

import msgspec

from stele.errors import Corrupt
from stele.wire.storage.keys import value_of
from stele.wire.unreadable import UNREADABLE


class Remembered(msgspec.Struct, array_like=True, frozen=True):
    """Last sequence that ran, its time (Unix milliseconds of the owner), and its reply (`wire.replies`)."""

    sequence: int
    used_ms: int
    reply: bytes


_decode = msgspec.msgpack.Decoder(Remembered).decode
encode_remembered = msgspec.msgpack.Encoder().encode


def decode_remembered(value: bytes) -> Remembered:
    """Decode an entry. Raises Corrupt."""
    try:
        return _decode(value)
    except UNREADABLE as error:
        raise Corrupt(f"deduplication entry of a client: {error}") from error


def client_entry(client: bytes, stored: bytes) -> tuple[bytes, int, int]:
    """Return (client, used_ms, bytes) of a stored entry, for `core.kv.dedup.RememberedClients`."""
    value = value_of(stored)
    return client, decode_remembered(value).used_ms, len(client) + len(value)
