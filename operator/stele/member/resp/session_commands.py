"""Commands about the connection and the server: HELLO, SELECT, CLIENT, INFO, COMMAND, SCAN, CLUSTER, ..."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stele.core.kv.commands import (
    ARGUMENTS_MAX,
    ARITIES,
    Failure,
    Simple,
    has_arity,
    is_write,
    parse_integer,
    text_of,
    wrong_number,
)
from stele.core.kv.dedup import ARITY, ONCE
from stele.member.resp.cluster_commands import DISABLED, cluster, own_partitions
from stele.member.resp.info import REDIS_VERSION, info
from stele.member.resp.match import read_pattern
from stele.member.resp.multi_key import MANY_KEYS
from stele.member.resp.scan import SCAN_COUNT_DEFAULT, SCAN_COUNT_MAX, Positions, scan
from stele.member.resp.transactions import TRANSACTION_ARITIES, Transaction
from stele.member.turn_budget import TurnBudget
from stele.ports.key_value_service import KeyValueService
from stele.wire.resp import Answer, Request
from stele.wire.storage.keys import KEYSPACE_BYTES_MAX

CLIENT_NAME_BYTES_MAX = 256
COMMAND_NAMES_MAX = 1024
DBSIZE_PARTITIONS_AT_ONCE = 64
_KEYSPACE = re.compile(rb"[a-z0-9-]{1,%d}" % KEYSPACE_BYTES_MAX)

OK = Simple("OK")


@dataclass(slots=True)
class ClientSession:
    """State of one connection. `cluster`: it speaks the Redis Cluster protocol."""

    id: int
    address: str
    keyspace: bytes = b"default"
    database: bytes = b"0"
    name: bytes = b""
    library: dict[bytes, bytes] = field(default_factory=dict)
    resp3: bool = False
    quitting: bool = False
    cluster: bool = False
    transaction: Transaction = field(default_factory=Transaction)

    def reset(self) -> None:
        """Return to the state of a new connection."""
        self.keyspace, self.database, self.name, self.resp3 = b"default", b"0", b"", False
        self.transaction.reset()

    def line(self) -> str:
        """Return its line of CLIENT LIST."""
        parts = {"id": str(self.id), "addr": self.address, "name": self.name.decode("ascii", "replace")}
        parts |= {"db": self.database.decode(), "resp": "3" if self.resp3 else "2"}
        return " ".join(f"{key}={value}" for key, value in parts.items())


class Server(Protocol):
    """The part of the RESP server that session commands use."""

    store: KeyValueService
    positions: Positions
    turn_budget: TurnBudget
    cluster_port: int

    def sessions(self) -> Iterable[ClientSession]: ...

    def facts(self) -> dict[str, str | int]: ...


class _RefusedError(Exception):
    """The request is answered with `-ERR <text>` and changes nothing."""


async def answer(server: Server, session: ClientSession, name: bytes, request: Request) -> Answer:
    """Run one session command with its upper-case name. Errors of the store pass through."""
    known = _COMMANDS.get(name)
    if known is None:
        return unknown(request[0])
    arity, run = known
    if not has_arity(arity, request):
        return wrong_number(name)
    try:
        made = run(server, session, request)
        return await made if isinstance(made, Awaitable) else made
    except _RefusedError as refused:
        return Failure("ERR", str(refused))


def unknown(name: bytes) -> Failure:
    """Return the error for an unknown command, with the supported ones."""
    return Failure("ERR", f"unknown command '{text_of(name)}'; supported are {_OFFERED}")


def _ping(server: Server, session: ClientSession, request: Request) -> Answer:
    if len(request) > 2:
        return wrong_number(b"ping")
    return request[1] if len(request) == 2 else Simple("PONG")


def _echo(server: Server, session: ClientSession, request: Request) -> Answer:
    return request[1]


def _quit(server: Server, session: ClientSession, request: Request) -> Answer:
    session.quitting = True
    return OK


def _reset(server: Server, session: ClientSession, request: Request) -> Answer:
    session.reset()
    return Simple("RESET")


def _auth(server: Server, session: ClientSession, request: Request) -> Answer:
    raise _RefusedError(
        "AUTH <password> called without any password configured: no password is set, so do not send AUTH"
    )


def _client_name(raw: bytes) -> bytes:
    if len(raw) > CLIENT_NAME_BYTES_MAX or any(not 33 <= char <= 126 for char in raw):
        raise _RefusedError(
            "Client names cannot contain spaces, newlines or special characters,"
            f" nor be longer than {CLIENT_NAME_BYTES_MAX} bytes"
        )
    return raw


def _hello(server: Server, session: ClientSession, request: Request) -> Answer:
    resp3, name, rest = session.resp3, session.name, iter(request[1:])
    for place, word in enumerate(rest):
        option = word.upper()
        if place == 0:
            if word not in (b"2", b"3"):
                return Failure("NOPROTO", "unsupported protocol version: expected 2 or 3")
            resp3 = word == b"3"
        elif option == b"SETNAME" and (given := next(rest, None)) is not None:
            name = _client_name(given)
        elif option == b"AUTH":
            return _auth(server, session, request)
        else:
            raise _RefusedError(f"Syntax error in HELLO option '{text_of(word)}'")
    session.resp3, session.name = resp3, name
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
        raise _RefusedError(
            f"invalid DB index: '{text_of(wanted)}' is neither a number of 0 or above nor a keyspace's name"
            f" (1 to {KEYSPACE_BYTES_MAX} of a-z, 0-9 and -, not starting with -)"
        )
    if wanted.isdigit():
        number = int(wanted)
        name = b"db%d" % number if number else b"default"
        if len(name) > KEYSPACE_BYTES_MAX:
            raise _RefusedError("DB index is out of range")
        session.keyspace, session.database = name, b"%d" % number
    else:
        session.keyspace = session.database = wanted
    return OK


def _client(server: Server, session: ClientSession, request: Request) -> Answer:
    what, rest = request[1].upper(), request[2:]
    if what == b"ID" and not rest:
        return session.id
    if what == b"GETNAME" and not rest:
        return session.name or None
    if what == b"SETNAME" and len(rest) == 1:
        session.name = _client_name(rest[0])
        return OK
    if what == b"SETINFO" and len(rest) == 2:
        return _client_info(session, rest[0].upper(), rest[1])
    if what in (b"LIST", b"INFO"):
        chosen = [session] if what == b"INFO" else server.sessions()
        return "".join(f"{one.line()}\n" for one in chosen).encode()
    raise _RefusedError(
        f"unknown subcommand or wrong number of arguments for '{text_of(request[1])}';"
        " expected ID, GETNAME, SETNAME, SETINFO, LIST and INFO"
    )


def _client_info(session: ClientSession, key: bytes, value: bytes) -> Answer:
    if key not in (b"LIB-NAME", b"LIB-VER"):
        raise _RefusedError(f"Unrecognized option '{text_of(key)}': expected LIB-NAME or LIB-VER")
    session.library[key] = _client_name(value)
    return OK


def _info(server: Server, session: ClientSession, request: Request) -> Answer:
    if len(request) > ARGUMENTS_MAX:
        raise _RefusedError(f"{len(request) - 1} sections; at most {ARGUMENTS_MAX - 1} are allowed")
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
            raise _RefusedError(f"{len(names)} names; at most {COMMAND_NAMES_MAX} are allowed")
        return [_describe(name) for name in names]
    raise _RefusedError(f"unknown subcommand '{text_of(request[1])}'; expected COUNT, LIST, DOCS or INFO")


_TIPS: dict[bytes, tuple[bytes, ...]] = {
    b"DBSIZE": (b"request_policy:all_shards", b"response_policy:agg_sum"),
    b"SCAN": (b"nondeterministic_output", b"request_policy:special"),
    b"PING": (b"request_policy:all_shards", b"response_policy:all_succeeded"),
    b"INFO": (b"nondeterministic_output", b"request_policy:all_shards", b"response_policy:special"),
}
"""Where clients of the cluster protocol send commands without keys (Redis documentation, "Command tips")."""


def _describe(name: bytes) -> Answer:
    """Return what clients need to find keys and members: [name, arity, flags, first key, last key, step, ACL
    categories, tips, key specifications, subcommands]."""
    if name not in OFFERED:
        return None
    flags = [Simple("write" if is_write(name) or name in (b"MSET", ONCE) else "readonly")]
    arity, *places = _shape(name)
    tips = [Simple(tip.decode()) for tip in _TIPS.get(name, ())]
    return [name.lower(), arity, flags, *places, [], tips, [], []]


def _shape(name: bytes) -> tuple[int, int, int, int]:
    """Return (arity, first key, last key, step)."""
    if name in MANY_KEYS:
        return (-3, 1, -1, 2) if name == b"MSET" else (-2, 1, -1, 1)
    if name == ONCE:
        return ARITY, 4, 4, 1
    if name in TRANSACTION_ARITIES:
        return (TRANSACTION_ARITIES[name], *((1, -1, 1) if name == b"WATCH" else (0, 0, 0)))
    return (ARITIES[name], 1, 1, 1) if name in ARITIES else (_COMMANDS[name][0], 0, 0, 0)


def _keys(server: Server, session: ClientSession, request: Request) -> Answer:
    raise _RefusedError(
        "KEYS is not supported, since it would block all clients; use SCAN 0 MATCH pattern COUNT 1000"
        " and repeat with the returned cursor until it is 0"
    )


async def _scan(server: Server, session: ClientSession, request: Request) -> Answer:
    cursor, count, options = _number(request[1], "invalid cursor"), SCAN_COUNT_DEFAULT, _scan_options(request)
    if b"COUNT" in options:
        count = min(_number(options[b"COUNT"], "value is not an integer or out of range"), SCAN_COUNT_MAX)
    if count < 1:
        raise _RefusedError("syntax error")
    try:
        pattern = await read_pattern(options.get(b"MATCH", b"*"), server.turn_budget)
        following, keys = await scan(
            server.store,
            server.positions,
            session.keyspace,
            cursor,
            count=count,
            pattern=pattern,
            partitions=_partitions(server, session),
        )
    except ValueError as wrong:
        raise _RefusedError(str(wrong)) from None
    return [b"%d" % following, list(keys if options.get(b"TYPE", b"string").lower() == b"string" else ())]


def _scan_options(request: Request) -> dict[bytes, bytes]:
    """Parse options; each is allowed once, as compiling a pattern is expensive."""
    options: dict[bytes, bytes] = {}
    for at in range(2, len(request), 2):
        word = request[at].upper()
        if word not in (b"MATCH", b"COUNT", b"TYPE") or word in options or at + 1 == len(request):
            raise _RefusedError("syntax error")
        options[word] = request[at + 1]
    return options


def _number(raw: bytes, text: str) -> int:
    try:
        return parse_integer(raw)
    except ValueError:
        raise _RefusedError(text) from None


def _partitions(server: Server, session: ClientSession) -> Sequence[int]:
    """Return the partitions to visit: in the cluster protocol, clients ask each member for its own."""
    return own_partitions(server.store) if session.cluster else range(server.store.partitions)


async def _dbsize(server: Server, session: ClientSession, request: Request) -> Answer:
    """Count a keyspace's entries partition by partition; not atomic, since writes continue."""
    store, total = server.store, 0
    partitions = _partitions(server, session)
    for begin in range(0, len(partitions), DBSIZE_PARTITIONS_AT_ONCE):
        some = partitions[begin : begin + DBSIZE_PARTITIONS_AT_ONCE]
        total += sum(await asyncio.gather(*(store.count(partition, session.keyspace) for partition in some)))
    return total


