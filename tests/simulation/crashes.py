"""Deaths in the middle: between any two steps of a process, and right after any write to a volume.

A kill at a moment of time finds everything done that was to be done at that moment. These do not: they come
after a drawn number of steps of the process, or after a step that `stele.member.storage.failpoints` names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

from stele.member.storage import failpoints
from tests.fakes.loop import Clock, Killed, ProcessLoop
from tests.simulation.kinds import STRIKE_TRANSACTION
from tests.simulation.kubelet import Machine

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

STEPS_MAX = 400
POINTS_MAX = 6
STRUCK = ("transaction.prepared", "transaction.decided")
FREQUENT = ("write.logged", "write.synced", "write.applied")
"""Reached so often that the others would never be."""


@dataclass
class _Doomed:
    """A process that dies when it reaches one of `points` for the `left`th time."""

    loop: ProcessLoop
    points: frozenset[str]
    left: int
    machine: Machine
    power_lost: bool


class Crashes:
    """The part of `faults` that ends processes in the middle of what they do."""

    def __init__(self, faults: "Faults") -> None:
        self.faults, self.world = faults, faults.world
        self._doomed: dict[str, _Doomed] = {}
        self.world.reached = self._reached
        self.todo: dict[str, Callable[[], bool]] = {
            "kill a member at a step": self._member_at_step,
            "kill a member at a write": self._member_at_write,
            "kill the master at a step": self._master_at_step,
            STRIKE_TRANSACTION: self._strike_transaction,
        }
        self._struck, self._struck_left = "", 0

    def _member_at_step(self) -> bool:
        machine = self.faults.machine()
        if machine is None or machine.process is None:
            return False
        process, power_lost = machine.process, self._power_lost()
        steps = self.faults.random.randint(1, STEPS_MAX)

        def end() -> None:
            if self._may_die(machine):
                self.faults.say(f"ends at step {steps}, power lost: {power_lost}", machine.place)
                process.end("killed at a step", power_lost=power_lost)

        process.loop.end_after(steps, end)
        return True

    def _member_at_write(self) -> bool:
        machine, chance = self.faults.machine(), self.faults.random
        if machine is None or machine.process is None:
            return False
        rare = frozenset(failpoints.POINTS).difference(FREQUENT)
        points = chance.choice((rare, rare, frozenset(FREQUENT)))
        left = chance.randint(1, POINTS_MAX)
        loop = machine.process.loop
        self._doomed[machine.place] = _Doomed(loop, points, left, machine, self._power_lost())
        return True

    def _power_lost(self) -> bool:
        return self.faults.random.random() < 0.5

    def _may_die(self, machine: Machine) -> bool:
        """Something else may have befallen the copies since this was drawn."""
        if self.faults.over or self.faults.is_fragile():
            return False
        self.faults.trouble(machine.place, 5.0)
        return True

    def _strike_transaction(self) -> bool:
        """As a part is prepared, or all is decided, what runs it stops or dies, or another member dies."""
        self._struck, self._struck_left = self.faults.random.choice(STRUCK), self.faults.random.randint(1, 10)
        return True

    def _strike(self, place: str) -> None:
        self._struck_left -= 1
        originator, others = self.faults.kubelet.machines.get(place), self.faults.kubelet.running()
        others = [each for each in others if each is not originator]
        if self._struck_left or originator is None or not others:
            return
        point, self._struck, chance = self._struck, "", self.faults.random
        if chance.random() < 0.4:
            self.faults.stop_cut_off(originator, chance.uniform(3.0, 9.0))
            return
        other = chance.choice(others)
        machine = chance.choice((originator, other))
        if not self._may_die(machine) or machine.process is None:
            return
        self.faults.say(f"ends at {point}", machine.place)
        machine.process.end(f"killed at {point}", power_lost=self._power_lost())
        if machine is originator:
            # What the other one owns is asked for later, or gets another owner.
            if other.process is not None:
                other.process.loop.pause(chance.uniform(0.5, 5.0))
            raise Killed

    def _reached(self, name: str) -> None:
        process = self.world.clock.current
        if process is not None and name == self._struck:
            self._strike(process.name)
        doomed = None if process is None else self._doomed.get(process.name)
        if doomed is None or doomed.loop is not process or name not in doomed.points:
            return
        doomed.left -= 1
        if doomed.left > 0:
            return
        del self._doomed[process.name]
        if self._may_die(doomed.machine) and doomed.machine.process is not None:
            self.world.trace.cover(f"killed after {name}")
            self.faults.say(f"ends after {name}, power lost: {doomed.power_lost}", doomed.machine.place)
            doomed.machine.process.end(f"killed after {name}", power_lost=doomed.power_lost)
            raise Killed

    def _master_at_step(self) -> bool:
        master = self.world.master
        if master is None:
            return False
        steps = self.faults.random.randint(1, STEPS_MAX)

        def end() -> None:
            if not self.faults.over:
                self.faults.say(f"ends at step {steps}", master.loop.name)
                master.kill()

        master.loop.end_after(steps, end)
        return True


@contextmanager
def points_told(clock: Clock, told: Callable[[str], None]) -> Iterator[None]:
    """While it lasts, `told` hears of each point that a simulated process reaches."""

    def reached(name: str) -> None:
        if clock.current is not None:
            told(name)

    with patch.object(failpoints, "hit", reached):
        yield
