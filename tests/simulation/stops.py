"""Members whose pods go: deleted politely, by force, or with their node; and what befalls others then."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from stele.adapters.kubernetes.api import PODS
from tests.simulation.kinds import PLANNED_STOP
from tests.simulation.kubelet import STOP_SECONDS, Machine

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

SLOW_CLOSING_SECONDS = (0.01, 0.3)
"""What each step of a stop takes at the disk, when there is much to write."""
LEFTOVER_SECONDS_MAX = 10.0
"""How long the process of a pod that was removed by force lives on."""
LOOK_SECONDS = 0.01


class Stops:
    """The stops' part of `faults`: each fault says whether it could be done."""

    def __init__(self, faults: "Faults") -> None:
        self.faults, self.world, self.kubelet = faults, faults.world, faults.world.kubelet
        self.todo: dict[str, Callable[[], bool]] = {
            "delete a pod": self._delete,
            "delete a pod by force": partial(self._remove, alone=False),
            "lose a node": partial(self._remove, alone=True),
            "delete a pod, kill the others": self._delete_and_kill,
            "cut the power of a stopping member": self._cut_power,
            PLANNED_STOP: self._stop_as_planned,
        }

    def _machine(self) -> Machine | None:
        """One with a process, whose pod is not being deleted."""
        machine = self.faults.machine()
        return None if machine is None or machine.process is None or machine.deleting else machine

    def _delete(self) -> bool:
        machine = self.faults.machine()
        if machine is None:
            return False
        self.faults.trouble(machine.place, 5.0)
        self.world.api.delete(PODS, machine.place, machine.pod_uid)
        return self.faults.say("its pod is deleted", machine.place)

    def _stop_as_planned(self) -> bool:
        machine = self._machine()
        if machine is None:
            return False
        machine.leave_seconds = self.faults.random.choice((1.0, 10.0))
        self.faults.trouble(machine.place, machine.leave_seconds + STOP_SECONDS + 5.0)
        self.world.api.delete(PODS, machine.place, machine.pod_uid)
        return self.faults.say(f"its pod is deleted, with a hook of {machine.leave_seconds} s", machine.place)

    def _slowly(self, machine: Machine) -> None:
        """It is told to stop, and has much to write."""
        assert machine.process is not None
        machine.process.loop.disk_seconds = SLOW_CLOSING_SECONDS
        self.faults.trouble(machine.place, STOP_SECONDS + 5.0)
        self.world.api.delete(PODS, machine.place, machine.pod_uid)

    def _delete_and_kill(self) -> bool:
        """As soon as it has stopped, all others die: it is the first to return, or the only one."""
        machine = self._machine()
        if machine is None:
            return False
        self._slowly(machine)
        self.faults.later(LOOK_SECONDS, self._kill_others, machine)
        return self.faults.say("its pod is deleted; when it has stopped, all others die", machine.place)

    def _kill_others(self, machine: Machine) -> None:
        if self.faults.over:
            return
        if machine.up:
            self.faults.later(LOOK_SECONDS, self._kill_others, machine)
            return
        for other in self.kubelet.running():
            if other is not machine and other.process is not None:
                self.faults.trouble(other.place, 5.0)
                other.process.end("killed when another had stopped")

    def _cut_power(self) -> bool:
        machine = self._machine()
        if machine is None or machine.process is None:
            return False
        self._slowly(machine)
        seconds = self.faults.random.uniform(0.0, 1.5)
        self.faults.later(seconds, partial(machine.process.end, "the power is lost", power_lost=True))
        return self.faults.say(f"its pod is deleted; {seconds:.1f} s later the power is lost", machine.place)

    def _remove(self, *, alone: bool) -> bool:
        """The pod is gone at once, its process lives on with the volume and its clients; on a lost node it
        reaches nobody else.
        """
        machine, random = self._machine(), self.faults.random
        if machine is None or machine.place in self.kubelet.leftover:
            return False
        seconds, politely = random.uniform(0.0, LEFTOVER_SECONDS_MAX), random.random() < 0.5
        self.faults.trouble(machine.place, seconds + STOP_SECONDS + 5.0)
        if alone:
            self.world.network.alone.add(machine.place)
            self.faults.later(seconds, self.world.network.rejoin, machine.place)
        self.kubelet.remove_by_force(machine, seconds, politely=politely)
        what = "its node is lost" if alone else "its pod is deleted by force"
        return self.faults.say(f"{what}; its process lives on for {seconds:.1f} s", machine.place)
