"""The owner's half of a tablet: establishing itself, what members and learners hold, what is committed.

    PROBING     ask every member of the row (and a waited learner) for its last operation
    ADOPTING    fetch the tail of the longest log
    COMMITTING  first operation of the new term is on its way to all
    SERVING     it is committed and applied: requests are served
    DEPOSED     another member promised a higher term: wait for a row of at least that version
    HELD        the partition was frozen for a migration when this process started

The rule that all else serves: an operation is committed when this member and all in `waited_for` hold it.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum

from stele.core.table.table import Partition
from stele.core.tablet.follower import Code, Tablet
from stele.core.tablet.log import ZERO, OpId
from stele.core.transitions import check_step
from stele.errors import Refused

PROBE_INTERVAL_SECONDS = 0.2
LEARNER_LAG_OPERATIONS = 256
"""A learner that lacks at most so many operations is waited for from then on."""
FILL_BYTES_MAX = 64 * 1024
"""An empty learner is fed the whole log, without a copy, up to this size."""


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
    """PROBE: its last operation is not known. STREAM: it is fed. STUCK: this log begins too late for it."""

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
    """What one other member holds, as far as it said so in this term. `takes`: it can take operations now."""

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
    """A destination. `waited`: the promise to wait for it is on disk; `target`: the last operation then.

    The log is kept from `pin` on while it is `pinned`.
    """

    id: str
    member: int
    base: int
    pin: int
    state: LearnerState = LearnerState.PROBING
    waited: bool = False
    target: int = 0
    pinned: bool = True

    def _enter(self, state: LearnerState) -> None:
        check_step(f"learner of {self.id}", LEARNER_TRANSITIONS, self.state, state)
        self.state = state

    def on_located(self, found: bool) -> None:
        """Its last operation was looked for in the owner's log."""
        if not found:
            self._enter(LearnerState.NEEDS_COPY)
        elif self.state is not LearnerState.IN_SYNC:
            self._enter(LearnerState.STREAMING)
        self.pinned = self.pinned or found

    def on_match(self, match: int) -> None:
        """It holds all operations up to this one."""
        self.pin = max(self.pin, match)
        if self.waited and self.state is LearnerState.STREAMING and match >= self.target:
            self._enter(LearnerState.IN_SYNC)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """What a member's log holds, as it answered a probe."""

    last: OpId
    applied: OpId
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """To do: take over what `member` has behind `prev`."""

    member: int
    prev: OpId


