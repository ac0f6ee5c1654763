"""What people ask of the master by TabletRebalances: to run, stop or undo a plan, or to make their own."""

from dataclasses import dataclass

from stele.core.table.ids import PartitionId


@dataclass(frozen=True, slots=True)
class NamedMove:
    """A replica of `partition` goes from one member to another, both by name.

    Without a source a missing replica is made; without a destination one that is too many is given up.
    """

    partition: PartitionId
    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class RebalanceRequest:
    """One TabletRebalance that is to be carried out, as it is stored.

    `plan` is the id of the plan that the master made it for, empty for one that a user made. `phase` is what
    its status said last, `situation` what that plan was made for (`State.situation`).
    """

    name: str
    uid: str = ""
    plan: str = ""
    approved: bool = False
    cancel: bool = False
    roll_back: bool = False
    cancelled: frozenset[PartitionId] = frozenset()
    moves: tuple[NamedMove, ...] = ()
    phase: str = ""
    situation: str = ""

    @property
    def order(self) -> tuple[int, ...]:
        """Later plans of the master have a greater one: its epoch, and a number within it."""
        return tuple(int(part) for part in self.plan.split("-") if part.isdigit())

    @property
    def final(self) -> bool:
        return self.phase in ("Done", "Failed", "Superseded")

    @property
    def holds(self) -> bool:
        """Whether replicas should be, or stay, where its moves say."""
        return bool(self.moves) and not self.cancel and self.phase not in ("Failed", "Superseded")
