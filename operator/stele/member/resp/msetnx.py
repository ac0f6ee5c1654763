"""MSETNX: a transaction that sets all keys, watched as missing."""

from collections.abc import Callable, Sequence

from stele.core.kv.commands import KEY_BYTES_MAX, Failure, Reply, key_too_long, wrong_number
from stele.core.kv.transaction import (
    EXEC,
    MISSING,
    TRANSACTION_BYTES_MAX,
    WATCHED_KEYS_MAX,
    Watch,
)
from stele.ports.transactions import PartitionPart
from stele.wire.resp import Request
from stele.wire.transaction import encode_transaction

MSETNX = b"MSETNX"
ARITY = -3


Place = Callable[[bytes], int]
"""Maps a key to what all keys of one command for an owner must share."""


def refusal(request: Request) -> Failure | None:
    """Return why a request is not run, wherever its keys are."""
    keys, values = request[1::2], request[2::2]
    if not keys or len(keys) != len(values):
        return wrong_number(MSETNX)
    if len(keys) > WATCHED_KEYS_MAX or sum(map(len, request)) > TRANSACTION_BYTES_MAX:
        text = (
            f"MSETNX sets at most {WATCHED_KEYS_MAX} keys of {TRANSACTION_BYTES_MAX} bytes with their values"
        )
        return Failure("ERR", text)
    long = next((key for key in keys if len(key) > KEY_BYTES_MAX), None)
    return None if long is None else key_too_long(long)


def parts_of(request: Request, keyspace: bytes, place: Place) -> dict[int, PartitionPart]:
    """Return the part of each place of a request that is not refused."""
    parts: dict[int, PartitionPart] = {}
    for key, value in zip(request[1::2], request[2::2], strict=True):
        part = parts.setdefault(place(key), PartitionPart([], []))
        part.watches.append(Watch(keyspace, key, MISSING))
        part.commands.append([b"SET", key, value])
    return parts


def transaction_of(request: Request, keyspace: bytes, place: Place) -> Request | Failure:
    """Return the command for the owner of all keys."""
    if (refused := refusal(request)) is not None:
        return refused
    first, *others = parts_of(request, keyspace, place).values()
    if others:
        text = "Keys in request don't hash to the same slot: MSETNX needs keys of one partition, for example "
        return Failure("CROSSSLOT", f"{text}with one {{hashtag}}, until the cluster is upgraded")
    return [EXEC, request[1], encode_transaction(first.watches, first.commands)]


def joined(replies: Sequence[Reply]) -> Reply:
    """Return the reply to MSETNX, given that of the transaction."""
    (reply,) = replies
    return reply if isinstance(reply, Failure) else int(reply is not None)
