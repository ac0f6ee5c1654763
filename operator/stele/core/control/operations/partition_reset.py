"""A reset of one partition to a new, empty owner (`reinitialize`)."""

from dataclasses import dataclass, field
from enum import Enum

from stele.core.control.commands import OK, WAIT, Command, CreateTablet, ExchangeReply, Result
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Partition
from stele.core.transitions import check_step


class Step(Enum):
    CHOOSE = "CHOOSE"
    CREATE = "CREATE"
    DONE = "DONE"


TRANSITIONS: dict[Step, frozenset[Step]] = {
    Step.CHOOSE: frozenset({Step.CHOOSE, Step.CREATE}),
    Step.CREATE: frozenset({Step.CHOOSE, Step.DONE}),
    Step.DONE: frozenset(),
}


@dataclass(slots=True)
class PartitionReset:
    """Invariant: the row is stored only once `member` has the empty tablet on its disk.

    `refused` are members with data of the partition, older than what was lost, which is kept.
    """

    id: str
    partition: PartitionId
    base: Partition
    member: MemberIndex | None = None
    step: Step = Step.CHOOSE
    refused: set[MemberIndex] = field(default_factory=set)

    def enter(self, to: Step, member: MemberIndex | None = None) -> None:
        """Change the step. Raises Refused, without a change, unless TRANSITIONS allows it."""
        check_step(f"reset of partition {self.partition}", TRANSITIONS, self.step, to)
        self.step, self.member = to, member

    def choose(self, member: MemberIndex | None) -> None:
        """Choose another member, or none for now."""
        self.enter(Step.CHOOSE)
        if member is not None:
            self.enter(Step.CREATE, member)

    @property
    def participants(self) -> frozenset[MemberIndex]:
        return frozenset(() if self.member is None else (self.member,))

    @property
    def done(self) -> bool:
        return self.step is Step.DONE

    def makes(self, row: Partition) -> bool:
        """Return whether it wants this row stored."""
        return self.step is Step.DONE and row.replicas == (self.member,)

    def commands(self, now: float) -> list[tuple[MemberIndex, Command]]:
        if self.step is not Step.CREATE or self.member is None:
            return []
        return [(self.member, CreateTablet(self.partition, self.base.version, self.id))]

    def on_report(self, member: MemberIndex, name: str, report: ExchangeReply, now: float) -> None:
        """Ignore it: only the member's reply that the tablet is on its disk counts."""

    def on_result(self, member: MemberIndex, command: Command, result: Result, now: float) -> None:
        """Handle the chosen member's result."""
        if self.step is not Step.CREATE or member != self.member or result.code == WAIT:
            return
        if result.code == OK:
            self.enter(Step.DONE, member)
        else:
            self.refused.add(member)
            self.enter(Step.CHOOSE)
