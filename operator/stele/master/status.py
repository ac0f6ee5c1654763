"""The status of a TabletCluster, from the leadership's memory. Pure."""

from collections import Counter
from datetime import datetime

from stele.core.control.commands import ClusterState
from stele.core.control.operations.move import Step
from stele.core.control.state import State
from stele.master.conditions import cluster_conditions
from stele.master.kstatus import Progress, Verdict, progress_conditions, with_conditions
from stele.master.view import View
from stele.model import TabletCluster, Unreadable
from stele.model.cluster_status import (
    ClusterPhase,
    CopySpace,
    MemberCounts,
    MigrationCounts,
    TabletClusterStatus,
)
from stele.model.conditions import Reason
from stele.model.ownership import NameLeaves, NameTaken
from stele.model.rollout import RESTARTED_AT


def too_early(view: View, before: TabletClusterStatus, found: TabletClusterStatus) -> bool:
    """Return whether members may still answer for the first time in this leadership.

    Until then the status is written only when copies are missing that the status before does not report.
    """
    asked = view.now - view.state.started_seconds
    if not view.formed or view.state.recovered or asked >= view.desired.timing.silence:
        return False
    return before.phase is not ClusterPhase.RUNNING or found.phase is ClusterPhase.RUNNING


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
        features=state.operations.change.features,
        selector=f"stele.dev/cluster={cluster.metadata.name},stele.dev/component=member",
        state=ClusterState(state.operations.change.state),
        members=members,
        member_image=view.member_image,
        restarted_at=cluster.metadata.annotations.get(RESTARTED_AT, ""),
        partitions=view.parts,
        stamp=str(state.table.stamp.value),
        version_sum=state.table.version_sum,
        migrations=MigrationCounts(
            active=len(state.operations.migrations),
            waiting=len(state.rebalance.queues)
            + (0 if state.rebalance.proposal is None else len(state.rebalance.proposal.migrations)),
            done=0 if progress is None else sum(progress.done.values()),
            failed=0 if progress is None else progress.failed,
        ),
        copy_space=CopySpace(
            log_space_per_member=desired.log_space,
            snapshot_space_per_member=desired.snapshot_space,
            log_used=_log_used(state),
        ),
        rebalance=rebalance if progress is not None else "",
        security=view.security.status,
        conditions=cluster_conditions(cluster, view),
    )


def _log_used(state: State) -> int:
    reports = (liveness.report for liveness in state.membership.liveness.values())
    return max((report.stats.copy_log_bytes for report in reports if report is not None), default=0)


def _lite(state: State) -> int:
    """Count the present members that the member list has as lite."""
    known = state.membership.liveness
    return sum(index in known for index, member in state.table.members.items() if member.lite)


def _phase(view: View) -> tuple[ClusterPhase, str]:
    state, parts, desired = view.state, view.parts, view.desired.members
    if view.without_table:
        return ClusterPhase.DEGRADED, "the partition table is missing"
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
    return ClusterPhase.RUNNING, view.old or view.growing or view.as_desired


def under_way(state: State) -> dict[str, int]:
    """Count migrations by step, for the metrics."""
    steps = Counter(running.step for running in state.operations.migrations.values())
    return {step.value: steps[step] for step in Step}


def blocked(
    status: TabletClusterStatus, why: NameTaken | NameLeaves, generation: int, clock: datetime
) -> TabletClusterStatus:
    """Return the status of a cluster without a table, which shows only what blocks it."""
    text = str(why.args[0])
    verdict: Verdict
    if isinstance(why, NameTaken):
        verdict = Progress.STALLED, Reason.NAME_TAKEN, text
    else:
        verdict = Progress.UNDER_WAY, Reason.WAITS_FOR_REMOVAL, text
    conditions = with_conditions(status.conditions, progress_conditions(verdict), generation, clock)
    changes = {"observed_generation": generation, "message": text, "conditions": conditions}
    return status.model_copy(update=changes)


def stopped(
    status: TabletClusterStatus, text: str, generation: int, clock: datetime, *, lasting: bool
) -> TabletClusterStatus:
    """Return the status of a cluster whose master failed; a `lasting` failure needs a user."""
    progress = Progress.STALLED if lasting else Progress.UNDER_WAY
    observed = progress_conditions((progress, Reason.MASTER_STOPPED, text))
    conditions = with_conditions(status.conditions, observed, generation, clock)
    changes = {"observed_generation": generation, "message": text, "conditions": conditions}
    return status.model_copy(update=changes)


def invalid(status: TabletClusterStatus, why: Unreadable, clock: datetime) -> TabletClusterStatus:
    """Return the status for a stored spec that cannot be parsed: the last valid spec stays in effect."""
    observed = progress_conditions((Progress.STALLED, Reason.INVALID_RESOURCE, str(why)))
    conditions = with_conditions(status.conditions, observed, why.generation, clock)
    changes = {
        "observed_generation": why.generation,
        "phase": ClusterPhase.INVALID,
        "message": str(why),
        "conditions": conditions,
    }
    return status.model_copy(update=changes)
