"""A change of the cluster's state or features as a transaction over all members.

See docs/decisions/0025-cluster-states.md and docs/internals/formats.md.

    STEADY -> WAITING      other values are desired: nothing new starts, running operations end
    WAITING -> LOCKING     no operation runs: every member is asked to lock
    LOCKING -> COMMITTING  all agreed, with the table and member list that the master has
    LOCKING -> WAITING     one refused or was silent for LOCK_SECONDS: rolled back, retried later
    COMMITTING -> STEADY   the head ConfigMap has the new values, which are in effect
    any before COMMITTING -> STEADY or WAITING when the desired values change again

The write of the head is the commit. A new master reads the head: the change is done, or it starts again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from stele.core.control.commands import (
    OK,
    ClusterState,
    Command,
    ExchangeReply,
    LockState,
    Result,
    UnlockState,
)
from stele.core.control.invariants import hold
from stele.core.formats import FIRST
from stele.core.table.ids import MemberIndex
from stele.core.transitions import check_step

LOCK_SECONDS = 5.0
"""Seconds in which all members must agree; a member's lock lasts somewhat longer."""

RETRY_SECONDS = 2.0
"""Seconds between a rolled back change and the next attempt."""


class Step(Enum):
    STEADY = "STEADY"
    WAITING = "WAITING"
    LOCKING = "LOCKING"
    COMMITTING = "COMMITTING"


TRANSITIONS: dict[Step, frozenset[Step]] = {
    Step.STEADY: frozenset({Step.WAITING}),
    Step.WAITING: frozenset({Step.LOCKING, Step.STEADY}),
    Step.LOCKING: frozenset({Step.COMMITTING, Step.WAITING, Step.STEADY}),
    Step.COMMITTING: frozenset({Step.STEADY}),
}


@dataclass(frozen=True, slots=True)
class ChangeInput:
    """Input of one decision: `members` are those that must agree, with their process's incarnation.

    `under_way` counts migrations and promotions that must end first. `features` are those in effect, or the
    higher ones that all members speak.
    """

    desired: str
    now: float
    under_way: int
    stamp: int
    member_list_version: int
    members: Mapping[MemberIndex, int]
    features: int = FIRST


