"""Machines: the pods of members run here, on volumes that outlive them."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stele.adapters.kubernetes.api import CLAIMS, PODS, Kind
from stele.core.formats import SPOKEN, FormatRange
from stele.master.manifests import COMPONENT_LABEL
from stele.member.node import Node
from stele.member.settings import Settings
from tests.fakes.api import ApiServer
from tests.fakes.disk import Disk
from tests.fakes.loop import Clock, ProcessLoop
from tests.fakes.network import Network
from tests.fakes.transfer import TransferContainer
from tests.simulation.member import BEGAN_UNIX_SECONDS, MemberProcess

if TYPE_CHECKING:
    from tests.simulation.nodes import Nodes

Object = dict[str, Any]

START_SECONDS = (0.05, 0.5)
RESTART_SECONDS = (0.2, 3.0)
STOP_SECONDS = 3.0
NOTED_LATE_SECONDS_MAX = 2.0


class Machine:
    """The place of one pod: its volume, its address and its processes; `lost` with its node and kubelet."""

    def __init__(self, place: str, disk: Disk, pod_uid: str, address: str) -> None:
        self.place, self.disk, self.pod_uid, self.address = place, disk, pod_uid, address
        self.process: MemberProcess | None = None
        self.transfer: TransferContainer | None = None
        self.starts = 0
        self.held_until = 0.0
        self.deleting = self.lost = False
        self.leave_seconds = 0.0
        self.rate = 1.0
        self.wall_seconds = 0.0
        self.began_unix_seconds = 0.0

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.loop.alive

    @property
    def node(self) -> Node | None:
        """None while nobody opened the volume."""
        return None if self.process is None else self.process.node

    @property
    def uuid(self) -> str:
        return "" if self.node is None else self.node.uuid


class Kubelet:
    """Lets run what the API server's pods ask for, and tells it what became of them.

    `watch` hears of every process that starts or ends: (machine, what happened); `ended` says when one ended
    last at each place. At places that are `gone` no process starts any more. `leftover` are machines whose
    pod was removed while their process runs on, by place: until it ends, it has the volume.
    """

    def __init__(
        self, clock: Clock, network: Network, api: ApiServer, root: Path, settings: Callable[[str], Settings]
    ) -> None:
        self.clock, self.network, self.api, self.root = clock, network, api, root
        self._settings = settings
        self.machines: dict[str, Machine] = {}
        self.leftover: dict[str, Machine] = {}
        self.ended: dict[str, float] = {}
        self.gone: set[str] = set()
        self.disks: dict[str, Disk] = {}
        self.rates: Callable[[], float] = lambda: 1.0
        self.watch: Callable[[Machine, str], None] = lambda machine, what: None
        self.saved: Callable[[str, str, bytes, bytes | None], None] = lambda *_: None
        self.lost: Callable[[Machine], None] = lambda machine: None
        self.copy_late_part = 0.0
        self.nodes: Nodes | None = None
        self.image = SPOKEN
        self.builds: dict[str, FormatRange] = {}
        self._addresses = 0
        api.changed.append(self._changed)

    def build_of(self, place: str) -> FormatRange:
        """What the build there speaks; `image` is that of new pods."""
        return self.builds.get(place, self.image)

    def running(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.up]

    def at_address(self, address: str) -> Machine | None:
        """Whose address it is now; an address is never given twice."""
        place = self.network.addresses.get(address, "")
        known = (self.machines.get(place), self.leftover.get(place))
        return next((each for each in known if each is not None and each.address == address), None)

    def reached(self) -> list[Machine]:
        """Where clients still find a process: also one whose pod is gone."""
        return [*self.running(), *(each for each in self.leftover.values() if each.up)]

    def _changed(self, kind: Kind, stored: Object, gone: bool) -> None:
        if kind is not PODS or stored["metadata"]["labels"][COMPONENT_LABEL] != "member":
            return
        name, uid = stored["metadata"]["name"], stored["metadata"]["uid"]
        machine = self.machines.get(name)
        if gone:
            if machine is not None and machine.pod_uid == uid:
                self._without_pod(machine)
            return
        if machine is None or machine.pod_uid != uid:
            if not stored["metadata"].get("deletionTimestamp"):
                self._place(name, uid)
            elif machine is None:
                self.clock.call_later(0.01, self._remove, name, uid)
        elif stored["metadata"].get("deletionTimestamp") and not machine.deleting and not machine.lost:
            machine.deleting = True
            self.clock.call_later(0.01, self._terminate, machine)

    def _place(self, name: str, uid: str) -> None:
        """A new pod gets its volume, its address, and a node if there are any."""
        claim = self.api.find(CLAIMS, name)
        key = name if claim is None else claim["metadata"]["uid"]
        if self.nodes is not None and not self.nodes.can_have(key):
            self.nodes.refuse(name)
            return
        self._addresses += 1
        if key not in self.disks:
            self.disks[key] = Disk(self.root / f"{name}-{key}", self.clock)
            self.disks[key].noticed = self.network.noticed
        disk = self.disks[key]
        disk.saved = partial(self._saved, name)
        machine = Machine(name, disk, uid, f"10.0.{self._addresses // 250}.{self._addresses % 250 + 1}")
        machine.rate = self.rates()
        if machine.rate != 1.0:
            self.network.noticed["clock drift"] += 1
        self.machines[name] = machine
        self.builds[name] = self.image
        if name not in self.leftover:
            self.network.addresses[machine.address] = name
        if self.nodes is not None:
            self.nodes.bind(name, key)
        self.clock.call_later(self.clock.random.uniform(*START_SECONDS), self._start, machine)

    def swap(self, one: Disk, other: Disk) -> None:
        """Whoever has one of these volumes gets the other, and starts again."""
        instead = {one: other, other: one}
        for machine in [each for each in self.leftover.values() if each.disk in instead]:
            # Of a volume that is detached no process is left.
            self._gone(machine)
        self.disks = {key: instead.get(disk, disk) for key, disk in self.disks.items()}
        for machine in [each for each in self.machines.values() if each.disk in instead]:
            if machine.process is not None:
                machine.process.end("it has another volume")
            if machine.transfer is not None:
                machine.transfer.end()
                machine.transfer = None
            machine.disk = instead[machine.disk]
            machine.disk.saved = partial(self._saved, machine.place)

    def _saved(self, *what: Any) -> None:
        self.saved(*what)

    def _start(self, machine: Machine) -> None:
        if machine.up or machine.deleting or self.machines.get(machine.place) is not machine:
            return
        if machine.place in self.gone or machine.lost:
            return
        if machine.place in self.leftover:
            self._wait_for_volume(machine)
            return
        self.network.addresses[machine.address] = machine.place
        if self.clock.now < machine.held_until:
            self.clock.call_later(machine.held_until - self.clock.now, self._start, machine)
            return
        machine.starts += 1
        loop = ProcessLoop(self.clock, machine.place, self.network, machine.rate)
        loop.wall_seconds = machine.wall_seconds
        where = {"pod_uid": machine.pod_uid, "boot_id": f"boot of {machine.place}"}
        settings = replace(self._settings(machine.place), **where)
        machine.transfer = machine.transfer or TransferContainer(machine.disk, self, machine.place)
        machine.process = MemberProcess(
            settings,
            machine.disk,
            loop,
            machine.transfer.client,
            lambda _, why: self._ended(machine, why),
            formats=self.build_of(machine.place),
        )
        self.watch(machine, "starts")
        self._show(machine, {"running": {}})

    def _wait_for_volume(self, machine: Machine) -> None:
        """The process before it has the volume: it waits for it, or ends and is started again."""
        if self.clock.random.random() < 0.5:
            self.clock.call_later(0.1, self._start, machine)
            return
        machine.starts += 1
        self._show(machine, {"running": {}})
        self.clock.call_later(self.clock.random.uniform(0.01, 0.3), self._tell_end, machine, machine.starts)
        self.clock.call_later(self.clock.random.uniform(*RESTART_SECONDS), self._start, machine)

    def _ended(self, machine: Machine, why: str) -> None:
        self.watch(machine, f"ends: {why}")
        self.ended[machine.place] = self.clock.now
        self.lost(machine)
        machine.disk.engine.dropped = {}
        if machine.deleting or machine.lost:
            return
        # The kubelet tells of it a moment later than it happened.
        self.clock.call_later(self.clock.random.uniform(0.0, 0.3), self._tell_end, machine, machine.starts)
        self.clock.call_later(self.clock.random.uniform(*RESTART_SECONDS), self._start, machine)

    def _tell_end(self, machine: Machine, starts: int) -> None:
        if machine.starts == starts and not machine.up:
            self._show(machine, {"terminated": {"exitCode": 137}})

    def _show(self, machine: Machine, state: Object) -> None:
        pod = self.api.find(PODS, machine.place)
        if pod is None or pod["metadata"]["uid"] != machine.pod_uid or machine.lost:
            return
        wall = BEGAN_UNIX_SECONDS + self.clock.now + machine.wall_seconds
        if "running" in state:
            machine.began_unix_seconds = wall + _late_seconds(machine)
        times = {"startedAt": _second(machine.began_unix_seconds)}
        if "terminated" in state:
            times["finishedAt"] = _second(wall)
        what = next(iter(state))
        status: Object = {
            "name": "member",
            "containerID": f"container-{machine.pod_uid}-{machine.starts}",
            "restartCount": machine.starts - 1,
            "state": {what: {**state[what], **times}},
        }
        self.api.patch_status(
            PODS,
            machine.place,
            {"phase": "Running", "podIP": machine.address, "containerStatuses": [status]},
        )

    def _terminate(self, machine: Machine) -> None:
        """The preStop hook if there is one, SIGTERM, and SIGKILL when that takes too long."""
        if machine.leave_seconds and machine.transfer is not None:
            machine.transfer.end()
            machine.transfer = None
        if machine.up:
            assert machine.process is not None
            task = machine.process.loop.create_task(machine.process.stop(machine.leave_seconds))
            task.add_done_callback(lambda _: self.clock.call_later(0.0, self._gone, machine))
            self.clock.call_later(machine.leave_seconds + STOP_SECONDS, self._gone, machine)
        else:
            self._gone(machine)

    def remove_by_force(self, machine: Machine, alive_seconds: float, *, politely: bool) -> None:
        """The pod is gone at once; its process is told to stop, or killed, only after so long."""
        machine.deleting = True
        self.leftover[machine.place] = self.machines.pop(machine.place)
        self._remove(machine.place, machine.pod_uid)
        self.clock.call_later(alive_seconds, self._terminate if politely else self._gone, machine)

    # -- lost nodes

    def _without_pod(self, machine: Machine) -> None:
        """Its pod was removed by force, and a kubelet that is lost does not know."""
        if not machine.lost:
            machine.deleting = True
            self.clock.call_later(0.01, self._gone, machine)
            return
        self.leftover[machine.place] = self.machines.pop(machine.place)
        if not machine.up:
            self._gone(machine)

    def power_off(self, machine: Machine) -> None:
        """Its node is off, unless it is back already."""
        if machine.lost and machine.process is not None:
            machine.process.end("its node is off", power_lost=True)
        if machine.lost and self.leftover.get(machine.place) is machine:
            self._gone(machine)

    def node_is_back(self, machine: Machine) -> None:
        """Its kubelet ends what has no pod any more, and starts what has."""
        machine.lost = False
        if self.leftover.get(machine.place) is machine:
            self._gone(machine)
            return
        pod = self.api.find(PODS, machine.place)
        if self.machines.get(machine.place) is not machine or pod is None:
            return
        if pod["metadata"].get("deletionTimestamp"):
            machine.deleting = True
            self._terminate(machine)
        elif not machine.up:
            self._tell_end(machine, machine.starts)
            self._start(machine)

    def remove_pod(self, machine: Machine) -> None:
        """As the garbage collector of pods does, while their node does not exist."""
        if machine.lost:
            self._remove(machine.place, machine.pod_uid)

    def place_waiting(self) -> None:
        """Pods that had no node may have one now."""
        for pod in self.api.list(PODS):
            meta = pod["metadata"]
            if meta["labels"][COMPONENT_LABEL] == "member" and meta["name"] not in self.machines:
                self._changed(PODS, pod, gone=False)

    def _gone(self, machine: Machine) -> None:
        if machine.lost:
            self.network.rejoin(machine.place)
        if machine.process is not None and machine.up:
            machine.process.end("its pod was deleted")
            self._show(machine, {"terminated": {"exitCode": 137}})
        for known in (self.machines, self.leftover):
            if known.get(machine.place) is machine:
                del known[machine.place]
                self.network.addresses.pop(machine.address, None)
        if machine.transfer is not None:
            machine.transfer.end()
        self._remove(machine.place, machine.pod_uid)

    def _remove(self, name: str, uid: str) -> None:
        pod = self.api.find(PODS, name)
        if pod is not None and pod["metadata"]["uid"] == uid:
            self.api.remove(PODS, name)


def _late_seconds(machine: Machine) -> float:
    """How much later than the process began the container runtime notes the start of its container."""
    draws = random.Random(f"{machine.pod_uid} {machine.starts}")
    return draws.choice((0.0, draws.uniform(0.0, NOTED_LATE_SECONDS_MAX)))


def _second(unix_seconds: float) -> str:
    """As the kubelet writes times."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
