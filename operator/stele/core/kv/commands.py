"""Single-key commands as a pure function of the stored value and the time.

The owner of a partition calls `evaluate`, logs the `op` that it returns, and sends `reply` once the operation
is committed. Replicas only see the operation, which holds absolute expiry times and whole values: applying it
needs no clock and gives the same result everywhere. Error texts are those of Redis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stele.core.kv import long_double

KEY_BYTES_MAX = 64 * 1024
VALUE_BYTES_MAX = 8 * 1024 * 1024
REPLY_BYTES_MAX = VALUE_BYTES_MAX
"""Longest reply to a single-key command: at most the value."""
EXPIRE_AT_MS_MAX = 2**63 - 1
ARGUMENTS_MAX = 32
COMMAND_BYTES_MAX = KEY_BYTES_MAX + VALUE_BYTES_MAX + 16 * 1024
"""Longest single-key command: key, value and options."""
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_INT_DIGITS_MAX = 20


@dataclass(frozen=True, slots=True)
class Simple:
    """A status such as OK."""

    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """An error reply: a code in capitals and a sentence."""

    code: str
    text: str


Reply = None | int | bytes | Simple | Failure | list["Reply"]


class Put(NamedTuple):
    """Store a value; `expire_at_ms` is in Unix milliseconds, 0 for never."""

    key: bytes
    value: bytes
    expire_at_ms: int


class Delete(NamedTuple):
    """Remove a key."""

    key: bytes


Op = Put | Delete
Stored = tuple[bytes, int]


class Evaluation(NamedTuple):
    """The reply, and the operation to log before it is sent (None: nothing changes)."""

    reply: Reply
    op: Op | None = None


Args = Sequence[bytes]
_Handler = Callable[[Args, Stored | None, int], Evaluation]


@dataclass(frozen=True, slots=True)
class _Command:
    """One command.

    `arity` is as in Redis: the number of arguments including the name, negative for a minimum.
    """

    run: _Handler
    arity: int
    write: bool


class _RefusedError(Exception):
    """The command is answered with an error and changes nothing."""

    def __init__(self, text: str, code: str = "ERR") -> None:
        super().__init__(text)
        self.failure = Failure(code, text)


OK = Simple("OK")
_NOT_AN_INTEGER = "value is not an integer or out of range"
_SYNTAX = "syntax error"


def grows(op: Op | None, stored: Stored | None) -> bool:
    """Return whether an operation adds an entry, or bytes to the one that is stored, expired or not."""
    return isinstance(op, Put) and (stored is None or len(op.value) > len(stored[0]))


def evaluate(args: Args, stored: Stored | None, now_ms: int, ttl_ms: int = 0) -> Evaluation:
    """Run one command against the entry stored under its key; client errors become a Failure, never a raise.

    `args[0]` is the command's name in any case, `args[1]` the key. An expired entry counts as missing. An
    entry that is written without an expiry gets one in `ttl_ms`, that of its keyspace; 0 for never.
    """
    command = _COMMANDS.get(args[0].upper()) if args else None
    if command is None:
        name = text_of(args[0]) if args else ""
        return Evaluation(Failure("ERR", f"unknown command '{name}' for a single key"))
    if len(args) != command.arity if command.arity > 0 else len(args) < -command.arity:
        return Evaluation(wrong_number(args[0]))
    if len(args[1]) > KEY_BYTES_MAX:
        return Evaluation(key_too_long(args[1]))
    if stored is not None and 0 < stored[1] <= now_ms:
        stored = None
    try:
        evaluation = command.run(args, stored, now_ms)
        if ttl_ms:
            evaluation = _with_ttl(evaluation, args, stored is not None, now_ms + ttl_ms)
        return _finalize(evaluation, stored is not None, now_ms)
    except _RefusedError as refused:
        return Evaluation(refused.failure)


_KEEPS_EXPIRY = frozenset(
    {b"INCR", b"DECR", b"INCRBY", b"DECRBY", b"INCRBYFLOAT", b"APPEND", b"SETRANGE", b"PERSIST", b"GETEX"}
)


def _with_ttl(evaluation: Evaluation, args: Args, existed: bool, expire_at_ms: int) -> Evaluation:
    """Add the expiry to an entry that the command created, or replaced without an expiry of its own.

    A command that keeps the expiry of an existing entry also leaves an entry without one as it is.
    """
    op = evaluation.op
    if not isinstance(op, Put) or op.expire_at_ms or (existed and _keeps_expiry(args)):
        return evaluation
    return Evaluation(evaluation.reply, Put(op.key, op.value, expire_at_ms))


def _keeps_expiry(args: Args) -> bool:
    name = args[0].upper()
    return name in _KEEPS_EXPIRY or (name == b"SET" and any(raw.upper() == b"KEEPTTL" for raw in args[3:]))


def _finalize(evaluation: Evaluation, existed: bool, now_ms: int) -> Evaluation:
    """Check the size of the new value, and turn a write that is already expired into a delete."""
    op = evaluation.op
    if not isinstance(op, Put):
        return evaluation
    if len(op.value) > VALUE_BYTES_MAX:
        size = len(op.value)
        raise _RefusedError(f"value of {size} bytes exceeds the limit of {VALUE_BYTES_MAX} bytes")
    if 0 < op.expire_at_ms <= now_ms:
        return Evaluation(evaluation.reply, Delete(op.key) if existed else None)
    return evaluation


def is_write(name: bytes) -> bool:
    """Return whether the command can write, and so needs the log. Unknown commands do not."""
    command = _COMMANDS.get(name.upper())
    return command is not None and command.write


def text_of(raw: bytes) -> str:
    """Render bytes of a client for an error text: printable, one line, at most 128 characters."""
    text = raw[:128].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)


def wrong_number(name: bytes) -> Failure:
    """Return Redis's error for a wrong number of arguments."""
    return Failure("ERR", f"wrong number of arguments for '{text_of(name).lower()}' command")


