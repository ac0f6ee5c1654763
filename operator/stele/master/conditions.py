"""The conditions of a TabletCluster. Pure."""

from stele.core.control.failover.repair import unusable
from stele.core.control.rebalance.copy_scheduling import waiting_for_space
from stele.core.control.rebalance.copy_waves import cannot_end
from stele.core.control.state import State
from stele.master.client_security import client_security
from stele.master.kstatus import Observed, Progress, Verdict, progress_conditions, with_conditions
from stele.master.lost_volumes import unavailable_volumes
from stele.master.view import View
from stele.model import TabletCluster
from stele.model.cluster import EngineChoice
from stele.model.conditions import Conditions, ConditionType, Reason, find_condition
from stele.model.ownership import leaving_text, taken_text
from stele.model.validation import Problem, problems

STALL_SECONDS = 60.0
"""Seconds without progress after which a plan is shown as stalled."""

PULL_FAILED = {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
FIRST_PULL_FAILED = "ErrImagePull"
"""Kubernetes' reasons of a container whose image cannot be pulled."""

NOT_FORMED = "the cluster is new: partitions are assigned when its members are ready"


def cluster_conditions(cluster: TabletCluster, view: View) -> Conditions:
    found = cluster.status.conditions
    topology, spark = _topology(cluster, view), _spark(view)
    if not topology:
        found = tuple(each for each in found if each.type != ConditionType.TOPOLOGY_KNOWN)
    if not spark:
        found = tuple(each for each in found if each.type != ConditionType.SPARK_READY)
    secure = client_security(cluster, view.security)
    found = tuple(each for each in found if each.type != ConditionType.CERTIFICATES_HEALTHY)
    observed = [
        *progress_conditions(_verdict(cluster, view)),
        _available(view),
        _progressing(view),
        _degraded(view),
        _replicated(view),
        _balanced(view),
        _lost(cluster, view),
        _paused(view),
        *topology,
        *spark,
        *secure,
    ]
    return with_conditions(found, observed, cluster.metadata.generation, view.clock)


def _verdict(cluster: TabletCluster, view: View) -> Verdict:
    lasting = [*_blocked(view), *problems(cluster), *_incompatible(view), *_lost_for_good(view)]
    if stalled := [*lasting, *_stuck(view), *_without_image(cluster, view), *_in_doubt(view)]:
        return Progress.STALLED, stalled[0].reason, "; ".join(problem.message for problem in stalled)
    if left := _left_to_do(view):
        return Progress.HELD if _is_held(view) else Progress.UNDER_WAY, *left
    if view.rolling:
        return Progress.UNDER_WAY, Reason.ROLLING_UPDATE, view.update
    return Progress.DONE, Reason.AS_DESIRED, view.as_desired


def _left_to_do(view: View) -> Problem | None:
    """Return what keeps the cluster from being as its spec says, the most important first."""
    if view.removed:
        return Problem(Reason.WAITS_FOR_REMOVAL, leaving_text(view.removed))
    if not view.formed:
        return Problem(Reason.FORMING, f"{NOT_FORMED} ({view.present}; {view.cannot_start})")
    if view.short:
        return Problem(Reason.MEMBERS_STARTING, f"{view.present}; {view.cannot_start}")
    if lacking := _lacking(view):
        return Problem(Reason.UNDER_REPLICATED, lacking)
    if view.waits and not view.state.operations.migrations:
        return Problem(Reason.WAITS_FOR_APPROVAL, view.waits)
    if view.moving or view.state.membership.leaving:
        return Problem(Reason.MIGRATING, view.migrations_left)
    if view.state.failing_over:
        return Problem(Reason.MEMBER_UNREACHABLE, "backups take over from a member that does not answer")
    if view.old:
        return Problem(Reason.MEMBERS_OUTDATED, view.old)
    return Problem(Reason.VOLUMES_RESIZING, view.growing) if view.growing else None


def _is_held(view: View) -> bool:
    """Return whether nothing goes on until a user ends a pause or approves a plan."""
    starting = not view.formed or view.short
    return _paused(view)[1] and not starting and not view.state.operations.migrations and not view.removed


def _topology(cluster: TabletCluster, view: View) -> list[Observed]:
    """Return the condition that is set only when topology keys are."""
    if not cluster.spec.placement.topology_keys:
        return []
    type_ = ConditionType.TOPOLOGY_KNOWN
    if view.topology_problem:
        return [(type_, False, Reason.TOPOLOGY_UNKNOWN, view.topology_problem)]
    return [(type_, True, Reason.AS_DESIRED, "the place of every member is known")]


def _spark(view: View) -> list[Observed]:
    """Return the condition that is set only where the operator makes what Spark needs in a namespace."""
    type_ = ConditionType.SPARK_READY
    if view.spark_problem is None:
        return []
    if view.spark_problem:
        return [(type_, False, Reason.NO_SECRET_RIGHTS, view.spark_problem)]
    return [(type_, True, Reason.AS_DESIRED, "the namespace has what Spark needs")]


def _lacking(view: View) -> str:
    """Return how many partitions lack copies; empty when none does."""
    parts = view.parts
    if not (parts.under_replicated or parts.lost):
        return ""
    return f"{parts.under_replicated + parts.lost} of {parts.total} partitions lack a copy"


def _unformed(view: View) -> Problem:
    """Return why no partition has an owner: the cluster is new, or its table was lost."""
    if not (names := view.without_table):
        return Problem(Reason.FORMING, NOT_FORMED)
    members = f"{len(names)} members hold data (such as {names[0]})"
    text = f"the partition table is empty, and {members}: restore its ConfigMaps"
    return Problem(Reason.TABLE_MISSING, f'{text} (docs/operating/day-2.md, "Restore the partition table")')


def _table_missing(view: View) -> list[Problem]:
    return [_unformed(view)] if view.without_table else []


def _replicated(view: View) -> Observed:
    type_ = ConditionType.REPLICATION_SATISFIED
    if not view.formed:
        return type_, False, *_unformed(view)
    if lacking := _lacking(view):
        return type_, False, Reason.UNDER_REPLICATED, lacking
    return type_, True, Reason.AS_DESIRED, "every partition has all its copies"


def _balanced(view: View) -> Observed:
    type_ = ConditionType.BALANCED
    if not view.formed:
        return type_, False, *_unformed(view)
    if view.moving:
        return type_, False, Reason.MIGRATING, view.migrations_left
    return type_, True, Reason.AS_DESIRED, "owners and copies are spread evenly"


def _no_live_copy(view: View) -> str:
    return f"{view.parts.lost} partitions have no live copy; bring back their members or volumes"


def _lost(cluster: TabletCluster, view: View) -> Observed:
    """Report partitions reset to empty, by later masters too, until spec.onPartitionLoss is changed."""
    type_ = ConditionType.DATA_LOSS
    if view.parts.lost:
        return type_, True, Reason.ALL_REPLICAS_LOST, _no_live_copy(view)
    if view.desired.on_partition_loss == "ResetToEmpty":
        before = find_condition(cluster.status.conditions, type_)
        if number := len(view.state.failover.reset_partitions):
            text = (
                f"{number} partitions lost all copies and were reset to empty; "
                "set spec.onPartitionLoss to Wait to end this message"
            )
            return type_, True, Reason.PARTITIONS_RESET, text
        if before is not None and before.reason == Reason.PARTITIONS_RESET:
            return type_, True, Reason.PARTITIONS_RESET, before.message
    return type_, False, Reason.AS_DESIRED, "every partition has a live copy"


def _incompatible(view: View) -> list[Problem]:
    """Report members whose builds lack the cluster's features."""
    state = view.state
    return [
        Problem(Reason.MEMBERS_INCOMPATIBLE, f"{state.name_of(index)}: {liveness.incompatible}")
        for index, liveness in sorted(state.membership.liveness.items())
        if liveness.incompatible
    ]


def _in_doubt(view: View) -> list[Problem]:
    """Report transactions that only a user can end."""
    reports = [liveness.report for liveness in view.state.membership.liveness.values()]
    if not (number := sum(report.in_doubt for report in reports if report is not None)):
        return []
    text = f"{number} locks are of transactions in doubt: kubectl stele tx list, tx resolve"
    return [Problem(Reason.IN_DOUBT, f"{text} (docs/operating/transactions.md)")]


def _lost_for_good(view: View) -> list[Problem]:
    """Report lost partitions whose members have not come back within the grace period."""
    since, grace = view.state.failover.lost_since, view.desired.timing.grace
    waits = view.desired.on_partition_loss != "ResetToEmpty"
    late = any(view.now - since.get(number, view.now) >= grace for number in view.state.failover.lost)
    return [Problem(Reason.ALL_REPLICAS_LOST, _no_live_copy(view))] if waits and late else []


def _blocked(view: View) -> list[Problem]:
    """Report objects that cannot be made until a user changes something."""
    taken = [Problem(Reason.NAME_TAKEN, taken_text(view.taken))] if view.taken else []
    if incomplete := view.state.failover.incomplete:
        return [Problem(Reason.RECOVERY_INCOMPLETE, incomplete), *taken, *_foreign(view), *_refused(view)]
    return [*taken, *_foreign(view), *_table_missing(view), *_refused(view), *_without_spark(view)]


def _without_spark(view: View) -> list[Problem]:
    """Report that nothing can be copied, where the spec asks for Spark alone."""
    needed = view.desired.engine == EngineChoice.SPARK.value
    return [Problem(Reason.NO_SECRET_RIGHTS, view.spark_problem)] if needed and view.spark_problem else []


def _refused(view: View) -> list[Problem]:
    if not view.refused:
        return []
    name, text = min(view.refused.items())
    more = f" and {len(view.refused) - 1} more" if len(view.refused) > 1 else ""
    return [Problem(Reason.CREATION_REFUSED, f"Kubernetes refuses {name}{more}: {text}")]


def _foreign(view: View) -> list[Problem]:
    if not view.foreign_claims:
        return []
    names = " ".join(view.foreign_claims)
    text = (
        f"the volume claims {names} hold the data of an earlier cluster; "
        f"delete them if it is not needed (kubectl delete pvc {names}), or choose another name"
    )
    return [Problem(Reason.FOREIGN_VOLUME, text)]


def _available(view: View) -> Observed:
    type_ = ConditionType.AVAILABLE
    if not view.formed:
        return type_, False, *_unformed(view)
    if view.parts.lost:
        return type_, False, Reason.ALL_REPLICAS_LOST, _no_live_copy(view)
    if view.state.failover.kept:
        return type_, False, Reason.MEMBER_UNREACHABLE, _kept(view)
    if not _served(view.state):
        text = "some partitions have no owner that answers yet; requests for them wait"
        return type_, False, Reason.MEMBER_UNREACHABLE, text
    return type_, True, Reason.AS_DESIRED, "every partition has an owner that answers"


def _kept(view: View) -> str:
    """Return what waits for silent members whose rows the cluster state keeps."""
    state = view.state
    gone = unusable(state, view.desired, view.now)
    names = state.names_of(index for index in gone if state.table.replica_index.number(index))
    return (
        f"{len(state.failover.kept)} partitions wait for {names}: the cluster state "
        f"{state.operations.change.state} keeps them in their rows; set spec.state to NoMigration to let "
        "other members take over"
    )


def _served(state: State) -> bool:
    """Return whether every partition has an owner.

    The last report of a member that owns nothing does not count.
    """
    return not state.operations.promotions and not any(
        liveness.report is not None and liveness.report.unserved and state.table.replica_index.owned[index]
        for index, liveness in state.membership.liveness.items()
    )


def _progressing(view: View) -> Observed:
    type_, state = ConditionType.PROGRESSING, view.state
    if view.waits and not state.operations.migrations:
        return type_, False, Reason.WAITS_FOR_APPROVAL, view.waits
    if view.rolling:
        text = f"{view.updated} of {view.desired.members} members are updated; {view.update}"
        return type_, True, Reason.ROLLING_UPDATE, text
    if view.moving:
        reason = Reason.DRAINING if state.membership.leaving else Reason.MIGRATING
        return type_, True, reason, view.migrations_left
    if not view.formed or view.short:
        return type_, True, Reason.MEMBERS_STARTING, view.present
    if view.old:
        return type_, False, Reason.MEMBERS_OUTDATED, view.old
    if view.growing:
        return type_, True, Reason.VOLUMES_RESIZING, view.growing
    return type_, False, Reason.AS_DESIRED, "nothing is left to do"


def _degraded(view: View) -> Observed:
    type_, lacking = ConditionType.DEGRADED, _lacking(view)
    if view.formed and lacking:
        return type_, True, Reason.UNDER_REPLICATED, lacking
    if view.formed and view.short:
        return type_, True, Reason.MEMBER_UNREACHABLE, view.present
    return type_, False, Reason.AS_DESIRED, "no member and no copy is missing"


def _paused(view: View) -> Observed:
    type_, desired, change = ConditionType.PAUSED, view.desired, view.state.operations.change
    pending = f"state {change.desired} is not in force yet: {change.reason}" if change.changes_state else ""
    besides = f"; {pending}" if pending else ""
    if desired.paused:
        text = "remove the annotation stele.dev/paused to go on"
        return type_, True, Reason.PAUSED_BY_ANNOTATION, text + besides
    if desired.migration_paused:
        return type_, True, Reason.PAUSED_BY_SPEC, "set spec.migration.paused to false to go on" + besides
    if pending:
        return type_, True, Reason.CLUSTER_STATE, pending
    if not desired.migration_allowed:
        text = f"spec.state {desired.state} allows no migration; set it to Active to go on"
        return type_, True, Reason.CLUSTER_STATE, text
    if view.waits:
        return type_, True, Reason.WAITS_FOR_APPROVAL, view.waits
    return type_, False, Reason.AS_DESIRED, "migrations may start"


def _stuck(view: View) -> list[Problem]:
    """Report migrations that do not go on by themselves."""
    state = view.state
    if state.stops.update_problem:
        text = f"{state.stops.update_problem}; correct the spec, or: kubectl stele rollout undo {view.name}"
        return [Problem(Reason.UPDATE_FAILED, text)]
    if lost := unavailable_volumes(view):
        return [Problem(Reason.VOLUME_UNAVAILABLE, text) for text in lost.values()]
    if view.cannot_grow:
        name, text = min(view.cannot_grow.items())
        remedy = "use a StorageClass with allowVolumeExpansion, or add members and drain this one"
        return [Problem(Reason.VOLUME_CANNOT_GROW, f"volume claim {name} cannot grow: {text}; {remedy}")]
    if (lack := waiting_for_space(state)) is not None:
        return [Problem(Reason.NO_SPACE, f"partition {lack.partition} waits: {lack.detail}")]
    if endless := cannot_end(state, view.desired):
        return [Problem(Reason.COPY_CANNOT_END, endless)]
    if state.rebalance.service_failures:
        return [Problem(Reason.SERVICE_FAILED, _failing_services(state))]
    late = [
        migration
        for migration in state.operations.migrations.values()
        if view.now - migration.progressed_seconds > STALL_SECONDS and not migration.session
    ]
    if not late:
        return []
    seconds = view.now - late[0].progressed_seconds
    text = (
        f"{len(late)} migrations make no progress, such as {late[0].migration} of partition "
        f"{late[0].partition}: {late[0].step.value} for {seconds:.0f} s"
    )
    return [Problem(Reason.NO_PROGRESS, text)]


def _without_image(cluster: TabletCluster, view: View) -> list[Problem]:
    """Report a member whose image cannot be pulled, unless it is one that was restarted.

    After a first failure, and while Kubernetes tries again, its reason is FIRST_PULL_FAILED: that alone may
    be over in a moment, and does not end what was reported before.
    """
    before = find_condition(cluster.status.conditions, ConditionType.STALLED)
    known = before is not None and before.reason == Reason.IMAGE_PULL_FAILED
    reasons = {*PULL_FAILED, FIRST_PULL_FAILED} if known else PULL_FAILED
    failing = [each for each in view.pod_problems if each[1].partition(":")[0] in reasons]
    if view.state.stops.update_problem or not failing:
        return []
    name, text = failing[0]
    more = f" (and {len(failing) - 1} more)" if len(failing) > 1 else ""
    remedy = (
        "correct spec.images.member or the Secrets that images are pulled with (spec.podTemplate."
        "imagePullSecrets, or images of the chart); pods that never started are replaced then, unless "
        "spec.updateStrategy.type is OnDelete"
    )
    return [Problem(Reason.IMAGE_PULL_FAILED, f"{name}{more}: {text}; {remedy}")]


def _failing_services(state: State) -> str:
    number, (_, reason) = min(state.rebalance.service_failures.items())
    count = len(state.rebalance.service_failures)
    more = f" (and {count - 1} more)" if count > 1 else ""
    return f"partition {number}{more} keeps its owner until the service can hand over: {reason}"
