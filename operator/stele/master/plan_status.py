"""The status of a TabletRebalance, from the progress of its plan. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from stele.core.control.progress import FINAL, RebalancePhase, RebalanceProgress
from stele.core.control.state import State
from stele.core.placement.migration import Type
from stele.core.placement.plan import Refusal as PlanRefusal
from stele.master.copy_progress import destinations_of
from stele.master.kstatus import Progress, Verdict, progress_conditions, with_conditions
from stele.master.view import View
from stele.model import TabletRebalance
from stele.model.cluster import EngineChoice
from stele.model.conditions import ConditionType, Reason, find_condition, timestamp
from stele.model.rebalance import (
    DESTINATIONS_LIMIT,
    REFUSALS_LIMIT,
    CountsByType,
    RebalanceMode,
    Refusal,
    TabletRebalanceStatus,
)


def counts(migrations: Mapping[Type, int]) -> CountsByType:
    return CountsByType.of(**{each.lower(): migrations.get(each, 0) for each in Type})


def shown_refusals(refusals: Sequence[PlanRefusal]) -> tuple[Refusal, ...]:
    """Return the first refusals, as the status lists them."""
    return tuple(
        Refusal(
            reason=str(each.reason),
            partition=each.partition if each.partition >= 0 else None,
            message=each.detail[:1024],
        )
        for each in refusals[:REFUSALS_LIMIT]
    )


def rebalance_status(
    progress: RebalanceProgress, view: View, stored: TabletRebalance
) -> TabletRebalanceStatus:
    """Return the plan's status; `stored` gives the conditions to update."""
    return with_conditions_of(_progress(progress, view), stored, view.clock)


def with_conditions_of(
    status: TabletRebalanceStatus, stored: TabletRebalance, clock: datetime
) -> TabletRebalanceStatus:
    """Return the status with its conditions and the observed generation."""
    generation, observed = stored.metadata.generation, progress_conditions(_verdict(status, stored))
    conditions = with_conditions(stored.status.conditions, observed, generation, clock)
    return status.model_copy(update={"observed_generation": generation, "conditions": conditions})


def _verdict(status: TabletRebalanceStatus, stored: TabletRebalance) -> Verdict:
    match status.phase:
        case RebalancePhase.DONE:
            text = f"{status.done.total} migrations are done"
            if stored.spec.handover is not None and status.refusals:
                text += f", {status.refusals_total} partitions stay, such as: {status.refusals[0].message}"
            return Progress.DONE, Reason.AS_DESIRED, text
        case RebalancePhase.PROPOSED if stored.spec.mode is RebalanceMode.DRY_RUN:
            return Progress.DONE, Reason.AS_DESIRED, "the status says what would be done"
        case RebalancePhase.PROPOSED:
            text = f"to let it start: kubectl stele approve {stored.metadata.name}"
            return Progress.HELD, Reason.WAITS_FOR_APPROVAL, text
        case RebalancePhase.FAILED:
            text = f"{status.failed} migrations were rolled back" if status.failed else status.reason
            if status.refusals:
                text = f"{status.refusals_total} refused, such as: {status.refusals[0].message}"
            return Progress.STALLED, Reason.MIGRATION_FAILED, text
        case RebalancePhase.CANCELLING:
            return Progress.UNDER_WAY, Reason.CANCELLED, "migrations under way end or are rolled back"
        case RebalancePhase.SUPERSEDED:
            return _superseded(stored)
        case RebalancePhase.PENDING if status.reason:
            text = "it starts when the cluster may plan: its condition Paused says what forbids it"
            return Progress.HELD, Reason.WAITING, text
        case RebalancePhase.PENDING:
            text = f"no TabletCluster here is named {stored.spec.cluster}; create it, or delete this plan"
            return Progress.STALLED, Reason.CLUSTER_NOT_FOUND, text
        case _:
            text = f"{status.done.total} of {status.planned.total} migrations are done"
            return Progress.UNDER_WAY, Reason.MIGRATING, text


def _superseded(stored: TabletRebalance) -> Verdict:
    """Return the verdict on a superseded plan, including one that ended before its user cancelled it.

    It is final, and nothing is left to do about it: an object in git that ended so is as desired.
    """
    before = find_condition(stored.status.conditions, ConditionType.READY)
    ended = stored.status.phase in FINAL
    cancelled = before.reason == Reason.CANCELLED if ended and before is not None else stored.spec.cancel
    if cancelled:
        return (
            Progress.DONE,
            Reason.CANCELLED,
            "it was cancelled (spec.cancel), and nothing of it is under way",
        )
    return Progress.DONE, Reason.SUPERSEDED, "a newer plan or master took its place"


def _progress(progress: RebalanceProgress, view: View) -> TabletRebalanceStatus:
    state, now, clock = view.state, view.now, view.clock
    end = progress.finished_seconds
    seconds = max(0.001, (now if end is None else end) - progress.started_seconds)
    copied = progress.bytes_copied + _in_flight(progress, state)
    done, planned = sum(progress.done.values()), sum(progress.planned.values())
    rate = int(copied / seconds)
    waiting = progress.waiting.values() if end is None else ()
    refusals = [*progress.plan.refusals, *progress.refusals.values(), *waiting, *progress.failures.values()]
    destinations = destinations_of(progress, state, now)
    begun = bool(done) or progress.phase not in (RebalancePhase.PENDING, RebalancePhase.PROPOSED)
    eta = None if end is not None else _eta(seconds, (done, planned), (copied, progress.bytes_planned))
    return TabletRebalanceStatus(
        phase=progress.phase,
        reason=progress.reason,
        situation=progress.situation,
        copies_left=progress.copies_left,
        engine=None if progress.engine is None else EngineChoice(progress.engine.value),
        engine_reason=progress.engine_reason,
        planned=counts(progress.planned),
        done=counts(progress.done),
        failed=progress.failed,
        bytes_planned=progress.bytes_planned,
        bytes_copied=copied,
        bytes_by_spark=progress.bytes_by_spark,
        destinations=destinations[:DESTINATIONS_LIMIT],
        destinations_total=len(destinations),
        throughput_bytes_per_second=rate,
        megabytes_per_second=f"{rate / 1e6:.1f}",
        eta_seconds=eta,
        refusals=shown_refusals(refusals),
        refusals_total=len(refusals),
        started_at=timestamp(clock - timedelta(seconds=now - progress.started_seconds)) if begun else None,
        finished_at=None if end is None else timestamp(clock - timedelta(seconds=now - end)),
    )


def remaining_bytes(state: State) -> int:
    """Return the estimated bytes that the present plan has still to copy."""
    progress = state.rebalance.progress
    if progress is None:
        return 0
    return max(0, progress.bytes_planned - progress.bytes_copied - _in_flight(progress, state))


def _eta(seconds: float, migrations: tuple[int, int], copied: tuple[int, int]) -> int | None:
    """Return (done, planned): in bytes while any are left to copy, otherwise in migrations."""
    done, planned = copied if 0 < copied[0] < copied[1] else migrations
    return int(seconds / done * (planned - done)) if 0 < done <= planned else None


def _in_flight(progress: RebalanceProgress, state: State) -> int:
    """Return the bytes of running sessions for this plan."""
    ids = state.rebalance.operations_of(progress)
    return sum(each.part_of(ids) for each in state.operations.sessions.values() if each.copied_bytes)
