"""Members that are to own nothing: before a planned stop, or because a user wants that.

How the master empties a member, for example `core.control` before it has a pod stopped:

    demote(state, "update", member)       # in each decision, until it is not needed any more
    progress = handover_progress(state, observation, member)
    if progress.ended: ...                # stop it; `progress.refusals` say what it still owns, and why
    release(state, "update")              # when it is back

From `demote` to `release` no plan gives the member a partition to own, except where no other member of the
row can own it. Everything else that it owns, also what it gets by a failover meanwhile, is handed over by
SWAPs: at once, before anything that is planned, and without an approval. They start as long as migrations may
start at all (cluster state, pause), at most SWAPS_PER_MEMBER_MAX at a time for each member. A migration of
such a partition that is under way is rolled back first, unless its destination was asked already.
After `release`, the next plan gives the member its share of owners again.

A demotion has a `reason`, which names the one who wants it; those of users begin with OF_USER. Several may
want the same member demoted; it is until all have released it. Nothing is stored: a new leadership knows of
those of users, and the others are asked for again.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace

from stele.core.control.commands import Reason, ReasonCode
from stele.core.control.operations.move import MigrationOperation, begin
from stele.core.control.operations.promotion import Promotion
from stele.core.control.parts import Demotion
from stele.core.control.rebalance.data_members import expected_members
from stele.core.control.state import Observation, State
from stele.core.formats import SWAPS
from stele.core.placement.handover import handover
from stele.core.placement.members import DataMember
from stele.core.placement.migration import Migration, Type
from stele.core.placement.plan import Plan, Refusal
from stele.core.table.ids import MemberIndex, PartitionId

SWAPS_PER_MEMBER_MAX = 16
"""SWAPs that run at once at one member, of hand-overs or of a plan.

Each holds the requests of its partition while it runs and costs its members some synced writes, so the more
run at once the longer each takes: 70 ms with 16, 180 ms with 64 (docs/internals/benchmarks.md).
"""

OF_USER = "TabletRebalance/"
"""Beginning of the reasons of users' demotions, before the name of the object."""

HANDED_OVER = Reason(ReasonCode.CANCELLED, "the owner hands the partition over to a backup")


@dataclass(frozen=True, slots=True)
class HandoverProgress:
    """`left` are the partitions that the member owns, or of which the new owner does not serve yet.

    `refusals` say for each partition that stays with the member why it does.
    """

    left: int
    refusals: tuple[Refusal, ...]

    @property
    def done(self) -> bool:
        """Whether the member owns nothing, and what it owned is served."""
        return not self.left

    @property
    def ended(self) -> bool:
        """Whether only that is left which no other member can own."""
        return self.left == len(self.refusals)


def demote(state: State, reason: str, member: MemberIndex, to: MemberIndex | None = None) -> None:
    """Let the member own nothing from now on; repetitions change nothing. With `to`, only that one takes
    over, unless others want the member demoted for any.
    """
    state.rebalance.demotions[reason] = Demotion(member, to)


def release(state: State, reason: str) -> None:
    """End a demotion; nothing happens when there is none for this reason."""
    state.rebalance.demotions.pop(reason, None)


def demoted(state: State) -> dict[MemberIndex, MemberIndex | None]:
    """Return the demoted members, each with the only one that may take over; None: any backup may."""
    found: dict[MemberIndex, MemberIndex | None] = {}
    for demotion in state.rebalance.demotions.values():
        to = demotion.destination
        found[demotion.member] = to if found.get(demotion.member, to) == to else None
    return found


def handover_progress(state: State, observation: Observation, member: MemberIndex) -> HandoverProgress:
    """Return how far a demoted member is emptied."""
    members = expected_members(state, observation.desired, observation.now)
    owned = _owned(state, member)
    refusals = _handover(state, member, members).refusals
    return HandoverProgress(len(owned) + _unsettled(state, member, owned), refusals)


def _owned(state: State, member: MemberIndex) -> list[PartitionId]:
    rows = state.table.partitions
    return sorted(n for n in state.table.replica_index.of(member) if rows[n].owner == member)