def has_arity(arity: int, args: Args) -> bool:
    """Return whether the number of arguments fits, as in Redis: a negative arity is a minimum."""
    return len(args) == arity if arity > 0 else len(args) >= -arity


def too_large(args: Args) -> Failure | None:
    """Return the error for a single-key command with too many arguments or bytes, None when it fits."""
    if len(args) > ARGUMENTS_MAX:
        size_text, limit_text = f"{len(args)} arguments", f"{ARGUMENTS_MAX}"
    elif (size := sum(map(len, args))) > COMMAND_BYTES_MAX:
        size_text, limit_text = f"{size} bytes", f"{COMMAND_BYTES_MAX}, of which {KEY_BYTES_MAX} for the key"
    else:
        return None
    return Failure(
        "ERR", f"'{text_of(args[0]).lower()}' command of {size_text} exceeds the limit of {limit_text}"
    )


def key_too_long(key: bytes) -> Failure:
    """Return the error for a key above the limit, with both lengths."""
    return Failure("ERR", f"key of {len(key)} bytes exceeds the limit of {KEY_BYTES_MAX} bytes")


def parse_integer(raw: bytes) -> int:
    """Parse a signed 64-bit integer as Redis does (no `+`, leading zero or space). Raises ValueError."""
    digits = raw[1:] if raw[:1] == b"-" else raw
    if not digits.isdigit() or len(raw) > _INT_DIGITS_MAX or (digits[:1] == b"0" and raw != b"0"):
        raise ValueError(_NOT_AN_INTEGER)
    number = int(raw)
    if not _INT_MIN <= number <= _INT_MAX:
        raise ValueError(_NOT_AN_INTEGER)
    return number


def _integer(raw: bytes) -> int:
    try:
        return parse_integer(raw)
    except ValueError:
        raise _RefusedError(_NOT_AN_INTEGER) from None


def _deadline(name: bytes, raw: bytes, unit_ms: int, base_ms: int, least: int = 1) -> int:
    """Return the absolute time, in milliseconds, of an expiry argument; `base_ms` is 0 for absolute ones."""
    number = _integer(raw)
    deadline = number * unit_ms + base_ms
    if number < least or not _INT_MIN <= number * unit_ms <= _INT_MAX or deadline > EXPIRE_AT_MS_MAX:
        raise _RefusedError(f"invalid expire time in '{text_of(name).lower()}' command")
    return deadline


def _put(reply: Reply, key: bytes, value: bytes, expire_at_ms: int) -> Evaluation:
    return Evaluation(reply, Put(key, value, expire_at_ms))


# Option -> (milliseconds per unit, whether it counts from now).
_EXPIRY_OPTIONS = {b"EX": (1000, True), b"PX": (1, True), b"EXAT": (1000, False), b"PXAT": (1, False)}
_SET_OPTIONS = frozenset({b"NX", b"XX", b"GET", b"KEEPTTL"})
_GETEX_OPTIONS = frozenset({b"PERSIST"})


