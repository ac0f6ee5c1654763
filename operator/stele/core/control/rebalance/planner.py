"""When to plan, which migrations may start, and when a plan has ended (docs/internals/operator.md, "Plans").

A plan is made for a *situation*: the members and the desired number of replicas. While that is unchanged,
users' requests about the plan (approve, cancel) stay in effect, also for a further plan for the rest, and for
the next master. Users' moves are planned in any case. An unreachable member in its grace period stays part of
the situation: its place is kept, and others are planned around it.

A row that lacks copies does not wait for the end of a plan: when it shrinks, or a migration of it fails, the
rest is planned again, and the plan continues under its name.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from stele.core.control.migration_queue import Queues
from stele.core.control.operations.move import MigrationOperation
from stele.core.control.progress import RebalancePhase, RebalanceProgress
from stele.core.control.rebalance.data_members import expected_members, places_known, supposed_members
from stele.core.control.rebalance.user_plans import (
    begin_requested,
    checked,
    count_planned,
    in_force,
    moves_of,
    note_planned,
    user_plan_partitions,
)
from stele.core.control.requests import NamedMove, RebalanceRequest
from stele.core.control.state import AboutPlan, DesiredSpec, Observation, State
from stele.core.formats import SWAPS
from stele.core.placement.plan import DataMember, Migration, Plan, Type
from stele.core.placement.plan import plan as plan_migrations
from stele.core.table.ids import PartitionId
from stele.core.table.table import Partition, PartitionTable

FINISHED_KEPT = 10

PLAN_PAUSE_SECONDS = 1.0
"""Minimum seconds between two plans of one situation after a failure: one for 16,384 partitions may take
250 ms of CPU time."""

PLANNED_MEMBERS_SHOWN = 10
"""Leaving and absent members that the reason of a plan lists."""


def preview(
    state: State,
    requests: tuple[RebalanceRequest, ...],
    desired: DesiredSpec,
    now: float,
    moves: Sequence[NamedMove] = (),
) -> Plan:
    """Return the plan for this desired spec, with these moves as well."""
    members = supposed_members(state, desired, now)
    if not members:
        return Plan()
    held = in_force(state, requests)
    granted, refused = checked(state, moves, members, desired.replicas)
    table, all_requests = state.table.stored, [*held, RebalanceRequest("", moves=granted)]
    plan = plan_migrations(
        table, members, desired.replicas, moves_of(state, all_requests, table, desired.replicas)
    )
    return replace(plan, refusals=(*refused, *plan.refusals))


def make_plan(state: State, observation: Observation) -> None:
    """Plan when the situation changed, when a row lacks copies that are not planned, or when all planned
    migrations have ended and the table differs."""
    plans, desired, now = state.rebalance, observation.desired, observation.now
    members = expected_members(state, desired, now) if _may_plan(state, desired) else ()
    if all(member.away for member in members):
        return
    begin_requested(state, observation, members)
    requests = in_force(state, observation.requests)
    moves = tuple((request.name, request.moves, request.cancelled) for request in requests)
    groups = tuple(group.replicas for group in state.table.groups.groups)
    key = (members, desired.replicas, moves, state.operations.change.features >= SWAPS, groups)
    changed, first = key != plans.plan_key, not plans.plan_key
    if not (changed or _again(state, members, now) or _short(state, observation)):
        return
    if first or _lasting(key) != _lasting(plans.plan_key):
        plans.cancelled, plans.stopped = False, set()
    plans.plan_key, plans.planned_table, plans.planned_seconds = key, state.table.stored, now
    _replace_plan(state, observation, members, requests, changed=changed, first=first)


def _replace_plan(
    state: State,
    observation: Observation,
    members: tuple[DataMember, ...],
    requests: tuple[RebalanceRequest, ...],
    *,
    changed: bool,
    first: bool,
) -> None:
    """Plan with these members and requests; `changed` says that the situation is another one, `first` that
    this master has not planned before."""
    plans, desired = state.rebalance, observation.desired
    paused = set() if changed else plans.retries.paused(observation.now)
    plans.retries.note_planned(paused)
    expected, leave_out = _expected(state, observation.desired.replicas, members), plans.stopped | paused
    plan, copies = _planned(state, expected, members, desired.replicas, requests, leave_out=leave_out)
    if (state.stops.since or state.stops.left) and not any(member.leaving for member in members):
        # A member is back in a moment: what would only balance the others until then is not worth a copy.
        plan = _without(plan, _waiting(state, plan))
    situation = _situation(members, desired.replicas, copies)
    if first:
        _remember(state, observation.requests, situation)
    if plans.cancelled:
        plan = _without(plan, {each.partition for each in plan.migrations} - user_plan_partitions(state))
        if not plan.migrations:
            return
    rest = "what is left after the plan before"
    reason = _reason(state, members, desired, requests) if changed else rest
    adopted = _count_adopted(state)
    note_planned(state, requests, plan, sizes(state))
    if _nothing_left(state, plan, members):
        plans.approved = ""
    case = _Case(situation, reason, copies, goes_on=not changed, adopted=adopted)
    _follow_plan(state, observation, expected, plan, case)


def plans_for(state: State, number: PartitionId) -> list[RebalanceProgress]:
    """Return the present plan, and the users' plans with a move of this partition."""
    present, running = state.rebalance.progress, RebalancePhase.RUNNING
    return [
        each
        for each in state.rebalance.plans
        if each is present or (each.phase is running and number in each.partitions)
    ]


