"""What a member keeps between exchanges with masters, and says of its process."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from stele.core.control import commands as m
from stele.member.control.state_lock import LOCK_SECONDS, StateLock
from tests.member.harness.single_member import SingleMember

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


async def test_a_process_names_the_time_of_its_first_answer(made: SingleMember) -> None:
    """Not of its start, which the kubelet may note later; and it names that time in all answers."""
    now = [100.0]
    made.node.background.wall = lambda: now[0]
    made.exchange._reporter._first_reply_unix_seconds = None
    now[0] = 103.5
    assert (await made.ask()).started_seconds == 103.5
    now[0] = 90.0
    assert (await made.ask()).started_seconds == 103.5
