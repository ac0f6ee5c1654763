"""What one seed simulates: the size of the cluster, its settings, and which faults there are.

A run has only some of the faults (swarm testing): what one fault would always end can then happen without it.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import stele.core.control.rebalance.scheduler
import stele.core.tablet.log
import stele.core.tablet.owner
import stele.member.limits
from stele.core.formats import SPOKEN, UNSTATED, FormatRange
from stele.member.settings import Fsync
from stele.model import API_VERSION

CLUSTER = "demo"
SWARM = "swarm"

FAULTS = (
    "reset a connection",
    "cut one way",
    "cut both ways",
    "isolate a member",
    "hide from the master",
    "swizzle",
    "slow a place",
    "kill a member",
    "kill a member at a step",
    "kill a member at a write",
    "cut the power",
    "keep a member down",
    "pause a member",
    "delete a pod",
    "wipe a volume",
    "flip a bit",
    "flip a bit of a copy",
    "swap volumes",
    "disk errors",
    "slow disk",
    "full disk",
    "a clock jumps",
    "kill the master",
    "kill the master at a step",
    "pause the master",
    "second master",
    "api server away",
    "scale",
    "change replicas",
    "change state",
    "drain a member",
    "cancel the plan",
    "pause migrations",
)
"""What may be begun during a run; `tests.simulation.faults` does it."""

USERS_MOVES = ("scale", "drain a member", "change replicas")
"""What users do that moves partitions, and hurts nobody."""

OF_THE_MASTER = ("kill the master", "kill the master at a step")
"""What befalls the master alone: copies go on meanwhile."""

HAND_OVER = "hand over a member"
"""A user empties a member of ownership, or takes that back."""

CHANGE_ROLE = "change a role"
"""A user makes a member lite, or a data member again."""

CHANGE_DETECTION = "change failure detection"
"""Heartbeats and leases become longer or shorter while members run."""

HEARTBEATS = (0.2, 0.5, 1.0)
LEASES = (2.5, 5, 12)
"""What is drawn then: seconds between heartbeats, and how many of them a lease lasts."""

MOVES = ("move partitions", "cancel moves")
"""Users name replicas to move, and change their minds."""

STRIKES = ("strike a hand-over", "strike an arrival")
"""Several faults together, at a moment that is short."""

STOPS = (
    "delete a pod by force",
    "lose a node",
    "delete a pod, kill the others",
    "cut the power of a stopping member",
)
"""Pods that go in other ways than a plain deletion."""

PLANNED_STOP = "stop as planned"
"""A pod is deleted, and its hook lets the member ask the master to move everything off it."""

UPDATES = ("change the pods", "change the update strategy")
"""Users change what a member's pod is made of, and how members become so."""

UPGRADES = ("upgrade the operator", "upgrade a member", "roll a member back")
"""Builds of the format before are replaced, and some of them come back for a while."""

ENDINGS = ("stay dead", "stay frozen", "stay cut off", "lower members by who stays away")
"""What becomes of a member that stays away when the faults are over, and what the user does about it."""

HALTS = ("change state", "pause migrations", "cancel the plan")
"""What users do after which nothing moves for long."""

RATES = {
    "message lost": 0.05,
    "message late": 0.03,
    "message repeated": 0.05,
    "segment torn": 0.1,
    "api request lost": 0.03,
    "api answer lost": 0.03,
    "api refused": 0.03,
    "api conflict": 0.02,
    "watch event lost": 0.1,
    "watch event repeated": 0.1,
    "watch late": 1.0,
    "clock drift": 0.02,
    "copy late": 0.5,
}
"""What goes on all the time: the greatest part of all messages, requests or events that it happens to."""

KNOBS = (
    (stele.core.tablet.log, "SEGMENT_BYTES", (200, 2000)),
    (stele.core.tablet.owner, "FILL_BYTES_MAX", (100, 300, 2000)),
    (stele.core.tablet.owner, "LEARNER_LAG_OPERATIONS", (1, 4, 256)),
    (stele.member.limits, "LOG_RETAINED_BYTES", (0, 500, 4000)),
    (stele.member.limits, "FLUSH_SECONDS", (0.5, 3.0, 30.0)),
    (stele.member.limits, "GC_INTERVAL_SECONDS", (1.0, 5.0)),
    (stele.member.limits, "WAIT_SECONDS_MAX", (2.0, 6.0)),
    (stele.member.limits, "LOST_SECONDS_MAX", (3.0, 10.0)),
    (stele.member.limits, "APPEND_BYTES", (300, 512 * 1024)),
    (stele.member.limits, "FETCH_BYTES", (100, 1024 * 1024)),
    (stele.member.limits, "REPLY_BYTES", (4, 512 * 1024)),
    (stele.core.control.rebalance.scheduler, "STALL_SECONDS", (10.0, 20.0)),
)
"""Limits of the product that are drawn too, so that small data reaches what only much data would."""


