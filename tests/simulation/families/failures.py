"""Profiles in which parts of the cluster fail in a way that is rare in a swarm."""

import random
from dataclasses import replace

from stele.member.settings import Fsync
from tests.simulation.families.swarm import busy, knobs_with, swarm
from tests.simulation.kinds import CHANGE_DETECTION, NODES, OF_THE_MASTER, STOPS, STRIKES
from tests.simulation.profile import LOCAL, MOVABLE, Families, Profile


def _leases(seed: int) -> Profile:
    """Owners that the master does not see while clients do: leases decide what is read."""
    chance = random.Random(f"leases {seed}")
    return replace(
        busy(seed),
        replicas=2,
        keys=3,
        heartbeat_seconds=0.5,
        lease_seconds=2.5,
        chaos_seconds=15.0,
        calm_seconds=2.0,
        faults=chance.choice((("hide from the master",), ("hide from the master", "isolate a member"))),
    )


def _detection(seed: int) -> Profile:
    """The same, while the user changes how long leases last, and those who grant them die and are back."""
    chance = random.Random(f"detection {seed}")
    faults = (CHANGE_DETECTION, CHANGE_DETECTION, "hide from the master")
    return replace(
        _leases(seed),
        chaos_seconds=25.0,
        calm_seconds=chance.choice((0.7, 2.0)),
        faults=(*faults, *chance.choice(((), ("isolate a member",), ("kill a member",), ("delete a pod",)))),
    )


def _damage(seed: int) -> Profile:
    """Volumes that are damaged or lost, one after the other."""
    faults = ("flip a bit", "flip a bit", "wipe a volume", "kill a member")
    return replace(swarm(seed), replicas=2, chaos_seconds=25.0, calm_seconds=1.0, faults=faults, rates={})


def _power(seed: int) -> Profile:
    """Power is lost while writes are not synced: of one copy, of all, or of the one that is left."""
    chance = random.Random(f"power {seed}")
    deaths = ("cut the power", "cut the power", "keep a member down", "kill a member at a step")
    return replace(
        busy(seed),
        replicas=chance.choice((1, 2, 2)),
        chaos_seconds=15.0,
        calm_seconds=chance.choice((0.3, 1.0)),
        faults=(*deaths, *chance.choice(((), ("scale",), ("isolate a member", "scale")))),
        fsync=chance.choice((Fsync.INTERVAL, Fsync.NEVER)),
    )


def _stops(seed: int) -> Profile:
    """Members that are stopped under load: rows of one, of two, and others that die just then."""
    chance = random.Random(f"stops {seed}")
    return replace(
        busy(seed),
        replicas=chance.choice((1, 2, 2)),
        heartbeat_seconds=0.5,
        lease_seconds=chance.choice((1.5, 2.5)),
        chaos_seconds=20.0,
        calm_seconds=1.5,
        faults=("delete a pod", *STOPS, *chance.choice(((), ("keep a member down",), ("kill a member",)))),
        fsync=chance.choice((Fsync.ALWAYS, Fsync.ALWAYS, Fsync.INTERVAL)),
    )


def _strikes(seed: int) -> Profile:
    """Migrations all the time, and their other side is struck at the worst moment."""
    chance = random.Random(f"strikes {seed}")
    return replace(
        busy(seed),
        replicas=chance.choice((1, 2)),
        grace_seconds=0,
        chaos_seconds=25.0,
        calm_seconds=1.5,
        faults=("scale", "drain a member", "scale", *STRIKES),
    )


def _nodes(seed: int) -> Profile:
    """Nodes that are lost while what runs there may run on, and members that are replaced."""
    chance = random.Random(f"nodes {seed}")
    others = ("kill a member", "isolate a member", "kill the master", "scale", "drain a member")
    return replace(
        busy(seed),
        members=4,
        replicas=chance.choice((2, 2, 3)),
        heartbeat_seconds=0.5,
        lease_seconds=chance.choice((5.0, 10.0)),
        grace_seconds=chance.choice((0, 5)),
        chaos_seconds=chance.choice((25.0, 40.0)),
        calm_seconds=chance.choice((1.5, 4.0)),
        faults=(*NODES, *NODES[:1] * 2, *chance.sample(others, 2)),
        ending="",
        volumes=chance.choice((LOCAL, LOCAL, MOVABLE)),
        replace_after_seconds=chance.choice((0, 0, 10)),
    )


def _takeovers(seed: int) -> Profile:
    """Copies all the time, while nothing but the master fails, again and again."""
    chance = random.Random(f"takeovers {seed}")
    return replace(
        swarm(seed),
        members=chance.choice((3, 4)),
        replicas=chance.choice((1, 2, 2)),
        partitions=chance.choice((12, 48)),
        clients=2,
        keys=6,
        think_seconds=(0.05, 0.4),
        heartbeat_seconds=0.3,
        lease_seconds=1.5,
        grace_seconds=0,
        chaos_seconds=40.0,
        calm_seconds=chance.choice((0.5, 1.5)),
        faults=("scale", "drain a member", *OF_THE_MASTER * 2),
        rates={"copy late": 0.8},
        parallel=chance.choice((2, 10)),
        knobs=knobs_with(swarm(seed).knobs, LOG_RETAINED_BYTES=0, FLUSH_SECONDS=0.5),
        ending="",
    )


FAILURES: Families = {
    "leases": _leases,
    "detection": _detection,
    "strikes": _strikes,
    "damage": _damage,
    "power": _power,
    "stops": _stops,
    "takeovers": _takeovers,
    "nodes": _nodes,
}