@dataclass(slots=True)
class StateChange:
    """Invariant: `state` and `features`, which are in effect, change only after all members agreed and they
    were stored.

    An agreement is valid for the process that made it, and for its table and member list.
    """

    state: str = ClusterState.ACTIVE
    desired: str = ""
    step: Step = Step.STEADY
    id: str = ""
    reason: str = ""
    began_seconds: float = 0.0
    not_before_seconds: float = 0.0
    table_key: tuple[int, int] = (0, 0)
    agreed: dict[MemberIndex, tuple[int, tuple[int, int]]] = field(default_factory=dict)
    refused: dict[MemberIndex, str] = field(default_factory=dict)
    unlocking: dict[MemberIndex, str] = field(default_factory=dict)
    features: int = FIRST
    desired_features: int = FIRST
    _asked: frozenset[MemberIndex] = frozenset()
    _processes: dict[MemberIndex, int] = field(default_factory=dict)

    @property
    def participants(self) -> frozenset[MemberIndex]:
        asked = self._asked if self.step in (Step.LOCKING, Step.COMMITTING) else frozenset()
        return asked | self.unlocking.keys()

    @property
    def done(self) -> bool:
        return not self.pending and not self.unlocking

    @property
    def values_to_store(self) -> tuple[str, int]:
        """Return the state and the features that the head is to have."""
        committing = self.step is Step.COMMITTING
        return (self.desired, self.desired_features) if committing else (self.state, self.features)

    def restore_features(self, shown: int) -> None:
        """Note what members had in effect: a head with less is an older copy."""
        self.features = max(self.features, shown)

    def has_sent(self, id: str) -> bool:
        return bool(id) and (id == self.id or id in self.unlocking.values())

    @property
    def pending(self) -> bool:
        return self.step is not Step.STEADY

    @property
    def changes_state(self) -> bool:
        """Whether another state is desired, and not only higher features."""
        return self.pending and self.desired != self.state

    @property
    def forbids_copies(self) -> bool:
        """Whether the desired state allows no migration: one that has not begun to copy does not begin."""
        return self.changes_state and self.desired != ClusterState.ACTIVE

    def enter(self, to: Step, reason: str = "") -> None:
        """Change the step. Raises Refused, without a change, unless TRANSITIONS allows it."""
        check_step(f"change of state to {self.desired}", TRANSITIONS, self.step, to)
        if self.step in (Step.LOCKING, Step.COMMITTING) and to is not Step.COMMITTING:
            # A member whose reply was lost may be locked, too.
            self.unlocking.update(dict.fromkeys(self._asked, self.id))
        self.step, self.reason = to, reason

    def drive(self, given: ChangeInput, new_id: Callable[[], str]) -> None:
        """Advance as far as one decision can. A lock that starts now takes a new id."""
        if self.step is Step.COMMITTING:
            return
        target = given.desired, given.features
        if target == (self.state, self.features):
            if self.pending:
                self.enter(Step.STEADY)
            return
        if target != (self.desired, self.desired_features) and self.step is Step.LOCKING:
            self.enter(Step.WAITING)
        self.desired, self.desired_features = target
        if self.step is Step.STEADY:
            self.enter(Step.WAITING)
        if self.step is Step.WAITING:
            self._wait(given, new_id)
        elif self.step is Step.LOCKING:
            self._lock(given)

    def _wait(self, given: ChangeInput, new_id: Callable[[], str]) -> None:
        if given.under_way:
            self.reason = f"{given.under_way} migrations are under way and end first"
        elif given.now >= self.not_before_seconds:
            self.enter(Step.LOCKING, "members are asked")
            self.id, self.began_seconds = new_id(), given.now
            self.agreed, self.refused = {}, {}
            self._lock(given)

    def _lock(self, given: ChangeInput) -> None:
        self.table_key = (given.stamp, given.member_list_version)
        self._asked = frozenset(given.members)
        missing = [
            index
            for index, process in given.members.items()
            if self.agreed.get(index) != (process, self.table_key)
        ]
        if not missing and not given.under_way:
            self.enter(Step.COMMITTING)
        elif given.now - self.began_seconds > LOCK_SECONDS:
            self.not_before_seconds = given.now + RETRY_SECONDS
            first = missing[0] if missing else -1
            why = self.refused.get(first, "it did not answer") if missing else "a promotion is under way"
            self.enter(Step.WAITING, f"member {first}: {why}" if missing else why)

    def commands(self, now: float) -> Sequence[tuple[MemberIndex, Command]]:
        """Return the commands to send now. Locks are repeated until the change ends, which renews them."""
        unlocks = [(member, UnlockState(id)) for member, id in self.unlocking.items()]
        if self.step is not Step.LOCKING:
            return unlocks
        lock = LockState(self.id, self.desired, *self.table_key)
        return [*unlocks, *((member, lock) for member in sorted(self._asked))]

    def on_report(self, member: MemberIndex, name: str, report: ExchangeReply, now: float) -> None:
        """Note which process replies: results in the same report are its own."""
        self._processes[member] = report.incarnation

    def on_result(self, member: MemberIndex, command: Command, result: Result, now: float) -> None:
        """Handle one result; those of an earlier lock are ignored."""
        if isinstance(command, UnlockState):
            if self.unlocking.get(member) == command.id:
                del self.unlocking[member]
        elif isinstance(command, LockState) and self.step is Step.LOCKING and command.id == self.id:
            if result.code == OK:
                table_key = command.stamp, command.member_list_version
                self.agreed[member] = self._processes[member], table_key
                self.refused.pop(member, None)
            else:
                self.refused[member] = f"{result.code}: {result.detail}"

    def stored(self) -> None:
        """Apply what was stored: committed values are now in effect."""
        if self.step is Step.COMMITTING:
            self.state, self.features = self.desired, self.desired_features
            self.enter(Step.STEADY)

    def check(self) -> None:
        """Raise BrokenInvariant when it is about to commit what not all members agreed to."""
        locks = self.step in (Step.LOCKING, Step.COMMITTING)
        changes = (self.desired, self.desired_features) != (self.state, self.features)
        hold(not locks or (self.id and changes), "{} has no lock", self.step.value)
        grows = not locks or self.desired_features >= self.features
        hold(grows, "features fall from {} to {}", self.features, self.desired_features)
        agreed = self.step is not Step.COMMITTING or self._asked <= self.agreed.keys()
        hold(
            agreed,
            "{} is committed, {} of {} members agreed",
            self.desired,
            len(self.agreed),
            len(self._asked),
        )

    def forget(self, members: frozenset[MemberIndex]) -> None:
        """Forget failed members, which need no unlocking: their locks expire."""
        for index in members & self.unlocking.keys():
            del self.unlocking[index]