def _count_adopted(state: State) -> list[MigrationOperation]:
    """Count what this master adopted for users' plans. Returns it; the plan that is made next counts it."""
    counted_for = state.rebalance.counted_for
    adopted = [each for each in state.operations.migrations.values() if each.id not in counted_for]
    for operation in adopted:
        counted_for[operation.id] = tuple(plans_for(state, operation.partition))
    return adopted


def _lasting(key: tuple[Any, ...]) -> tuple[object, ...]:
    """Return the members and replica counts for which users' requests about a plan are valid."""
    members, replicas, *_ = key
    return tuple(replace(member, demoted=False) for member in members), replicas


def _may_plan(state: State, desired: DesiredSpec) -> bool:
    if not desired.migration_allowed or desired.paused or state.failing_over:
        return False
    if state.table.staged_groups is not None:
        return False  # Their numbers of replicas may be those that fit the members.
    return state.table.formed and places_known(state)


def _again(state: State, members: tuple[DataMember, ...], now: float) -> bool:
    """Return whether there may be something left to plan.

    While a proposal waits, only after a failure of what runs besides it. The same holds while a place is
    kept: what waits for it could be balanced again and again.
    """
    plans, migrations = state.rebalance, state.operations.migrations
    if migrations or len(plans.queues) or (plans.cancelled and not user_plan_partitions(state)):
        return False
    if _rested(state, now) and plans.retries.due(now):
        return True
    if plans.proposal is not None or any(member.away for member in members):
        return False
    return state.table.stored is not plans.planned_table


def _short(state: State, observation: Observation) -> bool:
    """Return whether a row lacks copies and its plan is void: it shrank, or a migration failed."""
    plans = state.rebalance
    if plans.cancelled or not _rested(state, observation.now):
        return False
    void = (plans.queues.dropped - plans.retries.pauses.keys()) | plans.retries.due(observation.now)
    return any(_lacks_copies(state, number, observation.desired.replicas) for number in void - plans.stopped)


def _rested(state: State, now: float) -> bool:
    return now - state.rebalance.planned_seconds >= PLAN_PAUSE_SECONDS


def _lacks_copies(state: State, number: PartitionId, replicas: int) -> bool:
    """Return whether it lacks copies and no operation is about to change that."""
    row = state.table.staged.get(number, state.table.partitions[number])
    idle = number not in state.operations.migrations and number not in state.rebalance.queues.waiting
    return idle and 0 < len(row.members) < state.table.stored.replicas_of(number, replicas)


def _nothing_left(state: State, plan: Plan, members: tuple[DataMember, ...]) -> bool:
    """Return whether the situation is as planned: nothing runs, pauses after a failure, or waits for a
    member."""
    pending = state.operations.migrations or state.rebalance.retries.pauses
    return not (plan.migrations or pending or any(member.away for member in members))


