"""Messages between members (port 7000), as msgpack in frames.

There is one connection per ordered pair of members. The dialling member is owner, prober or forwarder;
answers come back on the same connection, in order (docs/reference/protocol.md). Every list has a limit that
is checked before its items are decoded: an empty list takes one byte in a message and 72 in memory.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec

from stele.core.control.commands import Slots, VersionNumber
from stele.core.formats import UNSTATED, FormatRange
from stele.core.kv.commands import ARGUMENTS_MAX
from stele.core.kv.interest import PREFIXES_MAX
from stele.core.table.ids import PARTITIONS_MAX
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX

GREETING_FORMAT = 4
"""What a greeting says for members of 0.1.0, which accept only this number; all others compare ranges."""

AnswerCode = Annotated[int, msgspec.Meta(ge=0, le=5)]
"""A value of core.tablet.follower.Code."""

RECORDS_MAX = 65_536
"""Most operations in one list: a batch has about 1 MiB, and each operation takes at least 22 bytes."""

COMMANDS_MAX = 65_536
"""Most commands in one forwarded request."""

NAMES_MAX = 65_536
"""Most names of keys in one message."""
READ_INDEX_PARTITIONS_MAX = 256
"""Most partitions that one message asks the owner about: the work of one turn."""

_OfPartitions = msgspec.Meta(max_length=PARTITIONS_MAX)
_OfReadIndex = msgspec.Meta(max_length=READ_INDEX_PARTITIONS_MAX)
Records = Annotated[list[bytes], msgspec.Meta(max_length=RECORDS_MAX)]
Names = Annotated[list[bytes], msgspec.Meta(max_length=NAMES_MAX)]
Arguments = Annotated[list[bytes], msgspec.Meta(max_length=ARGUMENTS_MAX)]

RowValue = tuple[VersionNumber, Slots]
"""(version, replicas) of a published row."""


class Hello(msgspec.Struct, array_like=True, frozen=True, tag="hi"):
    """First message of a connection.

    The recipient closes it when an identity does not match, or when their formats do not meet.
    `incarnation` counts the starts of the sender's process; 0 in that of an older build.
    """

    format: int
    cluster: str
    sender: int
    sender_uuid: str
    recipient_uuid: str
    formats: FormatRange = UNSTATED
    incarnation: Annotated[int, msgspec.Meta(ge=0)] = 0


class Welcome(msgspec.Struct, array_like=True, frozen=True, tag="ok"):
    """Confirms the recipient's identity."""

    uuid: str
    formats: FormatRange = UNSTATED


class HelloRejected(msgspec.Struct, array_like=True, frozen=True, tag="no"):
    """Last message of a connection, with the reason why it is closed."""

    code: str
    detail: str


Greeting = Hello | Welcome | HelloRejected
"""The messages that are valid before both sides are identified."""


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, tag="hb"):
    """`at` is the sender's monotonic clock, which the answer returns unchanged."""

    at: float


class Lease(msgspec.Struct, array_like=True, frozen=True, tag="le"):
    """Answer to a heartbeat: a lease from `at` on, except for the excluded partitions.

    `no_space`: the sender's volume is nearly full, so its tablets should take no more writes. `list_version`
    is that of the sender's list of members, 0 when it does not say.
    """

    at: float
    seconds: float
    excluded: Annotated[tuple[int, ...], _OfPartitions]
    no_space: bool = False
    list_version: int = 0


class ReadIndex(msgspec.Struct, array_like=True, frozen=True, tag="ri"):
    """Asks the owner of these partitions for their commit indexes; `at` is as in a heartbeat.

    `catalog` is the version of the sender's catalog of keyspaces.
    """

    at: float
    partitions: Annotated[list[int], _OfReadIndex]
    catalog: Annotated[int, msgspec.Meta(ge=0)] = 0


class ReadIndexAnswer(msgspec.Struct, array_like=True, frozen=True, tag="ra"):
    """(partition, commit index) of those that the sender may answer reads of at this moment.

    There are none for a backup whose catalog is older than the sender's: it may look for a keyspace's entries
    in partitions that no longer have them.
    """

    at: float
    indexes: Annotated[list[tuple[int, int]], _OfReadIndex]


class AppendItem(msgspec.Struct, array_like=True, frozen=True):
    """Operations of one partition that follow `prev`, and the committed index."""

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
    """`match` is the index up to which this member's log equals the sender's; `code` is a
    core.tablet.follower.Code."""

    partition: int
    term: int
    code: AnswerCode
    match: int
    promised: int


class Acks(msgspec.Struct, array_like=True, frozen=True, tag="ak"):
    items: Annotated[list[AckItem], _OfPartitions]


class ProbeItem(msgspec.Struct, array_like=True, frozen=True):
    """Asks for the position of the log.

    `cut`: a learner that is not waited for drops unapplied operations first.
    """

    partition: int
    version: int
    term: int
    cut: bool
    row: RowValue


class Probe(msgspec.Struct, array_like=True, frozen=True, tag="as"):
    items: Annotated[list[ProbeItem], _OfPartitions]


class ProbeResultItem(msgspec.Struct, array_like=True, frozen=True):
    """`empty`: the tablet is COPYING and holds nothing yet."""

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
    """Requests operations after `prev`, at least one and about `bytes_max`."""

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
    """From a frozen owner without contact to a master: durably reject the row that follows `base`."""

    partition: int
    id: str
    base: int


class CancelHandoverResult(msgspec.Struct, array_like=True, frozen=True, tag="re"):
    """`cancelled`: this member will never accept that migration's row. False: it did, or has a newer row."""

    partition: int
    id: str
    cancelled: bool


