"""Requests and their results as members send them to each other: `peer.Forward`, `peer.Forwarded` etc.

The member of the client turns a request into a message, the owner the message into a request of its own.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from stele.core.kv.commands import Reply
from stele.core.tablet.log import OpId
from stele.errors import BadInput, Corrupt, Refused, Stale, SteleError, Unavailable, Uncertain
from stele.member.replication.request import Request, RequestKind
from stele.ports.near_caches import Track
from stele.wire import peer
from stele.wire.replies import BadRepliesError, decode_replies, encode_replies
from stele.wire.unreadable import UNREADABLE

_ERRORS: dict[str, type[SteleError]] = {
    kind.__name__: kind for kind in (BadInput, Corrupt, Refused, Stale, Unavailable, Uncertain)
}
_WITH_REPLIES = (RequestKind.EXECUTE, RequestKind.CLEAR)
_KINDS: dict[Any, RequestKind] = {
    peer.Forward: RequestKind.EXECUTE,
    peer.ForwardTracked: RequestKind.EXECUTE,
    peer.ForwardScan: RequestKind.SCAN,
    peer.ForwardCount: RequestKind.COUNT,
    peer.ForwardClear: RequestKind.CLEAR,
}
CLEAR_COMMANDS = ((b"FLUSHDB",),)
"""A clear counts as one command."""

_encode = msgspec.msgpack.Encoder().encode
_page = msgspec.msgpack.Decoder(tuple[list[bytes], bytes | None])
_number = msgspec.msgpack.Decoder(int)


def message_of(id: int, version: int, request: Request) -> peer.Message:
    """Return the message that sends a request to the owner in row `version`."""
    partition, keyspace = request.partition, request.keyspace
    if request.kind is RequestKind.EXECUTE:
        commands, track = [list(args) for args in request.commands], request.track
        room, wants_op = request.room, request.saw is not None
        if track is None or track.lost:
            return peer.Forward(id, version, partition, keyspace, commands, room, wants_op)
        names, writer = track.names, track.writer
        return peer.ForwardTracked(id, version, partition, keyspace, commands, room, wants_op, names, writer)
    if request.kind is RequestKind.SCAN:
        return peer.ForwardScan(id, version, partition, keyspace, request.after, request.limit)
    if request.kind is RequestKind.CLEAR:
        return peer.ForwardClear(id, version, partition, keyspace, request.catalog)
    return peer.ForwardCount(id, version, partition, keyspace)


def request_of(message: Any, sender: int, outcome: Any) -> Request:
    """Return the request that member `sender` sent."""
    request = Request(_KINDS[type(message)], message.partition, message.keyspace, outcome)
    request.version = message.version
    if isinstance(message, peer.ForwardTracked):
        request.track = Track(sender, message.tracked, message.writer)
    if isinstance(message, peer.Forward):
        request.commands, request.room = message.commands, message.room
    elif isinstance(message, peer.ForwardScan):
        request.after, request.limit = message.after, message.limit
    elif isinstance(message, peer.ForwardClear):
        request.catalog, request.commands = message.catalog, CLEAR_COMMANDS
    return request


def result_message(id: int, kind: RequestKind, result: list[Any], operation: OpId | None) -> peer.Forwarded:
    """Return the answer to a request that ran."""
    body = encode_replies(result) if kind in _WITH_REPLIES else _encode(result[0])
    return peer.Forwarded(id, "", "", body, op=operation)


def error_message(id: int, error: SteleError) -> peer.Forwarded:
    """Return the answer to a request that failed."""
    code = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), Unavailable.__name__)
    return peer.Forwarded(id, code, error.text, b"")


def error_of(message: peer.Forwarded) -> SteleError:
    """Return the error that the owner answered."""
    return _ERRORS.get(message.code, Unavailable)(message.text)


def result_of(request: Request, body: bytes) -> list[Any]:
    """Return the result that the owner answered. Raises Corrupt when it is none of such a request."""
    try:
        if request.kind in _WITH_REPLIES:
            return _at_most(decode_replies(body), request.commands)
        return [(_page if request.kind is RequestKind.SCAN else _number).decode(body)]
    except (BadRepliesError, *UNREADABLE) as error:
        raise Corrupt(f"invalid answer of the owner: {error}") from error


def _at_most(replies: list[Reply], commands: Sequence[Sequence[bytes]]) -> list[Reply]:
    if len(replies) > len(commands):
        raise BadRepliesError(f"{len(replies)} replies to {len(commands)} commands")
    return replies
