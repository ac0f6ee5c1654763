"""JSON codec for the body of `POST /v1/exchange` (`core.control.commands`).

Unknown fields are ignored, but unknown command tags are rejected, so that a newer master gets a clear error
from an older member.
"""

import msgspec

from stele.core.control.commands import ExchangeReply, ExchangeRequest
from stele.core.formats import SPOKEN
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import BadInput
from stele.wire.unreadable import UNREADABLE

REPLY_BYTES = 4 * 1024 * 1024
"""Bytes that every member may answer."""

REPLY_PARTITION_BYTES = 256
"""Bytes more for each partition: the longest tablet and its row, published and accepted, take 201."""

EXCHANGE_BYTES_MAX = REPLY_BYTES + REPLY_PARTITION_BYTES * PARTITIONS_MAX
"""Bytes in one reply of a member that the table does not name, whose own table may be larger."""

REPLY_VALUES_MAX = 3_000_000
"""Commas and opening brackets in one reply, about one for each value: the shortest values take 60 bytes.

A member that reports 65,536 tablets and as many rows writes half as many.
"""


class _Format(msgspec.Struct):
    format: int


_request = msgspec.json.Decoder(ExchangeRequest)
_reply = msgspec.json.Decoder(ExchangeReply)
_format = msgspec.json.Decoder(_Format)
encode = msgspec.json.Encoder().encode


def decode_request(body: bytes) -> ExchangeRequest:
    """Decode a request. Raises BadInput (UNKNOWN_FORMAT), or BadInput with the path of the invalid field."""
    try:
        return _request.decode(body)
    except UNREADABLE as error:
        written = _written_format(body)
        if written is not None and not SPOKEN.speaks(written):
            text = f"the cluster uses format {written}, this member speaks {SPOKEN}: upgrade the older one"
            raise BadInput(text, "UNKNOWN_FORMAT") from error
        raise BadInput(f"invalid exchange: {error}") from error


def _written_format(body: bytes) -> int | None:
    try:
        return _format.decode(body).format
    except UNREADABLE:
        return None


def reply_bytes_max(request: ExchangeRequest) -> int:
    """Return how long the reply may be: of a member of the table, what that many partitions take."""
    named = bool(request.recipient)
    return REPLY_BYTES + REPLY_PARTITION_BYTES * request.partitions if named else EXCHANGE_BYTES_MAX


def decode_reply(body: bytes) -> ExchangeReply:
    """Decode a reply. Raises BadInput with the path of the invalid field, or with the limit of values."""
    if sum(map(body.count, (b",", b"{", b"["))) > REPLY_VALUES_MAX:
        raise BadInput(f"a reply of {len(body)} bytes has more than {REPLY_VALUES_MAX} values", "TOO_LARGE")
    try:
        return _reply.decode(body)
    except UNREADABLE as error:
        raise BadInput(f"invalid reply to an exchange: {error}") from error
