"""Nodes that are lost, for a while or for good; and users and the operator who replace what was on them.

A process on a lost node may run on: it reaches nobody but clients. Its kubelet says nothing, starts nothing
and ends nothing before the node is back.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from stele.adapters.kubernetes.api import CLUSTERS, MEMBERS, NODES, PODS
from stele.master.kubernetes import KubernetesClusterObjects
from stele.master.lost_volumes import VOLUME_CONFLICT
from stele.master.nodes import OUT_OF_SERVICE_TAINT
from tests.fakes.api import ApiServer
from tests.simulation.profile import CLUSTER, LOCAL

if TYPE_CHECKING:
    from tests.simulation.faults import Faults
    from tests.simulation.kubelet import Kubelet, Machine
    from tests.simulation.world import World

COLLECTED_SECONDS_MAX = 3.0
"""The pod of a node that is gone is collected so much later."""
ALIVE_SECONDS_MAX = 20.0
"""How long a process on a lost node runs on."""
AWAY_SECONDS = (5.0, 25.0)
"""How long a node is lost that comes back."""
UNNAMED = "no row names a member that is removed"
HEARD = "a member that is removed knows that its rows name it no more"

Check = Callable[..., None]
Object = dict[str, Any]


class Nodes:
    """The nodes of pods, one for each volume; what can move gets another one when its node is lost."""

    def __init__(self, api: ApiServer, kubelet: "Kubelet", volumes: str) -> None:
        self.api, self.kubelet, self.local = api, kubelet, volumes == LOCAL
        self._of_volume: dict[str, str] = {}

    def can_have(self, volume: str) -> bool:
        """Whether there is a node for a pod with this volume: a local one has only its own."""
        return not self.local or volume not in self._of_volume or self._is_ready(self._of_volume[volume])

    def refuse(self, pod: str) -> None:
        """The scheduler finds none."""
        why = {"reason": "Unschedulable", "message": f"0/3 nodes are available: 1 {VOLUME_CONFLICT}"}
        waits = {"type": "PodScheduled", "status": "False", **why}
        self.api.patch_status(PODS, pod, {"conditions": [waits]})

    def bind(self, pod: str, volume: str) -> None:
        """The pod gets the node of its volume, or another one when that is lost."""
        if not self._is_ready(self._of_volume.get(volume, "")):
            self._of_volume[volume] = f"node-{self.api.version}"
            self._store(self._of_volume[volume])
        self.api.change_spec(PODS, pod, nodeName=self._of_volume[volume])

    def _store(self, node: str, ready: bool = True, taints: tuple[Object, ...] = ()) -> None:
        conditions = [{"type": "Ready", "status": str(ready) if ready else "Unknown"}]
        body = {
            "metadata": {"name": node},
            "spec": {"taints": [*taints]},
            "status": {"conditions": conditions},
        }
        if self.api.find(NODES, node) is None:
            self.api.create(NODES, body)
        else:
            self.api.replace(NODES, body)

    def _is_ready(self, node: str) -> bool:
        stored = self.api.find(NODES, node)
        return stored is not None and stored["status"]["conditions"][0]["status"] == "True"

    def node_of(self, machine: "Machine") -> str:
        pod = self.api.find(PODS, machine.place)
        same = pod is not None and pod["metadata"]["uid"] == machine.pod_uid
        return str(pod["spec"].get("nodeName", "")) if pod is not None and same else ""

    def lose(self, node: str) -> None:
        """It does not say that it is ready any more."""
        self._store(node, ready=False)

    def take_out_of_service(self, node: str) -> None:
        if self.api.find(NODES, node) is not None:
            taint = {"key": OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}
            self._store(node, ready=False, taints=(taint,))

    def delete(self, node: str) -> None:
        if self.api.find(NODES, node) is not None:
            self.api.remove(NODES, node)

    def restore(self, node: str) -> None:
        """It is back; pods that wait for a volume of it begin."""
        self._store(node)
        self.kubelet.place_waiting()


class NodeFaults:
    """The nodes' part of `faults`: each fault says whether it could be done."""

    def __init__(self, faults: "Faults") -> None:
        self.faults, self.world, self.kubelet = faults, faults.world, faults.world.kubelet
        self.api = self.world.api
        self._lost: dict[str, Machine] = {}
        self.todo: dict[str, Callable[[], bool]] = {
            "delete a node": self._delete,
            "take a node out of service": self._take_out,
            "cut a node off": self._cut_off,
            "replace a member": self._replace,
        }

    @property
    def _nodes(self) -> Nodes:
        assert self.kubelet.nodes is not None, "drawn with nodes alone"
        return self.kubelet.nodes

    def end(self) -> None:
        """Nodes are back that can be, and nobody wants a volume kept any more."""
        for node in list(self._lost):
            self._restore(node)
        for member in self.api.list(MEMBERS):
            if member["spec"].get("replacement") == "KeepVolume":
                self.api.change_spec(MEMBERS, member["metadata"]["name"], replacement=None)

    def _lose(self, alive_seconds: float) -> tuple[str, "Machine"] | None:
        """Some node is lost, and its process runs on for so long; None when there is none to be lost."""
        machine = self.faults.machine()
        node = "" if machine is None else self._nodes.node_of(machine)
        if machine is None or not node or machine.lost or machine.deleting:
            return None
        if machine.place in self.kubelet.leftover:
            return None
        self._lost[node], machine.lost = machine, True
        self.world.network.alone.add(machine.place)
        self.faults.later(alive_seconds, self.kubelet.power_off, machine)
        self._nodes.lose(node)
        return node, machine

    def _soon(self, most: float, change: Callable[[str], None], node: str, machine: "Machine") -> None:
        """Do it within these seconds, unless the node is back by then."""

        def do() -> None:
            if machine.lost:
                change(node)

        self.faults.later(self.faults.random.uniform(0.0, most), do)

    def _alive_seconds(self) -> float:
        random = self.faults.random
        return random.choice((0.0, random.uniform(0.0, ALIVE_SECONDS_MAX)))

    def _away_seconds(self, place: str) -> float:
        seconds = self.faults.random.uniform(*AWAY_SECONDS)
        self.faults.trouble(place, seconds + 5.0)
        return seconds

    def _delete(self) -> bool:
        """Its object is deleted, and its pods are collected. A volume that is local to it is gone."""
        spare = [each for each in self.kubelet.running() if self.faults.is_spare(each.place)]
        alive = self._alive_seconds()
        found = self._lose(alive)
        if found is None:
            return False
        node, machine = found
        for_good = self._nodes.local and machine in spare
        self._soon(1.0, self._nodes.delete, node, machine)
        seconds = self.faults.random.uniform(0.0, COLLECTED_SECONDS_MAX)
        self.faults.later(seconds, self.kubelet.remove_pod, machine)
        if for_good:
            del self._lost[node]
            self.faults.lose_volume(machine.place)
        else:
            self.faults.later(self._away_seconds(machine.place), self._restore, node)
        end = "for good" if for_good else "for a while"
        return self.faults.say(f"its node is deleted {end}; it runs on for {alive:.1f} s", machine.place)

    def _take_out(self) -> bool:
        """The node is off, and a user says so. Its pod is being deleted by then."""
        found = self._lose(0.0)
        if found is None:
            return False
        node, machine = found
        self.api.delete(PODS, machine.place, machine.pod_uid)
        seconds = self._away_seconds(machine.place)
        self._soon(3.0, self._nodes.take_out_of_service, node, machine)
        self.faults.later(seconds, self._restore, node)
        return self.faults.say(f"its node is off for {seconds:.1f} s, and out of service", machine.place)

    def _cut_off(self) -> bool:
        """The node is not ready, and nobody knows whether it is off."""
        found = self._lose(self._alive_seconds())
        if found is None:
            return False
        node, machine = found
        seconds = self._away_seconds(machine.place)
        self.faults.later(seconds, self._restore, node)
        return self.faults.say(f"its node is cut off for {seconds:.1f} s", machine.place)

    def _restore(self, node: str) -> None:
        machine = self._lost.pop(node, None)
        if machine is not None:
            self.faults.say("its node is back", machine.place)
            self.world.network.rejoin(machine.place)
            self.kubelet.node_is_back(machine)
            self._nodes.restore(node)

    def _replace(self) -> bool:
        """What `kubectl stele replace` does; it refuses when the volume may have the only copy."""
        members = self.api.list(MEMBERS)
        if not members:
            return False
        name = self.faults.random.choice(members)["metadata"]["name"]
        how = self.faults.random.choice(("NewVolume", "NewVolume", "KeepVolume", None))
        machine = self.kubelet.machines.get(name)
        answers = machine is not None and machine.up and not machine.lost
        if how == "NewVolume" and not answers and not self.faults.is_spare(name):
            return False
        if how == "NewVolume" and not answers:
            self.faults.lose_volume(name)
        self.api.change_spec(MEMBERS, name, replacement=how)
        return self.faults.say(f"the user sets replacement: {how}", name)


