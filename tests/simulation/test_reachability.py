"""Which members a master may take for lost."""

from types import SimpleNamespace
from typing import Any, cast

from tests.simulation.reachability import DECIDED_SECONDS, LEASE_PART, Reachability

LEASE_SECONDS = 2.0
SILENT_SECONDS = LEASE_SECONDS * LEASE_PART
PLACE = "demo-0"


def scene() -> tuple[Any, Reachability]:
    machine = SimpleNamespace(up=True, deleting=False)
    world = SimpleNamespace(
        profile=SimpleNamespace(shortest_lease_seconds=LEASE_SECONDS),
        clock=SimpleNamespace(now=0.0),
        kubelet=SimpleNamespace(machines={PLACE: machine}, ended={}),
        asked=[],
        heard=[],
        exchanged=[],
    )
    return world, Reachability(cast(Any, world))


def ask(world: Any, epoch: int, now: float, *, answered: bool) -> None:
    world.clock.now = now
    for each in world.asked:
        each(epoch)
    for each in world.heard if answered else ():
        each(PLACE, epoch, now)


def test_a_later_master_stores_what_an_earlier_one_decided_while_a_member_was_silent() -> None:
    world, reachability = scene()
    ask(world, 1, 0.0, answered=True)
    assert not reachability.may_be_lost(PLACE, 1)
    ask(world, 1, SILENT_SECONDS, answered=False)
    ask(world, 2, SILENT_SECONDS + 5, answered=True)
    assert reachability.may_be_lost(PLACE, 2)
    for step in range(int(DECIDED_SECONDS) + 1):
        ask(world, 2, SILENT_SECONDS + 5 + step, answered=True)
    assert not reachability.may_be_lost(PLACE, 2)


def test_a_member_is_not_silent_while_no_master_asks() -> None:
    world, reachability = scene()
    ask(world, 1, 0.0, answered=True)
    ask(world, 2, 10 * LEASE_SECONDS, answered=True)
    assert not reachability.may_be_lost(PLACE, 2)
