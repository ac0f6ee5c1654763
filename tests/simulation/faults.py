"""What goes wrong, one thing after the other, as the profile allows; and how all of it ends.

Only the last copies are spared (`volumes.py`), and while one is missing nothing else befalls members. So
whatever is lost is a defect.
"""

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from stele.adapters.kubernetes.api import CLUSTERS, MEMBERS, Kind
from stele.core.control import commands as m
from stele.core.kv.dedup import KEEP_SECONDS
from tests.fakes.api import API_PLACE, ApiFaults
from tests.simulation.builds import BuildFaults
from tests.simulation.crashes import Crashes
from tests.simulation.endings import Ending
from tests.simulation.keyspaces import KeyspaceFaults
from tests.simulation.kinds import (
    CHANGE_DETECTION,
    CHANGE_ROLE,
    ISOLATE_TWO,
    NODES,
    PLANNED_STOP,
    SLOW_LINK,
    STOP_ALONE,
    STRIKE_TRANSACTION,
)
from tests.simulation.kubelet import Machine
from tests.simulation.nodes import NodeFaults
from tests.simulation.profile import CLUSTER, HEARTBEATS, LEASES
from tests.simulation.quarantines import QuarantineFaults
from tests.simulation.rebalances import RebalanceFaults
from tests.simulation.stops import Stops
from tests.simulation.updates import UpdateFaults
from tests.simulation.volumes import Volumes
from tests.simulation.world import World

MEMBERS_MAX = 6
NOTICED_SECONDS = 20.0
"""Harm may be noticed so long after it ended."""
JUMP_SECONDS_MAX = KEEP_SECONDS / 2 - 30
"""Two owners with clocks so far apart still remember what ran once for as long as clients retry."""
RECONSIDERED_SECONDS = 5.0
OF_MEMBERS = frozenset(
    {"cut one way", "cut both ways", "isolate a member", "hide from the master", "swizzle", "slow a place"}
    | {
        "kill a member",
        "cut the power",
        "keep a member down",
        "pause a member",
        "delete a pod",
        "delete a pod by force",
        "lose a node",
        "delete a pod, kill the others",
        "cut the power of a stopping member",
        PLANNED_STOP,
        "kill a member at a step",
        "kill a member at a write",
        "wipe a volume",
        "flip a bit",
        "swap volumes",
        "upgrade a member",
        "roll a member back",
    }
    | {"disk errors", "slow disk", ISOLATE_TWO, STOP_ALONE, STRIKE_TRANSACTION, *NODES}
)
"""Not begun while a row names a member that lost its copy: two losses at once are more than is promised."""
COPIES_FEWER = frozenset({"change replicas", "cancel the plan"})
"""What may end in a wish for fewer copies."""
SLOW_SECONDS = 0.3
FIRST_SECONDS = 1.5
"""A cluster forms before the first fault: it may well take a second for its first table."""


