"""A transaction on its way to the owner: one argument of a forwarded command."""

from typing import Annotated

import msgspec

from stele.core.kv.commands import ARGUMENTS_MAX, KEY_BYTES_MAX
from stele.core.kv.transaction import TRANSACTION_COMMANDS_MAX, WATCHED_KEYS_MAX, Watch
from stele.errors import BadInput
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX
from stele.wire.unreadable import UNREADABLE

_Key = Annotated[bytes, msgspec.Meta(max_length=KEY_BYTES_MAX)]
_Keyspace = Annotated[bytes, msgspec.Meta(max_length=KEYSPACE_BYTES_MAX)]
_Watch = tuple[_Keyspace, _Key, Annotated[bytes, msgspec.Meta(max_length=64)]]
_Arguments = Annotated[list[bytes], msgspec.Meta(min_length=2, max_length=ARGUMENTS_MAX)]


class Transaction(msgspec.Struct, array_like=True, frozen=True):
    """Keys that must be unchanged, and single-key commands, all of one partition."""

    watches: Annotated[list[_Watch], msgspec.Meta(max_length=WATCHED_KEYS_MAX)]
    commands: Annotated[list[_Arguments], msgspec.Meta(max_length=TRANSACTION_COMMANDS_MAX)]


_decode = msgspec.msgpack.Decoder(Transaction).decode
_encode = msgspec.msgpack.Encoder().encode


def encode_transaction(watches: list[Watch], commands: list[list[bytes]]) -> bytes:
    """Encode a transaction."""
    return _encode(([tuple(each) for each in watches], commands))


def decode_transaction(body: bytes) -> Transaction:
    """Decode a transaction. Raises BadInput."""
    try:
        return _decode(body)
    except UNREADABLE as error:
        raise BadInput(f"transaction of another member: {error}") from error