class Removals:
    """Looks at each TabletMember that is removed: all that it had is elsewhere by then, and what runs in it
    has heard of the end of each migration."""

    def __init__(self, world: "World", check: Check, is_away: Callable[[str], bool]) -> None:
        self.world, self._check, self._is_away = world, check, is_away
        world.stack.enter_context(self._watch())

    def _watch(self) -> AbstractContextManager[object]:
        real = KubernetesClusterObjects.remove_member

        async def remove(objects: KubernetesClusterObjects, index: int, *, keep_volume: bool) -> None:
            self.decided(index)
            await real(objects, index, keep_volume=keep_volume)

        return patch.object(KubernetesClusterObjects, "remove_member", remove)

    def decided(self, index: int) -> None:
        """A master removes the member, whose pod runs until then; one that is away hears of nothing."""
        place = f"{CLUSTER}-{index}"
        machine = self.world.kubelet.machines.get(place)
        if machine is None or machine.node is None or self._is_away(place):
            return
        named = [number for number, row in enumerate(machine.node.rows) if index in row.members]
        self._check(HEARD, not named, "{} is removed, and its rows name it: {}", place, named)

    def gone(self, member: Object) -> None:
        """A TabletMember was removed; not because its cluster is."""
        if self.world.api.find(CLUSTERS, CLUSTER) is None:
            return
        index = member["spec"]["index"]
        named = [number for number, row in enumerate(self.world.rows()) if index in row.members]
        text = "{} is removed, and rows name it: {}"
        self._check(UNNAMED, not named, text, member["metadata"]["name"], named)
