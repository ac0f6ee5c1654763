"""Plans of users: replicas on members that they name (docs/internals/operator.md, "Plans").

Each move is checked once, when it can be planned: one that is already in effect is done, one that breaks a
rule is refused with a code. The planner takes the others as given and balances around them. A moved replica
stays while the TabletRebalance exists and its member takes data. None of this is needed after a restart: the
objects and the table have it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from stele.core.control.progress import RebalancePhase, RebalanceProgress
from stele.core.control.requests import NamedMove, RebalanceRequest
from stele.core.control.state import AboutRequest, Observation, State
from stele.core.placement.migration import Migration
from stele.core.placement.plan import Code, DataMember, Move, Plan, Refusal
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import PartitionTable, Replicas

NAMES_SHOWN = 20
"""Members that a refusal lists."""

UNDER_WAY = (RebalancePhase.RUNNING, RebalancePhase.CANCELLING)


def paired(moves: Iterable[NamedMove]) -> tuple[NamedMove, ...]:
    """Return the moves, with an added and a removed replica of one partition joined into one move."""
    joined: list[NamedMove] = []
    half: dict[tuple[PartitionId, bool], list[int]] = {}
    for move in moves:
        adds = not move.source
        if move.source and move.destination:
            joined.append(move)
        elif others := half.get((move.partition, not adds)):
            at, other = others[0], joined[others.pop(0)]
            joined[at] = NamedMove(
                move.partition, move.source or other.source, move.destination or other.destination
            )
        else:
            half.setdefault((move.partition, adds), []).append(len(joined))
            joined.append(move)
    return tuple(joined)


def in_force(state: State, requests: Sequence[RebalanceRequest]) -> tuple[RebalanceRequest, ...]:
    """Return users' plans whose moves are in effect, oldest first."""
    return tuple(
        request
        for request in requests
        if not request.plan
        and request.moves
        and request.holds
        and _phase(state, request) != RebalancePhase.FAILED
    )


def _phase(state: State, request: RebalanceRequest) -> str:
    progress = state.rebalance.user_plans.get(request.name)
    return request.phase if progress is None else progress.phase


def moves_of(
    state: State, requests: Iterable[RebalanceRequest], table: PartitionTable, replicas: int
) -> tuple[Move, ...]:
    """Return the planner's input: replicas to move, and moved ones that stay. The newer plan wins."""
    indexes = {member.name: index for index, member in table.members.items()}
    moves: dict[tuple[PartitionId, MemberIndex], Move] = {}
    for request in requests:
        for named in paired(request.moves):
            if named.partition in request.cancelled or named.partition >= len(table.partitions):
                continue
            move = _indexed(named, indexes)
            row = table.partitions[named.partition].members
            if move is None:
                continue
            if move.source is not None:
                moves.pop((move.partition, move.source), None)
            if move.destination is None:
                full = table.replicas_of(move.partition, replicas)
                if move.source in row and len(row) > full and move.source is not None:
                    moves[move.partition, move.source] = move
            elif move.destination in row:
                stays = Move(move.partition, move.destination, move.destination)
                moves[move.partition, move.destination] = stays
            elif not request.final and (move.source is None or move.source in row):
                moves[move.partition, move.destination] = move
    return tuple(moves.values())


def _indexed(named: NamedMove, indexes: Mapping[str, MemberIndex]) -> Move | None:
    """Return the move by indexes; None when one of its members is unknown."""
    if any(name and name not in indexes for name in (named.source, named.destination)):
        return None
    return Move(named.partition, indexes.get(named.source), indexes.get(named.destination))


def begin_requested(state: State, observation: Observation, members: Sequence[DataMember]) -> None:
    """Check the moves of each new plan: refused, already done, or accepted."""
    for request in observation.requests:
        progress = state.rebalance.user_plans.get(request.name)
        if progress is None or progress.phase is not RebalancePhase.PENDING or request.handover:
            continue
        accepted, refused = checked(state, request.moves, members, observation.desired.replicas)
        progress.refusals.update({refusal.partition: refusal for refusal in refused})
        progress.partitions = frozenset(move.partition for move in accepted)
        progress.enter(RebalancePhase.RUNNING, observation.now)
        _end(state, progress, observation.now)


def checked(
    state: State, moves: Iterable[NamedMove], members: Iterable[DataMember], replicas: int
) -> tuple[tuple[NamedMove, ...], tuple[Refusal, ...]]:
    """Return the moves to make, and why others cannot be; moves that are already in effect are left out."""
    able = frozenset(member.index for member in members if not member.leaving)
    accepted, refused = [], []
    for move in paired(moves):
        refusal = _refusal(state, move, able, replicas)
        if refusal is not None:
            refused.append(refusal)
        elif not _satisfied(state, move):
            accepted.append(move)
    return tuple(accepted), tuple(refused)


def _row(state: State, number: PartitionId) -> Replicas:
    return state.table.partitions[number].replicas


def _satisfied(state: State, move: NamedMove) -> bool:
    """Return whether the row is as the move requests."""
    names = {state.name_of(member) for member in _row(state, move.partition) if member is not None}
    return (not move.destination or move.destination in names) and move.source not in names


