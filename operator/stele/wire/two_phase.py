"""Transactions across partitions on the wire and in the log (`core.kv.two_phase`).

A message is one command: TX, a verb, and one argument. Its answer is one reply: a status, and what belongs to
it. Intents, outcomes and marks are entries of keyspaces of their own, which clients cannot select: the number
of intents of a replica is thus that of the entries of INTENTS.
"""

import struct
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from stele.core.kv.commands import Reply
from stele.core.kv.transaction import TRANSACTION_COMMANDS_MAX, WATCHED_KEYS_MAX
from stele.core.kv.two_phase import Intent, Mark, Outcome, Part, Status, TxId, Verdict
from stele.core.table.ids import PARTITIONS_MAX
from stele.errors import BadInput, Corrupt
from stele.wire.transaction import Transaction
from stele.wire.unreadable import UNREADABLE

TX = b"STELE.TX"
"""Name under which these messages travel to owners; not for clients."""
PREPARE, DECIDE, ASK, KNOWN, END, TOLD, MARK, HISTORY = (
    b"prepare", b"decide", b"ask", b"known", b"end", b"told", b"mark", b"history"
)  # fmt: skip
_LOCKING = (PREPARE, DECIDE)

INTENTS = b"@@intents"
OUTCOMES = b"@@outcomes"
MARKS = b"@@marks"
"""Keyspaces of a partition; services cannot be called so."""
HISTORY_KEY = b""
"""Among the marks, the name of the partition's data."""

PARTICIPANTS_MAX = TRANSACTION_COMMANDS_MAX + WATCHED_KEYS_MAX
_MEMBER_BYTES_MAX = 64
_HISTORY_BYTES_MAX = 256
_NUMBERS = struct.Struct(">QQ")
_U64_MAX = 2**63 - 1

_Number = Annotated[int, msgspec.Meta(ge=0, le=_U64_MAX)]
_Id = tuple[Annotated[str, msgspec.Meta(min_length=1, max_length=_MEMBER_BYTES_MAX)], _Number, _Number]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
_Participants = Annotated[list[_Partition], msgspec.Meta(min_length=2, max_length=PARTICIPANTS_MAX)]
_History = Annotated[bytes, msgspec.Meta(max_length=_HISTORY_BYTES_MAX)]


class PartMessage(msgspec.Struct, array_like=True, frozen=True):
    """Prepare and Decide: a part of a transaction, with its watched keys and commands."""

    id: _Id
    coordinator: _Partition
    history: _History
    participants: _Participants
    transaction: Transaction


class AskMessage(msgspec.Struct, array_like=True, frozen=True):
    """Asks a coordinator; `history` is that of its partition in the intent."""

    id: _Id
    history: _History


class EndMessage(msgspec.Struct, array_like=True, frozen=True):
    """Tells a participant the verdict."""

    id: _Id
    verdict: Verdict


class IdMessage(msgspec.Struct, array_like=True, frozen=True):
    """Known: which verdict does a participant know; Told: all participants know; Mark: all before this id are
    over.
    """

    id: _Id


_encode = msgspec.msgpack.Encoder().encode
_T = TypeVar("_T")
_messages: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (PartMessage, AskMessage, EndMessage, IdMessage)
}
_stored: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Intent, Outcome, Mark)
}


def command(verb: bytes, message: msgspec.Struct | bytes) -> list[bytes]:
    """Return the command that carries a message; of HISTORY, the argument is the name to give."""
    return [TX, verb, message if isinstance(message, bytes) else _encode(message)]


def decode_message(kind: type[_T], body: bytes) -> _T:
    """Decode a message. Raises BadInput."""
    try:
        found: _T = _messages[kind].decode(body)
    except UNREADABLE as error:
        raise BadInput(f"message about a transaction: {error}") from error
    return found


def part_of(message: PartMessage, keyspace: bytes) -> Part:
    """Return the part that a message prepares or decides, in the keyspace of its commands."""
    transaction = message.transaction
    keys = {(space, key): None for space, key, _ in transaction.watches}
    keys.update({(keyspace, each[1]): None for each in transaction.commands})
    participants = tuple(message.participants)
    return Part(TxId(*message.id), message.coordinator, message.history, participants, tuple(keys))


def takes_locks(args: Sequence[bytes]) -> bool:
    """Return whether a command is a Prepare or Decide."""
    return len(args) == 3 and args[0] == TX and args[1] in _LOCKING


def answer(status: Status, reply: Reply) -> Reply:
    """Return the reply to a message."""
    return [int(status), reply]


def split_answer(reply: Reply) -> tuple[Status, Reply]:
    """Return what an owner answered. Raises Corrupt."""
    if isinstance(reply, list) and len(reply) == 2 and reply[0] in tuple(Status):
        return Status(reply[0]), reply[1]
    raise Corrupt(f"invalid answer about a transaction: {str(reply)[:80]}")


# -- entries


def id_key(id: TxId) -> bytes:
    """Return the key of an intent or outcome: those of one originator sort by number."""
    return member_prefix(id.member) + _NUMBERS.pack(id.incarnation, id.number)


def member_prefix(member: str) -> bytes:
    """Return what the keys of an originator's transactions begin with."""
    name = member.encode()
    return bytes((len(name),)) + name


def split_id(key: bytes) -> TxId:
    """Return the transaction of a key. Raises Corrupt."""
    end = 1 + key[0] if key else 0
    if not key or len(key) != end + _NUMBERS.size:
        raise Corrupt(f"key of a transaction: {key[:80]!r}")
    return TxId(key[1:end].decode(errors="replace"), *_NUMBERS.unpack_from(key, end))


def text_of_id(id: TxId) -> str:
    """Return a transaction's name for users."""
    return f"{id.member}.{id.incarnation}.{id.number}"


def parse_id(text: str) -> TxId:
    """Return the transaction with this name. Raises BadInput."""
    member, *numbers = text.rsplit(".", 2)
    if len(numbers) != 2 or not all(each.isascii() and each.isdigit() and len(each) < 20 for each in numbers):
        raise BadInput(f"transaction is {text[:99]!r}; expected a name in the list, UUID.NUMBER.NUMBER")
    return TxId(member, int(numbers[0]), int(numbers[1]))


def encode_entry(value: Intent | Outcome | Mark) -> bytes:
    """Encode what is stored of a transaction or an originator."""
    return _encode(value)


def decode_entry(kind: type[_T], value: bytes) -> _T:
    """Decode an entry. Raises Corrupt."""
    try:
        found: _T = _stored[kind].decode(value)
    except UNREADABLE as error:
        raise Corrupt(f"{kind.__name__} of a transaction: {error}") from error
    return found
