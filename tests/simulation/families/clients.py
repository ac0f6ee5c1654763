"""Profiles of what some clients do: Redis commands, reads from backups, near caches, events, clears."""

import random
from dataclasses import replace

from stele.member.settings import Fsync
from tests.simulation.families.swarm import busy, knobs_with, swarm
from tests.simulation.kinds import (
    CHANGE_ROLE,
    DECLARE,
    HAND_OVER,
    ISOLATE_TWO,
    MOVES,
    PLANNED_STOP,
    RATES,
    SLOW_LINK,
    STOP_ALONE,
    STRIKE_TRANSACTION,
    STRIKES,
    UPDATES,
    USERS_MOVES,
)
from tests.simulation.profile import Backups, Families, Profile


def _redis(seed: int) -> Profile:
    """Clients on Redis connections, and no fault that makes clocks wrong or acknowledged writes go.

    In half of the runs owners die all the time, while few operations fit into one message.
    """
    drawn = swarm(seed)
    made = replace(
        drawn,
        clients=1,
        redis_clients=3,
        fsync=Fsync.ALWAYS,
        faults=tuple(each for each in drawn.faults if each != "a clock jumps"),
    )
    if seed % 2:
        return made
    return replace(
        made,
        members=3,
        replicas=2,
        partitions=4,
        think_seconds=(0.0, 0.03),
        calm_seconds=0.5,
        grace_seconds=0,
        faults=("keep a member down", "keep a member down", "kill a member at a step", "slow a place"),
        rates={"segment torn": 0.5},
        knobs=knobs_with(drawn.knobs, APPEND_BYTES=100),
        ending="",
    )


def _reads(seed: int) -> Profile:
    """Backups answer reads, while owners change, members are cut off, stop for a while, and die."""
    chance = random.Random(f"reads {seed}")
    others = ("hide from the master", "cut one way", "kill a member", "delete a pod", "swizzle", "scale")
    cuts = chance.choice((("isolate a member",), ("pause a member",), (ISOLATE_TWO,), (STOP_ALONE,)))
    return replace(
        busy(seed),
        replicas=chance.choice((2, 3, 3)),
        keys=3,
        heartbeat_seconds=0.2,
        lease_seconds=1.0,
        grace_seconds=0,
        chaos_seconds=25.0,
        calm_seconds=2.0,
        faults=(*cuts * 4, *chance.sample(others, 1)),
        rates={"clock drift": RATES["clock drift"]},
        backups=chance.choice((Backups.READONLY, Backups.AVAILABLE)),
        ending="",
    )


def _near_caches(seed: int) -> Profile:
    """Members keep what clients read of other members: keys that change seldom, read often."""
    chance = random.Random(f"near caches {seed}")
    cuts = chance.choice((("isolate a member",), (STOP_ALONE,), (ISOLATE_TWO,)))
    return replace(
        _reads(seed),
        members=4,
        keys=chance.choice((6, 12)),
        think_seconds=(0.02, 0.2),
        faults=(*cuts * 3, *USERS_MOVES[:2], "cut both ways", *("slow disk", "pause a member") * 3),
        backups=Backups.NEVER,
        near_caches=True,
    )


def _near_caches_of_lite_members(seed: int) -> Profile:
    """In a quarter of the runs users make members lite, which keep what they read, and data members again."""
    drawn = _near_caches(seed)
    return drawn if seed % 4 != 3 else replace(drawn, faults=(*drawn.faults, *(CHANGE_ROLE,) * 4))


def _tracking(seed: int) -> Profile:
    """Clients on Redis connections keep what they read, and are told when it changes.

    In some runs nothing goes wrong; in others members stop, with answers of owners on their way, under more
    clients.
    """
    chance = random.Random(f"tracking {seed}")
    others = ("reset a connection", "kill a member", "delete a pod", "slow a place", "hide from the master")
    calm, stops = seed % 4 == 3, seed % 4 == 1
    drawn, members = _near_caches(seed), chance.choice((3, 4))
    faults = (*drawn.faults, *([] if calm else chance.sample(others, 2)))
    made = replace(
        drawn,
        members=members,
        clients=1,
        tracking_clients=4,
        think_seconds=(0.1, 0.5),
        chaos_seconds=5.0 if calm else 15.0,
        faults=() if calm else faults,
        rates={"segment torn": 0.3} | ({} if calm else drawn.rates),
        near_caches=False,
    )
    if not stops:
        return made
    return replace(
        made, members=4, replicas=2, tracking_clients=8, calm_seconds=4.0, faults=(STOP_ALONE,) * 3
    )


