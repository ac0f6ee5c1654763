"""Commands about the connection and the server: HELLO, SELECT, INFO, COMMAND, ..."""

import re
import time
from collections.abc import Awaitable
from itertools import islice

from stele.core.kv.acl import Denial
from stele.core.kv.commands import (
    ARGUMENTS_MAX,
    ARITIES,
    Failure,
    Simple,
    has_arity,
    is_write,
    text_of,
    wrong_number,
)
from stele.core.kv.dedup import ARITY, ONCE
from stele.member.resp.access import NOAUTH_HELLO, NOBODY
from stele.member.resp.acl_commands import acl, auth, log_in
from stele.member.resp.client_commands import client, client_name
from stele.member.resp.cluster_commands import DISABLED, cluster
from stele.member.resp.config import config
from stele.member.resp.info import REDIS_VERSION, info
from stele.member.resp.keyspace_commands import KEYSPACE_COMMANDS
from stele.member.resp.msetnx import ARITY as MSETNX_ARITY
from stele.member.resp.msetnx import MSETNX
from stele.member.resp.multi_key import MANY_KEYS, is_keyed
from stele.member.resp.pubsub_commands import PUBSUB_COMMANDS, SUBSCRIBED_COMMANDS
from stele.member.resp.session import ClientSession, Command, RefusedError, Server, undeclared
from stele.member.resp.subcommands import answer_help, unknown_subcommand
from stele.member.resp.tool_commands import TOOL_COMMANDS
from stele.member.resp.tracking import turn_off
from stele.member.resp.transactions import TRANSACTION_ARITIES, exec_failure
from stele.member.resp.wait import wait
from stele.wire.resp import Answer, Request
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX

COMMAND_NAMES_MAX = 1024
UNKNOWN_SHOWN_CHARS = 128
"""Of the arguments of an unknown command, as in Redis."""
_KEYSPACE = re.compile(rb"[a-z0-9-]{1,%d}" % KEYSPACE_BYTES_MAX)

OK = Simple("OK")


async def answer(server: Server, session: ClientSession, name: bytes, request: Request) -> Answer:
    """Run one session command with its upper-case name. Errors of the store pass through."""
    known = _COMMANDS.get(name)
    if known is None:
        return unknown(request)
    arity, run = known
    if not has_arity(arity, request):
        return wrong_number(name)
    try:
        made = run(server, session, request)
        return await made if isinstance(made, Awaitable) else made
    except RefusedError as refused:
        return Failure("ERR", str(refused))


def refused_while_subscribed(session: ClientSession, name: bytes, request: Request) -> Failure | None:
    """Return the error for a command that a subscriber of RESP2 may not use."""
    if name in SUBSCRIBED_COMMANDS or not is_well_formed(name, request):
        return None
    text = (
        f"Can't execute '{text_of(request[0]).lower()}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT"
    )
    failure = Failure("ERR", f"{text} / RESET are allowed in this context")
    return exec_failure(failure) if name == b"EXEC" else failure


def is_well_formed(name: bytes, request: Request) -> bool:
    """Return whether the command is offered, and takes this number of arguments."""
    return name in _ARITIES and has_arity(_ARITIES[name], request)


def uses_keyspace(name: bytes) -> bool:
    """Return whether the (upper-case) command looks at the keyspace that the connection has selected."""
    return is_keyed(name) or name in _USE_KEYSPACE


def is_known(name: bytes) -> bool:
    """Return whether a request with this upper-case name is answered otherwise than as unknown."""
    return name in _COMMANDS or name in _ARITIES


def unknown(request: Request) -> Failure:
    """Return Redis' error for an unknown command, which has the beginning of its arguments."""
    shown = ""
    for argument in request[1:]:
        if len(shown) >= UNKNOWN_SHOWN_CHARS:
            break
        shown += f"'{text_of(argument[: UNKNOWN_SHOWN_CHARS - len(shown)])}' "
    return Failure("ERR", f"unknown command '{text_of(request[0])}', with args beginning with: {shown}")


def _ping(server: Server, session: ClientSession, request: Request) -> Answer:
    if len(request) > 2:
        return wrong_number(b"ping")
    if session.only_pubsub:
        return [b"pong", request[1] if len(request) == 2 else b""]
    return request[1] if len(request) == 2 else Simple("PONG")


def _echo(server: Server, session: ClientSession, request: Request) -> Answer:
    return request[1]


