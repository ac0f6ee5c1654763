"""Waits until a tablet's data has what its log had."""

import asyncio

from stele.core.tablet.owner import Phase
from stele.member.replication.replica import Replica

APPLIED_SECONDS_MAX = 5.0
"""How long events of a row wait until what was logged before is applied here, or the new owner serves."""
_LOOK_SECONDS = 0.01


async def until_applied(replica: Replica | None) -> None:
    """Wait until this member has applied its present log or, as the owner, until it serves; at most
    APPLIED_SECONDS_MAX, and not for a tablet that does not take part in replication."""
    loop = asyncio.get_running_loop()
    end, last = loop.time() + APPLIED_SECONDS_MAX, (0, 0) if replica is None else replica.tablet.log.last
    while replica is not None and replica.ready and loop.time() < end:
        if replica.owner is None and replica.tablet.log.applied >= last:
            return
        if replica.owner is not None and replica.owner.phase is Phase.SERVING:
            return
        await asyncio.sleep(_LOOK_SECONDS)
