"""The status of a cluster, from the leadership's memory: counts, conditions, members, plans. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from stele.core.control.commands import ClusterState
from stele.core.control.failure_detector import Life, MemberLiveness
from stele.core.control.member_list import life_of
from stele.core.control.operations.move import Step
from stele.core.control.rebalance.copy_scheduling import waiting_for_space
from stele.core.control.requests import RebalanceRequest
from stele.core.control.state import DesiredSpec, State
from stele.core.table.table import version_sum
from stele.core.tablet.lifecycle import TabletState
from stele.master.manifests import RESP_PORT
from stele.model import TabletCluster, TabletMember
from stele.model.cluster import (
    ClusterPhase,
    MemberCounts,
    MigrationCounts,
    PartitionCounts,
    TabletClusterStatus,
)
from stele.model.conditions import Conditions, ConditionType, Reason, find_condition, set_condition
from stele.model.member import MemberState, TabletMemberStatus
from stele.model.ownership import NameLeaves, NameTaken, leaving_text, taken_text
from stele.model.validation import Problem, problems
from stele.wire.urls import host_port

OUTDATED_SHOWN = 20
"""Objects that a condition's message lists."""

STALL_SECONDS = 60.0
"""Seconds without progress after which a plan is shown as stalled."""


def partition_counts(state: State, replicas: int) -> PartitionCounts:
    total, lost = len(state.table.partitions), len(state.failover.lost)
    rows_by_copies = state.table.replica_index.copies.items()
    safe = sum(rows for copies, rows in rows_by_copies if copies >= max(1, replicas))
    return PartitionCounts(total=total, safe=safe, under_replicated=total - safe - lost, lost=lost)