class Forward(msgspec.Struct, array_like=True, frozen=True, tag="fw"):
    """Commands of a client, for the owner, which runs the first ones whose replies fit into `room` bytes.

    `wants_op`: the answer is to say which operation the replies depend on.
    """

    id: int
    version: int
    partition: int
    keyspace: bytes
    commands: Annotated[list[Arguments], msgspec.Meta(max_length=COMMANDS_MAX)]
    room: int
    wants_op: bool = False


class ForwardTracked(Forward, array_like=True, frozen=True, tag="ft"):
    """A Forward of a client with a near cache, which keeps the values of `tracked`: names, see Invalidate.

    `writer` is not 0 for a client that does not want to be told of what it writes itself.
    """

    tracked: Names = []
    writer: int = 0


class Invalidate(msgspec.Struct, array_like=True, frozen=True, tag="iv"):
    """From an owner: clients of the recipient drop these names, or all of the partition when there are none.

    A name is wire.storage.keys.user_tail: keyspace and key. `writer` wrote all of them.
    """

    partition: int
    names: Names | None = None
    writer: int = 0


class Broadcast(msgspec.Struct, array_like=True, frozen=True, tag="bc"):
    """Tell the sender of all keys with these prefixes, in any keyspace; replaces those told before."""

    prefixes: Annotated[list[bytes], msgspec.Meta(max_length=PREFIXES_MAX)]


class DropKeys(msgspec.Struct, array_like=True, frozen=True, tag="dk"):
    """To a connection of the recipient's: drop these keys of a keyspace with mode Invalidation, None: all.

    Changes of one sender have growing numbers; KeysDropped answers.
    """

    keyspace: Annotated[bytes, msgspec.Meta(max_length=KEYSPACE_BYTES_MAX)]
    number: int
    keys: Names | None = None


class KeysDropped(msgspec.Struct, array_like=True, frozen=True, tag="kd"):
    """The sender has dropped the keys of all DropKeys up to this number."""

    number: int


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


class ForwardClear(msgspec.Struct, array_like=True, frozen=True, tag="fx"):
    """Deletes all entries of a keyspace in a partition, b"" for all keyspaces of users.

    Refused by an owner with a later catalog of keyspaces than `catalog`, unless that is 0.
    """

    id: int
    version: int
    partition: int
    keyspace: Annotated[bytes, msgspec.Meta(max_length=KEYSPACE_BYTES_MAX)]
    catalog: int = 0


class Forwarded(msgspec.Struct, array_like=True, frozen=True, tag="fd"):
    """Answer to a forwarded request. `code` is empty on success.

    `body` is wire.replies (of a clear: one), or msgpack of a scan or a count. Commands after the last reply
    did not run.
    `STALE_VERSION`: this member is not the owner at the request's version; retry, with `row` if it is newer.
    Any other code is that of an error, with its text. `op` is the last operation that was applied when the
    replies were ready, if the request asked for it.
    """

    id: int
    code: str
    text: str
    body: bytes
    row: RowValue | None = None
    op: tuple[int, int] | None = None


class Publish(msgspec.Struct, array_like=True, frozen=True, tag="pb"):
    """A message that a client published, for the subscribers of the recipient; it may be lost."""

    channel: bytes
    message: bytes
    sharded: bool = False


Position = tuple[int, int, int]
"""(partition, version of the sender's row, index of the last operation whose events are known or -1)."""


class Listen(msgspec.Struct, array_like=True, frozen=True, tag="ls"):
    """Asks a member for events of moved entries, and those after these positions; or for none any more."""

    positions: Annotated[list[Position], _OfPartitions]
    stop: bool = False


Event = tuple[int, bytes, bytes, str, str]
"""(index of the operation, keyspace, key, event, channels of core.kv.notifications)."""


class EventBatch(msgspec.Struct, array_like=True, frozen=True):
    """Events of a partition's operations up to `last`.

    `gap`: some are missing, because the log is not retained, or an operation changed many keys at once.
    """

    partition: int
    last: int
    gap: bool
    events: Annotated[list[Event], msgspec.Meta(max_length=RECORDS_MAX)]


class Events(msgspec.Struct, array_like=True, frozen=True, tag="ev"):
    batches: Annotated[list[EventBatch], _OfPartitions]


Message = (
    Hello
    | Welcome
    | HelloRejected
    | Heartbeat
    | Lease
    | ReadIndex
    | ReadIndexAnswer
    | Append
    | Acks
    | Probe
    | ProbeResult
    | FetchLog
    | LogTail
    | CancelHandover
    | CancelHandoverResult
    | Forward
    | ForwardTracked
    | Invalidate
    | Broadcast
    | DropKeys
    | KeysDropped
    | ForwardScan
    | ForwardCount
    | ForwardClear
    | Forwarded
    | Publish
    | Listen
    | Events
)

_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_greeting_decoder: msgspec.msgpack.Decoder[Greeting] = msgspec.msgpack.Decoder(Greeting)
encode_message = msgspec.msgpack.Encoder().encode


class MessageError(ValueError):
    """The body of a frame is not a valid message."""


def decode_message(body: bytes) -> Message:
    """Decode a message. Raises MessageError with the path of the invalid field."""
    return _decoded(_decoder.decode, body)


def decode_greeting(body: bytes) -> Message:
    """Decode a Greeting, as `decode_message` does."""
    return _decoded(_greeting_decoder.decode, body)


def _decoded(decode: Callable[[bytes], Message], body: bytes) -> Message:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        # What msgspec says of a tag that no type of the union has.
        if str(error).startswith("Invalid value") and str(error).endswith("- at `$[0]`"):
            text = f"UNKNOWN_FORMAT: a message of a kind that this build does not know: {error}"
            raise MessageError(f"{text}; upgrade this member") from error
        raise MessageError(f"message of {len(body)} bytes: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"message of {len(body)} bytes: {error}") from error