def _invalidation(seed: int) -> Profile:
    """Members keep what clients put there, and writes drop it: members stop, end, join and leave."""
    chance = random.Random(f"invalidation {seed}")
    others = ("kill a member", "delete a pod", "scale", "reset a connection", "hide from the master")
    drawn = _near_caches(seed)
    return replace(
        drawn,
        members=chance.choice((2, 3, 3)),
        replicas=2,
        clients=1,
        local_clients=4,
        chaos_seconds=12.0,
        calm_seconds=chance.choice((2.0, 4.0)),
        faults=(*drawn.faults[:3], "pause a member", *chance.sample(others, 2)),
        near_caches=False,
    )


def _cluster(seed: int) -> Profile:
    """Clients that route by the map and read at backups, while owners change, are cut off, and die."""
    return replace(
        _reads(seed),
        clients=1,
        cluster_clients=3,
        chaos_seconds=12.0,
        rates={"clock drift": RATES["clock drift"], "segment torn": 0.2},
        backups=Backups.NEVER,
    )


def _events(seed: int) -> Profile:
    """Clients subscribe to events of keys at all members, while partitions move and owners die."""
    chance = random.Random(f"events {seed}")
    others = ("isolate a member", "cut one way", "cut both ways", "kill a member", "delete a pod", "swizzle")
    return replace(
        busy(seed),
        replicas=chance.choice((2, 2, 3)),
        keys=6,
        chaos_seconds=20.0,
        calm_seconds=chance.choice((1.0, 2.0)),
        faults=("hide from the master", "pause a member", *chance.sample(others, 2), *USERS_MOVES[:2]),
        retention_seconds=chance.choice((5, 3600)),
        listens=True,
        ending="",
    )


def _subscriptions(seed: int) -> Profile:
    """The same on Redis connections, with entries whose expiry times are set, taken away and reached."""
    drawn = _events(seed)
    return replace(
        drawn,
        clients=2,
        expiring_clients=2,
        resp_subscribers=True,
        chaos_seconds=12.0,
        fsync=Fsync.ALWAYS,
        faults=(*drawn.faults, "reset a connection"),
        rates={"segment torn": 0.2},
    )


def _clears(seed: int) -> Profile:
    """Clients that clear partitions, while these move and members die."""
    chance = random.Random(f"clears {seed}")
    harm = ("kill a member", "kill a member at a step", "isolate a member", "cut both ways", "full disk")
    more = (*harm, "kill a member at a write", "strike a hand-over", "kill the master", HAND_OVER)
    return replace(
        busy(seed),
        replicas=chance.choice((1, 2, 2, 3)),
        partitions=chance.choice((2, 4)),
        keys=chance.choice((6, 12)),
        fsync=chance.choice((Fsync.ALWAYS, Fsync.ALWAYS, Fsync.INTERVAL)),
        grace_seconds=chance.choice((0, 5)),
        chaos_seconds=15.0,
        calm_seconds=chance.choice((0.5, 1.0)),
        faults=("scale", "drain a member", DECLARE, "reset a connection", *chance.sample(more, 4)),
        clears=chance.choice((0.02, 0.1, 0.3)),
    )


