"""When to plan, what of a plan may start, and when it is over (docs/operator.md, "Plans").

A plan is made for a *situation*: the members and the wished number of replicas. While that stays as it is,
what people said about the plan (approved, cancelled) stays in force, also for another plan for what is left,
and for the next master. Moves that users ask for are planned for in any case. A member that is unreachable
and within its grace period is part of the situation as before: its place is kept, and others are planned
around it.

A row that lacks copies does not wait for the end of a plan: when it shrinks, or a migration of it fails, what
is left is planned again, and the plan goes on under its name.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b

from stele.core.control.failover.repair import unusable
from stele.core.control.migration_queue import Queues
from stele.core.control.rebalance.user_plans import (
    begin_asked,
    checked,
    count_planned,
    in_force,
    moves_of,
    note_planned,
    wished_partitions,
)
from stele.core.control.requests import Ask, NamedMove
from stele.core.control.scaling import Candidate, leaving, missing, next_index
from stele.core.control.state import Observation, Record, State, Wishes
from stele.core.placement.plan import DataMember, Plan, plan
from stele.core.table.ids import PartitionId
from stele.core.table.table import Partition, PartitionTable

FINISHED_KEPT = 10

PLAN_PAUSE_SECONDS = 1.0
"""At least between two plans of one situation, when something failed or shrank: one for 16,384 partitions may
cost a quarter of a second of the processor.
"""

PLANNED_MEMBERS_SHOWN = 10
"""Names of leaving members, and of those that are away, that the reason of a plan lists."""


def data_members(state: State, wishes: Wishes, now: float) -> tuple[DataMember, ...]:
    """Live members that hold data; those that are to go are marked."""
    return tuple(each for each in expected_members(state, wishes, now) if not each.away)


def expected_members(state: State, wishes: Wishes, now: float) -> tuple[DataMember, ...]:
    """Live members that hold data, and those whose place is kept; the latter are marked as away."""
    gone = unusable(state, wishes, now)
    found = []
    for index, member in sorted(state.table.members.items()):
        contact = state.contacts.get(index)
        if member.lite or contact is None:
            continue
        # Without an object it is on its way out, though its process may answer for another moment.
        drained = contact.seen is None or contact.seen.drain or contact.seen.lite or contact.seen.deleting
        leaving, away = drained or index in state.leaving, index in gone
        if away and (leaving or contact.stranger or not contact.in_grace(now, wishes.timing)):
            continue
        weight, zone = (1, None) if contact.seen is None else (contact.seen.weight, contact.seen.zone or None)
        found.append(DataMember(index, weight, zone, leaving=leaving, away=away))
    return tuple(found)


def preview(
    state: State, asks: tuple[Ask, ...], wishes: Wishes, now: float, moves: Sequence[NamedMove] = ()
) -> Plan:
    """The plan that would be made if these were the wishes, with these moves besides."""
    members = _supposed(state, wishes, now)
    if not members:
        return Plan()
    held = in_force(state, asks)
    granted, refused = checked(state, moves, members, wishes.replicas)
    supposed = moves_of(state, [*held, Ask("", moves=granted)], state.table, wishes.replicas)
    made = plan(state.table, members, wishes.replicas, supposed)
    return replace(made, refusals=(*refused, *made.refusals))


def _supposed(state: State, wishes: Wishes, now: float) -> tuple[DataMember, ...]:
    """Data members as they would be with that number of members: the next numbers come, surplus ones go."""
    present = expected_members(state, wishes, now)
    drained = {each.index for each in present if each.leaving and each.index not in state.leaving}
    candidates = [Candidate(each.index, each.index in drained, reachable=not each.away) for each in present]
    going = leaving(candidates, wishes.members) | drained
    new = missing(candidates, wishes.members, next_index(state.table.members, state.next_index))
    stay = [each for each in present if not (each.away and each.index in going)]
    found = [replace(each, leaving=each.index in going) for each in stay]
    return (*found, *(DataMember(index) for index in new))


def places_known(state: State) -> bool:
    """Whether it was looked where every member is; until then nothing is placed."""
    return all(contact.seen is None or contact.seen.zone is not None for contact in state.contacts.values())


def make_plan(state: State, seen: Observation) -> None:
    """Plan when the situation changed, when a row lacks copies that are not planned, or when everything
    planned is over and the table is another.
    """
    if not _may_plan(state, seen.wishes):
        return
    members = expected_members(state, seen.wishes, seen.now)
    if all(member.away for member in members):
        return
    begin_asked(state, seen, members)
    asks = in_force(state, seen.asks)
    key = (members, seen.wishes.replicas, tuple((ask.name, ask.moves, ask.cancelled) for ask in asks))
    changed, first = key != state.plan_key, not state.plan_key
    if not (changed or _again(state, members, seen.now) or _short(state, seen)):
        return
    if first or key[:2] != state.plan_key[:2]:
        state.cancelled, state.stopped = False, set()
    state.plan_key, state.planned_table, state.planned_seconds = key, state.table, seen.now
    paused = set() if changed else state.retries.paused(seen.now)
    state.retries.note_planned(paused)
    expected = _expected(state)
    made, copies = _planned(state, expected, members, seen.wishes.replicas, asks, but=state.stopped | paused)
    situation = _situation(members, seen.wishes.replicas, copies)
    if first:
        _remember(state, seen.asks, situation)
    if state.cancelled:
        made = _without(made, {each.partition for each in made.migrations} - wished_partitions(state))
        if not made.migrations:
            return
    reason = _reason(state, members, seen.wishes, asks) if changed else "what is left after the plan before"
    note_planned(state, asks, made, sizes(state))
    if _nothing_left(state, made, members):
        state.approved = ""
    _adopt(state, seen, expected, made, _Case(situation, reason, copies, goes_on=not changed))


def _may_plan(state: State, wishes: Wishes) -> bool:
    if not wishes.migration_allowed or wishes.held or state.promotions or state.shrinking:
        return False
    return any(row.version for row in state.table.partitions) and places_known(state)


def _again(state: State, members: tuple[DataMember, ...], now: float) -> bool:
    """Whether there may be something left. While a proposal waits, only when what runs beside it failed;
    while a place is kept, too: what waits for it could be balanced again and again.
    """
    if state.running or len(state.queues) or (state.cancelled and not wished_partitions(state)):
        return False
    if _rested(state, now) and state.retries.due(now):
        return True
    if state.proposal is not None or any(member.away for member in members):
        return False
    return state.table is not state.planned_table


def _short(state: State, seen: Observation) -> bool:
    """Whether a row lacks copies, and what was planned for it is void: it shrank, or a migration failed."""
    if state.cancelled or not _rested(state, seen.now):
        return False
    void = (state.queues.dropped - state.retries.pauses.keys()) | state.retries.due(seen.now)
    return any(_lacks_copies(state, number, seen.wishes.replicas) for number in void - state.stopped)


def _rested(state: State, now: float) -> bool:
    return now - state.planned_seconds >= PLAN_PAUSE_SECONDS


def _lacks_copies(state: State, number: PartitionId, replicas: int) -> bool:
    """Whether it does, and nothing is about to change that."""
    row = state.staged.get(number, state.table.partitions[number])
    idle = number not in state.running and number not in state.queues.waiting
    return idle and 0 < len(row.members) < replicas


def _nothing_left(state: State, made: Plan, members: tuple[DataMember, ...]) -> bool:
    """Whether the situation is as planned: nothing runs, pauses after a failure or waits for a member."""
    pending = state.running or state.retries.pauses or any(member.away for member in members)
    return not (made.migrations or pending)


def _expected(state: State) -> PartitionTable:
    """The table as it is once everything under way has ended well, and what is about to be stored is."""
    rows = list(state.table.partitions)
    for number, running in state.running.items():
        rows[number] = Partition(running.version, running.result)
    for number, row in state.staged.items():
        rows[number] = row
    return PartitionTable(tuple(rows), state.table.members)


def _planned(
    state: State,
    expected: PartitionTable,
    members: tuple[DataMember, ...],
    replicas: int,
    asks: tuple[Ask, ...],
    *,
    but: Collection[PartitionId],
) -> tuple[Plan, int | None]:
    """The plan, and the number of copies that it leaves when that is less than what is wished.

    Members that are to go keep what nobody else can take. Only when that is all that is left, a plan is made
    that takes it away: it needs an approval.
    """
    moves = moves_of(state, asks, expected, replicas)
    made = _without(plan(expected, members, replicas, moves), but)
    staying = sum(not member.leaving for member in members)
    full = any(member.leaving and state.holdings.number(member.index) for member in members)
    if made.migrations or not full or not 0 < staying < replicas:
        return made, None
    fewer = _without(plan(expected, members, staying, moves), but)
    return (fewer, staying) if fewer.migrations else (made, None)


def _without(made: Plan, some: Collection[PartitionId]) -> Plan:
    if not some:
        return made
    return replace(made, migrations=tuple(each for each in made.migrations if each.partition not in some))


def _situation(members: tuple[DataMember, ...], replicas: int, copies: int | None) -> str:
    """Stays the same when a member is unreachable for a while."""
    there = tuple(replace(member, away=False) for member in members)
    return blake2b(repr(((there, replicas), copies)).encode(), digest_size=8).hexdigest()


def _remember(state: State, asks: Iterable[Ask], situation: str) -> None:
    """What people said about the last plan of the master before, when it was made for the same situation."""
    last = max((ask for ask in asks if ask.plan), key=lambda ask: ask.order, default=None)
    if last is None or last.situation != situation:
        return
    if last.cancel:
        state.cancelled = True
    elif last.approved and not last.final:
        state.approved = situation


def _reason(state: State, members: tuple[DataMember, ...], wishes: Wishes, asks: tuple[Ask, ...]) -> str:
    text = f"{len(members)} members, {wishes.replicas} replicas"
    going = [state.name_of(member.index) for member in members if member.leaving]
    if going:
        more = ", ..." if len(going) > PLANNED_MEMBERS_SHOWN else ""
        text += f"; leaving: {', '.join(going[:PLANNED_MEMBERS_SHOWN])}{more}"
    away = [state.name_of(member.index) for member in members if member.away]
    if away:
        text += f"; expected back: {', '.join(away[:PLANNED_MEMBERS_SHOWN])}"
    moved = [ask.name for ask in asks if ask.name in state.asked]
    return f"{text}; moves of {', '.join(moved)}" if moved else text


class _Case:
    """Why a plan is made; one that `goes_on` is of what is left of the plan before."""

    def __init__(self, situation: str, reason: str, copies: int | None, *, goes_on: bool) -> None:
        self.situation, self.copies, self.goes_on = situation, copies, goes_on
        self.reason = reason if copies is None else f"{reason}; leaves {copies} copies of each partition"


def _adopt(state: State, seen: Observation, on: PartitionTable, made: Plan, case: _Case) -> None:
    state.refusals = made.refusals
    if state.approved != case.situation:
        state.approved = ""
    waits = () if _approved(state, seen.wishes, case) else _waiting(state, made)
    held = frozenset(waits)
    free = tuple(each for each in made.migrations if each.partition not in held)
    state.queues = Queues.of(replace(made, migrations=free), on.partitions)
    proposed = tuple(each for each in made.migrations if each.partition in held)
    state.proposal = replace(made, migrations=proposed) if proposed else None
    record, now = state.record, seen.now
    if record is not None and _same(record, case, proposed=bool(proposed)):
        _count(state, record, made)
        return
    if record is not None:
        finish_record(state, "Superseded", now)
    if made.migrations:
        state.record = _record(state, made, case, now)
        _tell(state, state.record, proposed=bool(proposed))


def _same(record: Record, case: _Case, *, proposed: bool) -> bool:
    """Whether the plan goes on under its name, because people need to look at nothing again."""
    if record.situation != case.situation:
        return False
    return record.phase == "Proposed" if proposed else case.goes_on and record.phase == "Running"


def _approved(state: State, wishes: Wishes, case: _Case) -> bool:
    return state.approved == case.situation or (wishes.approval == "Automatic" and case.copies is None)


def _waiting(state: State, made: Plan) -> set[PartitionId]:
    """Partitions that nothing is done about before the plan is approved.

    What makes a missing copy does not wait (with what comes before it in its partition), nor does what a user
    asked for partition by partition.
    """
    adds = {each.partition for each in made.migrations if each.adds}
    return {each.partition for each in made.migrations} - adds - wished_partitions(state)


def _record(state: State, made: Plan, case: _Case, now: float) -> Record:
    state.plan_number += 1
    record = Record(state.plan_number, made, case.reason, now, 0, Counter())
    record.situation, record.copies_left = case.situation, case.copies
    _count(state, record, made)
    return record


def _count(state: State, record: Record, made: Plan) -> None:
    record.plan = made
    count_planned(state, record, made.migrations, sizes(state))


def _tell(state: State, record: Record, *, proposed: bool) -> None:
    made = record.plan
    text = f"{len(made.migrations)} migrations, {made.copies} copies, {record.bytes_planned} bytes"
    if proposed:
        record.phase = "Proposed"
        state.say("RebalanceProposed", f"plan {state.plan_id} waits for approval: {text}: {record.reason}")
    else:
        state.say("RebalanceStarted", f"{text}: {record.reason}")


def approve(state: State, now: float) -> None:
    """The present plan may start."""
    record, proposal = state.record, state.proposal
    if record is None or proposal is None:
        return
    state.approved, state.proposal = record.situation, None
    state.queues.add(proposal, state.table.partitions)
    record.phase, record.started_seconds = "Running", now
    left = "" if record.copies_left is None else f"; it leaves {record.copies_left} copies of each partition"
    state.say("RebalanceApproved", f"plan {state.plan_id} starts{left}", warning=bool(left))


def cancel(state: State) -> None:
    """Start nothing more of the present plan; another is made only when the situation changes."""
    if state.record is not None and state.record.phase != "Cancelling":
        state.queues, state.proposal, state.cancelled = Queues(), None, True
        state.record.phase = "Cancelling"


def sizes(state: State) -> dict[PartitionId, int]:
    """Bytes of each tablet, as its owner reports them."""
    found: dict[PartitionId, int] = {}
    rows = state.table.partitions
    for index, contact in state.contacts.items():
        for number, tablet in contact.tablets.items():
            if number < len(rows) and rows[number].owner == index:
                found[number] = tablet.bytes
    return found


def end_plan(state: State, now: float) -> None:
    """The present plan is over when nothing of it waits or runs."""
    if state.record is None or state.running or state.promotions or len(state.queues) or state.proposal:
        return
    done = sum(state.record.done.values())
    phase = _last_phase(state, state.record, done)
    if phase == "Done":
        state.approved = ""
    seconds = now - state.record.started_seconds
    state.say(
        "RebalanceFinished" if phase == "Done" else "RebalanceIncomplete",
        f"{done} migrations in {seconds:.1f} s, {state.record.bytes_copied} bytes copied, "
        f"{state.record.failed} rolled back",
        warning=phase == "Failed",
    )
    finish_record(state, phase, now)


def _last_phase(state: State, record: Record, done: int) -> str:
    """What was rolled back or left out is planned again: a plan that got somewhere is superseded.

    What pauses after a failure is left, too: `planned` lacks it once a plan was made without it.
    """
    cancelled = record.phase == "Cancelling"
    if record.failed and not done and not cancelled:
        return "Failed"
    left = state.retries.pauses.keys() - state.stopped
    whole = done == sum(record.planned.values()) and not left and not cancelled
    return "Done" if whole else "Superseded"


def finish_record(state: State, phase: str, now: float) -> None:
    if state.record is None:
        return
    state.record.finish(phase, now)
    state.finished = [*state.finished, state.record][-FINISHED_KEPT:]
    state.record = None
