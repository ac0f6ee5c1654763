"""Bugs planted in the product, to show that the simulation finds them."""

from tests.simulation.mutants.asynchronous import ASYNCHRONOUS
from tests.simulation.mutants.connections import CONNECTIONS
from tests.simulation.mutants.groups import GROUPS
from tests.simulation.mutants.local_caches import LOCAL_CACHES
from tests.simulation.mutants.master import MASTER
from tests.simulation.mutants.member import MEMBER
from tests.simulation.mutants.plant import Mutants
from tests.simulation.mutants.rebalances import REBALANCES
from tests.simulation.mutants.redis import REDIS
from tests.simulation.mutants.replication import REPLICATION
from tests.simulation.mutants.serving import SERVING
from tests.simulation.mutants.tracking import TRACKING
from tests.simulation.mutants.transactions import TRANSACTIONS

PLANTED: Mutants = {
    **MASTER,
    **REBALANCES,
    **MEMBER,
    **REPLICATION,
    **SERVING,
    **REDIS,
    **TRACKING,
    **CONNECTIONS,
    **TRANSACTIONS,
    **ASYNCHRONOUS,
    **LOCAL_CACHES,
    **GROUPS,
}
"""All of them: `python -m tests.simulation.mutants` looks for seeds that show them."""

WITHOUT_SEED = {"vouched_for_from_receipt"}
"""Those that none of the first 60 seeds shows at present (docs/internals/simulation.md)."""

MUTANTS: Mutants = {plant: shown for plant, shown in PLANTED.items() if plant.__name__ not in WITHOUT_SEED}
"""Those that a test looks for."""
