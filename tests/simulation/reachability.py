"""Which members a master may take for lost: by what it heard of them, not by what was done to them.

A fault excuses nobody by itself. A message that was lost is no reason to give a copy up, and a member that
answered all the time is not lost, whatever was cut meanwhile.
"""

from stele.core.control.commands import ExchangeReply, ExchangeRequest
from tests.simulation.profile import CLUSTER
from tests.simulation.world import World

DECIDED_SECONDS = 20.0
"""A master that took a member for lost may store a row without it so much later: it votes, fences, and writes
again what the API server did not take.
"""
RETURNED_SECONDS = 20.0
"""A member that was down is known to be back so long after its start: watch events may be lost."""
LEASE_PART = 0.9
"""Clocks run apart."""


class Reachability:
    """Answers that reached a master, by its epoch; and members that others said they cannot reach."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lease = world.profile.shortest_lease_seconds * LEASE_PART
        self._heard: dict[tuple[int, str], float] = {}
        self._began: dict[int, float] = {}
        self._doubted: dict[str, float] = {}
        world.asked.append(self._asks)
        world.heard.append(self._on_answer)
        world.exchanged.append(self._on_report)

    def _asks(self, epoch: int) -> None:
        """A master that still asks has noticed who is silent; a later one may store what it had accepted."""
        now = self._world.clock.now
        self._began.setdefault(epoch, now)
        for place in self._world.kubelet.machines:
            if now - self._last(epoch, place) >= self._lease:
                self._doubted[place] = now

    def led_since(self, epoch: int) -> float:
        """When the master of that epoch began to ask; never when it did not."""
        return self._began.get(epoch, float("inf"))

    def _last(self, epoch: int, place: str) -> float:
        """When it was heard last, or the master of that epoch began to ask."""
        return self._heard.get((epoch, place), self._began.get(epoch, self._world.clock.now))

    def _on_answer(self, place: str, epoch: int, sent: float) -> None:
        last = self._last(epoch, place)
        if sent - last >= self._lease:
            self._doubted[place] = self._world.clock.now
        self._heard[epoch, place] = max(sent, last)

    def _on_report(self, place: str, request: ExchangeRequest, reply: ExchangeReply) -> None:
        for peer in reply.silent:
            if peer.silent_ms >= self._lease * 1000:
                self._doubted[f"{CLUSTER}-{peer.member}"] = self._world.clock.now

    def _is_up(self, place: str) -> bool:
        """Whether it runs, and did not end not long ago."""
        kubelet, now = self._world.kubelet, self._world.clock.now
        machine = kubelet.machines.get(place)
        returned = now >= kubelet.ended.get(place, float("-inf")) + RETURNED_SECONDS
        return machine is not None and machine.up and not machine.deleting and returned

    def may_be_lost(self, place: str, epoch: int) -> bool:
        """Whether the master of this epoch may have seen it away for a lease, not long ago."""
        now = self._world.clock.now
        silent = now - self._last(epoch, place) >= self._lease
        doubted = now < self._doubted.get(place, float("-inf")) + DECIDED_SECONDS
        return silent or doubted or not self._is_up(place)