class Faults:
    """`harmed` says until when the copies of a member may be what it is given up for, by its place."""

    def __init__(self, world: World, harmed: dict[str, float]) -> None:
        self.world, self.harmed = world, harmed
        self.number = 0
        self.random = self._chance()
        self.network, self.kubelet, self.api = world.network, world.kubelet, world.api
        self.over = False
        self.wrong_until: dict[str, float] = {}
        self._volumes, self._crashes = Volumes(self), Crashes(self)
        self._builds, self._updates = BuildFaults(self), UpdateFaults(self)
        self._rebalances, self._nodes = RebalanceFaults(self), NodeFaults(self)
        self._quarantine = QuarantineFaults(self)
        self.ending = Ending(self)
        self._todo: dict[str, Callable[[], bool]] = {
            "reset a connection": self._reset,
            "cut one way": partial(self._cut, both=False),
            "cut both ways": partial(self._cut, both=True),
            "isolate a member": self._isolate,
            ISOLATE_TWO: self._isolate_two,
            STOP_ALONE: self._stop_alone,
            "hide from the master": self._hide,
            "swizzle": self._swizzle,
            "slow a place": self._slow,
            SLOW_LINK: self._slow_link,
            "kill a member": partial(self._kill, power_lost=False),
            "cut the power": partial(self._kill, power_lost=True),
            "keep a member down": self._keep_down,
            "pause a member": self._pause,
            **Stops(self).todo,
            **self._builds.todo,
            **self._updates.todo,
            **self._volumes.todo,
            **self._crashes.todo,
            **self._nodes.todo,
            **self._quarantine.todo,
            "a clock jumps": self._jump,
            "kill the master": self._kill_master,
            "pause the master": self._pause_master,
            "second master": self._second_master,
            "api server away": self._api_away,
            "scale": self._scale,
            "change replicas": self._change_replicas,
            "change state": self._change_state,
            "drain a member": self._drain,
            **self._rebalances.todo,
            **KeyspaceFaults(self).todo,
            CHANGE_ROLE: self._change_role,
            CHANGE_DETECTION: self._change_detection,
            "pause migrations": self._pause_migrations,
            "strike a hand-over": partial(self._strike, m.HandOver, self._strike_hand_over),
            "flip a bit of a copy": partial(self._strike, m.FetchDirect, self._volumes.flip_copy),
            "strike an arrival": partial(self._strike, m.StartTabletCopy, self._strike_arrival),
        }
        self._awaited: dict[type[m.Command], Callable[[str, m.Command], None]] = {}
        world.exchanged.append(self._exchanged)

    def _chance(self) -> random.Random:
        """Of its own for each fault: leaving one out changes neither which others begin, nor when."""
        return random.Random(f"fault {self.number} of {self.world.profile.seed}")

    @property
    def kinds(self) -> Iterable[str]:
        """All that may be begun."""
        return self._todo

    def begin(self) -> None:
        rate = self.world.profile.rate
        network, api = self.network, self.api
        network.lost_part, network.late_part = rate("message lost"), rate("message late")
        self.kubelet.copy_late_part = rate("copy late")
        network.repeated_part, network.torn_part = rate("message repeated"), rate("segment torn")
        api.faults = ApiFaults(
            lost=rate("api request lost"),
            unanswered=rate("api answer lost"),
            refused=rate("api refused"),
            conflict=rate("api conflict"),
            watch_lost=rate("watch event lost"),
            watch_repeated=rate("watch event repeated"),
            watch_seconds=0.05 + rate("watch late"),
        )
        drift = rate("clock drift")
        self.kubelet.rates = lambda: 1.0 + self.random.uniform(-drift, drift)
        if self.world.profile.faults:
            self.world.clock.call_later(FIRST_SECONDS, self._next)

    def _next(self) -> None:
        if self.over:
            return
        self.number += 1
        self.random = self._chance()
        self.later(self.random.expovariate(1 / self.world.profile.calm_seconds), self._next)
        name = self.random.choice(self.world.profile.faults)
        if name in self.world.profile.without or (name in OF_MEMBERS and self.is_fragile()):
            return
        if self._todo[name]():
            self.world.trace.faults[name] += 1

    def end(self) -> None:
        """Whatever is wrong ends now; who is down comes back, but for one that may stay away."""
        self.over = True
        self.network.heal_all()
        self.network.lost_part = self.network.late_part = self.network.repeated_part = 0.0
        self.network.torn_part = 0.0
        self.api.faults = ApiFaults()
        for machine in self.kubelet.machines.values():
            machine.held_until = 0.0
        self._volumes.end()
        self._nodes.end()
        self._quarantine.end()
        self._builds.end()
        self._updates.end()
        self.api.change_spec(
            CLUSTERS, CLUSTER, state="Active", migration={**self._migration(), "paused": False}
        )
        for member in self.api.list(MEMBERS):
            self.api.change_spec(MEMBERS, member["metadata"]["name"], drain=False, lite=False)
        self._rebalances.end()
        if self.world.trace.faults["plan cancelled"]:
            # What a user cancelled is not planned again before a wish changes.
            replicas = self.world.cluster["spec"]["replicas"]
            self.later(RECONSIDERED_SECONDS, partial(self.patch, replicas=replicas - 1 or 2))
        self.world.ensure_master()
        # Copies that are given up by a wish are no more when a member goes that has the others.
        waits = COPIES_FEWER & set(self.world.profile.faults)
        until = self.world.clock.now + 2 * RECONSIDERED_SECONDS
        self.ending.begin(RECONSIDERED_SECONDS + 1.0 if waits else 0.0, until)

    def is_fragile(self) -> bool:
        """Whether a copy that counts is missing: then nothing befalls members."""
        return self._volumes.is_fragile()

    def is_spare(self, place: str) -> bool:
        """Whether every row that names the member has another whole copy on a member that is well."""
        return self._volumes.is_spare(place)

    def lose_volume(self, place: str) -> None:
        """What it holds is given up."""
        self._volumes.lose(place)

    # -- helpers

    def later(self, seconds: float, callback: Callable[..., object], *args: object) -> None:
        self.world.clock.call_later(seconds, callback, *args)

    def say(self, what: str, place: str = "network") -> bool:
        self.world.trace.note(place, f"! {what}")
        return True

    def trouble(self, place: str, seconds: float) -> None:
        """Something is wrong with a place for so long."""
        until = self.world.clock.now + seconds
        self.wrong_until[place] = max(until, self.wrong_until.get(place, 0.0))

    def harm(self, place: str, seconds: float) -> None:
        """What it holds is damaged, gone, or cannot be read or written, for so long."""
        self.trouble(place, seconds)
        until = self.world.clock.now + seconds + NOTICED_SECONDS
        self.harmed[place] = max(until, self.harmed.get(place, 0.0))

    def machine(self) -> Machine | None:
        machines = self.kubelet.running()
        return self.random.choice(machines) if machines else None

    def _places(self) -> list[str]:
        masters = [master.loop.name for master in self.world.masters if master.leads]
        return [*self.kubelet.machines, *masters, API_PLACE]

    # -- network

    def _reset(self) -> bool:
        machine = self.machine()
        streams = [] if machine is None else self.network.streams_of(machine.place)
        if not streams:
            return False
        stream = self.random.choice(streams)
        stream.reset()
        return self.say(f"connection {stream.places} is reset")

    def _cut(self, *, both: bool) -> bool:
        places = self._places()
        if len(places) < 2:
            return False
        source, target = self.random.sample(places, 2)
        seconds = self.random.uniform(0.3, 8.0)
        for pair in [(source, target), (target, source)][: 1 + both]:
            self.network.cut(*pair)
            self.later(seconds, self.network.heal, *pair)
        for place in (source, target):
            self.trouble(place, seconds)
        return self.say(f"cut {source} -> {target}{' and back' if both else ''} for {seconds:.1f} s")

    def _isolate(self) -> bool:
        machine = self.machine()
        if machine is None:
            return False
        seconds = self.random.uniform(0.5, 8.0)
        self._cut_off(machine.place, seconds)
        return self.say(f"isolated for {seconds:.1f} s; clients reach it", machine.place)

    def _isolate_two(self) -> bool:
        one = self.machine()
        others = [each for each in self.kubelet.running() if each is not one]
        if one is None or not others:
            return False
        two = self.random.choice(others)
        pair, seconds = (one.place, two.place), self.random.uniform(2.0, 8.0)
        for place in pair:
            self.trouble(place, seconds)
            for other in self._places():
                if other not in pair and other != API_PLACE:
                    for ends in ((place, other), (other, place)):
                        self.network.cut(*ends)
                        self.later(seconds, self.network.heal, *ends)
        return self.say(f"isolated with {two.place} for {seconds:.1f} s; clients reach both", one.place)

    def _stop_alone(self) -> bool:
        """What is on its way when it stops is all that it hears for a while after it goes on.

        Messages are slow before, so that answers to it are on their way.
        """
        machine = self.machine()
        if machine is None or machine.process is None:
            return False
        place, stopped = machine.place, self.random.uniform(2.5, 5.0)
        self.network.slow_places[place] = SLOW_SECONDS
        self.trouble(place, SLOW_SECONDS + stopped)
        self.later(SLOW_SECONDS, machine.process.loop.pause, stopped)
        self.later(1.5 * SLOW_SECONDS, self._cut_off, place, stopped + 2.0)
        self.later(1.5 * SLOW_SECONDS, self.network.slow_places.pop, place, None)
        return self.say(f"slow, then paused for {stopped:.1f} s, and cut off for longer", place)

    def stop_cut_off(self, machine: Machine, seconds: float) -> None:
        """It stops at once, and cannot be reached from then until some time after it goes on."""
        if machine.process is not None and not self.over:
            machine.process.loop.pause(seconds)
            self._cut_off(machine.place, seconds + 2.0)
            self.say(f"paused for {seconds:.1f} s, and cut off for longer", machine.place)

    def _cut_off(self, place: str, seconds: float) -> None:
        self.network.alone.add(place)
        self.later(seconds, self.network.rejoin, place)
        self.trouble(place, seconds)

    def _hide(self) -> bool:
        """Only the master does not reach it: its replicas do, and clients."""
        machine, master = self.machine(), self.world.master
        if machine is None or master is None:
            return False
        seconds = self.random.uniform(1.0, 8.0)
        for pair in ((machine.place, master.loop.name), (master.loop.name, machine.place)):
            self.network.cut(*pair)
            self.later(seconds, self.network.heal, *pair)
        self.trouble(machine.place, seconds)
        return self.say(f"the master does not reach it for {seconds:.1f} s", machine.place)

    def _swizzle(self) -> bool:
        """Cut off one after the other, let back in another order (FoundationDB's swizzle-clog)."""
        machines = self.kubelet.running()
        some = self.random.sample(machines, self.random.randint(0, len(machines)))
        ends = self.random.sample([2.0 + number for number in range(len(some))], len(some))
        for number, machine in enumerate(some):
            begin = number * self.random.uniform(0.2, 1.0)
            self.trouble(machine.place, begin + ends[number])
            self.later(begin, self._cut_off, machine.place, ends[number])
        return self.say(f"swizzle {[machine.place for machine in some]}")

    def _slow(self) -> bool:
        place = self.random.choice(self._places())
        seconds = self.random.uniform(1.0, 8.0)
        self.network.slow_places[place] = self.random.choice((0.05, 0.3, 1.5))
        self.later(seconds, self.network.slow_places.pop, place, None)
        self.trouble(place, seconds)
        return self.say(f"messages take up to {self.network.slow_places[place]} s more", place)

    def _slow_link(self) -> bool:
        places = [machine.place for machine in self.kubelet.running()]
        if len(places) < 2:
            return False
        source, target = self.random.sample(places, 2)
        seconds = self.random.uniform(1.0, 5.0)
        self.network.slow_links[source, target] = self.random.choice((0.05, 0.3))
        self.later(seconds, self.network.slow_links.pop, (source, target), None)
        self.trouble(source, seconds)
        self.trouble(target, seconds)
        return self.say(f"what it sends to {target} takes longer", source)

    # -- processes

    def _kill(self, *, power_lost: bool) -> bool:
        machine = self.machine()
        if machine is None or machine.process is None:
            return False
        self.trouble(machine.place, 5.0)
        self.say("the power is lost" if power_lost else "killed", machine.place)
        machine.process.end("killed", power_lost=power_lost)
        return True

    def _keep_down(self) -> bool:
        machine = self.machine()
        if machine is None or machine.process is None:
            return False
        seconds = self.random.uniform(3.0, 15.0)
        machine.held_until = self.world.clock.now + seconds
        self.trouble(machine.place, seconds)
        self.say(f"down for {seconds:.1f} s", machine.place)
        machine.process.end("kept down", power_lost=self.random.random() < 0.5)
        return True

    def _pause(self) -> bool:
        machine = self.machine()
        if machine is None or machine.process is None:
            return False
        seconds = self.random.choice((0.3, 1.0, 3.0, 8.0)) * self.random.uniform(0.5, 1.5)
        machine.process.loop.pause(seconds)
        self.trouble(machine.place, seconds)
        return self.say(f"paused for {seconds:.1f} s", machine.place)

    def _jump(self) -> bool:
        """The time of day of one machine, or of the master, is wrong from now on."""
        machine, master = self.machine(), self.world.master
        seconds = self.random.uniform(-JUMP_SECONDS_MAX, JUMP_SECONDS_MAX)
        if self.random.random() < 0.2 and master is not None:
            master.loop.wall_seconds = seconds
            return self.say(f"the time of day is wrong by {seconds:.0f} s", master.loop.name)
        if machine is None or machine.process is None:
            return False
        machine.wall_seconds = machine.process.loop.wall_seconds = seconds
        return self.say(f"the time of day is wrong by {seconds:.0f} s", machine.place)

    def _kill_master(self) -> bool:
        master = self.world.master
        if master is None:
            return False
        self.say("killed", master.loop.name)
        master.kill()
        return True

    def _pause_master(self) -> bool:
        master = self.world.master
        if master is None:
            return False
        seconds = self.random.uniform(0.5, 8.0)
        master.loop.pause(seconds)
        self.say(f"paused for {seconds:.1f} s", master.loop.name)
        if self.random.random() < 0.5:
            self.later(seconds * self.random.random(), self.world.start_master)
        return True

    def _second_master(self) -> bool:
        self.world.start_master()
        return True

    # -- the worst moment

    def _strike(self, awaited: type[m.Command], strike: Callable[[str, m.Command], None]) -> bool:
        """Do it when a command of that kind is answered next."""
        self._awaited[awaited] = strike
        return self.say(f"the next {awaited.__name__} is struck")

    def _exchanged(self, place: str, request: m.ExchangeRequest, reply: m.ExchangeReply) -> None:
        for command, result in zip(request.commands, reply.results, strict=False):
            if result.code == "OK" and type(command) in self._awaited and not self.over:
                strike = self._awaited.pop(type(command))
                self.later(0.0, strike, place, command)

    def _strike_hand_over(self, place: str, command: m.Command) -> None:
        """The owner starts anew before the row is stored, and does not hear of it afterwards."""
        machine, master = self.kubelet.machines.get(place), self.world.master
        if machine is None or machine.process is None or master is None:
            return
        self.say("killed after its hand-over", place)
        self.trouble(place, 15.0)
        machine.process.end("killed", power_lost=False)
        self.network.cut(master.loop.name, API_PLACE)
        self.later(4.0, self.network.heal, master.loop.name, API_PLACE)
        self.later(3.9, self.network.cut, master.loop.name, place)
        self.later(12.0, self.network.heal, master.loop.name, place)

    def _strike_arrival(self, place: str, command: m.Command) -> None:
        """The destination is slow, and is alone as soon as the row names it."""
        assert isinstance(command, m.StartTabletCopy)
        number, member = command.partition, int(place.rpartition("-")[2])
        self.network.slow_places[place] = 0.5
        self.say(f"slow, and alone when it has partition {number}", place)
        self.trouble(place, 10.0)
        self.later(10.0, self.network.slow_places.pop, place, None)

        def alone(kind: Kind, stored: dict[str, Any], gone: bool) -> None:
            row = self.world.rows()[number] if self.world.rows() else None
            if self.over or row is None or member not in row.members:
                return
            self.api.changed.remove(alone)
            for other in sorted(row.members - {member}):
                self.later(0.01, self._hold_down, f"{CLUSTER}-{other}", 12.0)

        self.api.changed.append(alone)

    def _hold_down(self, place: str, seconds: float) -> None:
        machine = self.kubelet.machines.get(place)
        if machine is not None and machine.process is not None and not self.over:
            machine.held_until = self.world.clock.now + seconds
            self.trouble(place, seconds)
            self.say(f"down for {seconds:.1f} s", place)
            machine.process.end("kept down", power_lost=False)

    # -- API server and its users

    def _api_away(self) -> bool:
        seconds = self.random.uniform(0.5, 8.0)
        self.api.faults.away = True
        self.later(seconds, setattr, self.api.faults, "away", False)
        return self.say(f"away for {seconds:.1f} s", API_PLACE)

    def patch(self, **changes: object) -> bool:
        self.api.change_spec(CLUSTERS, CLUSTER, **changes)
        return self.say(f"the user sets {changes}", "user")

    def _scale(self) -> bool:
        least = max(2, self.world.cluster["spec"]["replicas"])
        return self.patch(members=self.random.randint(least, MEMBERS_MAX))

    def _change_replicas(self) -> bool:
        return self.patch(replicas=self.random.randint(1, min(3, self.world.cluster["spec"]["members"])))

    def _change_state(self) -> bool:
        return self.patch(state=self.random.choice(("Active", "Active", "NoMigration", "Frozen", "Passive")))

    def _pause_migrations(self) -> bool:
        before = self._migration()
        return self.patch(migration={**before, "paused": not before.get("paused", False)})

    def _change_detection(self) -> bool:
        heartbeat = self.random.choice(HEARTBEATS)
        before: dict[str, object] = self.world.cluster["spec"]["failureDetection"]
        changed = {
            "heartbeatSeconds": heartbeat,
            "leaseSeconds": heartbeat * self.random.choice(LEASES),
        }
        return self.patch(failureDetection=before | changed)

    def _migration(self) -> dict[str, object]:
        found: dict[str, object] = self.world.cluster["spec"]["migration"]
        return found

    def _drain(self) -> bool:
        members = self.api.list(MEMBERS)
        if not members:
            return False
        name = self.random.choice(members)["metadata"]["name"]
        drain = self.random.random() < 0.7
        self.api.change_spec(MEMBERS, name, drain=drain)
        return self.say(f"the user sets drain: {drain}", name)

    def _change_role(self) -> bool:
        """Enough data members stay for all copies."""
        members = self.api.list(MEMBERS)
        if not members:
            return False
        data = sum(not each["spec"].get("lite") for each in members)
        chosen = self.random.choice(members)
        name, lite = chosen["metadata"]["name"], not chosen["spec"].get("lite")
        if lite and data <= max(2, self.world.cluster["spec"]["replicas"]):
            return False
        self.api.change_spec(MEMBERS, name, lite=lite)
        return self.say(f"the user sets lite: {lite}", name)
