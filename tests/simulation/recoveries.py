"""The cluster's object is deleted by mistake, with all that it owns; another one is made from its volumes."""

from typing import TYPE_CHECKING

from stele.adapters.kubernetes.api import CLUSTERS, PODS
from tests.simulation.profile import CLUSTER

if TYPE_CHECKING:
    from tests.simulation.invariants import Rules
    from tests.simulation.world import World

GONE_SECONDS = 15.0
"""Every pod has ended by then, and what the last master had sent is garbage, too."""
RECOVERED_SECONDS = 10.0
LOOK_SECONDS = 1.0


class Recovery:
    """One deletion and what follows; faults go on meanwhile."""

    def __init__(self, world: "World", rules: "Rules") -> None:
        self.world, self._rules = world, rules

    def run(self) -> None:
        world, lost = self.world, self.world.cluster
        world.trace.faults["recover the cluster"] += 1
        world.trace.note("user", "! the user deletes the cluster")
        world.api.remove(CLUSTERS, CLUSTER)
        for master in world.masters:
            # Each ends its loop, as the supervisor does when a cluster is gone.
            master.kill()
        until = world.clock.now + GONE_SECONDS
        while world.clock.now < until:
            world.api.collect_garbage()
            world.clock.run(world.clock.now + LOOK_SECONDS)
        assert not world.api.list(PODS)
        self._rules.forget_table()
        bootstrap = {"volumes": {"clusterUID": world.volumes_uid}}
        body = {**lost, "metadata": {"name": CLUSTER}, "spec": {**lost["spec"], "bootstrap": bootstrap}}
        world.trace.note("user", f"! the user recovers the cluster {world.volumes_uid}")
        world.api.create(CLUSTERS, {key: value for key, value in body.items() if key != "status"})
        world.clock.run(world.clock.now + RECOVERED_SECONDS)
