"""Rows without members that are gone: lost backups are taken out, lost owners are replaced
(docs/internals/operator.md, "Members that come and go").

Rows that nobody is left of are reported and wait: the volumes may come back.
"""

from collections.abc import Mapping

from stele.core.control.commands import Reason, ReasonCode
from stele.core.control.operations.promotion import Promotion, Step
from stele.core.control.state import DesiredSpec, State
from stele.core.table.ids import VERSION_MAX, MemberIndex, PartitionId
from stele.core.table.table import Partition, trimmed
from stele.core.tablet.lifecycle import TabletState

SILENCE_FACTOR = 2.0
"""An owner must miss a backup for so many times the usual silence before the master believes it alone."""


def repair(state: State, desired: DesiredSpec, now: float) -> None:
    """Stage the rows that can be stored at once, begin or continue promotions for the others."""
    gone = unusable(state, desired, now)
    silent = _silent(state, desired, now)
    without = _without_tablet(state)
    lost: set[PartitionId] = set()
    before, state.failover.shrinking = state.failover.shrinking, {}
    for number in sorted(_repair_candidates(state, gone, silent, without)):
        row = state.table.partitions[number]
        if not row.replicas or number in state.staged:
            continue
        dead = row.members & (gone | silent.get(row.owner, frozenset()) | without.get(number, frozenset()))
        if number in state.promotions:
            _watch(state, desired, number, dead, now)
        elif dead or number in state.failover.fenced:
            if not _repair_row(state, number, dead, before.get(number, now), now):
                lost.add(number)
        elif state.claimed.get(number, 0) > row.version and number not in state.migrations:
            state.table_view.stage(number, Partition(state.table_view.next_version(number), row.replicas))
    _tell_lost(state, lost)


def note_repaired(state: State, rows: Mapping[PartitionId, Partition]) -> None:
    """Rows were stored: their owners need no further promotion."""
    state.failover.fenced.difference_update(rows)


def unusable(state: State, desired: DesiredSpec, now: float) -> frozenset[MemberIndex]:
    """Members in the dictionary that are declared gone, or whose volume holds another identity now."""
    return frozenset(
        index
        for index in state.table.members
        if (liveness := state.liveness.get(index)) is None
        or liveness.replaced_by_uuid
        or liveness.gone(now, desired.timing)
    )


def _silent(state: State, desired: DesiredSpec, now: float) -> dict[int | None, frozenset[MemberIndex]]:
    """Backups that an owner cannot reach although the master can reach that owner, and could all the time."""
    limit = desired.timing.silence * SILENCE_FACTOR
    found: dict[int | None, frozenset[MemberIndex]] = {}
    for index, liveness in state.liveness.items():
        if liveness.report is None or not liveness.report.silent or not liveness.steady(now, limit):
            continue
        far = frozenset(peer.member for peer in liveness.report.silent if peer.silent_ms > limit * 1000)
        if far:
            found[index] = far
    return found


def _repair_candidates(
    state: State,
    gone: frozenset[MemberIndex],
    silent: Mapping[int | None, frozenset[MemberIndex]],
    without: Mapping[PartitionId, frozenset[MemberIndex]],
) -> set[PartitionId]:
    """The only rows in which something can be wrong."""
    far = gone.union(*silent.values())
    named = set[PartitionId]().union(*(state.replica_index.rows_of.get(member, ()) for member in far))
    return named.union(without, state.promotions, state.failover.fenced, state.claimed)


def _without_tablet(state: State) -> dict[PartitionId, frozenset[MemberIndex]]:
    """Members of a row that know it and have nothing of it: a damaged tablet was put aside."""
    found: dict[PartitionId, frozenset[MemberIndex]] = {}
    for index, liveness in state.liveness.items():
        if not state.up_to_date(liveness):
            continue
        for number in state.mismatched(liveness):
            if state.replica_index.names(number, index):
                found[number] = found.get(number, frozenset()) | {index}
    return found