def _expected(state: State, replicas: int, members: Iterable[DataMember]) -> PartitionTable:
    """Return the table after all running operations have succeeded and staged rows are stored.

    A member that left rows to stop for a while is still in them, so that they wait for it.
    """
    rows = list(state.table.partitions)
    for number, operation in state.operations.migrations.items():
        rows[number] = Partition(operation.version, operation.result)
    for number, row in state.table.staged.items():
        rows[number] = row
    for index in [member.index for member in members if member.away]:
        for number in state.stops.left.get(index, ()):
            row = rows[number]
            full = state.table.stored.replicas_of(number, replicas)
            if index not in row.members and 0 < len(row.members) < full:
                rows[number] = Partition(row.version, (*row.replicas, index))
    return PartitionTable(tuple(rows), state.table.members, state.table.groups)


def _planned(
    state: State,
    expected: PartitionTable,
    members: tuple[DataMember, ...],
    replicas: int,
    requests: tuple[RebalanceRequest, ...],
    *,
    leave_out: Collection[PartitionId],
) -> tuple[Plan, int | None]:
    """Return the plan, and the number of copies that it leaves when that is less than desired.

    Leaving members keep what no other can take. Only when nothing else is left, the plan takes that away,
    which needs an approval.
    """
    moves = moves_of(state, requests, expected, replicas)
    plan = _without(_possible(state, plan_migrations(expected, members, replicas, moves)), leave_out)
    staying = sum(not member.leaving for member in members)
    full = any(member.leaving and state.table.replica_index.number(member.index) for member in members)
    if plan.migrations or not full or not 0 < staying < state.table.most_replicas(replicas):
        return plan, None
    planned = plan_migrations(expected, members, replicas, moves, most=staying)
    fewer = _without(_possible(state, planned), leave_out)
    return (fewer, staying) if fewer.migrations else (plan, None)


def _possible(state: State, plan: Plan) -> Plan:
    """Leave out SWAPs, and what follows them in their rows, while not all members know SWAPs.

    They may not wait in a queue: the features rise only when nothing is about to start.
    """
    if state.operations.change.features >= SWAPS:
        return plan
    migrations: list[Migration] = []
    cut: set[PartitionId] = set()
    for migration in plan.migrations:
        if migration.type is Type.SWAP:
            cut.add(migration.partition)
        if migration.partition not in cut:
            migrations.append(migration)
    return replace(plan, migrations=tuple(migrations))


def _without(plan: Plan, numbers: Collection[PartitionId]) -> Plan:
    if not numbers:
        return plan
    return replace(plan, migrations=tuple(each for each in plan.migrations if each.partition not in numbers))


def _situation(members: tuple[DataMember, ...], replicas: int, copies: int | None) -> str:
    """Describe the situation, in which a member that is unreachable for a while still counts."""
    there = tuple(replace(member, away=False, demoted=False) for member in members)
    return blake2b(repr(((there, replicas), copies)).encode(), digest_size=8).hexdigest()


def _remember(state: State, requests: Iterable[RebalanceRequest], situation: str) -> None:
    """Restore users' requests about the previous master's last plan, if it was for the same situation."""
    last = max(
        (request for request in requests if request.plan), key=lambda request: request.order, default=None
    )
    if last is None or last.situation != situation:
        return
    if last.cancel:
        state.rebalance.cancelled = True
    elif last.approved and not last.final:
        state.rebalance.approved = situation


