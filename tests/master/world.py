"""What a master sees of Kubernetes, in memory: the spec, members and pods."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stele.core.control.commands import ClearKeyspaces
from stele.core.control.failure_detector import (
    NEVER,
    MemberObject,
    NodeState,
    PodFacts,
    Replacement,
    Timing,
)
from stele.core.control.requests import RebalanceRequest
from stele.core.control.state import ClusterEvent, DesiredSpec, State
from stele.core.formats import SPOKEN, FormatRange
from stele.core.kv.keyspaces import NO_CATALOG, Catalog, Settings
from stele.core.table.ids import MemberIndex
from stele.model.ownership import NameLeaves, NameTaken
from tests.fakes.members import FakeMember, FakeNet

CLUSTER = "cluster-uid"
CONFLICT = "Unschedulable: 0/3 nodes are available: 3 node(s) had volume node affinity conflict"
TIMING = Timing(heartbeat=1.0, lease=3.0, grace=30.0)


@dataclass
class Pod:
    uid: str
    address: str
    process: int = 1
    ended: bool = False
    outdated: bool = False
    terminating: bool = False
    problem: str = ""
    scheduled: bool = True

    @property
    def started_seconds(self) -> float:
        return 10.0 * self.process


@dataclass
class FakeWorld:
    """Kubernetes with a kubelet that starts every pod at once."""

    net: FakeNet
    wanted: DesiredSpec
    number: int
    members: dict[MemberIndex, bool] = field(default_factory=dict)
    pods: dict[MemberIndex, Pod] = field(default_factory=dict)
    volumes: dict[MemberIndex, FakeMember] = field(default_factory=dict)
    events: list[ClusterEvent] = field(default_factory=list)
    drained: set[MemberIndex] = field(default_factory=set)
    lite: set[MemberIndex] = field(default_factory=set)
    accepted: dict[MemberIndex, set[tuple[int, int]]] = field(default_factory=dict)
    """Copies of lost partitions that a user accepts, with the version of the row."""
    addresses: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    zones: dict[MemberIndex, tuple[str, ...] | None] = field(default_factory=dict)
    weights: dict[MemberIndex, int] = field(default_factory=dict)
    asked: dict[str, RebalanceRequest] = field(default_factory=dict)
    stored_catalog: Catalog = NO_CATALOG
    shown_epoch: int = 0
    replacements: dict[MemberIndex, Replacement] = field(default_factory=dict)
    nodes: dict[MemberIndex, NodeState] = field(default_factory=dict)
    kept_until_seconds: dict[MemberIndex, float] = field(default_factory=dict)
    deletable: set[MemberIndex] = field(default_factory=set)
    """Removed members whose volumes may be deleted."""
    restarting: dict[MemberIndex, float] = field(default_factory=dict)
    restarts: list[MemberIndex] = field(default_factory=list)
    forced: list[str] = field(default_factory=list)
    replaced: list[MemberIndex] = field(default_factory=list)
    """Members whose pods never started and were replaced."""
    joined: set[MemberIndex] = field(default_factory=set)
    """Members whose objects show that they have joined."""
    on_restart: Callable[[MemberIndex], None] = lambda index: None
    broken: str = ""
    """Why pods made from now on cannot start."""
    seconds: Callable[[], float] = lambda: 0.0
    restart_seconds_max: float = 600.0
    build: FormatRange = SPOKEN
    """What masters and volumes speak that begin from now on."""

    @property
    def volumes_uid(self) -> str:
        return CLUSTER

    def claims(self) -> dict[MemberIndex, str]:
        return {index: f"demo-{index}" for index in self.volumes}

    def refresh(self) -> None:
        return

    def desired(self) -> DesiredSpec:
        return self.wanted

    def partitions(self) -> int:
        return self.number

    def member_objects(self) -> tuple[MemberObject, ...]:
        return tuple(
            MemberObject(
                index,
                f"demo-{index}",
                drain=index in self.drained,
                lite=index in self.lite,
                pod=self._pod(index),
                weight=self.weights.get(index, 1),
                accepted=frozenset(self.accepted.get(index, ())),
                zone=self.zones.get(index, ()),
                outdated=index in self.pods and self.pods[index].outdated,
                kept_until_seconds=self.kept_until_seconds.get(index, NEVER),
                restart_until_seconds=self.restarting.get(index),
                replacement=self.replacements.get(index),
                node=f"node-{index}",
                node_state=self.nodes.get(index, NodeState.READY),
                has_joined=index in self.joined,
            )
            for index in sorted(self.members)
        )

    def _pod(self, index: MemberIndex) -> PodFacts | None:
        pod = self.pods.get(index)
        if pod is None:
            return None
        since = pod.started_seconds + pod.ended
        process = "" if pod.problem else str(pod.process)
        return PodFacts(
            pod.uid, pod.address, process, pod.ended, pod.terminating, since, pod.problem, pod.scheduled
        )

    def requests(self) -> tuple[RebalanceRequest, ...]:
        return tuple(self.asked.values())

    def over_quota(self) -> tuple[str, ...] | None:
        return None

    def clear_at(self, index: MemberIndex) -> ClearKeyspaces | None:
        return None

    def catalog(self) -> Catalog:
        """What is stored, with the keyspaces that should have groups."""
        placed = {each.keyspace: Settings(own_partitions=True) for each in self.wanted.groups}
        self.stored_catalog = self.stored_catalog.changed_to({**self.stored_catalog.keyspaces, **placed})
        return self.stored_catalog

    def epoch_shown(self) -> int:
        return self.shown_epoch

    async def write_blocked(self, why: NameTaken | NameLeaves, now: float) -> None:
        raise AssertionError(why)

    def ask(self, name: str, **fields: object) -> None:
        """Make a TabletRebalance, or change one."""
        self.asked[name] = replace(self.asked.get(name, RebalanceRequest(name)), **fields)  # type: ignore[arg-type]

    async def ensure_member(self, index: MemberIndex) -> None:
        self.members[index] = True
        if index not in self.pods:
            self.start_pod(index)

    def start_pod(self, index: MemberIndex) -> None:
        address = f"10.0.0.{next(self.addresses)}"
        if index in self.volumes and self.nodes.get(index) is NodeState.GONE:
            # A volume that is local to its node.
            self.pods[index] = Pod(f"pod-{address}", "", problem=CONFLICT, scheduled=False)
            return
        self.pods[index] = Pod(f"pod-{address}", address, problem=self.broken)
        if self.broken:
            return
        member = self.volumes.get(index)
        if member is None:
            member = self.volumes[index] = FakeMember(self.net, address, f"uuid-{address}", CLUSTER)
            member.formats = self.build
        else:
            member.restart()
        member.address = address
        member.runs_in(f"pod-{address}", self.pods[index].started_seconds)
        self.net.members[address] = member

    async def remove_member(self, index: MemberIndex, *, keep_volume: bool) -> None:
        if not keep_volume:
            self.deletable.add(index)
        self.members.pop(index, None)
        pod = self.pods.pop(index, None)
        if pod is not None and (member := self.net.members.pop(pod.address, None)) is not None:
            self._check_has_heard(index, pod, member)
            member.alive = False

    def _check_has_heard(self, index: MemberIndex, pod: Pod, member: FakeMember) -> None:
        """A member that answers knows the end of each migration before its process ends."""
        named = [number for number, row in member.rows.items() if index in row.replicas]
        known = self.volumes.get(index) is member
        answers = known and member.alive and not pod.ended and pod.address not in self.net.cut
        assert not (answers and named), f"{index} is removed, and its rows name it: {named}"

    async def force_delete_pod(self, index: MemberIndex, pod_uid: str) -> None:
        """The object goes; a process on a node that is cut off runs on."""
        if index in self.pods and self.pods[index].uid == pod_uid:
            self.forced.append(pod_uid)
            del self.pods[index]

    async def replace_pod(self, index: MemberIndex, pod_uid: str) -> None:
        """The pod goes at once: nothing ran in it."""
        pod = self.pods.get(index)
        if pod is not None and pod.uid == pod_uid:
            assert pod.problem, f"a process ran in {pod}"
            self.replaced.append(index)
            del self.pods[index]

    async def restart_member(self, index: MemberIndex, pod_uid: str, keep_seconds: float) -> None:
        """The pod goes at once; a test may look at the table just before."""
        until = self.seconds() + min(keep_seconds, self.restart_seconds_max)
        self.restarting[index] = max(until, self.restarting.get(index, until))
        pod = self.pods.get(index)
        if pod is not None and pod.uid == pod_uid:
            self.on_restart(index)
            self.restarts.append(index)
            del self.pods[index]
            if (member := self.net.members.pop(pod.address, None)) is not None:
                member.alive = False

    async def finish_restart(self, index: MemberIndex) -> None:
        self.restarting.pop(index, None)

    def outdate(self) -> None:
        """The spec changed: every pod is older than it."""
        for pod in self.pods.values():
            pod.outdated = True

    async def ensure_shared(self) -> None:
        return

    async def post_events(self, events: Sequence[ClusterEvent]) -> None:
        self.events.extend(events)

    async def write_status(self, state: State, now: float) -> None:
        """The phases as the objects of plans show them."""
        for name, record in state.rebalance.user_plans.items():
            self.ask(name, phase=record.phase)
        for record in [
            *state.rebalance.finished,
            *([state.rebalance.progress] if state.rebalance.progress else []),
        ]:
            id = f"{state.epoch}-{record.number}"
            if f"demo-{id}" not in self.asked:
                self.ask(f"demo-{id}", approved=state.has_approved(record))
            self.ask(f"demo-{id}", plan=id, phase=record.phase, situation=record.situation)
        if state.rebalance.plan_key:
            for ask in [each for each in self.requests() if each.plan and not each.final]:
                if ask.order[0] < state.epoch:
                    self.ask(ask.name, phase="Superseded")
