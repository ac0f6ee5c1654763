"""Users' requests to the master in TabletRebalances: run, stop or undo a plan, or make named moves."""

from dataclasses import dataclass

from stele.core.table.ids import PartitionId


@dataclass(frozen=True, slots=True)
class NamedMove:
    """A move of a replica of `partition` from one member to another, by name.

    Without a source, a missing replica is created; without a destination, a surplus replica is dropped.
    """

    partition: PartitionId
    source: str
    destination: str


@dataclass(frozen=True, slots=True)
class NamedHandover:
    """A member that is to own nothing, and the one that takes over, by name; empty: any backup may."""

    member: str
    destination: str = ""


@dataclass(frozen=True, slots=True)
class RebalanceRequest:
    """One TabletRebalance to carry out, as it is stored.

    `plan` is the id of the master's plan that it shows, empty for one created by a user. `phase` is the last
    one in its status, `situation` what the plan was made for (`State.situation`).
    """

    name: str
    uid: str = ""
    plan: str = ""
    approved: bool = False
    cancel: bool = False
    roll_back: bool = False
    cancelled: frozenset[PartitionId] = frozenset()
    moves: tuple[NamedMove, ...] = ()
    handover: NamedHandover | None = None
    phase: str = ""
    situation: str = ""

    @property
    def order(self) -> tuple[int, ...]:
        """Sort key of the master's plans: the epoch, and a number within it."""
        return tuple(int(part) for part in self.plan.split("-") if part.isdigit())

    @property
    def final(self) -> bool:
        return self.phase in ("Done", "Failed", "Superseded")

    @property
    def holds(self) -> bool:
        """Whether replicas should be, or stay, where its moves put them, and its member own nothing."""
        asks = bool(self.moves) or self.handover is not None
        return asks and not self.cancel and self.phase not in ("Failed", "Superseded")
