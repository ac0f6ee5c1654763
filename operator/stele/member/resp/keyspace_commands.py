"""Commands about all entries of a keyspace: SCAN, DBSIZE, FLUSHDB, FLUSHALL."""

import asyncio
from collections.abc import Sequence
from itertools import chain

from stele.core.kv.commands import Simple
from stele.core.kv.keyspaces import homeless_text
from stele.errors import Unavailable
from stele.member.resp.cluster_commands import own_partitions
from stele.member.resp.flush import EVERY_KEYSPACE, flush
from stele.member.resp.match import read_pattern
from stele.member.resp.scan import SCAN_COUNT_DEFAULT, SCAN_COUNT_MAX, scan
from stele.member.resp.session import (
    ClientSession,
    Command,
    RefusedError,
    Server,
    is_local,
    parse_number,
)
from stele.wire.resp import Answer, Request

DBSIZE_PARTITIONS_AT_ONCE = 64

OK = Simple("OK")


def _keys(server: Server, session: ClientSession, request: Request) -> Answer:
    raise RefusedError(
        "KEYS is not supported, since it would block all clients; use SCAN 0 MATCH pattern COUNT 1000"
        " and repeat with the returned cursor until it is 0"
    )


async def _scan(server: Server, session: ClientSession, request: Request) -> Answer:
    cursor, options = parse_number(request[1], "invalid cursor"), _scan_options(request)
    count = _scan_count(options)
    try:
        pattern = await read_pattern(options.get(b"MATCH", b"*"), server.turn_budget)
        following, keys = await scan(
            server.store,
            server.positions,
            session.keyspace,
            cursor,
            count=count,
            pattern=pattern,
            partitions=_partitions(server, session, session.keyspace),
        )
    except ValueError as wrong:
        raise RefusedError(str(wrong)) from None
    finally:
        _see_all(session)
    return [b"%d" % following, list(keys if options.get(b"TYPE", b"string").lower() == b"string" else ())]


def _scan_options(request: Request) -> dict[bytes, bytes]:
    """Parse options; each is allowed once, as compiling a pattern is expensive."""
    options: dict[bytes, bytes] = {}
    for at in range(2, len(request), 2):
        word = request[at].upper()
        if word not in (b"MATCH", b"COUNT", b"TYPE") or word in options or at + 1 == len(request):
            raise RefusedError("syntax error")
        options[word] = request[at + 1]
    return options


def _scan_count(options: dict[bytes, bytes]) -> int:
    if b"COUNT" not in options:
        return SCAN_COUNT_DEFAULT
    count = parse_number(options[b"COUNT"], "value is not an integer or out of range")
    if count < 1:
        raise RefusedError("syntax error")
    return min(count, SCAN_COUNT_MAX)


def _partitions(server: Server, session: ClientSession, keyspace: bytes) -> Sequence[int]:
    """Return the partitions of a keyspace, or of all, to visit.

    In the cluster protocol, clients ask each member for its own. Raises Unavailable while there are none.
    """
    store = server.store
    groups = store.groups() if keyspace == EVERY_KEYSPACE else [store.group(keyspace)]
    if not any(groups):
        raise Unavailable(homeless_text(keyspace))
    if session.cluster:
        return [partition for group in groups for partition in own_partitions(store, group)]
    return groups[0] if len(groups) == 1 else list(chain(*groups))


def _see_all(session: ClientSession) -> None:
    """Make later reads of the connection see at least what a command has seen in all partitions."""
    if session.seen is not None:
        session.seen.forget(asyncio.get_running_loop().time())


async def _dbsize(server: Server, session: ClientSession, request: Request) -> Answer:
    """Count a keyspace's entries partition by partition; not atomic, since writes continue.

    With mode Invalidation, this member's entries are counted.
    """
    store, total = server.store, 0
    if is_local(server, session):
        return store.local.count(session.keyspace)
    partitions = _partitions(server, session, session.keyspace)
    for begin in range(0, len(partitions), DBSIZE_PARTITIONS_AT_ONCE):
        some = partitions[begin : begin + DBSIZE_PARTITIONS_AT_ONCE]
        total += sum(await asyncio.gather(*(store.count(partition, session.keyspace) for partition in some)))
    _see_all(session)
    return total


async def _flushdb(server: Server, session: ClientSession, request: Request) -> Answer:
    return await _flush(server, session, request, session.keyspace)


async def _flushall(server: Server, session: ClientSession, request: Request) -> Answer:
    return await _flush(server, session, request, EVERY_KEYSPACE)


async def _flush(server: Server, session: ClientSession, request: Request, keyspace: bytes) -> Answer:
    """Clear a keyspace; ASYNC and SYNC are the same, since clearing a partition takes one operation."""
    if len(request) > 2 or (len(request) == 2 and request[1].upper() not in (b"ASYNC", b"SYNC")):
        raise RefusedError("syntax error")
    name = request[0].decode("ascii", "replace").upper()
    local = server.store.local
    for each in [each for each in local.keyspaces if keyspace in (each, EVERY_KEYSPACE)]:
        await local.clear(each)
    if keyspace in local.keyspaces:
        return OK
    await flush(server.store, name, keyspace, _partitions(server, session, keyspace))
    _see_all(session)
    return OK


# Name -> (arity as in Redis, handler).
KEYSPACE_COMMANDS: dict[bytes, tuple[int, Command]] = {
    b"KEYS": (-2, _keys),
    b"SCAN": (-2, _scan),
    b"DBSIZE": (1, _dbsize),
    b"FLUSHDB": (-1, _flushdb),
    b"FLUSHALL": (-1, _flushall),
}
