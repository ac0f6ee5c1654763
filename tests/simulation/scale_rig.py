"""The master's own code in virtual time, on a simulated API server, with light members.

Only the processor time of the master's steps is counted: that of members and of the API server is left out,
and so is everything else on the machine. Times between events are those of the virtual clock.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import thread_time
from typing import Any
from unittest.mock import patch

from e2e.bench.errors import BenchError
from e2e.bench.master_rig import WITHOUT_SECURITY, spec_of
from stele.adapters.kubernetes.api import CLUSTERS, CONFIG_MAPS, KEYSPACES, MEMBERS, PODS, Kind
from stele.core.control.commands import ExchangeReply, ExchangeRequest
from stele.core.control.publication import lacks_rows
from stele.core.control.rebalance import planner
from stele.core.control.state import State
from stele.errors import Unavailable
from stele.master.loop import Pace
from stele.master.manifests import COMPONENT_LABEL
from stele.master.watch import WATCHED
from stele.wire.control import decode_reply, encode
from tests.fakes.api import ApiServer
from tests.fakes.loop import Clock, Handle, ProcessLoop
from tests.fakes.network import Network
from tests.fakes.objects import body
from tests.simulation import master as simulated
from tests.simulation.scale_members import ScaleMember, Shared

CLUSTER = simulated.CLUSTER
WAY_SECONDS = (0.0002, 0.002)
"""Of one message, least and most."""
LISTS_SECONDS = 30.0
LOOK_SECONDS = 0.1
PHASE_SECONDS_MAX = 3_600.0
"""Virtual seconds that a phase may take."""
GROUP_PARTITIONS = 16_384
"""The most that a cluster has outside of groups, and a keyspace of its own."""
BEGAN_UNIX_SECONDS = 1_800_000_000

Object = dict[str, Any]


@dataclass
class Counts:
    """What the master used and sent."""

    cpu_seconds: float = 0.0
    step_seconds: float = 0.0
    """The longest."""
    plan_seconds: float = 0.0
    """The longest."""
    messages: int = 0
    bytes_sent: int = 0
    rows: int = 0
    """In messages, both ways."""
    puts: int = 0


class CountingClock(Clock):
    """Counts the processor time of the steps of one process."""

    def __init__(self, seed: int, counts: Counts) -> None:
        super().__init__(seed)
        self._counts = counts
        self.counted: ProcessLoop | None = None

    def _step(self, handle: Handle) -> None:
        if handle.process is None or handle.process is not self.counted:
            super()._step(handle)
            return
        before = thread_time()
        super()._step(handle)
        seconds = thread_time() - before
        self._counts.cpu_seconds += seconds
        self._counts.step_seconds = max(self._counts.step_seconds, seconds)


class LightPods:
    """A kubelet whose members start at once; a member's place keeps its identity."""

    def __init__(self, clock: Clock, api: ApiServer) -> None:
        self._clock, self._api, self._shared = clock, api, Shared()
        self.members: dict[str, ScaleMember] = {}
        self._addresses: dict[str, str] = {}
        api.changed.append(self._changed)

    def at_address(self, address: str) -> ScaleMember | None:
        """Return the member that answers there."""
        found = self.members.get(self._addresses.get(address, ""))
        return found if found is not None and found.lives else None

    def _changed(self, kind: Kind, stored: Object, gone: bool) -> None:
        if kind is not PODS or stored["metadata"]["labels"].get(COMPONENT_LABEL) != "member":
            return
        name, uid = stored["metadata"]["name"], stored["metadata"]["uid"]
        if gone:
            self.members.pop(name, None)
        elif stored["metadata"].get("deletionTimestamp"):
            self._clock.call_later(0.01, self._api.delete, PODS, name, uid, 0)
        elif name not in self.members:
            number = len(self._addresses)
            address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
            self._addresses[address] = name
            facts = {"pod_uid": uid, "boot_id": name, "started_seconds": float(BEGAN_UNIX_SECONDS)}
            self.members[name] = ScaleMember(f"uuid-{name}", self._shared, **facts)
            self._clock.call_later(0.01, self._show, name, uid, address)

    def _show(self, name: str, uid: str, address: str) -> None:
        began = datetime.fromtimestamp(BEGAN_UNIX_SECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        container = {"name": "member", "containerID": uid, "restartCount": 0}
        container |= {"state": {"running": {"startedAt": began}}}
        if self._api.find(PODS, name) is not None:
            status = {"phase": "Running", "podIP": address, "containerStatuses": [container]}
            self._api.patch_status(PODS, name, status)


class LightExchanges:
    """ports.Members: the master encodes requests and decodes replies, as it does with a real network."""

    def __init__(self, loop: ProcessLoop, clock: Clock, pods: LightPods, counts: Counts) -> None:
        self._loop, self._clock, self._pods, self._counts = loop, clock, pods, counts

    async def exchange(
        self, address: str, request: ExchangeRequest, deadline_seconds: float
    ) -> ExchangeReply:
        """Raise Unavailable when nobody answers there."""
        self._counts.messages += 1
        self._counts.bytes_sent += len(encode(request))
        self._counts.rows += len(request.rows)
        answer = self._loop.create_future()
        self._clock.call_later(self._way(), self._arrive, address, request, answer)
        found = await answer
        if found is None:
            raise Unavailable(f"{address}: no answer")
        reply = decode_reply(found)
        self._counts.rows += len(reply.rows)
        return reply

    def _way(self) -> float:
        return self._clock.random.uniform(*WAY_SECONDS)

    def _arrive(self, address: str, request: ExchangeRequest, answer: Any) -> None:
        member = self._pods.at_address(address)
        found = None if member is None else encode(member.serve(request))
        self._clock.call_later(self._way(), self._loop.call_soon, _resolve, answer, found)


def _resolve(answer: Any, found: bytes | None) -> None:
    if not answer.done():
        answer.set_result(found)


class ScaleMaster(simulated.MasterProcess):
    """The master as it is in a pod: with the product's pace, and full lists as seldom as there."""

    pace = Pace()
    list_seconds = LISTS_SECONDS

    def __init__(self, rig: ScaleRig, name: str) -> None:
        nobody = simulated.Listeners(lambda *_: None, lambda *_: None)
        super().__init__(rig.network, rig.api, rig.pods, name, nobody)  # type: ignore[arg-type]
        self._members = LightExchanges(self.loop, rig.clock, rig.pods, rig.counts)


@dataclass
class ScaleRig:
    """One cluster of `partitions`, in groups of at most GROUP_PARTITIONS, with so many members."""

    partitions: int
    members: int
    parallel: int
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self.clock = CountingClock(1, self.counts)
        self.network = Network(self.clock)
        self.network.delay = WAY_SECONDS
        self.api = ApiServer(self.clock, self.network)
        self.api.kinds = WATCHED
        self.api.changed.append(self._changed)
        self.pods = LightPods(self.clock, self.api)
        self._masters = 0
        self.start_master()

    def _changed(self, kind: Kind, stored: Object, gone: bool) -> None:
        self.counts.puts += kind is CONFIG_MAPS

    # -- what happens

    def start_master(self) -> None:
        """Start a master, in whose place the last one, if any, is no more."""
        self._masters += 1
        self.master = ScaleMaster(self, f"master-{self._masters}")
        self.clock.counted = self.master.loop

    def replace_master(self) -> None:
        self.master.kill()
        self.start_master()

    def create(self) -> None:
        """Make the cluster's object, and a keyspace for each further group of partitions."""
        main = min(self.partitions, GROUP_PARTITIONS)
        spec = spec_of(self.members, main, self.parallel) | {"security": WITHOUT_SECURITY}
        self.api.create(CLUSTERS, body(CLUSTERS, CLUSTER, spec))
        for number, first in enumerate(range(main, self.partitions, GROUP_PARTITIONS), 1):
            placement = {"partitions": min(GROUP_PARTITIONS, self.partitions - first), "replicas": 2}
            group = {"cluster": CLUSTER, "placement": placement}
            self.api.create(KEYSPACES, body(KEYSPACES, f"group-{number}", group))

    def scale(self, members: int) -> None:
        self.members = members
        self.api.change_spec(CLUSTERS, CLUSTER, members=members)

    def crash(self, index: int) -> None:
        """End a member's process for good."""
        self.pods.members[f"{CLUSTER}-{index}"].lives = False

    # -- what is waited for

    @property
    def state(self) -> State:
        """Raise BenchError when no master leads."""
        found = self.master.state
        if found is None:
            raise BenchError("no master leads")
        return found

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        """Let time pass until it holds. Raises BenchError when it takes too long."""
        end = self.clock.now + PHASE_SECONDS_MAX
        while self.clock.now < end:
            self.clock.run(self.clock.now + LOOK_SECONDS)
            if self.master.state is not None and holds():
                return
        raise BenchError(f"{self.partitions} partitions, {self.members} members: {what} took too long")

    def settled(self, members: int) -> bool:
        """Return whether so many members hold all partitions, know it, and nothing is under way."""
        state = self.state
        quiet = state.recovered and not state.operations and state.rebalance.progress is None
        if not quiet or len(state.table.partitions) < self.partitions or state.table.unassigned:
            return False
        if len(state.table.replica_index.members) != members or state.table.lacking(2):
            return False
        alive = [each for each in state.membership.liveness.values() if each.lost_seconds is None]
        return all(not (each.recheck or each.recheck_all or lacks_rows(state, each)) for each in alive)

    def listed(self) -> int:
        return len(self.api.list(MEMBERS))

    @contextmanager
    def measured(self) -> Iterator[Counts]:
        """Count from zero. Python's collector is off meanwhile: its passes would count members' objects."""
        gc.collect()
        gc.disable()
        vars(self.counts).update(vars(Counts()))
        planned = vars(planner)["plan_migrations"]

        def plan(*args: Any, **kwargs: Any) -> Any:
            before = thread_time()
            try:
                return planned(*args, **kwargs)
            finally:
                self.counts.plan_seconds = max(self.counts.plan_seconds, thread_time() - before)

        try:
            with patch.object(planner, "plan_migrations", plan):
                yield self.counts
        finally:
            gc.enable()
