"""The owner's half of a tablet: establishing itself, progress of members and learners, commits.

    PROBING     ask every member of the row (and a waited-for learner) for its last operation
    ADOPTING    fetch the tail of the longest log
    COMMITTING  replicate the first operation of the new term
    SERVING     it is committed and applied: requests are served
    DEPOSED     another member promised a higher term: wait for a row of at least that version
    HELD        the partition was frozen for a migration when this process started

Invariant: an operation is committed when this member and all in `waited_for` hold it.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum

from stele.core.table.table import Partition, Replicas
from stele.core.tablet.follower import Code, Tablet
from stele.core.tablet.log import ZERO, OpId
from stele.core.transitions import check_step
from stele.errors import Refused

PROBE_INTERVAL_SECONDS = 0.2
LEARNER_LAG_OPERATIONS = 256
"""Lag, in operations, at which a learner becomes waited for."""
FILL_BYTES_MAX = 64 * 1024
"""Up to this size, an empty learner is fed the whole log instead of a copy."""


class Phase(Enum):
    PROBING = "PROBING"
    ADOPTING = "ADOPTING"
    COMMITTING = "COMMITTING"
    SERVING = "SERVING"
    DEPOSED = "DEPOSED"
    HELD = "HELD"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.PROBING: frozenset({Phase.PROBING, Phase.ADOPTING, Phase.DEPOSED}),
    Phase.ADOPTING: frozenset({Phase.PROBING, Phase.COMMITTING, Phase.DEPOSED}),
    Phase.COMMITTING: frozenset({Phase.PROBING, Phase.SERVING, Phase.DEPOSED}),
    Phase.SERVING: frozenset({Phase.PROBING, Phase.DEPOSED}),
    Phase.DEPOSED: frozenset({Phase.PROBING, Phase.DEPOSED}),
    Phase.HELD: frozenset({Phase.PROBING, Phase.DEPOSED}),
}


class Flow(IntEnum):
    """PROBE: its last operation is unknown. STREAM: it is fed. STUCK: this log begins too late for it.

    Each may follow each, so there is no table: a position decides between STREAM and STUCK, whatever was
    known before, and a lost session means PROBE.
    """

    PROBE = 0
    STREAM = 1
    STUCK = 2


class LearnerState(StrEnum):
    PROBING = "PROBING"
    NEEDS_COPY = "NEEDS_COPY"
    STREAMING = "STREAMING"
    IN_SYNC = "IN_SYNC"


LEARNER_TRANSITIONS: dict[LearnerState, frozenset[LearnerState]] = {
    LearnerState.PROBING: frozenset({LearnerState.NEEDS_COPY, LearnerState.STREAMING}),
    LearnerState.NEEDS_COPY: frozenset({LearnerState.NEEDS_COPY, LearnerState.STREAMING}),
    LearnerState.STREAMING: frozenset(
        {LearnerState.NEEDS_COPY, LearnerState.STREAMING, LearnerState.IN_SYNC}
    ),
    LearnerState.IN_SYNC: frozenset({LearnerState.NEEDS_COPY}),
}


class Progress:
    """What another member is known to hold in this term. `takes`: it currently accepts operations."""

    __slots__ = ("commit_sent", "flow", "lost_at", "match", "next", "probe_at", "takes", "version_sent")

    def __init__(self) -> None:
        self.flow = Flow.PROBE
        self.takes = False
        self.lost_at = 0.0
        self.match = 0
        self.next = 0
        self.commit_sent = 0
        self.version_sent = 0
        self.probe_at = 0.0


@dataclass(slots=True)
class Learner:
    """The destination of a migration, also a backup of the row that a SWAP makes the owner.

    The log is kept from `pin` on while it is `pinned`.

    `waited` means that the promise to wait for it is on disk; `target` is the last operation at that time.
    `result` is the row that the migration makes, for reports only; empty after a restart.
    """

    id: str
    member: int
    base: int
    pin: int
    state: LearnerState = LearnerState.PROBING
    waited: bool = False
    target: int = 0
    pinned: bool = True
    result: Replicas = ()

    def _enter(self, state: LearnerState) -> None:
        check_step(f"learner of {self.id}", LEARNER_TRANSITIONS, self.state, state)
        self.state = state

    def on_located(self, found: bool) -> None:
        """Handle the search for its last operation in the owner's log."""
        if not found:
            self._enter(LearnerState.NEEDS_COPY)
        elif self.state is not LearnerState.IN_SYNC:
            self._enter(LearnerState.STREAMING)
        self.pinned = self.pinned or found

    def on_match(self, match: int) -> None:
        """Record that it has all operations up to this one."""
        self.pin = max(self.pin, match)
        if self.waited and self.state is LearnerState.STREAMING and match >= self.target:
            self._enter(LearnerState.IN_SYNC)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """State of a member's log, as answered to a probe."""

    last: OpId
    applied: OpId
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """Action: adopt the operations of `member` after `prev`."""

    member: int
    prev: OpId


