"""A member's lock for a change of the cluster state ends by itself: nothing is left stuck."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from stele.core.control import commands as m
from stele.member.control.state_lock import LOCK_SECONDS, StateLock

LOCK = m.LockState("c1", "Passive", 7, 3)
BEGIN = m.StartTabletCopy("m1", 0, 1, 0)


@dataclass
class Node:
    """What a lock looks at: the table, the clock, and replicas without anything under way."""

    now: float = 100.0
    table: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(stamp=7, member_list_version=3, epoch=1)
    )
    replicas: dict[int, Any] = field(default_factory=dict)


async def test_a_lock_that_is_not_asked_for_again_expires() -> None:
    node = Node()
    lock = StateLock(cast("Any", node), lambda: node.now)
    assert (await lock.lock(LOCK)).code == "OK"
    assert lock.refuses(BEGIN)
    node.now += LOCK_SECONDS - 1
    assert (await lock.lock(LOCK)).code == "OK"
    node.now += LOCK_SECONDS - 1
    assert lock.refuses(BEGIN), "it was asked for again"
    node.now += 1
    assert not lock.refuses(BEGIN)
