"""Replies between members: the answers to forwarded commands as one msgpack body.

Each kind of reply maps to its own msgpack type, so no tags are needed: nil, int, bin (bytes), str (a status),
array (a list), and a map of code to text (an error).
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from stele.core.kv.commands import Failure, Reply, Simple
from stele.wire.unreadable import UNREADABLE

REPLY_DEPTH_MAX = 8

ITEMS_MAX = 500_000
"""Values in one body, lists and what is in them included: an empty list is one byte here, and 160 of memory.

A request has at most 256 commands, and one of a transaction has at most 1,000 replies.
"""

COUNTED_BYTES_MIN = 64 * 1024
"""Shorter bodies cannot have so many that it matters."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class BadRepliesError(ValueError):
    """The bytes are not a list of replies."""


def encode_replies(replies: Sequence[Reply]) -> bytes:
    """Encode replies, in order."""
    return _encode([_plain(reply) for reply in replies])


def decode_replies(body: bytes | memoryview) -> list[Reply]:
    """Decode the replies of `encode_replies`. Raises BadRepliesError."""
    if len(body) >= COUNTED_BYTES_MIN:
        _check_items(body)
    try:
        plain = _decode(body)
    except (*UNREADABLE, TypeError) as wrong:
        # A TypeError: a map with maps for keys.
        raise BadRepliesError(f"replies: not msgpack: {wrong}") from None
    if not isinstance(plain, list):
        raise BadRepliesError(f"replies: expected an array, not {type(plain).__name__}")
    return [_reply(item, 0) for item in plain]


def _check_items(body: bytes | memoryview) -> None:
    """Raise BadRepliesError for more than ITEMS_MAX values, without making any."""
    at, size, items = 0, len(body), 0
    while at < size:
        items += 1
        if items > ITEMS_MAX:
            raise BadRepliesError(f"replies: more than {ITEMS_MAX} values in {size} bytes")
        first = body[at]
        if width := _LENGTH_BYTES.get(first):
            at += 1 + width + int.from_bytes(body[at + 1 : at + 1 + width], "big")
        else:
            at += 1 + _BYTES.get(first, 0)


_NUMBERS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xCA: 4, 0xCB: 8}
_COUNTS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_SHORT_TEXTS = {first: first - 0xA0 for first in range(0xA0, 0xC0)}
_BYTES = _NUMBERS | _COUNTS | _SHORT_TEXTS
"""How many bytes follow the first one of a value of msgpack; of a list or a map without what is in it."""

_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes and texts, by how many bytes their length has."""


def _plain(reply: Reply) -> Any:
    if isinstance(reply, Simple):
        return reply.text
    if isinstance(reply, Failure):
        return {reply.code: reply.text}
    if isinstance(reply, list):
        return [_plain(item) for item in reply]
    return reply


def _reply(plain: Any, depth: int) -> Reply:
    if plain is None or type(plain) is bytes or type(plain) is int:
        return plain
    if type(plain) is str:
        return Simple(plain)
    if type(plain) is list and depth < REPLY_DEPTH_MAX:
        return [_reply(item, depth + 1) for item in plain]
    if type(plain) is dict and len(plain) == 1:
        ((code, text),) = plain.items()
        if type(code) is str and type(text) is str:
            return Failure(code, text)
    raise BadRepliesError(f"replies: {type(plain).__name__} at depth {depth} is not a reply")
