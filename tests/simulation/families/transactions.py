"""A profile of clients that run transactions under the faults of other families."""

import random
from dataclasses import replace

from stele.member.settings import Fsync
from tests.simulation.families.failures import FAILURES
from tests.simulation.families.operations import OPERATIONS
from tests.simulation.families.swarm import SWARM, swarm
from tests.simulation.profile import Families, Profile

FAULTS_OF: Families = {
    SWARM: swarm,
    **{name: FAILURES[name] for name in ("nodes", "damage", "stops", "leases", "takeovers")},
    **{name: OPERATIONS[name] for name in ("mixed", "recoveries", "states", "updates", "swaps", "planned")},
}
"""Families that lose nothing that was acknowledged while logs are synced."""


def _sums(seed: int) -> Profile:
    """Transactions under the faults of other families, one after the other.

    All members come back: the outcomes of one that does not stay, as documented.
    """
    drawn = list(FAULTS_OF.values())[seed % len(FAULTS_OF)](seed)
    chance = random.Random(f"sums {seed}")
    return replace(
        drawn,
        clients=1,
        transfer_clients=2,
        apart=chance.random() < 0.8,
        think_seconds=(0.01, 0.05),
        chaos_seconds=min(drawn.chaos_seconds, 10.0),
        fsync=Fsync.ALWAYS,
        ending="",
    )


TRANSACTIONS: Families = {"sums": _sums}
