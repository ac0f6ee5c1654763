"""What is drawn: small clusters with everything that goes wrong, or one thing that is rare in those."""

from tests.simulation.families.clients import CLIENTS
from tests.simulation.families.failures import FAILURES
from tests.simulation.families.operations import OPERATIONS
from tests.simulation.families.swarm import SWARM, swarm
from tests.simulation.families.transactions import TRANSACTIONS
from tests.simulation.profile import Families, Profile

FAMILIES: Families = {SWARM: swarm, **FAILURES, **OPERATIONS, **CLIENTS, **TRANSACTIONS}


def draw(seed: int, family: str = SWARM) -> Profile:
    """The profile of a seed in one of FAMILIES."""
    return FAMILIES[family](seed)