def _reason(
    state: State,
    members: tuple[DataMember, ...],
    desired: DesiredSpec,
    requests: tuple[RebalanceRequest, ...],
) -> str:
    text = f"{len(members)} members, {desired.replicas} replicas"
    going = [state.name_of(member.index) for member in members if member.leaving]
    if going:
        more = ", ..." if len(going) > PLANNED_MEMBERS_SHOWN else ""
        text += f"; leaving: {', '.join(going[:PLANNED_MEMBERS_SHOWN])}{more}"
    away = [state.name_of(member.index) for member in members if member.away]
    if away:
        text += f"; expected back: {', '.join(away[:PLANNED_MEMBERS_SHOWN])}"
    demoted = [state.name_of(member.index) for member in members if member.demoted]
    if demoted:
        text += f"; to own nothing: {', '.join(demoted[:PLANNED_MEMBERS_SHOWN])}"
    moved = [request.name for request in requests if request.name in state.rebalance.user_plans]
    return f"{text}; moves of {', '.join(moved)}" if moved else text


class _Case:
    """Why a plan is made; one that `goes_on` continues the previous plan. It counts `adopted` migrations."""

    def __init__(
        self,
        situation: str,
        reason: str,
        copies: int | None,
        *,
        goes_on: bool,
        adopted: Sequence[MigrationOperation],
    ) -> None:
        self.situation, self.copies, self.goes_on, self.adopted = situation, copies, goes_on, adopted
        self.reason = reason if copies is None else f"{reason}; leaves {copies} copies of each partition"


def _follow_plan(state: State, observation: Observation, on: PartitionTable, plan: Plan, case: _Case) -> None:
    """Let the plan's migrations wait for their start, or for its approval."""
    plans = state.rebalance
    plans.refusals = plan.refusals
    if plans.approved != case.situation:
        plans.approved = ""
    held = set() if _approved(state, observation.desired, case) else _held(state, plan, case)
    free = tuple(each for each in plan.migrations if each.partition not in held)
    plans.queues = Queues.of(replace(plan, migrations=free), on.partitions)
    proposed = tuple(each for each in plan.migrations if each.partition in held)
    plans.proposal = replace(plan, migrations=proposed) if proposed else None
    progress, now = plans.progress, observation.now
    if progress is not None and _same(progress, case, proposed=bool(proposed)):
        _count(state, progress, plan)
        return
    if progress is not None:
        finish_plan(state, RebalancePhase.SUPERSEDED, now)
    if plan.migrations or case.adopted:
        phase = RebalancePhase.PROPOSED if proposed else RebalancePhase.RUNNING
        plans.progress = _new_progress(state, plan, case, phase, now)
        _announce(state, plans.progress)


def _same(progress: RebalanceProgress, case: _Case, *, proposed: bool) -> bool:
    """Return whether the plan continues under its name, because users have nothing new to approve."""
    if progress.situation != case.situation:
        return False
    if proposed:
        return progress.phase is RebalancePhase.PROPOSED
    return case.goes_on and progress.phase is RebalancePhase.RUNNING


def _approved(state: State, desired: DesiredSpec, case: _Case) -> bool:
    return state.rebalance.approved == case.situation or (
        desired.approval == "Automatic" and case.copies is None
    )


def _held(state: State, plan: Plan, case: _Case) -> set[PartitionId]:
    """Return the partitions that wait for an approval: all, when the plan leaves fewer copies."""
    return _waiting(state, plan) if case.copies is None else {each.partition for each in plan.migrations}


def _waiting(state: State, plan: Plan) -> set[PartitionId]:
    """Return the partitions that wait for the plan's approval.

    Missing copies do not wait (nor do earlier steps of their partitions), nor do moves that a user named.
    """
    adds = {each.partition for each in plan.migrations if each.adds}
    return {each.partition for each in plan.migrations} - adds - user_plan_partitions(state)


def _new_progress(
    state: State, plan: Plan, case: _Case, phase: RebalancePhase, now: float
) -> RebalanceProgress:
    plans = state.rebalance
    plans.plan_number += 1
    adopted = tuple(each.migration for each in case.adopted)
    copies = plan.copies + sum(each.copies for each in adopted)
    whole = replace(plan, migrations=(*adopted, *plan.migrations), copies=copies)
    progress = RebalanceProgress(plans.plan_number, whole, case.reason, now, 0, Counter(), phase=phase)
    progress.situation, progress.copies_left = case.situation, case.copies
    for operation in case.adopted:
        plans.counted_for[operation.id] = (progress, *plans.counted_for[operation.id])
    count_planned(state, progress, plan.migrations, sizes(state))
    return progress