class Owner:
    """See the module. `synced` is how far this member's own log counts as held."""

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
        """Take a step; raises Refused for one that is not in TRANSITIONS, and nothing changes then."""
        check_step(f"owner of partition {self.tablet.partition}", TRANSITIONS, self.phase, phase)
        self.phase = phase

    def depose(self) -> None:
        """Another term was promised: this member answers nothing until a row of that version names it."""
        self._enter(Phase.DEPOSED)

    @property
    def serving(self) -> bool:
        return self.phase is Phase.SERVING and not self.frozen

    @property
    def appending(self) -> bool:
        """Whether this member's log is the one that the others take."""
        return self.phase is Phase.COMMITTING or self.phase is Phase.SERVING

    # -- establishing

    def begin(self) -> None:
        """Establish again, with the version of the row as the term."""
        row = self.tablet.row
        self._count_members()
        self.positions = {}
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
        """Members to probe now; each is probed again after PROBE_INTERVAL_SECONDS."""
        if self.phase is Phase.PROBING:
            wanted = [m for m in self.waited_for if m not in self.positions]
        elif self.appending:
            wanted = [m for m, p in self.progress.items() if p.flow is not Flow.STREAM]
        else:
            return []
        due = [m for m in wanted if self.progress[m].probe_at <= now]
        for member in due:
            self.progress[member].probe_at = now + PROBE_INTERVAL_SECONDS
        return due

    @property
    def all_streaming(self) -> bool:
        """Whether it serves and feeds all, so that no member has to be probed."""
        return self.phase is Phase.SERVING and all(p.flow is Flow.STREAM for p in self.progress.values())

    def on_probe_result(
        self, member: int, term: int, code: Code, position: LogPosition, promised: int
    ) -> None:
        """Take the result of a probe of this term; late ones of other terms are dropped."""
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
        """A higher term was promised there, for a row that came to be, or did not.

        With a row of at least that version this member is the one: it establishes itself again, in that term.
        Else it is owner no more, unless the refusal is that of a learner, which has no say.
        """
        if self.term < promised <= self.tablet.row.version:
            self.begin()
        elif member in self.members:
            self.tablet.promised = max(self.tablet.promised, promised)
            self.depose()

    def next_step(self) -> Fetch | None:
        """In PROBING or ADOPTING, when all answered: what to fetch. None: wait, or `ready_to_commit`."""
        if self.phase is Phase.PROBING and all(m in self.positions for m in self.waited_for):
            self._enter(Phase.ADOPTING)
        if self.phase is not Phase.ADOPTING or not self.positions:
            return None
        best = max(self.positions, key=lambda m: self.positions[m].last)
        log = self.tablet.log
        return Fetch(best, log.last) if self.positions[best].last > log.last else None

    @property
    def ready_to_commit(self) -> bool:
        """Whether this log is the longest, so that the first operation of the term may be appended."""
        last = self.tablet.log.last
        return self.phase is Phase.ADOPTING and all(a.last <= last for a in self.positions.values())

    def appended_first(self) -> None:
        """The first operation of the term is the last of the log now."""
        assert self.phase is Phase.ADOPTING
        self._enter(Phase.COMMITTING)
        self.first_of_term = self.tablet.log.last[1]
        for member, position in self.positions.items():
            self._locate(member, position)
        self.advance()

    def _locate(self, member: int, position: LogPosition) -> None:
        """Locate the operation in this log from which the member is fed."""
        log, progress = self.tablet.log, self.progress[member]
        if position.empty:
            found = ZERO if log.first == 1 and log.bytes <= FILL_BYTES_MAX else None
        else:
            found = next((op for op in (position.last, position.applied) if self._feedable(op)), None)
        progress.flow = Flow.STUCK if found is None else Flow.STREAM
        progress.takes = not position.empty
        if found is not None:
            progress.lost_at = 0.0
            progress.match, progress.next = found[1], found[1] + 1
            progress.commit_sent = 0
        if self.learner is not None and self.learner.member == member:
            self.learner.on_located(found is not None)
            self._learner_moved(member)

    def _feedable(self, op: OpId) -> bool:
        log = self.tablet.log
        return op[1] + 1 >= log.first and (log.holds(op) or (op == ZERO and log.first == 1))

    # -- committing

    def on_ack(self, member: int, term: int, code: Code, match: int, promised: int) -> bool:
        """A member's answer to operations; whether the commit index moved."""
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
        """Commit what everybody who is waited for holds. Whether the commit index moved."""
        if not self.appending:
            return False
        low = self.synced
        for member in self.waited_for:
            match = self.progress[member].match
            low = min(low, match)
        return self.tablet.log.commit(low)

    def applied(self) -> bool:
        """The driver applied what is committed. Whether serving begins with that."""
        if self.phase is Phase.COMMITTING and self.tablet.log.applied[1] >= self.first_of_term:
            self._enter(Phase.SERVING)
            return True
        return False

    def on_lease_excluded(self, member: int) -> bool:
        """The member's leases exclude this partition now; whether the member has to be probed.

        It promised a higher term, and only an answer tells: while nobody writes nothing is sent to it,
        and reads would wait for ever after a promotion that came to nothing.
        """
        progress = self.progress.get(member)
        if progress is None or progress.flow is not Flow.STREAM or not self.appending:
            return False
        progress.flow = Flow.PROBE
        return True

    def disconnected(self, member: int) -> None:
        """Probe the member again: a session with it is new."""
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
        """A newer published row still names this member as owner; what it says of migrations is over."""
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

    def add_learner(self, id: str, member: int, base: int) -> None:
        """Feed a destination. The same again changes nothing; another is refused while one is active."""
        if base != self.tablet.row.version:
            raise Refused(f"the row has version {self.tablet.row.version}, not {base}", "STALE_VERSION")
        if self.learner is not None:
            if self.learner.id != id:
                raise Refused(f"migration {self.learner.id} is active", "MIGRATION_ACTIVE")
            return
        if member in self.members or member == self.tablet.me:
            raise Refused(f"member {member} is in the row already", "ILLEGAL_STATE")
        self.learner = Learner(id, member, base, self.tablet.log.applied[1])
        self.progress[member] = Progress()

    def drop_learner(self, id: str) -> bool:
        """Forget a destination and thaw. Whether there was one, or a freeze, of that migration."""
        known = False
        if self.learner is not None and self.learner.id == id:
            known = True
            # What it holds beyond the others was never acknowledged: this member's own log lacks it.
            self.positions.pop(self.learner.member, None)
            self.learner = None
            self._count_members()
            self.progress = {m: p for m, p in self.progress.items() if m in self.members}
        if self.frozen == id:
            known, self.frozen = True, ""
            if self.phase is Phase.HELD:
                self.begin()
        self.advance()
        return known

    def unpin(self) -> None:
        """Keep the log no longer for the learner. Once the log begins too late, it needs a copy (again)."""
        if self.learner is not None:
            self.learner.pinned = False

    def _learner_moved(self, member: int) -> None:
        if self.learner is not None and self.learner.member == member:
            self.learner.on_match(self.progress[member].match)

    @property
    def wants_waiting(self) -> bool:
        """Whether the promise to wait for the learner should be put on disk now."""
        learner = self.learner
        return learner is not None and not learner.waited and self._is_near(learner)

    def _is_near(self, learner: Learner) -> bool:
        """Whether waiting for it would hold nobody up for long."""
        progress = self.progress[learner.member]
        lag = self.tablet.log.last[1] - progress.match
        streams = learner.state is LearnerState.STREAMING and progress.flow is Flow.STREAM and progress.takes
        return streams and self.phase is Phase.SERVING and lag <= LEARNER_LAG_OPERATIONS

    def wait_for_learner(self, id: str) -> None:
        """The promise is on disk: from this operation on the learner counts."""
        learner = self.learner
        if learner is None or learner.id != id or learner.waited or not self._is_near(learner):
            return
        learner.waited = True
        learner.target = self.tablet.log.last[1]
        self._count_waited()
        self._learner_moved(learner.member)

    def check_hand_over(self, id: str) -> None:
        """Raise Refused when the hand-over of this migration cannot begin or go on."""
        learner = self.learner
        if learner is None or learner.id != id:
            raise Refused(f"migration {id} is not active here", "ILLEGAL_STATE")
        if self.frozen and self.frozen != id:
            raise Refused(f"frozen for migration {self.frozen}", "MIGRATION_ACTIVE")
        if self.phase is Phase.HELD:
            raise Refused("this member restarted while it was frozen; abort the migration", "ILLEGAL_STATE")
        if learner.state is not LearnerState.IN_SYNC or self.phase is not Phase.SERVING:
            raise Refused(f"the learner is {learner.state.value}, IN_SYNC is needed", "ILLEGAL_STATE")

    def freeze(self, id: str) -> None:
        """Requests wait from now on. To be persisted before the hand-over is told."""
        self.check_hand_over(id)
        assert self.learner is not None
        self.frozen, self.frozen_base = id, self.learner.base

    @property
    def handed_over(self) -> OpId | None:
        """The last operation, once all is committed, applied and on the destination too."""
        learner, log = self.learner, self.tablet.log
        if learner is None or not self.frozen or self.phase is not Phase.SERVING:
            return None
        if learner.state is not LearnerState.IN_SYNC or self.progress[learner.member].match < log.last[1]:
            return None
        return log.last if log.applied == log.last else None
