"""Requests of a connection in a keyspace with `mode: Invalidation`: this member's entries answer them."""

from collections.abc import Callable, Sequence

from stele.core.kv.commands import REPLY_BYTES_MAX, Failure, Reply
from stele.member.resp.multi_key import is_keyed
from stele.member.resp.session import ClientSession, Server, is_local
from stele.member.resp.transactions import Queue
from stele.ports.local_caches import LOCAL
from stele.wire.resp import Request

_NEED_PARTITIONS = (b"WATCH", b"SCAN")

WATCHES_ELSEWHERE = Failure(
    "EXECABORT", "a transaction in a keyspace with mode Invalidation watches no keys: UNWATCH first"
)
TOO_LONG = Failure(
    "EXECABORT",
    f"transaction's replies may exceed {REPLY_BYTES_MAX} bytes; nothing was done: read fewer keys",
)


def runs_here(server: Server, session: ClientSession, name: bytes) -> bool:
    """Return whether a request with this upper-case name is about this member's entries."""
    return is_local(server, session) and (is_keyed(name) or name in _NEED_PARTITIONS)


async def ask_local(
    server: Server,
    session: ClientSession,
    commands: Sequence[Request],
    room: int,
    *,
    tracks: bool,
    whole: bool = False,
) -> list[Reply]:
    """Run commands as `LocalCaches.execute` does; the client's near cache hears of changes if it `tracks`."""
    store, tracking, keys = server.store, session.tracking, list[bytes]()
    track = None
    if tracking is not None:
        keys = tracking.keys(commands) if tracks else []
        track = tracking.begin(store, LOCAL, keys)
    writer = 0 if track is None else track.writer
    replies = await store.local.execute(
        session.keyspace, commands, session.misses, room, writer=writer, whole=whole
    )
    if tracking is not None and keys and not store.local.covered:
        tracking.invalidate(keys)
    return replies


async def exec_local(
    server: Server,
    session: ClientSession,
    queue: Queue,
    failure: Callable[[BaseException], Failure],
    *,
    tracks: bool,
) -> Reply:
    """Run a transaction: no other request runs in between."""
    if session.transaction.watches:
        return WATCHES_ELSEWHERE
    commands = queue.commands
    if not commands:
        return queue.joined([])
    try:
        replies = await ask_local(server, session, commands, REPLY_BYTES_MAX, tracks=tracks, whole=True)
    except Exception as error:  # noqa: BLE001  every request gets an answer, see RespServer.failure
        return failure(error)
    return queue.joined(replies) if replies else TOO_LONG
