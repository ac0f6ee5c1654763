"""How long a partition is frozen while its owner and a backup change places, in simulated time:

    python -m tests.simulation.swap_times [PARTITIONS [AT_ONCE]]

A member of two hands half of the partitions over to the other. Network, disks and the API server take the
time that the simulation gives them; the processor takes none.
"""

import sys
from dataclasses import replace
from statistics import median
from unittest.mock import patch

from stele.adapters.kubernetes.api import REBALANCES
from stele.core.control.rebalance import handover
from stele.core.tablet.owner import Owner
from stele.member.replication.replica import Replica
from stele.member.serving.roles import Roles
from stele.model import API_VERSION
from tests.simulation.families.registry import draw
from tests.simulation.profile import CLUSTER
from tests.simulation.world import World

FORMED_SECONDS = 12.0
SECONDS = 60.0


def measured(partitions: int, at_once: int) -> str:
    """Run it once; what was found."""
    quiet = {"faults": (), "rates": {}, "ending": "", "clients": 0}
    profile = replace(draw(1), members=2, replicas=2, partitions=partitions, **quiet)  # type: ignore[arg-type]
    frozen: dict[int, float] = {}
    served: dict[int, float] = {}
    rounds = 0
    with profile.turned(), World(profile) as world:
        freeze, serving = Owner.freeze, Roles.serving

        def note_frozen(owner: Owner, id: str) -> None:
            freeze(owner, id)
            frozen[owner.tablet.partition] = world.clock.now

        def note_served(roles: Roles, replica: Replica) -> None:
            serving(roles, replica)
            if replica.partition in frozen:
                served[replica.partition] = world.clock.now

        def count(place: str, request: object, reply: object) -> None:
            nonlocal rounds
            rounds += len(served) < len(frozen)

        world.clock.run(FORMED_SECONDS)
        body = {"apiVersion": API_VERSION, "kind": "TabletRebalance"}
        body["metadata"] = {"name": "h", "namespace": world.cluster["metadata"]["namespace"]}  # type: ignore[assignment]
        body["spec"] = {"cluster": CLUSTER, "handover": {"member": f"{CLUSTER}-0"}}  # type: ignore[assignment]
        world.exchanged.append(count)
        with (
            patch.object(handover, "SWAPS_PER_MEMBER_MAX", at_once),
            patch.object(Owner, "freeze", note_frozen),
            patch.object(Roles, "serving", note_served),
        ):
            began = world.clock.now
            world.api.create(REBALANCES, body)
            world.clock.run(began + SECONDS)
    waits = [served[each] - frozen[each] for each in frozen]
    text = f"{len(waits)} partitions, {at_once} at once: all in {max(served.values()) - began:.2f} s, frozen"
    text += f" {median(waits) * 1e3:.0f} ms (median) to {max(waits) * 1e3:.0f} ms"
    return f"{text}; {rounds} exchanges while any was frozen"


def main() -> None:
    partitions = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    limits = [int(each) for each in sys.argv[2:]] or [1, 8, handover.SWAPS_PER_MEMBER_MAX, 64, partitions]
    for limit in limits:
        print(measured(partitions, limit))


if __name__ == "__main__":
    main()
