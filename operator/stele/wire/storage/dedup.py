"""What a partition remembers of a client of `STELE.ONCE`: in the service keyspace, under the client's id."""

import msgspec

from stele.errors import Corrupt
from stele.wire.storage.keys import EXPIRY_BYTES


class Remembered(msgspec.Struct, array_like=True, frozen=True):
    """The last sequence that ran, when (Unix milliseconds of the owner), and the answer (`wire.replies`)."""

    sequence: int
    used_ms: int
    reply: bytes


_decode = msgspec.msgpack.Decoder(Remembered).decode
encode_remembered = msgspec.msgpack.Encoder().encode


def decode_remembered(value: bytes) -> Remembered:
    """Raise Corrupt when the bytes are no such entry."""
    try:
        return _decode(value)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"what is remembered of a client: {error}") from error


def client_entry(client: bytes, stored: bytes) -> tuple[bytes, int, int]:
    """(client, used_ms, bytes) of a stored entry, for `core.kv.dedup.Clients`."""
    value = stored[EXPIRY_BYTES:]
    return client, decode_remembered(value).used_ms, len(client) + len(value)
