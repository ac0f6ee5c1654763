"""MEMORY USAGE and MODULE LIST, which graphical tools send while they browse keys."""

from collections.abc import Awaitable

from stele.core.kv.commands import Failure, has_arity
from stele.core.kv.keyslot import partition_in, slot_of
from stele.member.resp.session import (
    ClientSession,
    Command,
    RefusedError,
    Server,
    is_local,
    parse_number,
)
from stele.member.resp.subcommands import refusal_or_help
from stele.wire.resp import Answer, Request


async def _usage(server: Server, session: ClientSession, request: Request) -> Answer:
    """Return the bytes of a key and its value, None without one; SAMPLES means nothing for a string."""
    _check_samples(request[3:])
    key = request[2]
    commands = [[b"EXISTS", key], [b"STRLEN", key]]
    if is_local(server, session):
        replies = await server.store.local.execute(session.keyspace, commands, session.misses)
    else:
        partition = partition_in(server.store.group(session.keyspace), slot_of(key))
        seen = server.seen_of(session)
        replies = await server.store.execute(partition, session.keyspace, commands, seen=seen)
    if (failure := next((each for each in replies if isinstance(each, Failure)), None)) is not None:
        return failure
    exists, length = replies
    assert isinstance(length, int)
    return len(key) + length if exists else None


def _check_samples(options: Request) -> None:
    if not options:
        return
    if options[0].upper() != b"SAMPLES" or not has_arity(2, options):
        raise RefusedError("syntax error")
    if parse_number(options[1], "value is not an integer or out of range") < 0:
        raise RefusedError("syntax error")


def _list(server: Server, session: ClientSession, request: Request) -> Answer:
    return []


# Name -> (arity as in Redis, the command included; handler).
_MEMORY: dict[bytes, tuple[int, Command]] = {b"USAGE": (-3, _usage)}
_MODULE: dict[bytes, tuple[int, Command]] = {b"LIST": (2, _list)}


def _memory(server: Server, session: ClientSession, request: Request) -> Answer | Awaitable[Answer]:
    refusal = refusal_or_help(request, _MEMORY)
    return _usage(server, session, request) if refusal is None else refusal


def _module(server: Server, session: ClientSession, request: Request) -> Answer:
    refusal = refusal_or_help(request, _MODULE)
    return _list(server, session, request) if refusal is None else refusal


# Name -> (arity as in Redis, handler).
TOOL_COMMANDS: dict[bytes, tuple[int, Command]] = {b"MEMORY": (-2, _memory), b"MODULE": (-2, _module)}