@dataclass(frozen=True)
class Profile:
    """Drawn from the seed. `chaos_seconds` is how long faults begin, about every `calm_seconds`.

    `without` names faults that are drawn and do not happen. `ending` is what becomes of a member for good
    when they end: one of ENDINGS but the last, or "" when all come back. `build` is what the operator and
    the members speak with which the cluster begins. `recovered`: then the cluster's object is deleted, and
    another one is made from its volumes, while faults go on.
    """

    seed: int
    members: int
    replicas: int
    partitions: int
    clients: int
    keys: int
    think_seconds: tuple[float, float]
    heartbeat_seconds: float
    lease_seconds: float
    grace_seconds: int
    retention_seconds: int
    chaos_seconds: float
    calm_seconds: float
    faults: tuple[str, ...]
    rates: Mapping[str, float]
    knobs: tuple[float, ...]
    parallel: int = 10
    fsync: Fsync = Fsync.ALWAYS
    ending: str = ""
    without: frozenset[str] = frozenset()
    build: FormatRange = SPOKEN
    recovered: bool = False

    def rate(self, name: str) -> float:
        """One of RATES; 0 when it is not drawn, or left out."""
        return 0.0 if name in self.without else self.rates.get(name, 0.0)

    @property
    def shortest_lease_seconds(self) -> float:
        """The least that leases last in this run."""
        changed = CHANGE_DETECTION in self.faults
        return min(HEARTBEATS) * min(LEASES) if changed else self.lease_seconds

    def cluster_object(self) -> dict[str, Any]:
        """The TabletCluster that the user made."""
        spec = {
            "members": self.members,
            "partitions": self.partitions,
            "replicas": self.replicas,
            "migration": {"engine": "Direct", "maxParallelPerMember": self.parallel},
            "storage": {"size": "1Gi", "quarantineRetentionSeconds": self.retention_seconds},
            "failureDetection": {
                "heartbeatSeconds": self.heartbeat_seconds,
                "leaseSeconds": self.lease_seconds,
                "rejoinGracePeriodSeconds": self.grace_seconds,
            },
        }
        metadata = {"name": CLUSTER}
        return {"apiVersion": API_VERSION, "kind": "TabletCluster", "metadata": metadata, "spec": spec}

    @contextmanager
    def turned(self) -> Iterator[None]:
        """The product with this profile's limits."""
        before = [getattr(module, name) for module, name, _ in KNOBS]
        try:
            for (module, name, _), value in zip(KNOBS, self.knobs, strict=True):
                setattr(module, name, value)
            yield
        finally:
            for (module, name, _), value in zip(KNOBS, before, strict=True):
                setattr(module, name, value)


def draw(seed: int, family: str = SWARM) -> Profile:
    """The profile of a seed in one of FAMILIES."""
    return FAMILIES[family](seed)


