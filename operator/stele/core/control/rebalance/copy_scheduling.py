"""Sources, rates, space and results of copies (docs/internals/copy.md).

Sessions are values that know nothing of the cluster; here they meet the memory of the leadership.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from stele.core.control.commands import Reason, ReasonCode
from stele.core.control.migration_queue import planned_bytes
from stele.core.control.operations.copy_session import Copied, CopySession, Stage
from stele.core.control.operations.move import MigrationOperation, Step
from stele.core.control.progress import RebalanceProgress
from stele.core.control.rebalance.planner import sizes
from stele.core.control.state import State
from stele.core.copy.pacing import SPACE_MARGIN_BYTES
from stele.core.placement.migration import Migration
from stele.core.placement.plan import Refusal
from stele.core.table.ids import MemberIndex, PartitionId

COPIES_PER_MEMBER_MAX = 4
"""Maximum number of sessions that read from one member, and of those that write to one."""

SHORT_SECONDS = 60.0
"""Seconds without a refusal for lack of space after which a member has space again."""


COPY_STALL_SECONDS = 180.0
"""Seconds without progress after which a copy is abandoned. Its own retries end sooner."""

_BEFORE_COPY = frozenset({Step.START, Step.ATTACH, Step.CATCH_UP})


def give_up_stalled(sessions: Iterable[CopySession], now: float) -> None:
    """Fail copies without progress, such as those of a driver that hangs, which nothing else would end.

    A copy that waits for another one to the same member, or for its turn at the copier, does not count.
    """
    copying = [session for session in sessions if session.stage is Stage.COPY]
    newest: dict[MemberIndex, float] = {}
    for session in copying:
        newest[session.destination] = max(session.progressed_seconds, newest.get(session.destination, 0.0))
    for session in copying:
        if not session.queued and now - newest[session.destination] > COPY_STALL_SECONDS:
            text = f"the copy made no progress for {COPY_STALL_SECONDS:g} s"
            session.fail(Reason(ReasonCode.STALLED, text))


class Sources:
    """Chooses for each migration the member to read its tablet from, and spreads the load.

    An in-sync backup is preferred, because the owner serves clients: any applied prefix is valid, and the
    rest comes from the owner's log. The owner is used when no backup is ready, or when a previous copy was
    too old.
    """

    def __init__(self, state: State, gone: frozenset[MemberIndex]) -> None:
        self._state, self._gone = state, gone
        copying = _BEFORE_COPY | {Step.COPY}
        migrations = (each for each in state.operations.migrations.values() if each.step in copying)
        self._load = Counter(each.copied_from for each in migrations if each.copied_from is not None)

    def choose(self, operation: MigrationOperation) -> MemberIndex:
        """Set the operation's source, which stays while that member is equally suitable."""
        before = operation.copied_from
        ready = list(self._ready(operation))
        if before in ready or (before == operation.owner and not ready):
            return operation.owner if before is None else before
        if before is not None:
            self._load[before] -= 1
        chosen = min(ready, key=lambda member: (self._load[member], member), default=operation.owner)
        self._load[chosen] += 1
        operation.copied_from = chosen
        return chosen

    def _ready(self, operation: MigrationOperation) -> Iterator[MemberIndex]:
        if operation.copies:
            return
        for member in operation.base.replicas[1:]:
            if member is None or member == operation.destination or member in self._gone:
                continue
            if self._state.membership.has_copy(member, operation.partition):
                yield member


def has_room(sessions: Iterable[CopySession], source: MemberIndex, destination: MemberIndex) -> bool:
    """Return whether another session may run between the two members."""
    busy = [session for session in sessions if session.copying]
    read = sum(session.source == source for session in busy)
    written = sum(session.destination == destination for session in busy)
    return max(read, written) < COPIES_PER_MEMBER_MAX


def share_bandwidth(sessions: Iterable[CopySession], limit_bytes_per_second: int) -> None:
    """Set the rates of sessions so that each member's reads and writes stay within the limit.

    A member's limit is shared equally by its sessions, and a session gets the smaller of its two shares. 0:
    no limit.
    """
    busy = [session for session in sessions if session.copying]
    parts = Counter(member for session in busy for member in session.participants)
    for session in busy:
        share = limit_bytes_per_second // max(parts[session.source], parts[session.destination])
        session.bytes_per_second = max(1, share) if limit_bytes_per_second else 0


def expected_bytes(state: State, partition: PartitionId, destination: MemberIndex) -> int:
    """Return the bytes that a copy needs at the destination, as the owner reports them.

    0 for an existing tablet, which may only have to catch up: replication never waits for space.
    """
    tablet = state.membership.tablet(state.table.partitions[partition].owner, partition)
    return 0 if tablet is None or state.membership.has_copy(destination, partition) else tablet.bytes