def _transfer(seed: int) -> Profile:
    """Clients that run transactions, under two kinds of moves and some of whatever else happens to members.

    Nothing is drawn that makes clocks wrong, or acknowledged writes go.
    """
    chance = random.Random(f"transfer {seed}")
    network = ("cut one way", "cut both ways", "isolate a member", "slow a place")
    deaths = ("kill a member", "kill a member at a step", "kill a member at a write", "keep a member down")
    stops = ("pause a member", STOP_ALONE, "delete a pod", PLANNED_STOP, "cut the power", *UPDATES)
    users = ("change state", "change state", "change replicas", CHANGE_ROLE, DECLARE, "cancel the plan")
    others = ("kill the master", "second master", "hide from the master", "slow disk", "full disk", *STRIKES)
    moves = chance.sample((*USERS_MOVES[:2], HAND_OVER, "move partitions"), 2)
    some = (chance.sample(kinds, chance.randint(0, 2)) for kinds in (network, deaths, stops, users, others))
    rates = {"segment torn": 0.3, "message lost": 0.02, "message repeated": 0.05, "copy late": 0.5}
    return replace(
        busy(seed),
        replicas=chance.choice((1, 2, 2, 3)),
        clients=1,
        transfer_clients=chance.choice((3, 5)),
        apart=chance.random() < 0.8,
        written_back=seed % 4 == 3,
        expiring_clients=chance.choice((0, 1)),
        think_seconds=chance.choice(((0.0, 0.02), (0.01, 0.05))),
        grace_seconds=chance.choice((0, 5)),
        chaos_seconds=chance.choice((8.0, 12.0)),
        calm_seconds=chance.choice((0.3, 0.6)),
        faults=("reset a connection", *moves, *(name for names in some for name in names)),
        rates={name: rate for name, rate in rates.items() if chance.random() < 0.4},
        fsync=Fsync.ALWAYS,
        ending="",
    )


def _struck(seed: int) -> Profile:
    """The same, where members stop and die at the worst moments of a transaction across partitions."""
    profile, chance = _transfer(seed), random.Random(f"struck {seed}")
    strikes = (STRIKE_TRANSACTION,) * chance.choice((2, 2, 4))
    return replace(profile, faults=(*profile.faults, *strikes), apart=True)


def _async(seed: int) -> Profile:
    """Clients of an Async keyspace beside those of a Sync one.

    In half of the runs partitions only move, while members do not hear each other for a while.
    """
    chance = random.Random(f"async {seed}")
    moves = (*USERS_MOVES, HAND_OVER, HAND_OVER, PLANNED_STOP, *MOVES, SLOW_LINK, SLOW_LINK, SLOW_LINK)
    harm = (
        "kill a member",
        "keep a member down",
        "isolate a member",
        "pause a member",
        "kill a member at a step",
    )
    harms = seed % 2 == 0
    others = chance.sample(harm, 3) if harms else ("cut one way", "cut both ways")
    return replace(
        busy(seed),
        replicas=chance.choice((2, 2, 3)),
        clients=1,
        async_clients=4,
        think_seconds=(0.0, 0.02),
        fsync=chance.choice((Fsync.ALWAYS, Fsync.INTERVAL)),
        grace_seconds=0,
        chaos_seconds=10.0,
        calm_seconds=chance.choice((0.3, 0.5, 1.0)),
        faults=(*moves, *others, "slow a place", "slow disk"),
        rates={"segment torn": 0.1, "clock drift": RATES["clock drift"]} if harms else {},
        ending="",
    )


def _groups(seed: int) -> Profile:
    """Keyspaces with partitions of their own, and with a copy at every member, under changes of members.

    In a third of the runs clients use them before they are declared.
    """
    chance = random.Random(f"groups {seed}")
    cuts = chance.choice((("isolate a member",), (ISOLATE_TWO,), (STOP_ALONE, "pause a member")))
    harm = ("kill a member", "keep a member down", "delete a pod", "kill the master", "hide from the master")
    return replace(
        _reads(seed),
        members=chance.choice((3, 4)),
        replicas=2,
        partitions=chance.choice((2, 4)),
        keys=3,
        clients=1,
        group_clients=2,
        declared_seconds=chance.choice((0.0, 0.0, 4.0)),
        fsync=Fsync.ALWAYS,
        faults=("scale", *cuts * 2, *chance.sample(harm, 2), *USERS_MOVES[:1]),
        chaos_seconds=12.0,
        backups=Backups.NEVER,
    )


CLIENTS: Families = {
    "async": _async,
    "redis": _redis,
    "reads": _reads,
    "near caches": _near_caches_of_lite_members,
    "tracking": _tracking,
    "invalidation": _invalidation,
    "cluster": _cluster,
    "clears": _clears,
    "groups": _groups,
    "events": _events,
    "subscriptions": _subscriptions,
    "transfer": _transfer,
    "struck": _struck,
}
