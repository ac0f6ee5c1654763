"""Rolling updates: users change what members' pods are made of; and what holds when one is restarted."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stele.core.control.state import State
from stele.master.restarts import RESTARTING_UNTIL
from tests.simulation.profile import CLUSTER

if TYPE_CHECKING:
    from tests.simulation.faults import Faults
    from tests.simulation.world import World

EMPTIED = "only emptied members restart"
COPIES = "one member restarts, and every other copy is there"
MEBIBYTES = (256, 512, 768)
SETTLED_SECONDS = 10.0
"""A master that asks for so long leads alone: what the one before it had sent has arrived."""
LEFT_SECONDS = 20.0
"""Rows may be stored without a member so long after its restart was given up."""

Check = Callable[..., None]
Object = dict[str, Any]


class UpdateFaults:
    """The users' part of rolling updates: each fault says whether it could be done."""

    def __init__(self, faults: "Faults") -> None:
        self.faults, self.world = faults, faults.world
        self.todo: dict[str, Callable[[], bool]] = {
            "change the pods": self._change,
            "change the update strategy": self._change_strategy,
        }

    def _change(self) -> bool:
        """Back to what it was before, too."""
        memory = f"{self.faults.random.choice(MEBIBYTES)}Mi"
        return self.faults.patch(resources={"requests": {"memory": memory}})

    def _change_strategy(self) -> bool:
        partition = self.faults.random.randrange(self.world.cluster["spec"]["members"])
        choices: tuple[Object, ...] = ({}, {"paused": True}, {"type": "OnDelete"}, {"partition": partition})
        return self.faults.patch(updateStrategy=self.faults.random.choice(choices))

    def end(self) -> None:
        """Nothing holds an update back."""
        if self.world.cluster["spec"].get("updateStrategy"):
            self.faults.patch(updateStrategy={})


class Restarts:
    """Looks at each restart when its note is stored, right before the pod is deleted.

    `_emptied` says until when rows may be stored without a member, by its place.
    """

    def __init__(
        self,
        world: "World",
        check: Check,
        is_away: Callable[[str], bool],
        led_since: Callable[[int], float],
    ) -> None:
        self.world, self._check, self._is_away, self._led_since = world, check, is_away, led_since
        self._notes: dict[str, str] = {}
        self._emptied: dict[str, float] = {}

    def may_leave(self, place: str) -> bool:
        """Whether a master empties it for a restart, or did so not long ago."""
        self.look()
        return self.world.clock.now < self._emptied.get(place, 0.0)

    def look(self) -> None:
        for master in self.world.masters:
            if master.loop.alive and master.state is not None and master.state.stops.updating is not None:
                place = f"{CLUSTER}-{master.state.stops.updating}"
                self._emptied[place] = self.world.clock.now + LEFT_SECONDS

    def stored(self, member: Object, copies: int) -> None:
        """A TabletMember was stored; so many copies are desired at least."""
        place, annotations = member["metadata"]["name"], member["metadata"].get("annotations") or {}
        before, note = self._notes.get(place, ""), annotations.get(RESTARTING_UNTIL, "")
        self._notes[place] = note
        state = self._state()
        if note in ("", before) or state is None or self._is_away(place):
            return
        self.world.trace.cover("a member is restarted")
        self._look_at(place, state, copies)

    def _state(self) -> State | None:
        """What the only master knows; None when another one may have written this."""
        states = [master.state for master in self.world.masters if master.loop.alive]
        state = states[0] if len(states) == 1 else None
        if state is None or not state.recovered:
            return None
        return state if self.world.clock.now - self._led_since(state.epoch) > SETTLED_SECONDS else None

    def _look_at(self, place: str, state: State, copies: int) -> None:
        index = int(place.rpartition("-")[2])
        excused = self._excused(state)
        full = min(copies, len(self.world.table().members))
        for number, row in enumerate(self.world.rows()):
            heirs = sorted(row.members - {index} - excused)
            kept = index in row.members and bool(heirs)
            text = "{} is restarted, and {} names it"
            self._check(EMPTIED, not kept, text, place, row, partition=number)
            enough, text = len(row.members - {index}) >= full - 1, "{} is restarted, and there is only {}"
            self._check(COPIES, enough, text, place, row, partition=number)

    def _excused(self, state: State) -> set[int]:
        """Members that cannot take over: away, about to stop, or emptied by their users."""
        demoted = {each.member for each in state.rebalance.demotions.values()}
        away = {index for index in state.table.members if self._is_away(f"{CLUSTER}-{index}")}
        return demoted | away | set(state.membership.leaving) | set(state.stops.since)


def not_updated(world: "World") -> str:
    """What a rolling update has left to do, while no member is missed; empty when nothing."""
    counted = ((world.cluster.get("status") or {}).get("members") or {}).get("updated")
    wanted = world.cluster["spec"]["members"]
    return "" if counted == wanted else f"{counted} of {wanted} members are updated"
