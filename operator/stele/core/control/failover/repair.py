"""Repairs rows of failed members: lost backups are removed, lost owners are replaced.

See docs/internals/operator.md, "Members that come and go". Rows without any live member are reported and
wait: the volumes may come back. In a state in which no member may join, rows keep silent members, too.
"""

from collections.abc import Mapping

from stele.core.control.commands import Reason, ReasonCode
from stele.core.control.operations.promotion import Promotion, Step
from stele.core.control.state import DesiredSpec, State
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition, trimmed

SILENCE_FACTOR = 2.0
"""The master believes an owner alone once it missed a backup for this multiple of the usual silence."""


def repair(state: State, desired: DesiredSpec, now: float) -> None:
    """Stage the rows that can be stored at once; begin or continue promotions for the others."""
    gone = unusable(state, desired, now)
    silent = _silent(state, desired, now) if desired.join_allowed else {}
    without = _without_tablet(state)
    lost: set[PartitionId] = set()
    away = frozenset[MemberIndex]() if desired.join_allowed else gone - _wiped(state)
    before, state.failover.shrinking, state.failover.kept = state.failover.shrinking, {}, set()
    for number in sorted(_repair_candidates(state, gone, silent, without)):
        row = state.table.partitions[number]
        if not row.replicas or number in state.table.staged:
            continue
        dead = row.members & (gone | silent.get(row.owner, frozenset()) | without.get(number, frozenset()))
        if number in state.operations.promotions:
            _watch(state, desired, number, dead, now)
        elif row.members & away:
            state.failover.kept.add(number)
            if not any(state.membership.has_copy(member, number) for member in row.members - dead):
                lost.add(number)
        elif dead or number in state.failover.fenced:
            if not _repair_row(state, number, dead, before.get(number, now), now):
                lost.add(number)
        elif state.table.claimed.get(number, 0) > row.version and number not in state.operations.migrations:
            state.table.stage(number, Partition(state.table.next_version(number), row.replicas))
    _report_lost(state, lost)


def note_repaired(state: State, rows: Mapping[PartitionId, Partition]) -> None:
    """Forget what was needed until these rows were stored."""
    state.failover.fenced.difference_update(rows)


def unusable(state: State, desired: DesiredSpec, now: float) -> frozenset[MemberIndex]:
    """Return members in the member list that have failed, or whose volume now has another identity."""
    return frozenset(
        index
        for index in state.table.members
        if (liveness := state.membership.liveness.get(index)) is None
        or liveness.replaced_by_uuid
        or liveness.gone(now, desired.timing)
    )


def _wiped(state: State) -> frozenset[MemberIndex]:
    """Return members whose volume now has another identity: they never come back."""
    members = state.membership.liveness.items()
    return frozenset(index for index, liveness in members if liveness.replaced_by_uuid)


def without_reachable_copy(state: State, desired: DesiredSpec, now: float) -> frozenset[PartitionId]:
    """Return partitions of which no member of the row can be reached with a copy, lost ones among them."""
    reachable = {
        index
        for index, liveness in state.membership.liveness.items()
        if liveness.reachable(now, desired.timing)
    }
    away = state.table.members.keys() - reachable
    rows_of = state.table.replica_index.rows_of
    return frozenset(
        number
        for number in state.failover.lost.union(*(rows_of.get(member, ()) for member in away))
        if not any(
            state.membership.has_copy(member, number)
            for member in state.table.partitions[number].members & reachable
        )
    )


def _silent(state: State, desired: DesiredSpec, now: float) -> dict[int | None, frozenset[MemberIndex]]:
    """Return backups that an owner cannot reach, by owner, while the master has always reached that owner."""
    limit = desired.timing.silence * SILENCE_FACTOR
    silent_backups: dict[int | None, frozenset[MemberIndex]] = {}
    for index, liveness in state.membership.liveness.items():
        if liveness.report is None or not liveness.report.silent or not liveness.steady(now, limit):
            continue
        far = frozenset(peer.member for peer in liveness.report.silent if peer.silent_ms > limit * 1000)
        if far:
            silent_backups[index] = far
    return silent_backups


def _repair_candidates(
    state: State,
    gone: frozenset[MemberIndex],
    silent: Mapping[int | None, frozenset[MemberIndex]],
    without: Mapping[PartitionId, frozenset[MemberIndex]],
) -> set[PartitionId]:
    """Return the only rows that may need a repair."""
    far = gone.union(*silent.values())
    named = set[PartitionId]().union(*(state.table.replica_index.rows_of.get(member, ()) for member in far))
    return named.union(without, state.operations.promotions, state.failover.fenced, state.table.claimed)


