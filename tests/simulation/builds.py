"""Builds of two formats in one cluster: how they are upgraded, and what holds meanwhile."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from stele.core.control import commands as m
from stele.core.formats import FIRST, RANGES, SPOKEN, SWAPS
from stele.errors import Corrupt
from stele.wire.configmap import Head
from stele.wire.storage.volume import TABLE_FILE, TableFile, decode_table
from tests.simulation.kubelet import Machine
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

UPGRADE_SECONDS = 0.5
"""Between two members that are upgraded when the faults are over."""
Check = Callable[..., None]


class BuildFaults:
    """The builds' part of `faults`: each fault says whether it could be done."""

    def __init__(self, faults: "Faults") -> None:
        self.faults, self.world, self.kubelet = faults, faults.world, faults.world.kubelet
        self.todo: dict[str, Callable[[], bool]] = {
            "upgrade the operator": self._upgrade_operator,
            "upgrade a member": self._upgrade,
            "roll a member back": self._roll_back,
        }

    def _upgrade_operator(self) -> bool:
        """New pods of members are of its release, too."""
        master = self.world.master
        if master is None or self.world.operator == SPOKEN:
            return False
        self.world.operator = self.kubelet.image = SPOKEN
        master.kill()
        return self.faults.say(f"is replaced by a build that speaks {SPOKEN}", master.loop.name)

    def _upgrade(self) -> bool:
        machine = self.faults.machine()
        if machine is None or self.kubelet.build_of(machine.place) == SPOKEN:
            return False
        self.faults.trouble(machine.place, 5.0)
        return self._replace(machine)

    def _replace(self, machine: Machine) -> bool:
        self.kubelet.builds[machine.place] = SPOKEN
        if machine.process is not None and machine.up:
            machine.process.end("upgraded")
        return self.faults.say(f"its build speaks {SPOKEN} now", machine.place)

    def _roll_back(self) -> bool:
        """For a while: when the features have risen meanwhile, it does not start."""
        machine, old = self.faults.machine(), self.world.profile.build
        if machine is None or machine.process is None or self.kubelet.build_of(machine.place) == old:
            return False
        seconds = self.faults.random.uniform(3.0, 10.0)
        self.faults.trouble(machine.place, seconds + 5.0)
        self.kubelet.builds[machine.place] = old
        machine.process.end("rolled back")
        self.faults.later(seconds, self._end_roll_back, machine.place)
        return self.faults.say(f"its build speaks {old} for {seconds:.1f} s", machine.place)

    def _end_roll_back(self, place: str) -> None:
        machine = self.kubelet.machines.get(place)
        if machine is not None and self.kubelet.build_of(place) != SPOKEN:
            self._replace(machine)

    def end(self) -> None:
        """Everything is upgraded, one after the other."""
        self._upgrade_operator()
        for number, place in enumerate(sorted(self.kubelet.machines)):
            self.faults.later(UPGRADE_SECONDS * number, self._end_roll_back, place)


class Features:
    """Rules about the format in force: `features` are those of the stored head."""

    def __init__(self, world: World, check: Check) -> None:
        self._world, self._check = world, check
        self.features = FIRST
        self._shown: dict[tuple[int, str], int] = {}

    def head(self, head: Head) -> None:
        grows = head.features >= self.features
        self._check("features never fall", grows, "{} are stored after {}", head.features, self.features)
        if head.features > self.features and head.members:
            self._world.trace.cover(f"features {self.features} to {head.features}")
            spoken = {each.name: self._spoken(head.epoch, each.uuid) for each in head.members}
            silent = [name for name, most in spoken.items() if most < head.features]
            text = "features {} are stored, and {} have not shown in this epoch that they speak them"
            rule = "features only when all members speak them"
            self._check(rule, not silent, text, head.features, silent)
        self.features = head.features

    def _spoken(self, epoch: int, uuid: str) -> int:
        return self._shown.get((epoch, uuid), 0)

    def answered(self, place: str, request: m.ExchangeRequest, reply: m.ExchangeReply) -> None:
        """Note what a member says that it speaks; it obeys no exchange beyond that."""
        key = request.epoch, reply.uuid
        self._shown[key] = max(self._shown.get(key, 0), reply.formats.most)
        rule, text = "nothing beyond the features", "{} obeys format {}, speaks {}"
        speaks = reply.formats.speaks(request.format)
        self._check(rule, speaks, text, place, request.format, reply.formats)
        swaps = [command for command in request.commands if isinstance(command, m.HandOver) and command.swaps]
        early = swaps and self.features < SWAPS
        self._check(rule, not early, "{} is sent {} with features {}", place, swaps, self.features)

    def saved(self, place: str, name: str, content: bytes, before: bytes | None) -> None:
        """Look at a file that a member writes."""
        if name != TABLE_FILE:
            return
        table, old = decode_table(content, name), _read(before)
        allowed = content.startswith(b"stele TableFile 3\n") == (table.features >= RANGES)
        rule, text = "nothing beyond the features", "{}: {!r} with features {}, {} are stored"
        fits = allowed and table.features <= self.features
        self._check(rule, fits, text, place, content[:20], table.features, self.features)
        grows = old is None or table.features >= old.features
        self._check("features never fall", grows, "{}: {} follows {}", place, table.features, old)


def _read(content: bytes | None) -> TableFile | None:
    try:
        return None if content is None else decode_table(content, TABLE_FILE)
    except Corrupt:
        return None
