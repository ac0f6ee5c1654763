"""Keyspace notifications: which event an operation is, and on which channels it is published.

An operation in the log holds values, not commands. Its owner therefore remembers the events of an operation
until it is applied; what another owner logged is `set` or `del` (Redis documentation, "Keyspace
notifications").
"""

from collections.abc import Iterable, Sequence

from stele.core.kv.commands import Delete, Op
from stele.core.kv.two_phase import TxId

GAP_CHANNEL = b"__stele__:gap"
"""Says of which partition events may be missing."""

PARTITIONS_CHANNEL = b"__stele__:partitions"
"""Says which partition has another owner."""

NAMED_OPERATIONS_MAX = 65_536
"""Operations of a member whose events are remembered; beyond it they are `set` and `del`.

Each command of a transaction counts, and each 64 bytes of their keys.
"""

NAMED_KEYS_BYTES_MAX = 64 * 1024
"""Keys of one transaction whose events are remembered."""

Events = tuple[str, ...]
KeyEvents = tuple[bytes, Events]
"""A key, and the events of one command of a transaction."""

SET: Events = ("set",)
DEL: Events = ("del",)
EXPIRED: Events = ("expired",)
ARRIVED, DEPARTED = "arrived", "departed"
_SET_EXPIRE: Events = ("set", "expire")

_PUTS: dict[bytes, Events] = {
    b"SETEX": _SET_EXPIRE,
    b"PSETEX": _SET_EXPIRE,
    b"INCR": ("incrby",),
    b"DECR": ("incrby",),
    b"INCRBY": ("incrby",),
    b"DECRBY": ("incrby",),
    b"INCRBYFLOAT": ("incrbyfloat",),
    b"APPEND": ("append",),
    b"SETRANGE": ("setrange",),
    b"EXPIRE": ("expire",),
    b"PEXPIRE": ("expire",),
    b"EXPIREAT": ("expire",),
    b"PEXPIREAT": ("expire",),
    b"PERSIST": ("persist",),
}
_EXPIRY_OPTIONS = frozenset({b"EX", b"PX", b"EXAT", b"PXAT"})

_FLAGS = {
    **dict.fromkeys(("set", "append", "setrange", "incrby", "incrbyfloat"), "$"),
    **dict.fromkeys(("del", "expire", "persist"), "g"),
    "expired": "x",
    ARRIVED: "M",
    DEPARTED: "M",
}
_ALL = frozenset("g$lshzxetd")
"""What the flag A stands for."""


def events_of(args: Sequence[bytes], op: Op) -> Events:
    """Return the events of a single-key command that has this effect."""
    if isinstance(op, Delete):
        return DEL
    name = args[0].upper()
    if name == b"GETEX":
        return ("expire",) if op.expire_at_ms else ("persist",)
    if name == b"SET":
        expires = len(args) > 3 and any(word.upper() in _EXPIRY_OPTIONS for word in args[3:])
        return _SET_EXPIRE if expires else SET
    return _PUTS.get(name, SET)


def enabled(notify: str, event: str) -> str:
    """Return which of the channels K and E an event is published on, by the flags of its keyspace."""
    flag = _FLAGS[event]
    if flag not in notify and not ("A" in notify and flag in _ALL):
        return ""
    return "".join(kind for kind in "KE" if kind in notify)


def database(keyspace: bytes) -> bytes:
    """Return what SELECT calls a keyspace: a number where it has one."""
    if keyspace == b"default":
        return b"0"
    number = keyspace[2:]
    numbered = keyspace.startswith(b"db") and number.isdigit() and number[:1] != b"0"
    return number if numbered else keyspace


def messages(keyspace: bytes, key: bytes, event: str, kinds: str) -> list[tuple[bytes, bytes]]:
    """Return (channel, message) of one event, in Redis' order."""
    name, db = event.encode(), database(keyspace)
    found = []
    if "K" in kinds:
        found.append((b"__keyspace@%b__:%b" % (db, key), name))
    if "E" in kinds:
        found.append((b"__keyevent@%b__:%b" % (db, name), key))
    return found