def _without_tablet(state: State) -> dict[PartitionId, frozenset[MemberIndex]]:
    """Return members, by partition, that know the row but have no tablet: a damaged one was quarantined."""
    without: dict[PartitionId, frozenset[MemberIndex]] = {}
    for index, liveness in state.membership.liveness.items():
        if not state.up_to_date(liveness):
            continue
        for number in state.mismatched(liveness):
            if state.table.replica_index.names(number, index):
                without[number] = without.get(number, frozenset()) | {index}
    return without


def _repair_row(
    state: State, number: PartitionId, dead: frozenset[MemberIndex], since: float, now: float
) -> bool:
    """Remove failed members from one row. Returns False when no live member is known to have the data.

    The row waits until a remaining member has shown its copy in reply to a request sent after `since`, when
    the loss was noticed: that member may just have failed, too. A promotion asks all of them itself.
    """
    row = state.table.partitions[number]
    operation = state.operations.migrations.get(number)
    if operation is not None:
        # If the destination was already asked, its reply comes first; otherwise the next tick sees the abort.
        operation.abort(Reason(ReasonCode.MEMBER_GONE, f"{state.names_of(dead)} of the row"), now)
        return True
    live = tuple(member for member in row.replicas if member is not None and member not in dead)
    if not any(state.membership.has_copy(member, number) for member in live):
        # The copy of an absent member may be the last intact one.
        return False
    if (reset := state.operations.resets.get(number)) is not None:
        # A member with the data is back: nothing is reset.
        state.operations.end(reset)
    # Waiting migrations were planned for a row with the failed members: one of them may clear another copy.
    state.rebalance.drop(number)
    if row.owner in dead or number in state.failover.fenced:
        _promote(state, number, row, live, now)
    elif not any(state.membership.has_shown_copy(member, number, since) for member in live):
        state.failover.shrinking[number] = since
    else:
        slots = trimmed(None if member in dead else member for member in row.replicas)
        state.table.stage(number, Partition(state.table.next_version(number), slots))
    return True


def _promote(
    state: State, number: PartitionId, row: Partition, live: tuple[MemberIndex, ...], now: float
) -> None:
    """Begin a promotion. Its term is the version of the resulting row."""
    promised = [state.membership.promised(member, number) for member in live]
    term = state.table.next_version(number, max(promised, default=0))
    owner = state.membership.liveness.get(row.owner) if row.owner is not None else None
    # An owner that is asked like the others cannot continue without being noticed.
    dead = owner is not None and row.owner in live and not owner.may_run_twice
    promotion = Promotion(number, row, term, live, dead, now, state.new_id("p"))
    if owner is not None and owner.known_dead:
        promotion.owner_died(owner.dead_incarnation)
    state.operations.begin(promotion)


def _watch(
    state: State, desired: DesiredSpec, number: PartitionId, dead: frozenset[MemberIndex], now: float
) -> None:
    """Store what was agreed to; restart when a live replica was lost or refused, or a lost one is back."""
    promotion = state.operations.promotions[number]
    if promotion.step is Step.AGREED:
        state.table.stage(number, Partition(promotion.term, promotion.row))
        return
    outdated = promotion.step is Step.OUTDATED
    if outdated or dead & promotion.participants or _returned(state, number, dead):
        if promotion.chosen is not None:
            state.table.claim(number, promotion.term)
        state.failover.fenced.add(number)
        state.rebalance.forget(promotion.id)
        state.operations.end(promotion)
        return
    owner = state.membership.liveness.get(promotion.base.owner) if promotion.base.owner is not None else None
    if owner is not None and not promotion.owner_dead and owner.known_dead:
        promotion.owner_died(owner.dead_incarnation)


def _returned(state: State, number: PartitionId, dead: frozenset[MemberIndex]) -> bool:
    """Return whether a member of the row is back with its copy before an owner was decided."""
    promotion = state.operations.promotions[number]
    if promotion.chosen is not None:
        return False
    away = promotion.base.members - dead - promotion.participants
    return any(state.membership.has_copy(member, number) for member in away)


def _report_lost(state: State, lost: set[PartitionId]) -> None:
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