class Space:
    """Free bytes of the volumes at this decision, less those of running copies (except for one session)."""

    def __init__(self, state: State, but: str = "") -> None:
        self._state = state
        self._coming = Counter[MemberIndex]()
        for session in state.operations.sessions.values():
            if session.copying and session.items and session.id != but:
                self._coming[session.destination] += max(0, session.bytes - session.copied_bytes)
        for operation in state.operations.migrations.values():
            if operation.destination is not None and operation.migration.copies and self._waits(operation):
                needed = expected_bytes(state, operation.partition, operation.destination)
                self._coming[operation.destination] += needed

    def _waits(self, operation: MigrationOperation) -> bool:
        """Return whether the operation may need bytes that no session accounts for yet."""
        session = self._state.operations.sessions.get(operation.session)
        if session is not None:
            return session.copying and not session.items
        return operation.step in _BEFORE_COPY and not operation.copies

    def lack(self, destination: MemberIndex, needed_bytes: int) -> str:
        """Return why so many more bytes do not fit; empty when they do, or when the member does not
        report its space."""
        liveness = self._state.membership.liveness.get(destination)
        free = -1 if liveness is None or liveness.report is None else liveness.report.stats.disk_free_bytes
        left = free - self._coming[destination] - SPACE_MARGIN_BYTES
        if free < 0 or not needed_bytes or needed_bytes <= left:
            return ""
        return (
            f"{self._state.name_of(destination)} has {free} bytes free, {self._coming[destination]} are on "
            f"their way to it and {SPACE_MARGIN_BYTES} stay free; {needed_bytes} more do not fit: enlarge "
            f"its volume, add members or delete data"
        )

    def admit(self, migration: Migration) -> Refusal | None:
        """Count a migration that is about to start. Returns a refusal when its destination has no room."""
        destination = migration.destination
        if destination is None or not migration.copies:
            return None
        needed = expected_bytes(self._state, migration.partition, destination)
        if lack := self.lack(destination, needed):
            return Refusal(migration.partition, ReasonCode.NO_SPACE, f"{ReasonCode.NO_SPACE}: {lack}")
        self._coming[destination] += needed
        return None


def note_short(state: State, destination: MemberIndex, refusal: Refusal, now: float) -> None:
    """Note that a migration waits for space at a member; reported once until space has sufficed for a
    while."""
    if destination not in state.copies.short:
        state.emit("NoSpace", f"partition {refusal.partition} waits: {refusal.detail}", warning=True)
    state.copies.short[destination] = now


def waiting_for_space(state: State) -> Refusal | None:
    """Return the first migration of a running plan that waits for space, if any."""
    return next((refusal for plan in state.rebalance.plans for refusal in plan.waiting.values()), None)


def forget_waiting(state: State) -> None:
    """Forget waiting migrations before they are checked again."""
    for progress in state.rebalance.plans:
        progress.waiting = {}


def forget_short(state: State, now: float) -> None:
    """Forget members that have refused nothing for a while."""
    state.copies.short = {
        each: since for each, since in state.copies.short.items() if now - since < SHORT_SECONDS
    }


def note_engine(state: State, session: CopySession, now: float) -> None:
    """Note the engine of a session, and the reason, in each plan that it is part of."""
    for progress in plans_of(state, session):
        if not progress.destinations:
            planned = planned_bytes(progress.plan, sizes(state))
            progress.destinations = {
                member: Copied(state.name_of(member), size) for member, size in planned.items()
            }
        new = Copied(state.name_of(session.destination), session.bytes)
        copied = progress.destinations.setdefault(session.destination, new)
        copied.begin(session, now)


def note_end(state: State, session: CopySession, now: float) -> None:
    """Count an ended session, once, in its plans and in the totals of this leadership."""
    if session.engine is None or session.counted:
        return
    session.counted = True
    new = Copied(state.name_of(session.destination))
    total = state.copies.copied.setdefault((session.destination, session.engine), new)
    total.count(session, session.copied_bytes, now)
    for progress in plans_of(state, session):
        copied = progress.destinations.get(session.destination)
        if copied is not None:
            copied.count(session, session.part_of(state.rebalance.operations_of(progress)), now)


def plans_of(state: State, session: CopySession) -> list[RebalanceProgress]:
    """Return the plans that a session copies for, each once."""
    counted_for = state.rebalance.counted_for
    return list(dict.fromkeys(plan for id in session.partitions.values() for plan in counted_for.get(id, ())))
