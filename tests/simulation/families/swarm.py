"""Small clusters with some of all faults, and what the other families change of them.

A run has only some of the faults (swarm testing): what one fault would always end can then happen without it.
"""

import random
from dataclasses import replace

from stele.member.settings import Fsync
from tests.simulation.kinds import ENDINGS, FAULTS, MOVES, PLANNED_STOP, RATES, STOPS, UPDATES
from tests.simulation.profile import KNOBS, Profile

SWARM = "swarm"


def swarm(seed: int) -> Profile:
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


def busy(seed: int) -> Profile:
    """The smallest cluster in which a member can be spared, under much load."""
    return replace(
        swarm(seed), members=3, partitions=4, clients=4, keys=6, think_seconds=(0.01, 0.05), rates={}
    )


def knobs_with(knobs: tuple[float, ...], **values: float) -> tuple[float, ...]:
    """These limits, but for those that are named."""
    return tuple(values.get(name, knob) for (_, name, _), knob in zip(KNOBS, knobs, strict=True))