def _count(state: State, progress: RebalanceProgress, plan: Plan) -> None:
    progress.plan = plan
    count_planned(state, progress, plan.migrations, sizes(state))


def _announce(state: State, progress: RebalanceProgress) -> None:
    plan = progress.plan
    text = f"{len(plan.migrations)} migrations, {plan.copies} copies, {progress.bytes_planned} bytes"
    if progress.phase is RebalancePhase.PROPOSED:
        text = f"plan {state.plan_id} waits for approval: {text}: {progress.reason}"
        state.emit("RebalanceProposed", text, about=AboutPlan(state.plan_id))
    else:
        state.emit("RebalanceStarted", f"{text}: {progress.reason}", about=AboutPlan(state.plan_id))


def approve(state: State, now: float) -> None:
    """Let the present plan start."""
    plans = state.rebalance
    progress, proposal = plans.progress, plans.proposal
    if progress is None or proposal is None:
        return
    plans.approved, plans.proposal = progress.situation, None
    plans.queues.add(proposal, state.table.partitions)
    progress.enter(RebalancePhase.RUNNING, now)
    left = (
        "" if progress.copies_left is None else f"; it leaves {progress.copies_left} copies of each partition"
    )
    text = f"plan {state.plan_id} starts{left}"
    state.emit("RebalanceApproved", text, warning=bool(left), about=AboutPlan(state.plan_id))


def cancel(state: State, now: float) -> None:
    """Start nothing more of the present plan; another is made only when the situation changes."""
    plans = state.rebalance
    if plans.progress is not None and plans.progress.phase is not RebalancePhase.CANCELLING:
        plans.queues, plans.proposal, plans.cancelled = Queues(), None, True
        plans.progress.enter(RebalancePhase.CANCELLING, now)


def sizes(state: State) -> dict[PartitionId, int]:
    """Return the bytes of each tablet, as its owner reports them."""
    bytes_of: dict[PartitionId, int] = {}
    rows = state.table.partitions
    for index, liveness in state.membership.liveness.items():
        for number, tablet in liveness.tablets.items():
            if number < len(rows) and rows[number].owner == index:
                bytes_of[number] = tablet.bytes
    return bytes_of


def end_plan(state: State, now: float) -> None:
    """End the present plan when nothing of it waits or runs."""
    plans, operations = state.rebalance, state.operations
    left = operations.migrations or operations.promotions or len(plans.queues) or plans.proposal
    if plans.progress is None or left:
        return
    done = sum(plans.progress.done.values())
    phase = _last_phase(state, plans.progress, done)
    if phase is RebalancePhase.DONE:
        plans.approved = ""
    seconds = now - plans.progress.started_seconds
    state.emit(
        "RebalanceFinished" if phase is RebalancePhase.DONE else "RebalanceIncomplete",
        f"{done} migrations in {seconds:.1f} s, {plans.progress.bytes_copied} bytes copied, "
        f"{plans.progress.failed} rolled back",
        warning=phase is RebalancePhase.FAILED,
        about=AboutPlan(state.plan_id),
    )
    finish_plan(state, phase, now)


def _last_phase(state: State, progress: RebalanceProgress, done: int) -> RebalancePhase:
    """Return the final phase: a plan with results whose failed rest is planned again is superseded.

    A migration that pauses after a failure counts as rest, too, even though a later plan was made without it.
    """
    cancelled = progress.phase is RebalancePhase.CANCELLING
    if progress.failed and not done and not cancelled:
        return RebalancePhase.FAILED
    left = state.rebalance.retries.pauses.keys() - state.rebalance.stopped
    whole = done == sum(progress.planned.values()) and not left and not cancelled
    return RebalancePhase.DONE if whole else RebalancePhase.SUPERSEDED


def finish_plan(state: State, phase: RebalancePhase, now: float) -> None:
    plans = state.rebalance
    if plans.progress is None:
        return
    plans.progress.enter(phase, now)
    plans.finished = [*plans.finished, plans.progress][-FINISHED_KEPT:]
    plans.progress = None
