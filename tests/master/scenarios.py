"""Changes of a small cluster, each by one kind of step: how it is prepared, what begins it, what it makes.

`begin` may be called again: after a crash the same wish still stands.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stele.core.control.decide import FORMING_SECONDS
from stele.core.control.failure_detector import Timing
from stele.core.control.member_tls import WantedTls
from stele.core.control.requests import NamedHandover
from stele.core.placement.migration import Type
from stele.core.security.level import InternalTls
from stele.core.table.groups import DesiredGroup
from tests.master.checks import absent, check_state, lost_partitions, served
from tests.master.fuse import Crash, Fuse
from tests.master.harness import Harness

TIMING = Timing(heartbeat=1.0, lease=3.0, grace=6.0)
QUIET_TICKS = 5
GROUP = (DesiredGroup("a", 2, 3),)


@dataclass(frozen=True)
class Scenario:
    """`desired` are those of the first cluster, `before` what happens to it, `begin` the change itself."""

    members: int
    partitions: int
    replicas: int
    begin: Callable[[Harness], None]
    makes: Type | None = None
    before: Callable[[Harness], None] | None = None
    forms: bool = True


def _drain(index: int) -> Callable[[Harness], None]:
    def begin(harness: Harness) -> None:
        harness.world.drained = {harness.table().partitions[0].replicas[index] or 0}
        harness.change_spec(members=2)

    return begin


def _change_spec(**changes: object) -> Callable[[Harness], None]:
    return lambda harness: harness.change_spec(**changes)


def _lite(*members: int) -> Callable[[Harness], None]:
    def begin(harness: Harness) -> None:
        harness.world.lite = set(members)

    return begin


def _owner_leaves(harness: Harness) -> None:
    harness.world.drained = {harness.table().partitions[0].owner or 0}
    harness.change_spec(members=1, replicas=1)


def _weigh_more(harness: Harness) -> None:
    """Each member has all; the second one is to own three of four."""
    harness.world.weights = {1: 3}


def _hand_over(harness: Harness) -> None:
    owner = harness.table().partitions[0].owner
    asked = harness.world.asked.get("by-hand")
    if asked is None:
        harness.world.ask("by-hand", uid="u", handover=NamedHandover(f"demo-{owner}"))


def _backup_lost(harness: Harness) -> None:
    """The row gets an empty index before its last one; its place is not kept for ever."""
    harness.kill(harness.table().partitions[0].replicas[1] or 0)


def _kill_owner(harness: Harness) -> None:
    harness.kill(harness.table().partitions[0].owner or 0)


def _outdate(harness: Harness) -> None:
    harness.world.outdate()


def _stop(harness: Harness) -> None:
    """A member says that it stops, and ends once it may."""
    harness.world.volumes[1].stopping = True


def _group(harness: Harness) -> None:
    """A keyspace with more replicas than the others, and than there are members."""
    harness.change_spec(groups=GROUP)


def _tls(level: InternalTls) -> Callable[[Harness], None]:
    return _change_spec(member_tls=WantedTls(level, may_fall=True))


def _join_over_tls(harness: Harness) -> None:
    harness.change_spec(members=3, member_tls=WantedTls(InternalTls.REQUIRED))


def _nothing(harness: Harness) -> None:
    return


SCENARIOS: dict[str, Scenario] = {
    "first assignment": Scenario(2, 2, 2, _nothing, forms=False),
    "move of the owner": Scenario(3, 1, 2, _drain(0), Type.MOVE),
    "move of a backup": Scenario(3, 1, 2, _drain(1), Type.MOVE),
    "copy": Scenario(3, 1, 1, _change_spec(replicas=2), Type.COPY),
    "shift up": Scenario(3, 1, 3, _nothing, Type.SHIFT_UP, _backup_lost),
    "swap of an owner that leaves": Scenario(2, 1, 2, _owner_leaves, Type.SWAP),
    "swap for balance": Scenario(2, 4, 2, _weigh_more, Type.SWAP),
    "hand-over by a user": Scenario(3, 2, 2, _hand_over),
    "shift down": Scenario(1, 2, 1, _change_spec(members=2, replicas=2), Type.SHIFT_DOWN),
    "clear": Scenario(2, 1, 2, _change_spec(replicas=1), Type.CLEAR),
    "promotion": Scenario(3, 1, 2, _kill_owner),
    "promotion of a lite member": Scenario(3, 1, 2, _lite(), None, _lite(2)),
    "emptying for a lite member": Scenario(3, 1, 2, _lite(0), Type.MOVE),
    "group": Scenario(3, 1, 1, _change_spec(groups=(DesiredGroup("a", 2, 2), DesiredGroup("b", 1, 3)))),
    "copy in a group": Scenario(2, 1, 1, _change_spec(members=3, groups=GROUP), Type.COPY, _group),
    "cluster state": Scenario(3, 1, 2, _change_spec(state="Passive")),
    "TLS among members": Scenario(3, 1, 2, _tls(InternalTls.REQUIRED)),
    "no TLS among members": Scenario(3, 1, 2, _tls(InternalTls.OFF), None, _tls(InternalTls.REQUIRED)),
    "TLS among members while one joins": Scenario(2, 2, 2, _join_over_tls),
    "rolling update": Scenario(2, 1, 2, _outdate),
    "planned stop": Scenario(3, 2, 2, _stop),
    "scale up": Scenario(2, 3, 2, _change_spec(members=3), Type.MOVE),
    "scale down": Scenario(3, 3, 2, _change_spec(members=2), Type.MOVE),
}


async def prepared(scenario: Scenario) -> Harness:
    """The cluster just before the change, with a fresh master that has not looked at it yet."""
    harness = Harness(scenario.members, scenario.partitions, scenario.replicas, timing=TIMING)
    harness.world.restart_seconds_max = TIMING.grace
    if scenario.forms:
        await harness.until_quiet(quiet=QUIET_TICKS)
    if scenario.before is not None:
        scenario.before(harness)
        await harness.ticks(8)
    await harness.loop.close()
    return harness


async def begun(name: str) -> Harness:
    """The change has begun under that master."""
    harness = await prepared(SCENARIOS[name])
    harness.start_master()
    SCENARIOS[name].begin(harness)
    return harness


async def finish(harness: Harness) -> None:
    """Whatever happened is over: nothing is left to be done, and all is as it should be."""
    await _quiet(harness)
    if harness.fuse.left is not None:
        # It may have burnt down just now: then there is more to wait for.
        await _quiet(harness)
    check_state(harness)


async def _quiet(harness: Harness) -> None:
    """Longer than any place is kept, and than a new cluster waits, when somebody is missing."""
    await harness.until_quiet(quiet=QUIET_TICKS)
    if absent(harness):
        forming = not any(row.version for row in harness.table().partitions)
        await pass_seconds(harness, int(FORMING_SECONDS if forming else TIMING.silence + TIMING.grace) + 1)
        await harness.until_quiet(quiet=QUIET_TICKS)


async def heal(harness: Harness) -> None:
    """Everybody comes back, and the cluster is to be Active again."""
    harness.change_spec(state="Active")
    harness.net.cut.clear()
    for index, pod in list(harness.world.pods.items()):
        if pod.ended or not harness.world.volumes[index].alive:
            harness.revive(index)
    await finish(harness)
    assert not lost_partitions(harness)
    assert served(harness) == set(range(len(harness.table().partitions)))


async def pass_seconds(harness: Harness, seconds: int) -> None:
    """Time goes by, one heartbeat after the other."""
    await harness.ticks(seconds, 1.0)


async def run(scenario: Scenario, fuse: Fuse) -> Harness:
    """The change with a fuse; a master that dies is followed by another. Returns when all is quiet."""
    harness = await prepared(scenario)
    harness.start_master(fuse)
    try:
        scenario.begin(harness)
        await finish(harness)
    except Crash:
        await harness.restart()
        await finish(harness)
    return harness


async def steps_of(scenario: Scenario) -> int:
    """Writes, and exchanges that bring something, from the beginning to the end of the change."""
    harness = await run(scenario, Fuse())
    count = harness.fuse.count
    await harness.loop.close()
    return count
