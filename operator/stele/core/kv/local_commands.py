"""Commands on a keyspace with `mode: Invalidation`, as a pure function of one member's entries.

Offered are reads, writes that need not know the value before, and fills. A value that is missing here may be
at another member: INCR, APPEND and the like would begin at nothing, so they are refused.
"""

from collections.abc import Sequence
from typing import NamedTuple

from stele.core.kv.commands import (
    READS,
    WRITES,
    Evaluation,
    Failure,
    Put,
    Reply,
    Stored,
    evaluate,
    text_of,
)
from stele.core.kv.local_cache import LocalCache, Misses

OFFERED_WRITES = frozenset(
    {b"SET", b"SETNX", b"SETEX", b"PSETEX", b"DEL", b"UNLINK"}
    | {b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT", b"PERSIST"}
)
OFFERED = frozenset(READS | OFFERED_WRITES | {b"MGET", b"MSET"})

_KNOWING_OPTIONS = frozenset({b"XX", b"GET", b"KEEPTTL"})
_TAKEN: Stored = b"", 0
"""Stands for a value that a fill finds."""


class Outcome(NamedTuple):
    """The reply to a command; whether the key changed here, and whether all other members have to drop it."""

    reply: Reply
    changed: bool = False
    told: bool = False


def refusal(name: bytes, request: Sequence[bytes]) -> Failure | None:
    """Return why a request with this upper-case name is refused; None when it is not."""
    if name not in OFFERED:
        text = f"'{text_of(name).lower()}' is not possible in a keyspace with mode Invalidation"
    elif name == b"SET" and (words := _KNOWING_OPTIONS & {each.upper() for each in request[3:]}):
        option = min(words).decode()
        text = f"SET with {option} is not possible in a keyspace with mode Invalidation"
    else:
        return None
    return Failure("ERR", f"{text}: a value that is missing at this member may be at another one")


def run(
    args: Sequence[bytes], cache: LocalCache, misses: Misses, now_ms: int, ttl_ms: int = 0, *, covered: bool
) -> Outcome:
    """Run one single-key command. While the member is not `covered`, every read misses."""
    name, key = args[0].upper(), args[1]
    stored = cache.get(key, now_ms) if covered else None
    if name not in WRITES:
        cache.count(hit=stored is not None)
        if stored is None:
            misses.missed(cache.keyspace, key, cache.clock)
        return Outcome(evaluate(args, stored, now_ms).reply)
    if (refused := refusal(name, args)) is not None:
        return Outcome(refused)
    evaluation = evaluate(args, stored, now_ms, ttl_ms)
    if isinstance(evaluation.reply, Failure):
        return Outcome(evaluation.reply)
    if is_fill(name, args):
        return _fill(args, evaluation, cache, misses.take(cache.keyspace, key))
    if evaluation.op is None and stored is not None:
        return Outcome(evaluation.reply)  # A condition of EXPIRE does not hold.
    put = evaluation.op if isinstance(evaluation.op, Put) else None
    cache.change(key, None if put is None else (put.value, put.expire_at_ms))
    return Outcome(evaluation.reply, changed=True, told=True)


def is_fill(name: bytes, args: Sequence[bytes]) -> bool:
    """Return whether a write only fills what its connection has missed."""
    return name == b"SETNX" or (name == b"SET" and any(each.upper() == b"NX" for each in args[3:]))


def _fill(args: Sequence[bytes], evaluation: Evaluation, cache: LocalCache, missed: int) -> Outcome:
    put = evaluation.op
    if isinstance(put, Put) and cache.fill(put.key, (put.value, put.expire_at_ms), missed):
        return Outcome(evaluation.reply, changed=True)
    return Outcome(evaluate(args, _TAKEN, 0).reply)


def fitting(commands: Sequence[Sequence[bytes]], cache: LocalCache, now_ms: int, room: int) -> int:
    """Return how many commands, the first ones, have replies that surely fit into `room` bytes together."""
    written: dict[bytes, int] = {}
    for number, args in enumerate(commands):
        name, key = args[0].upper(), args[1]
        if name in WRITES:
            written[key] = max(map(len, args[2:]), default=0)
            continue
        stored = cache.get(key, now_ms)
        room -= max(0 if stored is None else len(stored[0]), written.get(key, 0))
        if room < 0:
            return number
    return len(commands)