def _options(options: Args, allowed: frozenset[bytes]) -> tuple[set[bytes], bytes, bytes]:
    """Return the options without a number, the one of `_EXPIRY_OPTIONS` if any, and its number."""
    words: set[bytes] = set()
    unit = number = b""
    rest = iter(options)
    for raw in rest:
        word = raw.upper()
        if word in allowed:
            words.add(word)
        elif word in _EXPIRY_OPTIONS and unit in (b"", word) and (given := next(rest, None)) is not None:
            unit, number = word, given
        else:
            raise _RefusedError(_SYNTAX)
    if {b"NX", b"XX"} <= words or (unit and not words.isdisjoint((b"KEEPTTL", b"PERSIST"))):
        raise _RefusedError(_SYNTAX)
    return words, unit, number


def _expire_at(name: bytes, unit: bytes, number: bytes, now_ms: int) -> int:
    unit_ms, relative = _EXPIRY_OPTIONS[unit]
    return _deadline(name, number, unit_ms, now_ms if relative else 0)


def _set(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    if len(args) == 3:
        return _put(OK, args[1], args[2], 0)
    words, unit, number = _options(args[3:], _SET_OPTIONS)
    expire_at_ms = _expire_at(args[0], unit, number, now_ms) if unit else 0
    old = stored[0] if stored else None
    if (b"NX" in words and stored) or (b"XX" in words and not stored):
        return Evaluation(old if b"GET" in words else None)
    if b"KEEPTTL" in words and stored:
        expire_at_ms = stored[1]
    return _put(old if b"GET" in words else OK, args[1], args[2], expire_at_ms)


def _setnx(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return Evaluation(0) if stored else _put(1, args[1], args[2], 0)


def _setex(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    deadline = _deadline(args[0], args[2], 1000, now_ms)
    return _put(OK, args[1], args[3], deadline)


def _psetex(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    deadline = _deadline(args[0], args[2], 1, now_ms)
    return _put(OK, args[1], args[3], deadline)


def _get(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return Evaluation(stored[0] if stored else None)


def _getset(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return _put(stored[0] if stored else None, args[1], args[2], 0)


def _getdel(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return Evaluation(stored[0], Delete(args[1])) if stored else Evaluation(None)


def _getex(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    words, unit, number = _options(args[2:], _GETEX_OPTIONS)
    if stored is None:
        return Evaluation(None)
    value, expire_at_ms = stored
    if unit:
        return _put(value, args[1], value, _expire_at(args[0], unit, number, now_ms))
    return _put(value, args[1], value, 0) if words and expire_at_ms else Evaluation(value)


def _getrange(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    first, last = _integer(args[2]), _integer(args[3])
    value = stored[0] if stored else b""
    if first < 0 and last < first:
        return Evaluation(b"")
    first, last = (at if at >= 0 else max(0, len(value) + at) for at in (first, last))
    return Evaluation(value[first : last + 1])


def _setrange(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    offset, piece = _integer(args[2]), args[3]
    if offset < 0:
        raise _RefusedError("offset is out of range")
    value, expire_at_ms = stored or (b"", 0)
    if not piece:
        return Evaluation(len(value))
    if offset + len(piece) > VALUE_BYTES_MAX:
        raise _RefusedError(f"string exceeds maximum allowed size ({VALUE_BYTES_MAX} bytes)")
    written = value[:offset].ljust(offset, b"\0") + piece + value[offset + len(piece) :]
    return _put(len(written), args[1], written, expire_at_ms)


def _delete(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return Evaluation(1, Delete(args[1])) if stored else Evaluation(0)


def _exists(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return Evaluation(1 if stored else 0)


def _add(args: Args, stored: Stored | None, by: int) -> Evaluation:
    value, expire_at_ms = stored or (b"0", 0)
    number = _integer(value) + by
    if not _INT_MIN <= number <= _INT_MAX:
        raise _RefusedError("increment or decrement would overflow")
    return Evaluation(number, Put(args[1], b"%d" % number, expire_at_ms))


def _incr(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return _add(args, stored, 1)


def _decr(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return _add(args, stored, -1)


def _incrby(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return _add(args, stored, _integer(args[2]))


def _decrby(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    by = _integer(args[2])
    if by == _INT_MIN:
        raise _RefusedError("decrement would overflow")
    return _add(args, stored, -by)


def _incrbyfloat(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    value, expire_at_ms = stored or (b"0", 0)
    try:
        total = long_double.add(value, args[2])
    except ValueError:
        raise _RefusedError("value is not a valid float") from None
    except OverflowError:
        raise _RefusedError("increment would produce NaN or Infinity") from None
    return _put(total, args[1], total, expire_at_ms)


def _append(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    value, expire_at_ms = stored or (b"", 0)
    joined = value + args[2]
    return _put(len(joined), args[1], joined, expire_at_ms)


def _strlen(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return Evaluation(len(stored[0]) if stored else 0)


def _type(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return Evaluation(Simple("string" if stored else "none"))


def _remaining(stored: Stored | None, now_ms: int) -> int:
    """Return the milliseconds to live; -2 for a missing key, -1 for a key that does not expire."""
    if stored is None:
        return -2
    return stored[1] - now_ms if stored[1] else -1


def _ttl(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    left_ms = _remaining(stored, now_ms)
    return Evaluation((left_ms + 500) // 1000 if left_ms > 0 else left_ms)


def _pttl(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    return Evaluation(_remaining(stored, now_ms))


def _pexpiretime(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    if stored is None:
        return Evaluation(-2)
    return Evaluation(stored[1] or -1)


def _expiretime(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    if stored is None:
        return Evaluation(-2)
    return Evaluation((stored[1] + 500) // 1000 if stored[1] else -1)


def _persist(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
    if stored is None or not stored[1]:
        return Evaluation(0)
    return Evaluation(1, Put(args[1], stored[0], 0))


_EXPIRE_CONDITIONS = frozenset({b"NX", b"XX", b"GT", b"LT"})


def _expire_conditions(args: Args) -> set[bytes]:
    words = set()
    for raw in args[3:]:
        if raw.upper() not in _EXPIRE_CONDITIONS:
            raise _RefusedError(f"Unsupported option {text_of(raw)}")
        words.add(raw.upper())
    if b"NX" in words and len(words) > 1:
        raise _RefusedError("NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= words:
        raise _RefusedError("GT and LT options at the same time are not compatible")
    return words


def _may_expire(words: set[bytes], old_ms: int, new_ms: int) -> bool:
    """Return whether the conditions allow the change; a key without expiry (`old_ms` 0) lives for ever."""
    if b"NX" in words:
        return not old_ms
    if (b"XX" in words and not old_ms) or (b"GT" in words and (not old_ms or new_ms <= old_ms)):
        return False
    return not (b"LT" in words and old_ms and new_ms >= old_ms)


def _expirer(unit_ms: int, relative: bool) -> _Handler:
    def run(args: Args, stored: Stored | None, now_ms: int) -> Evaluation:
        words = _expire_conditions(args)
        deadline = _deadline(args[0], args[2], unit_ms, now_ms if relative else 0, least=_INT_MIN)
        if stored is None or not _may_expire(words, stored[1], deadline):
            return Evaluation(0)
        if deadline <= 0:
            return Evaluation(1, Delete(args[1]))
        return _put(1, args[1], stored[0], deadline)

    return run


_COMMANDS: dict[bytes, _Command] = {
    b"GET": _Command(_get, 2, False),
    b"SET": _Command(_set, -3, True),
    b"SETNX": _Command(_setnx, 3, True),
    b"SETEX": _Command(_setex, 4, True),
    b"PSETEX": _Command(_psetex, 4, True),
    b"GETSET": _Command(_getset, 3, True),
    b"GETDEL": _Command(_getdel, 2, True),
    b"GETEX": _Command(_getex, -2, True),
    b"GETRANGE": _Command(_getrange, 4, False),
    b"SUBSTR": _Command(_getrange, 4, False),
    b"SETRANGE": _Command(_setrange, 4, True),
    b"DEL": _Command(_delete, 2, True),
    b"UNLINK": _Command(_delete, 2, True),
    b"EXISTS": _Command(_exists, 2, False),
    b"TOUCH": _Command(_exists, 2, False),
    b"INCR": _Command(_incr, 2, True),
    b"DECR": _Command(_decr, 2, True),
    b"INCRBY": _Command(_incrby, 3, True),
    b"DECRBY": _Command(_decrby, 3, True),
    b"INCRBYFLOAT": _Command(_incrbyfloat, 3, True),
    b"APPEND": _Command(_append, 3, True),
    b"STRLEN": _Command(_strlen, 2, False),
    b"TYPE": _Command(_type, 2, False),
    b"TTL": _Command(_ttl, 2, False),
    b"PTTL": _Command(_pttl, 2, False),
    b"EXPIRETIME": _Command(_expiretime, 2, False),
    b"PEXPIRETIME": _Command(_pexpiretime, 2, False),
    b"EXPIRE": _Command(_expirer(1000, True), -3, True),
    b"PEXPIRE": _Command(_expirer(1, True), -3, True),
    b"EXPIREAT": _Command(_expirer(1000, False), -3, True),
    b"PEXPIREAT": _Command(_expirer(1, False), -3, True),
    b"PERSIST": _Command(_persist, 2, True),
}

ARITIES = {name: command.arity for name, command in _COMMANDS.items()}

WRITES = frozenset(name for name, command in _COMMANDS.items() if command.write)

READS = frozenset(ARITIES) - WRITES
