"""WAIT: until what the connection wrote is committed, or a time is over (Redis documentation, "WAIT").

Only writes of Async keyspaces are answered before they are committed, so only those are asked for.
"""

import asyncio
from math import inf

from stele.core.kv.written import WrittenOperations, held_command
from stele.errors import SteleError
from stele.member.resp.session import ClientSession, RefusedError, Server, parse_number
from stele.wire.resp import Answer, Request

ASK_SECONDS_MIN = 0.001
ASK_SECONDS_MAX = 0.05
"""Interval of questions to the owners: it doubles from the first to the second."""

NOW_SECONDS_MAX = 1.0
"""How long owners are waited for when it is asked how many backups hold everything now."""


async def wait(server: Server, session: ClientSession, request: Request) -> Answer:
    """Return how many backups hold what the connection wrote: when it is committed, or time is over."""
    least, timeout_ms = _parse(request)
    return await (_waited(server, session, timeout_ms / 1000 or inf) if least > 0 else _now(server, session))


async def wait_in_transaction(server: Server, session: ClientSession, request: Request) -> Answer:
    """Answer without waiting, as Redis does between MULTI and EXEC."""
    _parse(request)
    return await _now(server, session)


def _parse(request: Request) -> tuple[int, int]:
    least = parse_number(request[1], "value is not an integer or out of range")
    timeout_ms = parse_number(request[2], "timeout is not an integer or out of range")
    if timeout_ms < 0:
        raise RefusedError("timeout is negative")
    return least, timeout_ms


async def _now(server: Server, session: ClientSession) -> int:
    try:
        return (await asyncio.wait_for(_ask(server, session), NOW_SECONDS_MAX))[0]
    except TimeoutError:
        return 0


async def _waited(server: Server, session: ClientSession, seconds: float) -> int:
    now, pause, held = asyncio.get_running_loop().time, ASK_SECONDS_MIN, 0
    end = now() + seconds
    while True:
        try:
            left = None if end == inf else max(end - now(), ASK_SECONDS_MIN)
            held, over = await asyncio.wait_for(_ask(server, session), left)
        except TimeoutError:
            return held
        if over or now() + pause >= end or server.stopping or session.connection is None:
            return held
        await asyncio.sleep(pause)
        pause = min(2 * pause, ASK_SECONDS_MAX)


async def _ask(server: Server, session: ClientSession) -> tuple[int, bool]:
    """Return (how many backups hold everything, whether more are of no use to wait for)."""
    written, least = session.written, server.store.backups_min(server.store.group(session.keyspace))
    if written is None:
        return least, True
    asked = written.operations()
    found = await asyncio.gather(*(_held(server, session, written, partition) for partition in asked))
    if written.forgotten or any(each is None for each in found):
        return 0, True
    known = [each for each in found if each is not None]
    return min([least, *(held for held, _ in known)]), all(committed for _, committed in known)


async def _held(
    server: Server, session: ClientSession, written: WrittenOperations, partition: int
) -> tuple[int, bool] | None:
    operations = written.operations()[partition]
    try:
        command = held_command(operations)
        (reply,) = await server.store.execute(partition, session.keyspace, [command])
    except SteleError:
        return 0, False
    if not isinstance(reply, list):
        return None
    held, committed = reply
    assert isinstance(held, int)
    if committed:
        written.committed(partition, operations)
    return held, bool(committed)
