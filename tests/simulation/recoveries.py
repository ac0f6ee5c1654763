"""The cluster's object is deleted by mistake, with all that it owns; another one is made from its volumes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from stele.adapters.kubernetes.api import CLUSTERS, PODS
from stele.core.table.table import Partition
from stele.errors import Corrupt
from stele.wire.storage.volume import TABLE_FILE, TableFile, decode_table
from tests.simulation.profile import CLUSTER

if TYPE_CHECKING:
    from tests.fakes.disk import Disk
    from tests.simulation.invariants import Rules
    from tests.simulation.world import World

GONE_SECONDS = 15.0
"""Every pod has ended by then, and what the last master had sent is garbage, too."""
RECOVERED_SECONDS = 10.0
LOOK_SECONDS = 1.0
NEWEST = "recovered rows are the newest"

Check = Callable[..., None]


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


class RecoveredRows:
    """The first row of each partition that is stored after a deletion is as new as any that a volume has.

    `_newest` has the highest version of each partition on the volumes, until that row is stored.
    """

    def __init__(self, world: "World", check: Check) -> None:
        self.world, self._check = world, check
        self._newest: dict[int, int] = {}

    def note_volumes(self) -> None:
        """Nothing is stored any more, and no process runs."""
        for disk in self.world.kubelet.disks.values():
            for number, row in enumerate(_table_on(disk).rows):
                self._newest[number] = max(row.version, self._newest.get(number, 0))

    def row(self, number: int, before: Partition, row: Partition) -> None:
        newest = self._newest.pop(number, 0)
        text = "{} is stored, and a volume has version {}"
        if newest and not before.version:
            self._check(NEWEST, row.version >= newest, text, row, newest, partition=number)


def _table_on(disk: "Disk") -> TableFile:
    """What its member knew; nothing when that is damaged or missing."""
    try:
        return decode_table(disk.files[TABLE_FILE], TABLE_FILE)
    except (Corrupt, KeyError):
        return TableFile()
