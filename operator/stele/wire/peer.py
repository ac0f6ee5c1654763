"""Messages between members (port 7000), as msgpack in frames.

One connection per ordered pair: the dialling member is owner, prober or forwarder; answers come back on
the same connection, in order. The meaning of each is in docs/reference/protocol.md. Every list has a limit,
which is looked at before its items are: an empty list takes one byte in a message and 72 in memory.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec

from stele.core.control.commands import Slots, VersionNumber
from stele.core.kv.commands import ARGUMENTS_MAX
from stele.core.table.ids import PARTITIONS_MAX

PEER_FORMAT = 4
"""Raised whenever members of the format before could misread a message or a logged operation."""

AnswerCode = Annotated[int, msgspec.Meta(ge=0, le=5)]
"""A core.tablet.follower.Code."""

RECORDS_MAX = 65_536
"""Operations in one list: about 1 MiB of them are sent at once, and each takes 22 bytes at least."""

COMMANDS_MAX = 65_536
"""Commands that are forwarded at once."""

_OfPartitions = msgspec.Meta(max_length=PARTITIONS_MAX)
Records = Annotated[list[bytes], msgspec.Meta(max_length=RECORDS_MAX)]
Arguments = Annotated[list[bytes], msgspec.Meta(max_length=ARGUMENTS_MAX)]

RowValue = tuple[VersionNumber, Slots]
"""(version, replicas) of a published row."""


class Hello(msgspec.Struct, array_like=True, frozen=True, tag="hi"):
    """First message of a connection. The recipient closes it when one of the identities is not right."""

    format: int
    cluster: str
    sender: int
    sender_uuid: str
    recipient_uuid: str


class Welcome(msgspec.Struct, array_like=True, frozen=True, tag="ok"):
    """The recipient is who the sender meant."""

    uuid: str


class HelloRejected(msgspec.Struct, array_like=True, frozen=True, tag="no"):
    """Last message of a connection: why it is closed."""

    code: str
    detail: str


Greeting = Hello | Welcome | HelloRejected
"""What may be said before both sides know each other."""


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, tag="hb"):
    """`at` is the sender's monotonic clock; it comes back as it is."""

    at: float


class Lease(msgspec.Struct, array_like=True, frozen=True, tag="le"):
    """Answer to a heartbeat: a lease from `at` on, but not for the excluded partitions.

    `no_space`: the sender's volume is nearly full, so nothing more should be written to its tablets.
    """

    at: float
    seconds: float
    excluded: Annotated[tuple[int, ...], _OfPartitions]
    no_space: bool = False


class AppendItem(msgspec.Struct, array_like=True, frozen=True):
    """Operations of one partition that follow `prev`, and how far all are committed."""

    partition: int
    version: int
    term: int
    prev_term: int
    prev_index: int
    commit: int
    records: Records
    row: RowValue | None = None


class Append(msgspec.Struct, array_like=True, frozen=True, tag="ap"):
    items: Annotated[list[AppendItem], _OfPartitions]


class AckItem(msgspec.Struct, array_like=True, frozen=True):
    """`match` is the index up to which this member's log is the sender's; `code` is
    core.tablet.follower.Code."""

    partition: int
    term: int
    code: AnswerCode
    match: int
    promised: int


class Acks(msgspec.Struct, array_like=True, frozen=True, tag="ak"):
    items: Annotated[list[AckItem], _OfPartitions]


class ProbeItem(msgspec.Struct, array_like=True, frozen=True):
    """Where is your log? `cut`: a learner that nobody waits for first removes what it did not apply."""

    partition: int
    version: int
    term: int
    cut: bool
    row: RowValue


class Probe(msgspec.Struct, array_like=True, frozen=True, tag="as"):
    items: Annotated[list[ProbeItem], _OfPartitions]


class ProbeResultItem(msgspec.Struct, array_like=True, frozen=True):
    """`empty`: a tablet in COPYING that holds nothing yet."""

    partition: int
    term: int
    code: AnswerCode
    last: tuple[int, int]
    applied: tuple[int, int]
    promised: int
    empty: bool


class ProbeResult(msgspec.Struct, array_like=True, frozen=True, tag="an"):
    items: Annotated[list[ProbeResultItem], _OfPartitions]


class FetchLog(msgspec.Struct, array_like=True, frozen=True, tag="fl"):
    """Give operations behind `prev`, at least one and about `bytes_max`."""

    partition: int
    term: int
    prev: tuple[int, int]
    bytes_max: int


class LogTail(msgspec.Struct, array_like=True, frozen=True, tag="lt"):
    """`found` is false when `prev` is not in the log."""

    partition: int
    term: int
    prev: tuple[int, int]
    found: bool
    records: Records


class CancelHandover(msgspec.Struct, array_like=True, frozen=True, tag="ar"):
    """From an owner that is frozen and hears of no master: never accept the row behind `base`, durably."""

    partition: int
    id: str
    base: int


class CancelHandoverResult(msgspec.Struct, array_like=True, frozen=True, tag="re"):
    """`cancelled`: this member never accepts that migration's row; false: it did, or knows a newer one."""

    partition: int
    id: str
    cancelled: bool


class Forward(msgspec.Struct, array_like=True, frozen=True, tag="fw"):
    """Commands of a client, for the owner; it runs those at the begin whose replies fit in `room` bytes."""

    id: int
    version: int
    partition: int
    keyspace: bytes
    commands: Annotated[list[Arguments], msgspec.Meta(max_length=COMMANDS_MAX)]
    room: int


class ForwardScan(msgspec.Struct, array_like=True, frozen=True, tag="fs"):
    id: int
    version: int
    partition: int
    keyspace: bytes
    after: bytes
    limit: int


class ForwardCount(msgspec.Struct, array_like=True, frozen=True, tag="fc"):
    id: int
    version: int
    partition: int
    keyspace: bytes


class Forwarded(msgspec.Struct, array_like=True, frozen=True, tag="fd"):
    """`code` is empty when it was done: `body` is wire.replies, or msgpack of a scan or a count. Commands
    behind the last reply did not run.

    `STALE_VERSION`: not the owner under the version that the request names; send it again, by the row that
    came along when that is newer. Any other code is the one of an error, with its text.
    """

    id: int
    code: str
    text: str
    body: bytes
    row: RowValue | None = None


Message = (
    Hello
    | Welcome
    | HelloRejected
    | Heartbeat
    | Lease
    | Append
    | Acks
    | Probe
    | ProbeResult
    | FetchLog
    | LogTail
    | CancelHandover
    | CancelHandoverResult
    | Forward
    | ForwardScan
    | ForwardCount
    | Forwarded
)

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_greeting_decoder: msgspec.msgpack.Decoder[Greeting] = msgspec.msgpack.Decoder(Greeting)
encode_message = msgspec.msgpack.Encoder().encode


class MessageError(ValueError):
    """The body of a frame is no message of this protocol."""


def decode_message(body: bytes) -> Message:
    """Raise MessageError with the path of the field that is wrong."""
    return _decoded(_decoder.decode, body)


def decode_greeting(body: bytes) -> Message:
    """As `decode_message`, for a Greeting alone."""
    return _decoded(_greeting_decoder.decode, body)


def _decoded(decode: Callable[[bytes], Message], body: bytes) -> Message:
    try:
        return decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"message of {len(body)} bytes: {error}") from error
