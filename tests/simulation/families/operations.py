"""Profiles in which users change the cluster, move partitions and restart members."""

import random
from dataclasses import replace

from stele.core.formats import UNSTATED
from stele.member.settings import Fsync
from tests.simulation.families.swarm import busy, swarm
from tests.simulation.kinds import (
    CHANGE_ROLE,
    FAULTS,
    HALTS,
    HAND_OVER,
    MOVES,
    PLANNED_STOP,
    QUARANTINE,
    RATES,
    SLOW_LINK,
    UPDATES,
    UPGRADES,
    USERS_MOVES,
)
from tests.simulation.profile import Families, Profile


def _migrations(seed: int) -> Profile:
    """Many partitions that users move all the time, few operations, and now and then another fault."""
    chance = random.Random(f"migrations {seed}")
    heartbeat = chance.choice((0.3, 0.5))
    rare = chance.choice((0.0, 0.1, 0.3))
    return replace(
        swarm(seed),
        members=chance.choice((3, 4, 5)),
        replicas=chance.choice((1, 2, 2, 3)),
        partitions=chance.choice((64, 128, 256)),
        clients=1,
        keys=6,
        think_seconds=(0.1, 0.5),
        heartbeat_seconds=heartbeat,
        lease_seconds=heartbeat * 5,
        grace_seconds=0,
        retention_seconds=0,
        chaos_seconds=chance.choice((60.0, 120.0)),
        calm_seconds=chance.choice((0.3, 1.0)),
        faults=USERS_MOVES * 8
        + tuple(each for each in FAULTS if each not in HALTS and chance.random() < rare),
        rates={name: most * 0.2 * chance.random() for name, most in RATES.items() if chance.random() < rare},
        parallel=chance.choice((5, 10, 40)),
    )


def _moves(seed: int) -> Profile:
    """Users who name replicas to move, and cancel that, while copies take long and members fail."""
    chance = random.Random(f"moves of users {seed}")
    others = ("kill a member", "isolate a member", "kill the master", "second master", "pause migrations")
    more = (*others, "scale", "drain a member", "change replicas", "cancel the plan", HAND_OVER)
    return replace(
        busy(seed),
        members=4,
        replicas=chance.choice((1, 2, 3)),
        partitions=chance.choice((4, 12)),
        chaos_seconds=25.0,
        calm_seconds=chance.choice((0.5, 1.5)),
        faults=(*MOVES * 3, *chance.sample(more, 3)),
        rates={"copy late": chance.choice((0.0, 0.5))},
        parallel=chance.choice((1, 5)),
    )


def _plans(seed: int) -> Profile:
    """Plans that take long, while rows lose copies and copies fail."""
    chance = random.Random(f"plans {seed}")
    return replace(
        swarm(seed),
        members=chance.choice((4, 5)),
        replicas=chance.choice((2, 3)),
        partitions=48,
        clients=1,
        keys=6,
        think_seconds=(0.1, 0.5),
        heartbeat_seconds=0.3,
        lease_seconds=1.5,
        grace_seconds=chance.choice((0, 5)),
        chaos_seconds=40.0,
        calm_seconds=1.5,
        faults=("scale", *("cut both ways", "cut one way", "disk errors", "flip a bit of a copy") * 2),
        rates={"copy late": 0.5},
        parallel=1,
    )


def _planned(seed: int) -> Profile:
    """Members that announce their stop under load, one after the other, and what else happens then."""
    chance = random.Random(f"planned stops {seed}")
    others = ("kill the master", "kill a member", "isolate a member", "scale", "drain a member")
    return replace(
        busy(seed),
        replicas=chance.choice((1, 2, 2, 2)),
        chaos_seconds=25.0,
        calm_seconds=chance.choice((1.5, 3.0)),
        faults=(*(PLANNED_STOP,) * 3, *(name for name in others if chance.random() < 0.3)),
    )


def _updates(seed: int) -> Profile:
    """Members that are restarted one after the other, while others fail and users change their minds."""
    chance = random.Random(f"updates {seed}")
    others = ("kill a member", "isolate a member", "keep a member down", "delete a pod", "second master")
    more = (
        *others,
        "kill the master",
        "kill the master at a step",
        "change state",
        "pause migrations",
        "scale",
    )
    return replace(
        busy(seed),
        members=chance.choice((3, 3, 4)),
        replicas=chance.choice((1, 2, 2, 3)),
        chaos_seconds=chance.choice((30.0, 45.0)),
        calm_seconds=chance.choice((3.0, 5.0)),
        faults=(*UPDATES, *UPDATES[:1] * 3, *chance.sample(more, 3)),
        ending="",
    )