def _repair_row(
    state: State, number: PartitionId, dead: frozenset[MemberIndex], since: float, now: float
) -> bool:
    """Take the dead out of one row; False when nobody is left of whom it is known that they hold it.

    The row waits until one of those who stay showed its copy when asked after `since`, when the loss was
    seen: another may just have died too, and of that nobody has heard. A promotion asks all of them itself.
    """
    row = state.table.partitions[number]
    operation = state.migrations.get(number)
    if operation is not None:
        # When the destination is asked already, its answer comes first; else the abort is seen in the next
        # tick.
        operation.abort(Reason(ReasonCode.MEMBER_GONE, f"{state.names_of(dead)} of the row"), now)
        return True
    live = tuple(member for member in row.replicas if member is not None and member not in dead)
    if not any(_holds(state, member, number) for member in live):
        # The copy of somebody who is away may be the last one that is whole.
        return False
    if (reset := state.operations.resets.get(number)) is not None:
        # A member is back that has the data: nothing is reset.
        state.operations.end(reset)
    # What waits was planned for a row with the dead in it: to clear one more copy could leave too few.
    state.rebalance.drop(number)
    if row.owner in dead or number in state.failover.fenced:
        _promote(state, number, row, live, now)
    elif not any(state.showed(member, number, since) for member in live):
        state.failover.shrinking[number] = since
    else:
        slots = trimmed(None if member in dead else member for member in row.replicas)
        state.table_view.stage(number, Partition(state.table_view.next_version(number), slots))
    return True


def _holds(state: State, member: MemberIndex, number: PartitionId) -> bool:
    liveness = state.liveness.get(member)
    return liveness is not None and liveness.tablet_state(number) == TabletState.READY


def _promote(
    state: State, number: PartitionId, row: Partition, live: tuple[MemberIndex, ...], now: float
) -> None:
    """Begin a promotion; its term is the version that the row will have."""
    promised = [_promised(state, member, number) for member in live]
    term = state.table_view.next_version(number, max(promised, default=0))
    owner = state.liveness.get(row.owner) if row.owner is not None else None
    # An owner that is asked itself, like the others, cannot go on behind our back.
    dead = owner is not None and (owner.known_dead or (row.owner in live and not owner.may_run_twice))
    state.operations.begin(Promotion(number, row, term, live, dead, now, state.new_id("p")))


def _promised(state: State, member: MemberIndex, number: PartitionId) -> int:
    liveness = state.liveness.get(member)
    tablet = None if liveness is None else liveness.tablets.get(number)
    # The greatest number stands for promises that were lost with their file: no row could ever be above it.
    return 0 if tablet is None or tablet.promised >= VERSION_MAX else tablet.promised


def _watch(
    state: State, desired: DesiredSpec, number: PartitionId, dead: frozenset[MemberIndex], now: float
) -> None:
    """Store what was agreed to; begin anew when a live replica was lost or refused, or a lost one is back."""
    promotion = state.promotions[number]
    if promotion.step is Step.AGREED:
        state.table_view.stage(number, Partition(promotion.term, promotion.row))
        return
    outdated = promotion.step is Step.OUTDATED
    if outdated or dead & promotion.participants or _returned(state, number, dead):
        if promotion.chosen is not None:
            state.table_view.claim(number, promotion.term)
        state.failover.fenced.add(number)
        state.rebalance.forget(promotion.id)
        state.operations.end(promotion)
        return
    owner = state.liveness.get(promotion.base.owner) if promotion.base.owner is not None else None
    if owner is not None and not promotion.owner_dead and owner.known_dead:
        promotion.owner_dead = True
        promotion.not_before_seconds.clear()


def _returned(state: State, number: PartitionId, dead: frozenset[MemberIndex]) -> bool:
    """Whether a member of the row is back, with its copy, before it was decided who owns the partition."""
    promotion = state.promotions[number]
    if promotion.chosen is not None:
        return False
    away = promotion.base.members - dead - promotion.participants
    return any(_holds(state, member, number) for member in away)


def _tell_lost(state: State, lost: set[PartitionId]) -> None:
    new = sorted(lost - state.failover.lost)
    if new:
        state.emit(
            "DataLoss",
            f"{len(new)} partitions have no live replica (first: {new[0]}); they wait until a member returns",
            warning=True,
        )
    if state.failover.lost and not lost and not state.failover.lost & state.failover.reset_partitions:
        state.emit("DataBack", "every partition has a live replica again")
    state.failover.lost = lost
