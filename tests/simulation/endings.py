"""A member that stays away for good: the others must be well without it, as they are when nobody was lost.

It goes when the faults of the run are over, at whatever the others still have to do then. Two losses at once
are more than is promised: it is one without which every row still has a whole copy on a member that is well.
"""

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from stele.adapters.kubernetes.api import CLUSTERS, MEMBERS
from tests.simulation.kinds import ENDINGS
from tests.simulation.kubelet import Machine
from tests.simulation.profile import CLUSTER

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

LOOK_SECONDS = 0.1
GIVEN_UP = ENDINGS[-1]


class Ending:
    """The part of `faults` that begins when the others end; `world.away` is who was taken, "" for nobody."""

    def __init__(self, faults: "Faults") -> None:
        self.faults, self.world = faults, faults.world
        self.random = random.Random(f"ending of {self.world.profile.seed}")
        self._todo: dict[str, Callable[[Machine], None]] = {
            "stay dead": self._stay_dead,
            "stay frozen": self._stay_frozen,
            "stay cut off": self._stay_cut_off,
        }

    def begin(self, after_seconds: float, until: float) -> None:
        """Look for somebody from then on; nobody stays away when there is none that can be spared."""
        ending = self.world.profile.ending
        if ending and ending not in self.world.profile.without:
            self.faults.later(after_seconds, self._look, ending, until)

    def _look(self, ending: str, until: float) -> None:
        spare = [each for each in self.world.kubelet.running() if self._can_be_spared(each)]
        if spare and self.random.random() < 0.5:
            self._take(self.random.choice(spare), ending)
        elif self.world.clock.now + LOOK_SECONDS < until:
            self.faults.later(LOOK_SECONDS, self._look, ending, until)

    def _can_be_spared(self, machine: Machine) -> bool:
        spec = self.world.cluster["spec"]
        known = {member.name for member in self.world.table().members.values()}
        enough = machine.place in known and spec["members"] > spec["replicas"]
        return enough and not self.faults.is_fragile() and self.faults.is_spare(machine.place)

    def _take(self, machine: Machine, ending: str) -> None:
        self.world.away = machine.place
        self._count()
        self.world.api.changed.append(self._count)
        self.faults.harm(machine.place, math.inf)
        self.faults.say(f"goes to {ending}", machine.place)
        self.world.trace.faults[ending] += 1
        self._todo[ending](machine)

    def _count(self, *_: object) -> None:
        """Masters of before may have made more members than are desired: then it is the one too many."""
        members = self.world.api.list(MEMBERS)
        self.world.surplus |= len(members) > self.world.cluster["spec"]["members"]

    def _stay_dead(self, machine: Machine) -> None:
        self.world.kubelet.gone.add(machine.place)
        assert machine.process is not None
        machine.process.end("never starts again", power_lost=self.random.random() < 0.5)

    def _stay_frozen(self, machine: Machine) -> None:
        """As on a node that is lost: nobody says that it ended, and what it had open stays open."""
        self.world.kubelet.gone.add(machine.place)
        assert machine.process is not None
        machine.process.loop.pause(math.inf)

    def _stay_cut_off(self, machine: Machine) -> None:
        """Clients still reach it: it must not serve them by what it knew."""
        self.world.network.gone.add(machine.place)

    def give_up(self) -> bool:
        """In half of the runs the user wishes for one member less; whether that was done."""
        if not self.world.missed() or GIVEN_UP in self.world.profile.without or self.random.random() < 0.5:
            return False
        self.world.trace.faults[GIVEN_UP] += 1
        members = self.world.cluster["spec"]["members"] - 1
        self.world.api.change_spec(CLUSTERS, CLUSTER, members=members)
        self.faults.say(f"the user sets members: {members}", "user")
        self.world.surplus = True
        return True