class Owner:
    """See the module. `synced` is the index up to which this member's own log counts as held."""

    __slots__ = (
        "first_of_term", "frozen", "frozen_base", "learner", "members", "phase", "positions",
        "progress", "synced", "tablet", "term", "waited_for",
    )  # fmt: skip

    def __init__(self, tablet: Tablet, learner: Learner | None, frozen: tuple[str, int] | None) -> None:
        self.tablet = tablet
        self.learner = learner
        self.frozen, self.frozen_base = frozen if frozen is not None else ("", 0)
        self.synced = 0
        self.members: tuple[int, ...] = ()
        self.waited_for: tuple[int, ...] = ()
        self.progress: dict[int, Progress] = {}
        self.positions: dict[int, LogPosition] = {}
        self.term = 0
        self.first_of_term = 0
        self.phase = Phase.HELD if self.frozen else Phase.PROBING
        if not self.frozen:
            self.begin()

    def _enter(self, phase: Phase) -> None:
        """Change the phase. Raises Refused, without a change, for a step that is not in TRANSITIONS."""
        check_step(f"owner of partition {self.tablet.partition}", TRANSITIONS, self.phase, phase)
        self.phase = phase

    def depose(self) -> None:
        """Stop serving, as another term was promised, until a row of that version names this member."""
        self._enter(Phase.DEPOSED)

    @property
    def serving(self) -> bool:
        return self.phase is Phase.SERVING and not self.frozen

    @property
    def appending(self) -> bool:
        """Whether the other members follow this member's log."""
        return self.phase is Phase.COMMITTING or self.phase is Phase.SERVING

    # -- establishing

    def begin(self) -> None:
        """Establish itself again, with the row's version as the term."""
        row = self.tablet.row
        self._count_members()
        self.positions = {}
        # What follows may replace the end of this member's log.
        self.synced = 0
        self.term = row.version
        if self.tablet.promised > row.version:
            self.depose()
            return
        self.tablet.follow(self.tablet.me, self.term)
        self._enter(Phase.PROBING)
        self.progress = {member: Progress() for member in (*self.members, *self._learners())}

    def _learners(self) -> tuple[int, ...]:
        learner = self.learner
        return () if learner is None or learner.member in self.members else (learner.member,)

    def _count_members(self) -> None:
        row, me = self.tablet.row, self.tablet.me
        self.members = tuple(m for m in row.replicas if m is not None and m != me)
        self._count_waited()

    def _count_waited(self) -> None:
        learner = self.learner
        extra = self._learners() if learner is not None and learner.waited else ()
        self.waited_for = (*self.members, *extra)

    def to_probe(self, now: float) -> list[int]:
        """Return the members to probe now; each is probed again after PROBE_INTERVAL_SECONDS."""
        if self.phase is Phase.PROBING:
            candidates = [m for m in self.waited_for if m not in self.positions]
        elif self.appending:
            candidates = [m for m, p in self.progress.items() if p.flow is not Flow.STREAM]
        else:
            return []
        due = [m for m in candidates if self.progress[m].probe_at <= now]
        for member in due:
            self.progress[member].probe_at = now + PROBE_INTERVAL_SECONDS
        return due

    @property
    def all_streaming(self) -> bool:
        """Whether it serves and feeds all members, so that none has to be probed."""
        return self.phase is Phase.SERVING and all(p.flow is Flow.STREAM for p in self.progress.values())

    def on_probe_result(
        self, member: int, term: int, code: Code, position: LogPosition, promised: int
    ) -> None:
        """Handle the result of a probe of this term; results of other terms are dropped."""
        if term != self.term or member not in self.progress:
            return
        if code is Code.STALE_TERM or code is Code.STALE_VERSION:
            self._on_rejected(member, promised)
        elif code is Code.OK or (code is Code.NO_TABLET and position.empty):
            self._on_position(member, position)

    def _on_position(self, member: int, position: LogPosition) -> None:
        if self.phase is Phase.PROBING:
            if member in self.waited_for and not position.empty:
                self.positions[member] = position
        elif self.appending:
            self._locate(member, position)

    def _on_rejected(self, member: int, promised: int) -> None:
        """Handle a higher promise, made for a row that may or may not have been stored.

        With a row of at least that version, this member is meant, and establishes itself again in that term.
        Otherwise it is no longer the owner, unless a learner rejected it, which has no vote.
        """
        if self.term < promised <= self.tablet.row.version:
            self.begin()
        elif member in self.members:
            self.tablet.promise(promised)
            self.depose()

    def next_step(self) -> Fetch | None:
        """Return what to fetch in PROBING or ADOPTING once all have answered; None: wait, or
        `ready_to_commit`."""
        if self.phase is Phase.PROBING and all(m in self.positions for m in self.waited_for):
            self._enter(Phase.ADOPTING)
        if self.phase is not Phase.ADOPTING or not self.positions:
            return None
        best = max(self.positions, key=lambda m: self.positions[m].last)
        log = self.tablet.log
        return Fetch(best, log.last) if self.positions[best].last > log.last else None

    @property
    def ready_to_commit(self) -> bool:
        """Whether this log is the longest, so that the first operation of the term can be appended."""
        last = self.tablet.log.last
        return self.phase is Phase.ADOPTING and all(a.last <= last for a in self.positions.values())

    def appended_first(self) -> None:
        """Record that the first operation of the term is the last of the log."""
        assert self.phase is Phase.ADOPTING
        self._enter(Phase.COMMITTING)
        self.first_of_term = self.tablet.log.last[1]
        for member, position in self.positions.items():
            self._locate(member, position)
        self.advance()

    def _locate(self, member: int, position: LogPosition) -> None:
        """Find the operation in this log after which the member is fed."""
        log, progress = self.tablet.log, self.progress[member]
        if position.empty:
            start = ZERO if log.first == 1 and log.bytes <= FILL_BYTES_MAX else None
        else:
            start = next((op for op in (position.last, position.applied) if self._feedable(op)), None)
        progress.flow = Flow.STUCK if start is None else Flow.STREAM
        progress.takes = not position.empty
        if start is not None:
            progress.lost_at = 0.0
            progress.match, progress.next = start[1], start[1] + 1
            progress.commit_sent = 0
        if self.learner is not None and self.learner.member == member:
            self.learner.on_located(start is not None)
            self._learner_moved(member)

    def _feedable(self, op: OpId) -> bool:
        log = self.tablet.log
        return op[1] + 1 >= log.first and (log.holds(op) or (op == ZERO and log.first == 1))

    # -- committing

    def on_ack(self, member: int, term: int, code: Code, match: int, promised: int) -> bool:
        """Handle a member's answer to operations; return whether the commit index changed."""
        progress = self.progress.get(member)
        if progress is None or term != self.term or not self.appending:
            return False
        if code is Code.OK:
            return self._matched(member, progress, match)
        if code is Code.STALE_TERM or code is Code.STALE_VERSION:
            self._on_rejected(member, promised)
        else:
            progress.flow = Flow.PROBE
            progress.version_sent = 0
            progress.probe_at = 0.0
        return False

    def _matched(self, member: int, progress: Progress, match: int) -> bool:
        if progress.flow is Flow.STREAM:
            progress.takes = True
            progress.match = max(progress.match, match)
        self._learner_moved(member)
        return member in self.waited_for and self.advance()

    def on_synced(self, index: int) -> bool:
        """This member's own log counts as held up to there. Whether more is committed."""
        self.synced = max(self.synced, index)
        return self.advance()

    def advance(self) -> bool:
        """Commit the operations that all waited-for members hold. Return whether the commit index changed."""
        if not self.appending:
            return False
        low = self.synced
        for member in self.waited_for:
            match = self.progress[member].match
            low = min(low, match)
        return self.tablet.log.commit(low)

    def applied(self) -> bool:
        """Handle the application of committed operations. Return whether serving starts with it."""
        if self.phase is Phase.COMMITTING and self.tablet.log.applied[1] >= self.first_of_term:
            self._enter(Phase.SERVING)
            return True
        return False

    def on_lease_excluded(self, member: int) -> bool:
        """Handle a lease that excludes this partition; return whether the member has to be probed.

        The member promised a higher term, which only an answer reveals: without writes nothing is sent to it,
        and after a failed promotion reads would wait for ever.
        """
        progress = self.progress.get(member)
        if progress is None or progress.flow is not Flow.STREAM or not self.appending:
            return False
        progress.flow = Flow.PROBE
        return True

    def disconnected(self, member: int) -> None:
        """Probe the member again, as the session with it is new."""
        progress = self.progress.get(member)
        if progress is not None:
            progress.flow = Flow.PROBE
            progress.version_sent = 0
            progress.probe_at = 0.0
        self.positions.pop(member, None)
        if self.phase is Phase.ADOPTING:
            self._enter(Phase.PROBING)

    # -- rows

    def row_changed(self, row: Partition) -> None:
        """Handle a newer row that still names this member as owner, which ends migrations from older
        versions."""
        if self.learner is not None and self.learner.base < row.version:
            self.learner = None
        if self.frozen and self.frozen_base < row.version:
            self.frozen = ""
        if not self.appending:
            self.begin()
            return
        self._count_members()
        kept = (*self.members, *self._learners())
        self.progress = {member: self.progress.get(member) or Progress() for member in kept}
        self.advance()

    # -- learners and hand-over

    def add_learner(self, id: str, member: int, base: int, result: Replicas = ()) -> None:
        """Feed a destination. A repetition does nothing; another migration is refused while one is active."""
        if base != self.tablet.row.version:
            raise Refused(f"the row has version {self.tablet.row.version}, not {base}", "STALE_VERSION")
        if self.learner is not None:
            if self.learner.id != id:
                raise Refused(f"migration {self.learner.id} is active", "MIGRATION_ACTIVE")
            return
        if member in self.members or member == self.tablet.me:
            raise Refused(f"member {member} is already in the row", "ILLEGAL_STATE")
        self.learner = Learner(id, member, base, self.tablet.log.applied[1], result=result)
        self.progress[member] = Progress()

    def drop_learner(self, id: str) -> bool:
        """Drop a destination and unfreeze. Return whether that migration had a learner or freeze here."""
        existed = False
        if self.learner is not None and self.learner.id == id:
            existed = True
            # Operations that only it holds were never acknowledged: this member's own log lacks them.
            self.positions.pop(self.learner.member, None)
            self.learner = None
            self._count_members()
            self.progress = {m: p for m, p in self.progress.items() if m in self.members}
        if self.frozen == id:
            existed, self.frozen = True, ""
            if self.phase is Phase.HELD:
                self.begin()
        self.advance()
        return existed

    def unpin(self) -> None:
        """Stop keeping the log for the learner, which needs a copy (again) once the log begins too late."""
        if self.learner is not None:
            self.learner.pinned = False

    def _learner_moved(self, member: int) -> None:
        if self.learner is not None and self.learner.member == member:
            self.learner.on_match(self.progress[member].match)

    @property
    def wants_waiting(self) -> bool:
        """Whether the promise to wait for the learner should be persisted now."""
        learner = self.learner
        return learner is not None and not learner.waited and self._is_near(learner)

    def _is_near(self, learner: Learner) -> bool:
        """Return whether waiting for the learner would only cause a short delay."""
        return learner.state is LearnerState.STREAMING and self._follows_closely(learner.member)

    def _follows_closely(self, member: int) -> bool:
        progress = self.progress[member]
        lag = self.tablet.log.last[1] - progress.match
        streams = progress.flow is Flow.STREAM and progress.takes
        return streams and self.phase is Phase.SERVING and lag <= LEARNER_LAG_OPERATIONS

    def wait_for_learner(self, id: str) -> None:
        """Wait for the learner from the next operation on; the promise is on disk."""
        learner = self.learner
        if learner is None or learner.id != id or learner.waited or not self._is_near(learner):
            return
        learner.waited = True
        learner.target = self.tablet.log.last[1]
        self._count_waited()
        self._learner_moved(learner.member)

    def begin_swap(self, id: str, backup: int, base: int, answers: bool) -> None:
        """Note that this backup is to take over, if it `answers`, is fed and nearly has everything.

        Raises Refused otherwise. The backup's operations are counted as those of any member of the row.
        """
        if base != self.tablet.row.version:
            raise Refused(f"the row has version {self.tablet.row.version}, not {base}", "STALE_VERSION")
        if self.learner is not None:
            raise Refused(f"migration {self.learner.id} is active", "MIGRATION_ACTIVE")
        if backup not in self.members:
            raise Refused(f"member {backup} is no backup of the row", "ILLEGAL_STATE")
        learner = Learner(id, backup, base, self.progress[backup].match, LearnerState.IN_SYNC, waited=True)
        if not (answers and self._follows_closely(backup)):
            raise Refused(f"member {backup} does not answer, is not fed, or far behind", "BACKUP_BEHIND")
        learner.pinned = False
        self.learner = learner

    def check_hand_over(self, id: str) -> None:
        """Raise Refused when the hand-over of this migration cannot start or continue."""
        learner = self.learner
        if learner is None or learner.id != id:
            raise Refused(f"migration {id} is not active here", "ILLEGAL_STATE")
        if self.frozen and self.frozen != id:
            raise Refused(f"frozen for migration {self.frozen}", "MIGRATION_ACTIVE")
        if self.phase is Phase.HELD:
            raise Refused("this member restarted while it was frozen; abort the migration", "ILLEGAL_STATE")
        if learner.state is not LearnerState.IN_SYNC or self.phase is not Phase.SERVING:
            raise Refused(f"the learner is {learner.state.value}; it must be IN_SYNC", "ILLEGAL_STATE")

    def freeze(self, id: str) -> None:
        """Hold requests from now on. Must be persisted, as the learner, before the hand-over is reported."""
        self.check_hand_over(id)
        assert self.learner is not None
        self.frozen, self.frozen_base = id, self.learner.base

    @property
    def handed_over(self) -> OpId | None:
        """The last operation, once everything is committed, applied and on the destination."""
        learner, log = self.learner, self.tablet.log
        if learner is None or not self.frozen or self.phase is not Phase.SERVING:
            return None
        progress = self.progress[learner.member]
        fed = learner.state is LearnerState.IN_SYNC and progress.flow is Flow.STREAM
        if not fed or progress.match < log.last[1]:
            return None
        return log.last if log.applied == log.last else None