def _cluster(server: Server, session: ClientSession, request: Request) -> Answer:
    return cluster(server, request) if session.cluster else DISABLED


def _of_cluster(server: Server, session: ClientSession, request: Request) -> Answer:
    """Answer READONLY, READWRITE and ASKING, which change nothing: reads and writes go to owners."""
    return OK if session.cluster else DISABLED


# Name -> (arity as in Redis, handler).
_COMMANDS: dict[bytes, tuple[int, Callable[[Server, ClientSession, Request], Answer | Awaitable[Answer]]]] = {
    b"PING": (-1, _ping),
    b"ECHO": (2, _echo),
    b"QUIT": (-1, _quit),
    b"RESET": (1, _reset),
    b"AUTH": (-2, _auth),
    b"HELLO": (-1, _hello),
    b"SELECT": (2, _select),
    b"CLIENT": (-2, _client),
    b"INFO": (-1, _info),
    b"COMMAND": (-1, _command),
    b"KEYS": (-2, _keys),
    b"SCAN": (-2, _scan),
    b"DBSIZE": (1, _dbsize),
    b"CLUSTER": (-2, _cluster),
    b"READONLY": (1, _of_cluster),
    b"READWRITE": (1, _of_cluster),
    b"ASKING": (1, _of_cluster),
}

OFFERED = tuple(sorted({*ARITIES, *MANY_KEYS, *TRANSACTION_ARITIES, *_COMMANDS, ONCE} - {b"AUTH", b"KEYS"}))
_OFFERED = ", ".join(name.decode() for name in OFFERED)