@dataclass(frozen=True)
class View:
    """A snapshot for one status: the leadership's memory, the desired spec, and the time on both clocks."""

    state: State
    desired: DesiredSpec
    now: float
    clock: datetime
    foreign_claims: tuple[str, ...] = ()
    name: str = ""
    requests: tuple[RebalanceRequest, ...] = ()
    topology_problem: str = ""
    taken: tuple[str, ...] = ()
    updated: int = 0
    outdated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @property
    def formed(self) -> bool:
        return version_sum(self.state.table.stored) > 0

    @property
    def moving(self) -> bool:
        return self.state.rebalance.progress is not None or bool(self.state.operations.migrations)

    @property
    def as_desired(self) -> str:
        """Summarize the cluster when nothing is left to do."""
        members = f"{self.ready} of {self.desired.members} members ready"
        return f"{members}, {self.parts.safe} of {self.parts.total} partitions fully replicated"

    @property
    def waits(self) -> str:
        """Return the message for a plan that waits for approval; empty when none does."""
        if self.state.rebalance.proposal is None or self.state.rebalance.progress is None:
            return ""
        name = f"{self.name}-{self.state.plan_id}"
        left = self.state.rebalance.progress.copies_left
        text = "" if left is None else f"; it leaves {left} of {self.desired.replicas} copies"
        return f"plan {name} waits for approval{text}: kubectl stele approve {name}"

    @property
    def parts(self) -> PartitionCounts:
        return partition_counts(self.state, self.desired.replicas)

    @property
    def ready(self) -> int:
        """Count the members that serve."""
        found = Counter(lives(self.state, self.desired, self.now).values())
        return found[Life.ACTIVE] + found[Life.DRAINING]

    @property
    def old(self) -> str:
        """Return what differs from the spec and how to fix it; empty when nothing does."""
        if not self.outdated:
            return ""
        more = len(self.outdated) - OUTDATED_SHOWN
        listed = ", ".join(self.outdated[:OUTDATED_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return (
            f"not as the spec says: {listed}; delete such pods one by one, each when ReplicationSatisfied is "
            "True, and raise the requests of such claims when their class lets volumes grow"
        )

    @property
    def short(self) -> bool:
        return self.ready < self.desired.members


def too_early(view: View, before: TabletClusterStatus, found: TabletClusterStatus) -> bool:
    """Return whether members may still answer for the first time in this leadership.

    Until then the status is written only when copies are missing that the status before does not report.
    """
    asked = view.now - view.state.started_seconds
    if not view.formed or view.state.recovered or asked >= view.desired.timing.silence:
        return False
    return before.phase is not ClusterPhase.RUNNING or found.phase is ClusterPhase.RUNNING


def lives(state: State, desired: DesiredSpec, now: float) -> dict[int, Life]:
    return {index: life_of(state, index, desired, now) for index in state.membership.liveness}


def cluster_status(cluster: TabletCluster, view: View, rebalance: str) -> TabletClusterStatus:
    state, desired, progress = view.state, view.desired, view.state.rebalance.progress
    phase, message = _phase(view)
    members = MemberCounts(
        desired=desired.members,
        current=len(state.membership.liveness),
        ready=view.ready,
        lite=_lite(state),
        updated=view.updated,
    )
    return TabletClusterStatus(
        observed_generation=cluster.metadata.generation,
        phase=phase,
        message=message,
        epoch=state.epoch,
        selector=f"stele.dev/cluster={cluster.metadata.name},stele.dev/component=member",
        state=ClusterState(state.operations.change.state),
        members=members,
        partitions=view.parts,
        stamp=str(state.table.stamp.value),
        version_sum=version_sum(state.table.stored),
        migrations=MigrationCounts(
            active=len(state.operations.migrations),
            waiting=len(state.rebalance.queues)
            + (0 if state.rebalance.proposal is None else len(state.rebalance.proposal.migrations)),
            done=0 if progress is None else sum(progress.done.values()),
            failed=0 if progress is None else progress.failed,
        ),
        rebalance=rebalance if progress is not None else "",
        conditions=_conditions(cluster, view),
    )


def _lite(state: State) -> int:
    """Count the present members that the member list has as lite."""
    known = state.membership.liveness
    return sum(index in known for index, member in state.table.members.items() if member.lite)


def _phase(view: View) -> tuple[ClusterPhase, str]:
    state, parts, desired = view.state, view.parts, view.desired.members
    if not state.table.members:
        return ClusterPhase.PENDING, "members are starting"
    if not view.formed:
        return ClusterPhase.FORMING, f"{view.ready} of {desired} members are present"
    if parts.lost:
        return ClusterPhase.LOST, f"{parts.lost} partitions have no live copy; they wait for their members"
    if view.moving:
        return (
            ClusterPhase.REBALANCING,
            f"{len(state.rebalance.queues) + len(state.operations.migrations)} migrations are left",
        )
    if parts.under_replicated or view.short:
        text = (
            f"{parts.under_replicated} partitions lack a copy, {view.ready} of {desired} members are present"
        )
        return ClusterPhase.DEGRADED, text
    if changing := len(state.operations.promotions) + len(state.failover.shrinking):
        return ClusterPhase.DEGRADED, f"{changing} partitions continue without a failed member"
    return ClusterPhase.RUNNING, view.old or view.as_desired


def _conditions(cluster: TabletCluster, view: View) -> Conditions:
    found = cluster.status.conditions
    generation = cluster.metadata.generation
    if not cluster.spec.placement.topology_keys:
        found = tuple(each for each in found if each.type != ConditionType.TOPOLOGY_KNOWN)
    for type_, status, reason, message in _observed(cluster, view):
        found = set_condition(found, type_, status, reason, message, generation=generation, now=view.clock)
    return found


Condition = tuple[ConditionType, bool, Reason, str]


def _observed(cluster: TabletCluster, view: View) -> list[Condition]:
    return [
        _ready([*_blocked(view), *problems(cluster), *_removed(view)], view),
        _available(view),
        _progressing(view),
        _degraded(view),
        _replicated(view),
        _balanced(view),
        _lost(cluster, view),
        _paused(view),
        _stalled(view),
        *_topology(cluster, view),
    ]


def _topology(cluster: TabletCluster, view: View) -> list[Condition]:
    """Return the condition that is set only when topology keys are."""
    if not cluster.spec.placement.topology_keys:
        return []
    type_ = ConditionType.TOPOLOGY_KNOWN
    if view.topology_problem:
        return [(type_, False, Reason.TOPOLOGY_UNKNOWN, view.topology_problem)]
    return [(type_, True, Reason.AS_DESIRED, "the place of every member is known")]


def _lacking(view: View) -> str:
    """Return how many partitions lack copies; empty when none does."""
    parts = view.parts
    if not (parts.under_replicated or parts.lost):
        return ""
    return f"{parts.under_replicated + parts.lost} of {parts.total} partitions lack a copy"


def _replicated(view: View) -> Condition:
    type_ = ConditionType.REPLICATION_SATISFIED
    if not view.formed:
        return type_, False, Reason.FORMING, "the table is not assigned yet"
    if lacking := _lacking(view):
        return type_, False, Reason.UNDER_REPLICATED, lacking
    return type_, True, Reason.AS_DESIRED, "every partition has its copies"


def _balanced(view: View) -> Condition:
    if view.formed and not view.moving:
        return ConditionType.BALANCED, True, Reason.AS_DESIRED, "no migration is left"
    reason = Reason.MIGRATING if view.formed else Reason.FORMING
    return ConditionType.BALANCED, False, reason, "migrations are left"


def _lost(cluster: TabletCluster, view: View) -> Condition:
    """Report partitions reset to empty, by later masters too, until spec.onPartitionLoss is changed."""
    type_, lost = ConditionType.DATA_LOSS, view.parts.lost
    if lost:
        return type_, True, Reason.ALL_REPLICAS_LOST, f"{lost} partitions have no live copy"
    if view.desired.on_partition_loss == "ResetToEmpty":
        before = find_condition(cluster.status.conditions, type_)
        if view.state.failover.reset_partitions:
            number = len(view.state.failover.reset_partitions)
            text = f"{number} partitions lost all copies and were reset to empty; "
            return (
                type_,
                True,
                Reason.PARTITIONS_RESET,
                text + "set spec.onPartitionLoss to Wait to end this message",
            )
        if before is not None and before.reason == Reason.PARTITIONS_RESET:
            return type_, True, Reason.PARTITIONS_RESET, before.message
    return type_, False, Reason.AS_DESIRED, "every partition has a live copy"


def _blocked(view: View) -> list[Problem]:
    """Report objects that cannot be made until a user changes something."""
    taken = [Problem(Reason.NAME_TAKEN, taken_text(view.taken))] if view.taken else []
    return [*taken, *_foreign(view), *_refused(view)]


def _refused(view: View) -> list[Problem]:
    if not view.refused:
        return []
    name, text = min(view.refused.items())
    more = f" and {len(view.refused) - 1} more" if len(view.refused) > 1 else ""
    return [Problem(Reason.CREATION_REFUSED, f"Kubernetes refuses {name}{more}: {text}")]


def _removed(view: View) -> list[Problem]:
    """Report objects that will be deleted without a user's action."""
    return [Problem(Reason.WAITS_FOR_REMOVAL, leaving_text(view.removed))] if view.removed else []


def _foreign(view: View) -> list[Problem]:
    if not view.foreign_claims:
        return []
    names = " ".join(view.foreign_claims)
    text = (
        f"the volume claims {names} hold the data of an earlier cluster; "
        f"delete them if it is not needed (kubectl delete pvc {names}), or choose another name"
    )
    return [Problem(Reason.FOREIGN_VOLUME, text)]


def _ready(wrong: list[Problem], view: View) -> Condition:
    type_ = ConditionType.READY
    if wrong:
        return type_, False, wrong[0].reason, "; ".join(each.message for each in wrong)
    if not view.formed:
        return type_, False, Reason.FORMING, "the table is not assigned yet"
    if view.short:
        return type_, False, Reason.MEMBERS_STARTING, "fewer members are there than desired"
    if lacking := _lacking(view):
        return type_, False, Reason.UNDER_REPLICATED, lacking
    if view.waits and not view.state.operations.migrations:
        return type_, False, Reason.WAITS_FOR_APPROVAL, view.waits
    if view.moving or view.state.membership.leaving:
        return type_, False, Reason.MIGRATING, "migrations are under way"
    if view.state.failing_over:
        return type_, False, Reason.MEMBER_UNREACHABLE, "some partitions go on without a member that is gone"
    if view.old:
        return type_, False, Reason.MEMBERS_OUTDATED, view.old
    return type_, True, Reason.AS_DESIRED, view.as_desired


def _available(view: View) -> Condition:
    type_, lost = ConditionType.AVAILABLE, view.parts.lost
    if not view.formed:
        return type_, False, Reason.FORMING, "the table is not assigned yet"
    if lost:
        return type_, False, Reason.ALL_REPLICAS_LOST, f"{lost} partitions have no live copy"
    if not _served(view.state):
        return type_, False, Reason.MEMBER_UNREACHABLE, "some partitions are between two owners"
    return type_, True, Reason.AS_DESIRED, "every partition has an owner that serves"


def _served(state: State) -> bool:
    """Return whether every partition has an owner.

    The last report of a member that owns nothing does not count.
    """
    return not state.operations.promotions and not any(
        liveness.report is not None and liveness.report.unserved and state.table.replica_index.owned[index]
        for index, liveness in state.membership.liveness.items()
    )


def _progressing(view: View) -> Condition:
    type_, state = ConditionType.PROGRESSING, view.state
    if view.waits and not state.operations.migrations:
        return type_, False, Reason.WAITS_FOR_APPROVAL, view.waits
    if view.moving:
        reason = Reason.DRAINING if state.membership.leaving else Reason.MIGRATING
        active, waiting = len(state.operations.migrations), len(state.rebalance.queues)
        return type_, True, reason, f"{active} active, {waiting} waiting"
    if not view.formed or view.short:
        return type_, True, Reason.MEMBERS_STARTING, "members are starting"
    if view.old:
        return type_, False, Reason.MEMBERS_OUTDATED, view.old
    return type_, False, Reason.AS_DESIRED, "no work is left"


def _degraded(view: View) -> Condition:
    type_, lacking = ConditionType.DEGRADED, _lacking(view)
    if view.formed and lacking:
        return type_, True, Reason.UNDER_REPLICATED, lacking
    if view.formed and view.short:
        return type_, True, Reason.MEMBER_UNREACHABLE, "fewer members are there than desired"
    return type_, False, Reason.AS_DESIRED, "nothing is missing"


def _paused(view: View) -> Condition:
    type_, desired, change = ConditionType.PAUSED, view.desired, view.state.operations.change
    pending = f"{change.desired} is not in force yet: {change.reason}" if change.pending else ""
    besides = f"; {pending}" if pending else ""
    if desired.paused:
        text = "remove the annotation stele.dev/paused to go on"
        return type_, True, Reason.PAUSED_BY_ANNOTATION, text + besides
    if desired.migration_paused:
        return type_, True, Reason.PAUSED_BY_SPEC, "set spec.migration.paused to false to go on" + besides
    if pending:
        return type_, True, Reason.CLUSTER_STATE, pending
    if not desired.migration_allowed:
        return type_, True, Reason.CLUSTER_STATE, f"state {desired.state} allows no migration"
    if view.waits:
        return type_, True, Reason.WAITS_FOR_APPROVAL, view.waits
    return type_, False, Reason.AS_DESIRED, "migrations may start"


def _stalled(view: View) -> Condition:
    type_, state, now = ConditionType.STALLED, view.state, view.now
    if wrong := _blocked(view):
        return type_, True, wrong[0].reason, "; ".join(each.message for each in wrong)
    lack = waiting_for_space(state)
    if lack is not None:
        return type_, True, Reason.NO_SPACE, f"partition {lack.partition} waits: {lack.detail}"
    if state.rebalance.service_failures:
        return type_, True, Reason.SERVICE_FAILED, _failing_services(state)
    late = [
        r
        for r in state.operations.migrations.values()
        if now - r.progressed_seconds > STALL_SECONDS and not r.session
    ]
    if late:
        first = late[0]
        text = f"{len(late)} migrations wait, first {first.migration} of partition {first.partition}: "
        return (
            type_,
            True,
            Reason.NO_PROGRESS,
            text + f"{first.step.value} for {now - first.progressed_seconds:.0f} s",
        )
    return type_, False, Reason.AS_DESIRED, "nothing waits longer than it should"


def _failing_services(state: State) -> str:
    number, (_, reason) = min(state.rebalance.service_failures.items())
    count = len(state.rebalance.service_failures)
    more = f" (and {count - 1} more)" if count > 1 else ""
    return f"partition {number}{more} keeps its owner until the service can hand over: {reason}"


def member_status(member: TabletMember, view: View, restarts: int) -> TabletMemberStatus:
    state, index = view.state, member.spec.index
    liveness, entry = state.membership.liveness.get(index), state.table.members.get(index)
    report = None if liveness is None else liveness.report
    replica_index = state.table.replica_index
    owned, held, alone = replica_index.owned[index], replica_index.number(index), replica_index.sole[index]
    life = life_of(state, index, view.desired, view.now)
    problem = "" if liveness is None else liveness.problem
    return TabletMemberStatus(
        observed_generation=member.metadata.generation,
        uuid="" if entry is None else entry.uuid,
        incarnation=0 if report is None else report.incarnation,
        address="" if entry is None or not entry.address else host_port(entry.address, RESP_PORT),
        state=MemberState(life.value),
        zone=() if liveness is None or liveness.member_object is None else liveness.member_object.zone or (),
        owned=owned,
        backups=held - owned,
        bytes=_held_bytes(liveness),
        stamp="" if report is None else str(report.stamp),
        safe_to_evict=not alone,
        restarts=restarts,
        conditions=_member_conditions(
            member, [_member_ready(life, held, problem), _safe_to_evict(alone, held)], view
        ),
    )


def _held_bytes(liveness: MemberLiveness | None) -> int:
    tablets = () if liveness is None else liveness.tablets.values()
    return sum(tablet.bytes for tablet in tablets if tablet.state != TabletState.DELETED)


def _member_conditions(member: TabletMember, observed: Sequence[Condition], view: View) -> Conditions:
    found, generation = member.status.conditions, member.metadata.generation
    for type_, status, reason, text in observed:
        found = set_condition(found, type_, status, reason, text, generation=generation, now=view.clock)
    return found


def _member_ready(life: Life, held: int, problem: str) -> Condition:
    type_ = ConditionType.READY
    match life:
        case Life.ACTIVE:
            return type_, True, Reason.AS_DESIRED, "it serves"
        case Life.DRAINING if held:
            return type_, False, Reason.DRAINING, f"{held} copies are still to be moved off"
        case Life.DRAINING:
            return type_, True, Reason.AS_DESIRED, "it serves and holds nothing any more"
        case Life.JOINING:
            return type_, False, Reason.MEMBERS_STARTING, problem or "it does not serve yet"
        case Life.LEFT:
            return type_, False, Reason.HOLDS_NOTHING, "it was removed on purpose, with nothing on it"
        case _:
            return type_, False, Reason.MEMBER_UNREACHABLE, "it does not answer"


def _safe_to_evict(alone: int, held: int) -> Condition:
    type_ = ConditionType.SAFE_TO_EVICT
    if alone:
        return type_, False, Reason.HOLDS_LAST_COPIES, f"{alone} partitions have no other copy"
    if held:
        return type_, True, Reason.HOLDS_DATA, f"{held} copies, each with another elsewhere"
    return type_, True, Reason.HOLDS_NOTHING, "nothing would be missed"


def under_way(state: State) -> dict[str, int]:
    """Count migrations by step, for the metrics."""
    steps = Counter(running.step for running in state.operations.migrations.values())
    return {step.value: steps[step] for step in Step}


def blocked(
    status: TabletClusterStatus, why: NameTaken | NameLeaves, generation: int, clock: datetime
) -> TabletClusterStatus:
    """Return the status of a cluster without a table, which shows only what blocks it."""
    taken, text = isinstance(why, NameTaken), str(why.args[0])
    reason, found = Reason.NAME_TAKEN if taken else Reason.WAITS_FOR_REMOVAL, status.conditions
    for type_, holds in ((ConditionType.READY, False), (ConditionType.STALLED, taken)):
        found = set_condition(found, type_, holds, reason, text, generation=generation, now=clock)
    changes = {"observed_generation": generation, "message": text, "conditions": found}
    return status.model_copy(update=changes)


def invalid(
    status: TabletClusterStatus, problem: str, generation: int, clock: datetime
) -> TabletClusterStatus:
    """Return the status for a stored spec that cannot be parsed: the last valid spec stays in effect."""
    conditions = set_condition(
        status.conditions,
        ConditionType.READY,
        False,
        Reason.INVALID_RESOURCE,
        problem,
        generation=generation,
        now=clock,
    )
    changes = {"phase": ClusterPhase.INVALID, "message": problem, "conditions": conditions}
    return status.model_copy(update=changes)
