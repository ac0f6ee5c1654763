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

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class BadRepliesError(ValueError):
    """The bytes are not a list of replies."""


def encode_replies(replies: Sequence[Reply]) -> bytes:
    """Encode replies, in order."""
    return _encode([_plain(reply) for reply in replies])


def decode_replies(body: bytes | memoryview) -> list[Reply]:
    """Decode the replies of `encode_replies`. Raises BadRepliesError."""
    try:
        plain = _decode(body)
    except (*UNREADABLE, TypeError) as wrong:
        # A TypeError: a map with maps for keys.
        raise BadRepliesError(f"replies: not msgpack: {wrong}") from None
    if not isinstance(plain, list):
        raise BadRepliesError(f"replies: expected an array, not {type(plain).__name__}")
    return [_reply(item, 0) for item in plain]


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