def _refusal(state: State, move: NamedMove, able: frozenset[MemberIndex], replicas: int) -> Refusal | None:
    number, known = move.partition, {member.name: i for i, member in state.table.members.items()}
    if number >= len(state.table.partitions):
        last = len(state.table.partitions) - 1
        return Refusal(number, Code.NOT_ALLOWED, f"there is no partition {number}; the last one is {last}")
    for name in (move.source, move.destination):
        if name and name not in known:
            listed = ", ".join(sorted(known)[:NAMES_SHOWN])
            text = f"there is no member {name}; there are: {listed}"
            return Refusal(number, Code.UNKNOWN_MEMBER, text)
    if _satisfied(state, move):
        return None
    row = {member for member in _row(state, number) if member is not None}
    full = state.table.stored.replicas_of(number, replicas)
    if move.source and known[move.source] not in row:
        return Refusal(number, Code.NOT_A_HOLDER, f"{move.source} holds no replica of it")
    if move.destination:
        return _taking(state, move, known[move.destination], able, len(row) < full)
    if len(row) <= full:
        text = f"it would be left with {len(row) - 1} of {full} replicas; say in `to` who takes it"
        return Refusal(number, Code.REPLICA_COUNT, text + _or_change(state, number, "lower"))
    return None


def _taking(
    state: State, move: NamedMove, index: MemberIndex, able: frozenset[MemberIndex], room: bool
) -> Refusal | None:
    """Return why the destination cannot take the replica; None when it can."""
    number, name = move.partition, move.destination
    if state.table.members[index].lite:
        return Refusal(number, Code.MEMBER_LITE, f"{name} is a lite member and holds no data")
    if index in _row(state, number):
        return Refusal(number, Code.HOLDS_IT, f"{name} holds a replica of it already")
    if index not in able:
        return Refusal(number, Code.NOT_ALLOWED, f"{name} leaves or cannot be reached, so it takes no data")
    if not move.source and not room:
        text = "it has all its replicas; say in `from` who gives one up"
        return Refusal(number, Code.REPLICA_COUNT, text + _or_change(state, number, "raise"))
    return None


def _or_change(state: State, number: PartitionId, how: str) -> str:
    """Return the other remedy; the number of replicas of a group does not change."""
    in_group = state.table.groups.group_of(number) is not None
    return "" if in_group else f", or {how} spec.replicas of the cluster"


def note_planned(
    state: State, requests: Iterable[RebalanceRequest], plan: Plan, bytes_of: Mapping[PartitionId, int]
) -> None:
    """Count a plan's migrations for each user's plan; moves that the planner refused are not waited for."""
    refused = {refusal.partition: refusal for refusal in plan.refusals}
    for request in requests:
        progress = state.rebalance.user_plans.get(request.name)
        if progress is None or progress.phase is not RebalancePhase.RUNNING:
            continue
        migrations = [each for each in plan.migrations if each.partition in progress.partitions]
        left = {each.partition for each in migrations}
        for number in progress.partitions - left:
            if number in refused:
                progress.refusals[number] = refused[number]
        progress.partitions -= refused.keys() - left
        count_planned(state, progress, migrations, bytes_of)


def count_planned(
    state: State, progress: RebalanceProgress, left: Iterable[Migration], bytes_of: Mapping[PartitionId, int]
) -> None:
    """Set the planned counts of a record: done, running and remaining migrations."""
    running, left = state.under_way(progress), list(left)
    left += [operation.migration for operation in running]
    counted = {operation.partition for operation in running if operation.copies}
    progress.planned = progress.done + Counter(each.type for each in left)
    progress.bytes_planned = progress.bytes_copied + sum(
        bytes_of.get(each.partition, 0) for each in left if each.copies and each.partition not in counted
    )


def user_plan_partitions(state: State) -> frozenset[PartitionId]:
    """Return the partitions of running users' plans."""
    plans = state.rebalance.user_plans.values()
    running = (each.partitions for each in plans if each.phase is RebalancePhase.RUNNING)
    return frozenset[PartitionId]().union(*running)


def end_user_plans(state: State, observation: Observation) -> None:
    """End a user's plan when all its rows are as requested, or nothing more of it is tried."""
    for request in observation.requests:
        progress = state.rebalance.user_plans.get(request.name)
        if progress is None or progress.phase not in UNDER_WAY or _busy(state, progress):
            continue
        if progress.phase is RebalancePhase.CANCELLING:
            progress.enter(RebalancePhase.SUPERSEDED, observation.now)
            continue
        if request.handover:
            continue
        left = progress.partitions - request.cancelled
        open_moves = [each for each in paired(request.moves) if each.partition in left]
        progress.partitions = frozenset(m.partition for m in open_moves if not _satisfied(state, m))
        _end(state, progress, observation.now)


def _busy(state: State, progress: RebalanceProgress) -> bool:
    operations = state.operations
    busy = (state.rebalance.queues.waiting, operations.migrations, operations.promotions)
    return any(number in each for number in progress.partitions for each in busy)


def _end(state: State, progress: RebalanceProgress, now: float) -> None:
    if progress.partitions:
        return
    refused = len(progress.refusals)
    progress.enter(RebalancePhase.FAILED if refused else RebalancePhase.DONE, now)
    text = f"{progress.name}: {sum(progress.done.values())} migrations are done"
    if refused:
        first = next(iter(progress.refusals.values()))
        text += f", {refused} moves are refused, such as partition {first.partition}: {first.detail}"
    about = AboutRequest(progress.name, progress.uid)
    state.emit("MovesRefused" if refused else "MovesDone", text, warning=bool(refused), about=about)