def _time(server: Server, session: ClientSession, request: Request) -> Answer:
    """Return the clock of this member, in seconds and microseconds."""
    return [b"%d" % part for part in divmod(time.time_ns() // 1000, 1_000_000)]


def _quit(server: Server, session: ClientSession, request: Request) -> Answer:
    session.quitting = True
    return OK


def _reset(server: Server, session: ClientSession, request: Request) -> Answer:
    server.pubsub.leave(session)
    turn_off(server, session)
    server.slot_changes.end(session)
    session.reset()
    server.access.log_out(session)
    server.access.begin(session)
    if session.connection is not None:
        session.connection.update_access()
    return Simple("RESET")


async def _hello(server: Server, session: ClientSession, request: Request) -> Answer:
    resp3, name, rest = session.resp3, session.name, iter(request[1:])
    user: bytes | None = None
    password = b""
    for place, word in enumerate(rest):
        option = word.upper()
        if place == 0:
            if word not in (b"2", b"3"):
                return Failure("NOPROTO", "unsupported protocol version: expected 2 or 3")
            resp3 = word == b"3"
        elif option == b"SETNAME" and (given := next(rest, None)) is not None:
            name = client_name(given)
        elif option == b"AUTH" and (pair := list(islice(rest, 2)))[1:]:
            user, password = pair
        else:
            raise RefusedError(f"Syntax error in HELLO option '{text_of(word)}'")
    if user is not None and (refused := await log_in(server, session, user, password)) is not None:
        return refused
    if session.guard is NOBODY:
        return NOAUTH_HELLO
    return _greet(server, session, resp3, name)


def _greet(server: Server, session: ClientSession, resp3: bool, name: bytes) -> Answer:
    session.resp3, session.name = resp3, name
    session.update_mode()
    if not resp3:
        server.slot_changes.end(session)
    return {
        b"server": b"redis",
        b"version": REDIS_VERSION.encode(),
        b"proto": 3 if resp3 else 2,
        b"id": session.id,
        b"mode": b"cluster" if session.cluster else b"standalone",
        b"role": b"master",
        b"modules": [],
    }


def _select(server: Server, session: ClientSession, request: Request) -> Answer:
    """Select the keyspace `dbn` for a number n, `default` for 0, or the named keyspace."""
    wanted = request[1]
    if not _KEYSPACE.fullmatch(wanted) or wanted.startswith(b"-"):
        raise RefusedError(
            f"invalid DB index: '{text_of(wanted)}' is neither a number of 0 or above nor a keyspace's name"
            f" (1 to {KEYSPACE_BYTES_MAX} of a-z, 0-9 and -, not starting with -)"
        )
    database = wanted
    if wanted.isdigit():
        number = int(wanted)
        wanted, database = b"db%d" % number if number else b"default", b"%d" % number
        if len(wanted) > KEYSPACE_BYTES_MAX:
            raise RefusedError("DB index is out of range")
    if session.guard is not None and not session.guard.may_select(wanted):
        return server.access.deny(session, Denial("keyspace", wanted))
    if (refused := undeclared(server, wanted)) is not None:
        return refused
    session.keyspace, session.database = wanted, database
    if session.tracking is not None:
        session.tracking.keyspace_changed()
    return OK


def _info(server: Server, session: ClientSession, request: Request) -> Answer:
    if len(request) > ARGUMENTS_MAX:
        raise RefusedError(f"{len(request) - 1} sections; at most {ARGUMENTS_MAX - 1} are allowed")
    return info(server, session.cluster, request[1:]).encode()


def _command(server: Server, session: ClientSession, request: Request) -> Answer:
    what = request[1].upper() if len(request) > 1 else b""
    if what == b"COUNT":
        return len(OFFERED)
    if what == b"LIST":
        return [name.lower() for name in OFFERED]
    if what == b"DOCS":
        return {}
    if what in (b"", b"INFO"):
        names = [name.upper() for name in request[2:]] or list(OFFERED)
        if len(names) > COMMAND_NAMES_MAX:
            raise RefusedError(f"{len(names)} names; at most {COMMAND_NAMES_MAX} are allowed")
        return [_describe(name) for name in names]
    if what == b"HELP":
        return answer_help(request, (b"COUNT", b"DOCS", b"INFO", b"LIST"))
    return unknown_subcommand(request)


_USE_KEYSPACE = frozenset({b"SCAN", b"DBSIZE", b"FLUSHDB", b"MEMORY", b"WATCH"})
"""Commands without keys, or that find them in another way."""

_WRITES = (b"MSET", MSETNX, b"FLUSHDB", b"FLUSHALL", ONCE)
_READS = (b"SCAN", b"DBSIZE")
"""What reads without a key, besides commands of keys."""

_TIPS: dict[bytes, tuple[bytes, ...]] = {
    b"DBSIZE": (b"request_policy:all_shards", b"response_policy:agg_sum"),
    b"SCAN": (b"nondeterministic_output", b"request_policy:special"),
    b"PING": (b"request_policy:all_shards", b"response_policy:all_succeeded"),
    b"FLUSHDB": (b"request_policy:all_shards", b"response_policy:all_succeeded"),
    b"FLUSHALL": (b"request_policy:all_shards", b"response_policy:all_succeeded"),
    b"WAIT": (b"request_policy:all_shards", b"response_policy:agg_min"),
    b"INFO": (b"nondeterministic_output", b"request_policy:all_shards", b"response_policy:special"),
}
"""Where clients of the cluster protocol send commands without keys (Redis documentation, "Command tips")."""


_CHANNELS = {b"SSUBSCRIBE": (1, -1, 1), b"SUNSUBSCRIBE": (1, -1, 1), b"SPUBLISH": (1, 1, 1)}
"""Where sharded channels are: cluster clients route by them as by keys."""


def _describe(name: bytes) -> Answer:
    """Return what clients need to find keys and members: [name, arity, flags, first key, last key, step, ACL
    categories, tips, key specifications, subcommands]."""
    if name not in OFFERED:
        return None
    flags = [Simple(flag) for flag in _flags(name)]
    arity, *places = _shape(name)
    tips = [Simple(tip.decode()) for tip in _TIPS.get(name, ())]
    return [name.lower(), arity, flags, *places, [], tips, [], []]


def _flags(name: bytes) -> list[str]:
    """Return Redis' flags by which clients choose a member; none of what neither reads nor writes."""
    if name in PUBSUB_COMMANDS:
        return [] if name == b"PUBSUB" else ["pubsub"]
    if is_write(name) or name in _WRITES:
        return ["write"]
    return ["readonly"] if name in ARITIES or name in MANY_KEYS or name in _READS else []


def _shape(name: bytes) -> tuple[int, int, int, int]:
    """Return (arity, first key, last key, step)."""
    if name in MANY_KEYS:
        return (-3, 1, -1, 2) if name == b"MSET" else (-2, 1, -1, 1)
    if name == MSETNX:
        return MSETNX_ARITY, 1, -1, 2
    if name == ONCE:
        return ARITY, 4, 4, 1
    if name in TRANSACTION_ARITIES:
        return (TRANSACTION_ARITIES[name], *((1, -1, 1) if name == b"WATCH" else (0, 0, 0)))
    if name in ARITIES:
        return ARITIES[name], 1, 1, 1
    return (_COMMANDS[name][0], *_CHANNELS.get(name, (0, 0, 0)))


async def _cluster(server: Server, session: ClientSession, request: Request) -> Answer:
    if not session.cluster:
        return DISABLED
    return await cluster(server, session.keyspace, request, resp3=session.resp3)


def _asking(server: Server, session: ClientSession, request: Request) -> Answer:
    """Answer ASKING, which changes nothing: no slot is ever between two owners."""
    return OK if session.cluster else DISABLED


def _readonly(server: Server, session: ClientSession, request: Request) -> Answer:
    """Answer READONLY and READWRITE: whether backups may answer this connection's reads."""
    if not session.cluster:
        return DISABLED
    server.read_backups(session, request[0].upper() == b"READONLY")
    return OK


# Name -> (arity as in Redis, handler).
_COMMANDS: dict[bytes, tuple[int, Command]] = {
    b"PING": (-1, _ping),
    b"ECHO": (2, _echo),
    b"TIME": (1, _time),
    b"QUIT": (-1, _quit),
    b"RESET": (1, _reset),
    b"AUTH": (-2, auth),
    b"ACL": (-2, acl),
    b"HELLO": (-1, _hello),
    b"SELECT": (2, _select),
    b"CLIENT": (-2, client),
    b"INFO": (-1, _info),
    b"COMMAND": (-1, _command),
    **KEYSPACE_COMMANDS,
    b"CLUSTER": (-2, _cluster),
    b"READONLY": (1, _readonly),
    b"READWRITE": (1, _readonly),
    b"ASKING": (1, _asking),
    b"CONFIG": (-2, config),
    b"WAIT": (3, wait),
    **PUBSUB_COMMANDS,
    **TOOL_COMMANDS,
}

OFFERED = tuple(
    sorted({*ARITIES, *MANY_KEYS, *TRANSACTION_ARITIES, *_COMMANDS, ONCE, MSETNX} - {b"AUTH", b"KEYS"})
)
_ARITIES = {name: _shape(name)[0] for name in OFFERED}