def _handover(state: State, member: MemberIndex, members: Sequence[DataMember]) -> Plan:
    owned, to = _owned(state, member), demoted(state).get(member)
    if state.operations.change.features >= SWAPS:
        return handover(state.table.stored, member, members, to=to, partitions=owned)
    plan = handover(state.table.stored, member, (), to=to, partitions=owned)
    text = f"format {SWAPS}, which a hand-over needs, is not in force: not all members speak it"
    return replace(plan, refusals=tuple(replace(each, detail=text) for each in plan.refusals))


def _unsettled(state: State, member: MemberIndex, owned: Iterable[PartitionId]) -> int:
    """Count what the member may get to own, and what it handed over and is not served yet."""
    others = state.table.replica_index.of(member).difference(owned)
    unsettled = {number for number in others if _may_get(state, member, number)}
    for index, liveness in state.membership.liveness.items():
        if liveness.report is None or liveness.ended:
            continue
        if state.up_to_date(liveness):
            unsettled.update(others.intersection(liveness.report.unserved))
        else:
            unsettled.update(n for n in others if state.table.partitions[n].owner == index)
    return len(unsettled)


def _may_get(state: State, member: MemberIndex, number: PartitionId) -> bool:
    operation = state.operations.by_row.get(number)
    makes_it = isinstance(operation, MigrationOperation) and operation.result[0] == member
    return makes_it or isinstance(operation, Promotion)


def start_handovers(
    state: State, observation: Observation, able: Set[MemberIndex], held: Set[PartitionId]
) -> set[PartitionId]:
    """Start the SWAPs that demoted members need. Return their partitions, also those that have to wait.

    `able` members take part in migrations now; `held` partitions have to wait for something else.
    """
    members, room = expected_members(state, observation.desired, observation.now), SwapRoom(state)
    held = held | state.rebalance.retries.paused(observation.now)
    partitions: set[PartitionId] = set()
    for member in [each for each in demoted(state) if each in able]:
        takers = able - _silent(state, member)
        for migration in _handover(state, member, [m for m in members if m.index in takers]).migrations:
            if migration.partition in held or not room.admits(migration):
                _roll_back(state, migration.partition, observation.now)
            else:
                room.take(migration)
                _begin(state, migration, member, observation.now)
            partitions.add(migration.partition)
    return partitions


class SwapRoom:
    """Which members may take part in another SWAP; other migrations are admitted always."""

    def __init__(self, state: State) -> None:
        self._running = Counter[MemberIndex]()
        for operation in state.operations.migrations.values():
            self.take(operation.migration)

    def admits(self, migration: Migration) -> bool:
        members = migration.participants if migration.type is Type.SWAP else ()
        return all(self._running[member] < SWAPS_PER_MEMBER_MAX for member in members)

    def take(self, migration: Migration) -> None:
        """Count a migration that starts."""
        if migration.type is Type.SWAP:
            self._running.update(migration.participants)


def _silent(state: State, owner: MemberIndex) -> set[MemberIndex]:
    """Return the members that this owner misses: a SWAP with one of them would be refused."""
    liveness = state.membership.liveness.get(owner)
    report = None if liveness is None else liveness.report
    return set() if report is None else {peer.member for peer in report.silent}


def _roll_back(state: State, number: PartitionId, now: float) -> None:
    """Roll back what is under way there and can be: it would be in the way for long."""
    operation = state.operations.migrations.get(number)
    if operation is not None and operation.migration.type is not Type.SWAP:
        operation.abort(HANDED_OVER, now)


def _begin(state: State, migration: Migration, member: MemberIndex, now: float) -> None:
    operation = begin(state.new_id("m"), migration, state.table.partitions[migration.partition], now)
    state.operations.begin(operation)
    demotions = state.rebalance.demotions.items()
    names = [reason.removeprefix(OF_USER) for reason, each in demotions if each.member == member]
    plans = state.rebalance.user_plans
    state.rebalance.counted_for[operation.id] = tuple(plans[name] for name in names if name in plans)
