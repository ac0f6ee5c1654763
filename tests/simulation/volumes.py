"""What befalls volumes: they are emptied, damaged, swapped, slow, full, or answer with errors.

Only the last copies are spared: a volume is emptied or damaged only while every row that names its member has
another member whose copy is whole and that is well.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from stele.core.control import commands as m
from stele.member.storage.volume import CONSENSUS, INSTANCE, STAGING, TABLETS
from stele.wire.storage.volume import TABLE_FILE
from tests.fakes.disk import FREE_BYTES, Disk
from tests.fakes.loop import DISK_SECONDS
from tests.simulation.kubelet import Machine
from tests.simulation.profile import CLUSTER

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

SETTLED_SECONDS = 3.0
LOOK_SECONDS = 0.01
LOOKS_MAX = 200
"""A file of a copy is waited for so often."""


class Volumes:
    """The volumes' part of `faults`: each fault says whether it could be done."""

    def __init__(self, faults: "Faults") -> None:
        self.faults, self.world, self.kubelet = faults, faults.world, faults.world.kubelet
        self._broken: dict[str, float] = {}
        self._swapped: tuple[Disk, Disk] | None = None
        self.todo: dict[str, Callable[[], bool]] = {
            "wipe a volume": self._wipe,
            "flip a bit": self._flip,
            "swap volumes": self._swap,
            "disk errors": self._disk_errors,
            "slow disk": self._slow_disk,
            "full disk": self._full_disk,
        }

    def end(self) -> None:
        self._swap_back()
        for machine in self.kubelet.machines.values():
            self._mend(machine, machine.disk)

    # -- who can be spared

    def is_spare(self, place: str) -> bool:
        """Whether every row that names the member has another whose copy is whole."""
        rows = self.world.rows()
        if not any(row.version for row in rows) or self.world.cluster["spec"]["replicas"] < 2:
            # The first table may be decided upon right now, with this volume in it; or other copies go.
            return False
        for number, row in enumerate(rows):
            others = [f"{CLUSTER}-{index}" for index in row.members]
            if place in others and not any(self._is_whole(each, number) for each in others if each != place):
                return False
        return True

    def _is_whole(self, place: str, partition: int) -> bool:
        machine = self.kubelet.machines.get(place)
        if machine is None or not machine.up:
            return False
        quiet = self.world.clock.now > self.faults.wrong_until.get(place, 0.0) + SETTLED_SECONDS
        return quiet and machine.disk.state_of(partition) == "READY"

    def is_fragile(self) -> bool:
        """Whether some row names a member that has nothing of it, or whose volume was broken."""
        # A row that names it may be about to be stored: that counts as if it were.
        late = self.world.clock.now - SETTLED_SECONDS
        self._broken = {p: at for p, at in self._broken.items() if at > late or not self._serves_again(p)}
        if self._broken:
            return True
        for number, row in enumerate(self.world.rows()):
            for index in row.members:
                machine = self.kubelet.machines.get(f"{CLUSTER}-{index}")
                if machine is not None and machine.disk.state_of(number) != "READY":
                    return True
        return False

    def _serves_again(self, place: str) -> bool:
        """Whether it is well, and has every tablet that a row names it for; or is no member any more."""
        machine, index = self.kubelet.machines.get(place), int(place.rpartition("-")[2])
        named = [number for number, row in enumerate(self.world.rows()) if index in row.members]
        if machine is None or not named:
            return not named
        replicas = machine.node.replicas if machine.up and machine.node is not None else {}
        return all(number in replicas and replicas[number].ready for number in named)

    # -- what befalls them

    def lose(self, place: str) -> None:
        """It never comes back."""
        self.faults.harm(place, math.inf)
        self._broken[place] = self.world.clock.now

    def _break(self, how: Callable[[Machine], str]) -> bool:
        machine = self.faults.machine()
        if machine is None or machine.process is None or not self.is_spare(machine.place):
            return False
        self.faults.harm(machine.place, 60.0)
        self._broken[machine.place] = self.world.clock.now
        machine.process.end("its volume breaks", power_lost=True)
        return self.faults.say(how(machine), machine.place)

    def _wipe(self) -> bool:
        def wipe(machine: Machine) -> str:
            machine.disk.wipe()
            return "its volume is empty"

        return self._break(wipe)

    def _flip(self) -> bool:
        def flip(machine: Machine) -> str:
            folder = self.faults.random.choice((INSTANCE, TABLE_FILE, TABLETS, CONSENSUS))
            names = [name for name in machine.disk.files if name.startswith(folder)]
            return f"a bit of {machine.disk.flip(names)} is flipped" if names else "nothing to flip"

        return self._break(flip)

    def flip_copy(self, place: str, command: m.Command, looks: int = LOOKS_MAX) -> None:
        """A bit of what was copied and is not taken in yet: no copy that counts is hurt."""
        machine = self.kubelet.machines.get(place)
        if machine is None or self.faults.over or not looks:
            return
        files = sorted(path for path in (machine.disk.root / STAGING).glob("*/*") if path.stat().st_size)
        if not files:
            self.faults.later(LOOK_SECONDS, self.flip_copy, place, command, looks - 1)
            return
        chance = self.world.clock.random
        path = chance.choice(files)
        content = bytearray(path.read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        self.world.trace.faults["bit of a copy flipped"] += 1
        self.faults.say(f"a bit of {path.relative_to(self.world.folder)} is flipped")

    def _swap(self) -> bool:
        """Two members, not two that are about to join, get each other's volume for a while."""
        known = {(each.name, each.uuid) for each in self.world.table().members.values()}
        machines = [each for each in self.kubelet.running() if (each.place, each.uuid) in known]
        if len(machines) < 2 or self._swapped is not None:
            return False
        one, other = self.faults.random.sample(machines, 2)
        seconds = self.faults.random.uniform(3.0, 12.0)
        for machine in (one, other):
            self.faults.harm(machine.place, seconds + 10.0)
        self._swapped = one.disk, other.disk
        self.faults.say(f"{one.place} and {other.place} swap volumes for {seconds:.1f} s")
        self.kubelet.swap(*self._swapped)
        self.faults.later(seconds, self._swap_back)
        return True

    def _swap_back(self) -> None:
        swapped, self._swapped = self._swapped, None
        if swapped is not None:
            self.faults.say("the volumes are swapped back")
            self.kubelet.swap(*swapped)

    def _disk_errors(self) -> bool:
        machine = self.faults.machine()
        if machine is None:
            return False
        machine.disk.failing_part = self.faults.random.choice((0.02, 0.2, 1.0))
        seconds = self.faults.random.uniform(0.2, 3.0)
        self.faults.later(seconds, self._mend, machine, machine.disk)
        self.faults.harm(machine.place, seconds + 5.0)
        told = f"its disk fails {machine.disk.failing_part:.0%} for {seconds:.1f} s"
        return self.faults.say(told, machine.place)

    def _slow_disk(self) -> bool:
        machine = self.faults.machine()
        if machine is None or machine.process is None:
            return False
        machine.process.loop.disk_seconds = self.faults.random.choice(((0.01, 0.1), (0.1, 1.0)))
        seconds = self.faults.random.uniform(1.0, 6.0)
        self.faults.later(seconds, self._mend, machine, machine.disk)
        self.faults.trouble(machine.place, seconds)
        return self.faults.say(f"its disk is slow for {seconds:.1f} s", machine.place)

    def _full_disk(self) -> bool:
        machine = self.faults.machine()
        if machine is None:
            return False
        seconds = self.faults.random.uniform(1.0, 6.0)
        self.faults.later(seconds, self._mend, machine, machine.disk)
        if self.faults.random.random() < 0.3:
            machine.disk.free_bytes = 0
            return self.faults.say(f"its disk is full for {seconds:.1f} s", machine.place)
        # Something else fills it, and lets go, faster than the member looks.
        machine.disk.refused = self.faults.random.choice((("log", "data", "files"), ("data", "files")))
        machine.disk.refused_part = self.faults.random.choice((0.02, 0.2, 1.0))
        part, kinds = machine.disk.refused_part, "/".join(machine.disk.refused)
        told = f"{part:.0%} of its writes ({kinds}) find no room for {seconds:.1f} s"
        return self.faults.say(told, machine.place)

    @staticmethod
    def _mend(machine: Machine, disk: Disk) -> None:
        """Mend the disk that was hurt: another machine may have it by now."""
        disk.failing_part, disk.refused = 0.0, ()
        disk.free_bytes = FREE_BYTES
        if machine.process is not None:
            machine.process.loop.disk_seconds = DISK_SECONDS