def _states(seed: int) -> Profile:
    """Users change the cluster state and the roles of members, while members go and come back."""
    chance = random.Random(f"states {seed}")
    others = ("kill a member", "isolate a member", "delete a pod", "kill the master")
    return replace(
        swarm(seed),
        members=chance.choice((3, 4, 5)),
        replicas=chance.choice((1, 2, 2, 3)),
        grace_seconds=chance.choice((0, 5)),
        chaos_seconds=chance.choice((40.0, 80.0)),
        calm_seconds=chance.choice((3.0, 6.0)),
        faults=(
            "change state",
            CHANGE_ROLE,
            "keep a member down",
            *chance.sample(others, 3),
            *chance.choice(((), ("scale",))),
        ),
        ending=chance.choice(("", "", "stay dead")),
    )


def _recoveries(seed: int) -> Profile:
    """Clusters that are deleted with much under way, and recovered from their volumes."""
    chance = random.Random(f"recoveries {seed}")
    others = ("kill a member", "cut both ways", "slow a place", "kill the master", "pause a member")
    more = (*others, "cut the power", "change replicas", HAND_OVER, "second master", "delete a pod by force")
    return replace(
        busy(seed),
        members=chance.choice((3, 4)),
        replicas=chance.choice((2, 2, 3)),
        partitions=chance.choice((4, 12)),
        chaos_seconds=chance.choice((5.0, 15.0)),
        calm_seconds=0.5,
        faults=("scale", "drain a member", *chance.sample(more, 4)),
        fsync=Fsync.ALWAYS,
        ending="",
        recovered=True,
    )


def _mixed(seed: int) -> Profile:
    """A cluster of the format before this one is upgraded while other things go wrong."""
    chance = random.Random(f"mixed {seed}")
    others = ("kill a member", "pause a member", "isolate a member", "kill the master", "second master")
    more = (*others, "kill a member at a step", "kill the master at a step", "delete a pod", "flip a bit")
    return replace(
        swarm(seed),
        replicas=2,
        grace_seconds=chance.choice((0, 5)),
        chaos_seconds=chance.choice((20.0, 30.0)),
        calm_seconds=chance.choice((1.0, 2.0)),
        faults=(*UPGRADES * 3, "upgrade a member", *chance.sample(more, 3), *chance.choice(((), ("scale",)))),
        rates={name: most * chance.random() for name, most in RATES.items() if chance.random() < 0.3},
        ending=chance.choice(("", "", "stay dead")),
        build=UNSTATED,
    )


def _swaps(seed: int) -> Profile:
    """Owners that change places with backups all the time, while members die and cannot be reached."""
    chance = random.Random(f"swaps {seed}")
    harm = ("kill a member", "cut both ways", "slow a place", "strike a hand-over", "kill a member at a step")
    return replace(
        busy(seed),
        replicas=chance.choice((2, 3)),
        partitions=chance.choice((4, 12)),
        fsync=chance.choice((Fsync.ALWAYS, Fsync.ALWAYS, Fsync.NEVER)),
        grace_seconds=chance.choice((0, 5)),
        chaos_seconds=25.0,
        calm_seconds=chance.choice((0.3, 1.0)),
        faults=(*(HAND_OVER,) * 4, *chance.sample(harm, 3), *chance.choice(((), ("kill the master",)))),
        parallel=chance.choice((1, 5, 40)),
    )


def _behind(seed: int) -> Profile:
    """Owners that change places with backups that are behind, because messages between members are slow."""
    return replace(
        _swaps(seed),
        replicas=2,
        partitions=12,
        clients=6,
        think_seconds=(0.005, 0.02),
        fsync=Fsync.NEVER,
        chaos_seconds=20.0,
        calm_seconds=0.5,
        faults=(HAND_OVER,) * 3 + (SLOW_LINK,) * 3,
    )


def _quarantines(seed: int) -> Profile:
    """Partitions that move all the time and are lost for a while; users restore, purge and give up copies."""
    chance = random.Random(f"quarantines {seed}")
    return replace(
        swarm(seed),
        members=chance.choice((3, 4)),
        replicas=chance.choice((1, 1, 2)),
        partitions=chance.choice((4, 12)),
        clients=2,
        keys=6,
        think_seconds=(0.05, 0.3),
        grace_seconds=chance.choice((0, 3)),
        retention_seconds=chance.choice((5, 10, 3600)),
        chaos_seconds=chance.choice((25.0, 40.0)),
        calm_seconds=chance.choice((0.5, 1.0)),
        faults=("scale", "drain a member", *("keep a member down",) * 3, "kill the master", *QUARANTINE * 2),
        rates={},
        fsync=Fsync.ALWAYS,
        ending="",
    )


OPERATIONS: Families = {
    "migrations": _migrations,
    "planned": _planned,
    "plans": _plans,
    "mixed": _mixed,
    "swaps": _swaps,
    "behind": _behind,
    "updates": _updates,
    "moves": _moves,
    "recoveries": _recoveries,
    "states": _states,
    "quarantines": _quarantines,
}
