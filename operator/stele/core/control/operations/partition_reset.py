"""One partition that gets a new, empty owner (`reinitialize`)."""

from dataclasses import dataclass, field

from stele.core.control.commands import Command, CreateTablet
from stele.core.table.ids import MemberIndex, PartitionId, Version


@dataclass(slots=True)
class PartitionReset:
    """Invariant: the row is stored only when `member` has the tablet, empty and on its disk.

    `refused` are members that hold data of it, which is older than what was lost: it is left alone.
    """

    partition: PartitionId
    base: Version
    member: MemberIndex | None = None
    done: bool = False
    refused: set[MemberIndex] = field(default_factory=set)

    def orders(self) -> list[tuple[MemberIndex, Command]]:
        if self.done or self.member is None:
            return []
        return [(self.member, CreateTablet(self.partition, self.base))]
