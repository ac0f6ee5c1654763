"""Log record of a bulk load: the file that a replica ingests when the record is applied."""

import re
from typing import Annotated

import msgspec

from stele.errors import Corrupt
from stele.wire.unreadable import UNREADABLE

LOAD_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")

Count = Annotated[int, msgspec.Meta(ge=0)]
Checksum = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class LoadValue(msgspec.Struct, frozen=True, array_like=True):
    """Value of a log record of kind LOAD; its key is the load's id, its keyspace the loaded one."""

    entries: Count
    bytes: Count
    crc32c: Checksum


_value = msgspec.msgpack.Decoder(LoadValue).decode


def decode_load(value: bytes) -> LoadValue:
    """Decode the value of a LOAD. Raises Corrupt."""
    try:
        return _value(value)
    except UNREADABLE as error:
        raise Corrupt(f"log record of a bulk load: {error}") from None
