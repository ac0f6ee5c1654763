"""Measures the log bytes that only copies and destinations need, and unpins them beyond a limit."""

import logging
from collections.abc import Callable, Iterable

from stele.core.copy.waves import TABLET_SHARE
from stele.core.tablet.log import over_limit
from stele.member.replication.replica import Replica

log = logging.getLogger("stele.retention")


def pinned_bytes(replica: Replica, session_pin: int) -> int:
    """Return the bytes that could be trimmed if no copy session and no learner needed them."""
    after = min(session_pin, replica.trim_limit)
    return replica.tablet.log.bytes_between(after, min(replica.row_limit, replica.flushed))


def unpin_logs(
    replicas: Iterable[Replica], pins: Callable[[int], int], unpin: Callable[[int], None], space_bytes: int
) -> int:
    """Unpin logs beyond `space_bytes` of all, and TABLET_SHARE of it of each; return the bytes kept.

    `pins` returns the last operation of a partition that no session needs; `unpin` releases its log.
    """
    held = {replica.partition: replica for replica in replicas if replica.ready}
    pinned = {p: size for p, replica in held.items() if (size := pinned_bytes(replica, pins(p)))}
    over = over_limit(pinned, int(space_bytes * TABLET_SHARE), space_bytes)
    for partition in over:
        log.warning(
            "partition %d: a copy or a destination alone keeps %d bytes of its log, %d are kept so in all: "
            "they go, and the destination needs a copy again",
            partition,
            pinned[partition],
            sum(pinned.values()),
        )
        unpin(partition)
        owner = held[partition].owner
        if owner is not None:
            owner.unpin()
    return sum(size for partition, size in pinned.items() if partition not in over)
