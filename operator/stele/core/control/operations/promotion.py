"""Replaces the owner of a partition (docs/reference/protocol.md, "Promotion of a backup").

Every live replica is fenced; once all have replied, the one with the greatest last OpId (the first in the row
among equals) accepts the row, which may only then be stored. The term is the version of the
resulting row, so the fence and the row always agree.
"""

from dataclasses import dataclass, field
from enum import Enum

from stele.core.control.commands import OK, WAIT, Accept, Command, ExchangeReply, Fence, OpId, Result, Row
from stele.core.table.ids import MemberIndex, PartitionId, Version
from stele.core.table.table import Partition, Replicas, trimmed
from stele.core.transitions import check_step


class Step(Enum):
    FENCE = "FENCE"
    ACCEPT = "ACCEPT"
    AGREED = "AGREED"
    OUTDATED = "OUTDATED"


TRANSITIONS: dict[Step, frozenset[Step]] = {
    Step.FENCE: frozenset({Step.ACCEPT, Step.OUTDATED}),
    Step.ACCEPT: frozenset({Step.AGREED, Step.OUTDATED}),
    Step.AGREED: frozenset(),
    Step.OUTDATED: frozenset(),
}


@dataclass(slots=True)
class Promotion:
    """Invariant: a member is asked to accept only after every live replica replied to the fence of this term.

    `lasts` has the last operation of each that replied; `chosen` was asked to accept. `dead_incarnation` is
    that of the owner's last process that is known to have ended.
    """

    partition: PartitionId
    base: Partition
    term: Version
    live: tuple[MemberIndex, ...]
    owner_dead: bool
    started_seconds: float
    id: str
    dead_incarnation: int = 0
    lasts: dict[MemberIndex, OpId] = field(default_factory=dict)
    not_before_seconds: dict[MemberIndex, float] = field(default_factory=dict)
    chosen: MemberIndex | None = None
    step: Step = Step.FENCE

    def enter(self, to: Step) -> None:
        """Change the step. Raises Refused, without a change, unless TRANSITIONS allows it."""
        check_step(f"promotion {self.id}", TRANSITIONS, self.step, to)
        self.step = to

    def owner_died(self, incarnation: int) -> None:
        """Ask again at once: a process of the owner is known to have ended since this began."""
        self.owner_dead, self.dead_incarnation = True, incarnation
        self.not_before_seconds.clear()

    @property
    def participants(self) -> frozenset[MemberIndex]:
        return frozenset(self.live)

    @property
    def done(self) -> bool:
        return self.step in (Step.AGREED, Step.OUTDATED)

    def makes(self, row: Partition) -> bool:
        """Return whether it wants this row stored."""
        return self.step is Step.AGREED and row == Partition(self.term, self.row)

    def commands(self, now: float) -> list[tuple[MemberIndex, Command]]:
        if self.done:
            return []
        if self.step is Step.ACCEPT:
            assert self.chosen is not None
            accept = Accept(self.id, Row(self.partition, self.term, self.row), self.lasts[self.chosen])
            return [(self.chosen, accept)]
        fence = Fence(self.partition, self.term, self.owner_dead, self.id, self.dead_incarnation)
        waiting = [member for member in self.live if member not in self.lasts]
        return [(member, fence) for member in waiting if self.not_before_seconds.get(member, now) <= now]

    @property
    def row(self) -> Replicas:
        """The resulting row: the chosen member first, and the other live ones in order."""
        slots = [member if member in self.live else None for member in self.base.replicas]
        assert self.chosen is not None
        slots[slots.index(self.chosen)] = None
        slots[0] = self.chosen
        return trimmed(slots)

    def on_result(self, member: MemberIndex, command: Command, result: Result, now: float) -> None:
        """Handle one result. A refused fence or row makes this promotion obsolete: another one is started."""
        if isinstance(command, Fence) and self.step is Step.FENCE:
            self._fenced(member, result, now)
        elif isinstance(command, Accept) and self.step is Step.ACCEPT and result.code != WAIT:
            self.enter(Step.AGREED if result.code == OK else Step.OUTDATED)

    def on_report(self, member: MemberIndex, name: str, report: ExchangeReply, now: float) -> None:
        """Ignore it: only replies to its fence count."""

    def _fenced(self, member: MemberIndex, result: Result, now: float) -> None:
        if result.code == WAIT:
            self.not_before_seconds[member] = now + result.wait_ms / 1000
            return
        if result.code != OK or result.last is None:
            self.enter(Step.OUTDATED)
            return
        self.lasts[member] = result.last
        if all(each in self.lasts for each in self.live):
            self.chosen = max(self.live, key=self._rank)
            self.enter(Step.ACCEPT)

    def _rank(self, member: MemberIndex) -> tuple[OpId, int]:
        return self.lasts[member], -self.base.replicas.index(member)