def event_of(channel: bytes, message: bytes) -> tuple[bytes, bytes] | None:
    """Return the keyspace and the key of a message that `messages` made, None for any other."""
    kind, _, rest = channel.partition(b"@")
    db, separator, name = rest.partition(b"__:")
    if kind not in (b"__keyspace", b"__keyevent") or not separator:
        return None
    numbered = b"db%b" % db if db.isdigit() else db
    return b"default" if db == b"0" else numbered, name if kind == b"__keyspace" else message


def may_match(name: bytes, *, pattern: bool) -> bool:
    """Return whether a channel, or a channel that a pattern matches, may be one of notifications."""
    known = (b"__keyspace@", b"__keyevent@", b"__stele__:")
    if not pattern:
        return name.startswith(known)
    literal = name
    for special in (b"*", b"?", b"[", b"\\"):
        literal = literal.split(special, 1)[0]
    return any(literal.startswith(each) or each.startswith(literal) for each in known)


class OperationEvents:
    """The events of operations that an owner has logged and not yet published, by partition and index.

    It remembers nothing unless `active`, that is while any client listens.
    """

    def __init__(self) -> None:
        self.active = False
        self._events: dict[int, dict[int, Events | list[KeyEvents]]] = {}
        self._prepared: dict[int, dict[TxId, list[KeyEvents]]] = {}
        self._count = 0

    def activate(self, active: bool) -> None:
        self.active = active
        if not active:
            self._events.clear()
            self._prepared.clear()
            self._count = 0

    def add(self, partition: int, index: int, events: Events) -> None:
        """Remember the events of each entry that an operation changes."""
        if events not in (SET, DEL) and self._count < NAMED_OPERATIONS_MAX:
            self._events.setdefault(partition, {})[index] = events
            self._count += 1

    def add_transaction(self, partition: int, index: int, events: list[KeyEvents]) -> None:
        """Remember the events of an operation that several commands made, in their order."""
        if self._has_room(events):
            self._events.setdefault(partition, {})[index] = events
            self._count += _weight(events)

    def prepare(self, partition: int, transaction: TxId, events: list[KeyEvents]) -> None:
        """Remember the events of a part of a transaction until it ends."""
        if self._has_room(events):
            self._prepared.setdefault(partition, {})[transaction] = events
            self._count += _weight(events)

    def end(self, partition: int, transaction: TxId, index: int | None) -> None:
        """Have the events of a part be those of the operation that applies it; None: it is aborted."""
        events = self._prepared.get(partition, {}).pop(transaction, None)
        if events is not None:
            self._count -= _weight(events)
            if index is not None:
                self.add_transaction(partition, index, events)

    def _has_room(self, events: list[KeyEvents]) -> bool:
        few = sum(len(key) for key, _ in events) <= NAMED_KEYS_BYTES_MAX
        return few and self._count + _weight(events) <= NAMED_OPERATIONS_MAX

    def of(
        self, partition: int, index: int, changed: Iterable[tuple[bytes, bytes, bool]]
    ) -> list[tuple[bytes, bytes, str]]:
        """Return (keyspace, key, event) for the operation; `changed` has (keyspace, key, removed)."""
        events = self._events.get(partition, {}).get(index)
        if isinstance(events, list):
            keyspace = next(iter(changed))[0]
            return [(keyspace, key, event) for key, several in events for event in several]
        return [
            (keyspace, key, event)
            for keyspace, key, removed in changed
            for event in (events or (DEL if removed else SET))
        ]

    def forget(self, partition: int, up_to: int | None = None) -> None:
        """Forget the operations of a partition up to an index; or all, and what is prepared there."""
        if up_to is None:
            self._count -= sum(map(_weight, self._prepared.pop(partition, {}).values()))
        known = self._events.get(partition)
        if known:
            for index in [index for index in known if up_to is None or index <= up_to]:
                self._count -= _weight(known.pop(index))


def _weight(events: Events | list[KeyEvents]) -> int:
    """Return how many of NAMED_OPERATIONS_MAX these events take."""
    return sum(1 + len(key) // 64 for key, _ in events) if isinstance(events, list) else 1
