"""A new owner for a partition whose owner is lost (docs/reference/protocol.md, "Promotion of a backup").

Fence every live replica; when all answered, the one with the greatest last OpId (the hottest of equals)
accepts the row; only then may the row be stored. The term is the version that the row will have, so the
fence and the row cannot disagree.

The same makes a member of the row the owner on purpose (SHIFT_UP to index 0): every member of the row is
fenced, the old owner too, so each holds all that was acknowledged, and `wanted` is chosen; it takes over a
longer tail when it establishes itself (docs/reference/protocol.md, "Establish").
"""

from dataclasses import dataclass, field

from stele.core.control.commands import OK, WAIT, Accept, Command, Fence, OpId, Result, Row
from stele.core.table.ids import MemberIndex, PartitionId, Version
from stele.core.table.table import Partition, Replicas, trimmed


@dataclass(slots=True)
class Promotion:
    """Invariant: nobody is asked to accept before every live replica answered the fence of this term."""

    partition: PartitionId
    base: Partition
    term: Version
    live: tuple[MemberIndex, ...]
    owner_dead: bool
    started_seconds: float
    id: str
    lasts: dict[MemberIndex, OpId] = field(default_factory=dict)
    not_before_seconds: dict[MemberIndex, float] = field(default_factory=dict)
    wanted: MemberIndex | None = None
    wanted_row: Replicas = ()
    chosen: MemberIndex | None = None
    agreed: bool = False
    outdated: bool = False

    def orders(self, now: float) -> list[tuple[MemberIndex, Command]]:
        if self.agreed or self.outdated:
            return []
        if self.chosen is not None:
            accept = Accept(self.id, Row(self.partition, self.term, self.row), self.lasts[self.chosen])
            return [(self.chosen, accept)]
        fence = Fence(self.partition, self.term, self.owner_dead)
        waiting = [member for member in self.live if member not in self.lasts]
        return [(member, fence) for member in waiting if self.not_before_seconds.get(member, now) <= now]

    @property
    def row(self) -> Replicas:
        """The row that it makes: the planned one, else the chosen first and other live ones as they are."""
        if self.wanted is not None:
            return self.wanted_row
        slots = [member if member in self.live else None for member in self.base.replicas]
        assert self.chosen is not None
        slots[slots.index(self.chosen)] = None
        slots[0] = self.chosen
        return trimmed(slots)

    def answer(self, member: MemberIndex, order: Command, result: Result, now: float) -> None:
        """Take in one answer. A refused fence or row makes this promotion outdated: it is begun again."""
        if isinstance(order, Fence) and order.term == self.term and self.chosen is None:
            self._fenced(member, result, now)
        elif isinstance(order, Accept) and order.id == self.id and member == self.chosen:
            if result.code == OK:
                self.agreed = True
            elif result.code != WAIT:
                self.outdated = True

    def _fenced(self, member: MemberIndex, result: Result, now: float) -> None:
        if result.code == WAIT:
            self.not_before_seconds[member] = now + result.wait_ms / 1000
            return
        if result.code != OK or result.last is None:
            self.outdated = True
            return
        self.lasts[member] = result.last
        if all(each in self.lasts for each in self.live):
            self.chosen = max(self.live, key=self._rank) if self.wanted is None else self.wanted

    def _rank(self, member: MemberIndex) -> tuple[OpId, int]:
        return self.lasts[member], -self.base.replicas.index(member)