def _migrations(seed: int) -> Profile:
    """Many partitions that users move all the time, few operations, and now and then another fault."""
    chance = random.Random(f"migrations {seed}")
    heartbeat = chance.choice((0.3, 0.5))
    rare = chance.choice((0.0, 0.1, 0.3))
    return replace(
        _swarm(seed),
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


def _swarm(seed: int) -> Profile:
    """A small cluster, and some of all faults."""
    chance = random.Random(f"profile {seed}")
    stays, stops = random.Random(f"ending {seed}"), random.Random(f"stops {seed}")
    planned = random.Random(f"planned {seed}").random() < 0.3
    ending = stays.choice((*ENDINGS[:3], "", "", ""))
    # The place of an outdated member that ends is kept for longer than a run lasts.
    updated = not ending and random.Random(f"updated {seed}").random() < 0.3
    heartbeat = chance.choice((0.2, 0.3, 0.5))
    part = chance.choice((0.1, 0.3, 0.6))
    return Profile(
        seed=seed,
        members=chance.choice((3, 3, 3, 4, 5)),
        replicas=chance.choice((2, 2, 3)),
        partitions=chance.choice((4, 5, 8, 12)),
        clients=chance.choice((2, 3, 4)),
        keys=chance.choice((3, 6, 9, 12)),
        think_seconds=chance.choice(((0.01, 0.1), (0.02, 0.4), (0.02, 0.4))),
        heartbeat_seconds=heartbeat,
        lease_seconds=heartbeat * chance.choice((3, 5)),
        grace_seconds=chance.choice((0, 2, 5)),
        retention_seconds=chance.choice((0, 5, 3600)),
        chaos_seconds=chance.choice((8.0, 15.0, 25.0)),
        calm_seconds=chance.choice((0.5, 1.0, 3.0)),
        faults=(
            *(name for name in FAULTS if chance.random() < part),
            *(name for name in STOPS if stops.random() < part / 3),
            *((PLANNED_STOP,) if planned else ()),
            *(UPDATES if updated else ()),
            *(MOVES if random.Random(f"moves {seed}").random() < 0.15 else ()),
        ),
        rates={name: most * chance.random() for name, most in RATES.items() if chance.random() < part},
        knobs=tuple(chance.choice(values) for _, _, values in KNOBS),
        fsync=chance.choice((Fsync.ALWAYS,) * 4 + (Fsync.INTERVAL, Fsync.NEVER)),
        ending=ending,
    )


def _busy(seed: int) -> Profile:
    """The smallest cluster in which a member can be spared, under much load."""
    return replace(
        _swarm(seed), members=3, partitions=4, clients=4, keys=6, think_seconds=(0.01, 0.05), rates={}
    )


def _leases(seed: int) -> Profile:
    """Owners that the master does not see while clients do: leases decide what is read."""
    chance = random.Random(f"leases {seed}")
    return replace(
        _busy(seed),
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


def _strikes(seed: int) -> Profile:
    """Migrations all the time, and their other side is struck at the worst moment."""
    chance = random.Random(f"strikes {seed}")
    return replace(
        _busy(seed),
        replicas=chance.choice((1, 2)),
        grace_seconds=0,
        chaos_seconds=25.0,
        calm_seconds=1.5,
        faults=("scale", "drain a member", "scale", *STRIKES),
    )


def _damage(seed: int) -> Profile:
    """Volumes that are damaged or lost, one after the other."""
    faults = ("flip a bit", "flip a bit", "wipe a volume", "kill a member")
    return replace(_swarm(seed), replicas=2, chaos_seconds=25.0, calm_seconds=1.0, faults=faults, rates={})


def _power(seed: int) -> Profile:
    """Power is lost while writes are not synced: of one copy, of all, or of the one that is left."""
    chance = random.Random(f"power {seed}")
    deaths = ("cut the power", "cut the power", "keep a member down", "kill a member at a step")
    return replace(
        _busy(seed),
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
        _busy(seed),
        replicas=chance.choice((1, 2, 2)),
        heartbeat_seconds=0.5,
        lease_seconds=chance.choice((1.5, 2.5)),
        chaos_seconds=20.0,
        calm_seconds=1.5,
        faults=("delete a pod", *STOPS, *chance.choice(((), ("keep a member down",), ("kill a member",)))),
        fsync=chance.choice((Fsync.ALWAYS, Fsync.ALWAYS, Fsync.INTERVAL)),
    )


def _planned(seed: int) -> Profile:
    """Members that announce their stop under load, one after the other, and what else happens then."""
    chance = random.Random(f"planned stops {seed}")
    others = ("kill the master", "kill a member", "isolate a member", "scale", "drain a member")
    return replace(
        _busy(seed),
        replicas=chance.choice((1, 2, 2, 2)),
        chaos_seconds=25.0,
        calm_seconds=chance.choice((1.5, 3.0)),
        faults=(*(PLANNED_STOP,) * 3, *(name for name in others if chance.random() < 0.3)),
    )


def _moves(seed: int) -> Profile:
    """Users who name replicas to move, and cancel that, while copies take long and members fail."""
    chance = random.Random(f"moves of users {seed}")
    others = ("kill a member", "isolate a member", "kill the master", "second master", "pause migrations")
    more = (*others, "scale", "drain a member", "change replicas", "cancel the plan", HAND_OVER)
    return replace(
        _busy(seed),
        members=4,
        replicas=chance.choice((1, 2, 3)),
        partitions=chance.choice((4, 12)),
        chaos_seconds=25.0,
        calm_seconds=chance.choice((0.5, 1.5)),
        faults=(*MOVES * 3, *chance.sample(more, 3)),
        rates={"copy late": chance.choice((0.0, 0.5))},
        parallel=chance.choice((1, 5)),
    )


def _recoveries(seed: int) -> Profile:
    """Clusters that are deleted with much under way, and recovered from their volumes."""
    chance = random.Random(f"recoveries {seed}")
    others = ("kill a member", "cut both ways", "slow a place", "kill the master", "pause a member")
    more = (*others, "cut the power", "change replicas", HAND_OVER, "second master", "delete a pod by force")
    return replace(
        _busy(seed),
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
        _busy(seed),
        members=chance.choice((3, 3, 4)),
        replicas=chance.choice((1, 2, 2, 3)),
        chaos_seconds=chance.choice((30.0, 45.0)),
        calm_seconds=chance.choice((3.0, 5.0)),
        faults=(*UPDATES, *UPDATES[:1] * 3, *chance.sample(more, 3)),
        ending="",
    )


def _plans(seed: int) -> Profile:
    """Plans that take long, while rows lose copies and copies fail."""
    chance = random.Random(f"plans {seed}")
    return replace(
        _swarm(seed),
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


def _swaps(seed: int) -> Profile:
    """Owners that change places with backups all the time, while members die and cannot be reached."""
    chance = random.Random(f"swaps {seed}")
    harm = ("kill a member", "cut both ways", "slow a place", "strike a hand-over", "kill a member at a step")
    return replace(
        _busy(seed),
        replicas=chance.choice((2, 3)),
        partitions=chance.choice((4, 12)),
        fsync=chance.choice((Fsync.ALWAYS, Fsync.ALWAYS, Fsync.NEVER)),
        grace_seconds=chance.choice((0, 5)),
        chaos_seconds=25.0,
        calm_seconds=chance.choice((0.3, 1.0)),
        faults=(*(HAND_OVER,) * 4, *chance.sample(harm, 3), *chance.choice(((), ("kill the master",)))),
        parallel=chance.choice((1, 5, 40)),
    )


def _mixed(seed: int) -> Profile:
    """A cluster of the format before this one is upgraded while other things go wrong."""
    chance = random.Random(f"mixed {seed}")
    others = ("kill a member", "pause a member", "isolate a member", "kill the master", "second master")
    more = (*others, "kill a member at a step", "kill the master at a step", "delete a pod", "flip a bit")
    return replace(
        _swarm(seed),
        replicas=2,
        grace_seconds=chance.choice((0, 5)),
        chaos_seconds=chance.choice((20.0, 30.0)),
        calm_seconds=chance.choice((1.0, 2.0)),
        faults=(*UPGRADES * 3, "upgrade a member", *chance.sample(more, 3), *chance.choice(((), ("scale",)))),
        rates={name: most * chance.random() for name, most in RATES.items() if chance.random() < 0.3},
        ending=chance.choice(("", "", "stay dead")),
        build=UNSTATED,
    )


def _takeovers(seed: int) -> Profile:
    """Copies all the time, while nothing but the master fails, again and again."""
    chance = random.Random(f"takeovers {seed}")
    return replace(
        _swarm(seed),
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
        knobs=_turned(_swarm(seed).knobs, LOG_RETAINED_BYTES=0, FLUSH_SECONDS=0.5),
        ending="",
    )


def _states(seed: int) -> Profile:
    """Users change the cluster state and the roles of members, while members go and come back."""
    chance = random.Random(f"states {seed}")
    others = ("kill a member", "isolate a member", "delete a pod", "kill the master")
    return replace(
        _swarm(seed),
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


def _turned(knobs: tuple[float, ...], **values: float) -> tuple[float, ...]:
    """These limits, but for those that are named."""
    return tuple(values.get(name, knob) for (_, name, _), knob in zip(KNOBS, knobs, strict=True))


FAMILIES: Mapping[str, Callable[[int], Profile]] = {
    SWARM: _swarm,
    "migrations": _migrations,
    "leases": _leases,
    "detection": _detection,
    "strikes": _strikes,
    "damage": _damage,
    "power": _power,
    "stops": _stops,
    "planned": _planned,
    "plans": _plans,
    "mixed": _mixed,
    "swaps": _swaps,
    "takeovers": _takeovers,
    "updates": _updates,
    "moves": _moves,
    "recoveries": _recoveries,
    "states": _states,
}
"""What is drawn: small clusters with everything that goes wrong, or one thing that is rare in those."""
