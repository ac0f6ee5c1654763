"""The members that an assignment gives partitions to, by what may happen to them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stele.core.placement.quotas import Domain
from stele.core.placement.topology import Path, Topology
from stele.core.table.ids import MAX_REPLICAS, MEMBERS_MAX, MemberIndex
from stele.errors import BadInput

WEIGHT_MAX = 1_000_000
"""Greatest weight of one member; weights are only compared with each other."""


@dataclass(frozen=True, slots=True)
class DataMember:
    """A member that holds data.

    A `leaving` member counts as a full copy until it is replaced, and receives nothing. An `away` member is
    expected back: it keeps its share and the replicas that rows still name, backup indexes that it lacks are
    left open for it, and it takes part in no migration. A `demoted` member holds its share, and is given
    nothing to own. `zone` is its domain per topology key, widest first; a string is a single domain.
    """

    index: MemberIndex
    weight: int = 1
    zone: str | Path | None = None
    leaving: bool = False
    away: bool = False
    demoted: bool = False

    @property
    def path(self) -> Path:
        if self.zone is None:
            return ()
        return (self.zone,) if isinstance(self.zone, str) else self.zone


@dataclass(frozen=True, slots=True)
class Load:
    """How many replicas members have of other partitions, and how many of those they own."""

    held: Counter[MemberIndex] = field(default_factory=Counter)
    owned: Counter[MemberIndex] = field(default_factory=Counter)

    def add(self, row: Sequence[MemberIndex | None], partitions: int) -> None:
        """Count a row that so many partitions have."""
        for member in row:
            if member is not None:
                self.held[member] += partitions
        if row and row[0] is not None:
            self.owned[row[0]] += partitions

    def held_by(self, member: DataMember) -> tuple[float, MemberIndex]:
        """Return a key that sorts members by what they hold for their weight."""
        return self.held[member.index] / member.weight, member.index

    def owned_by(self, member: DataMember) -> tuple[float, MemberIndex]:
        """Return a key that sorts members by what they own for their weight."""
        return self.owned[member.index] / member.weight, member.index


NO_LOAD = Load()


@dataclass(frozen=True, slots=True)
class MemberSets:
    """Members by what may happen to them.

    `eligible` members take data (mapped to their weights), those of `owning` also what is to be owned;
    `staying` members keep what they have.
    """

    eligible: Mapping[MemberIndex, int]
    owning: Mapping[MemberIndex, int]
    staying: frozenset[MemberIndex]
    away: tuple[MemberIndex, ...]
    leaving: frozenset[MemberIndex]
    tree: Domain
    topology: Topology | None
    replicas: int

    @staticmethod
    def of(members: Sequence[DataMember], replicas: int, load: "Load | None" = None) -> "MemberSets":
        """`load` is what members have of other partitions: of equal choices those with less come first."""
        load = NO_LOAD if load is None else load
        staying = sorted((m for m in members if not m.leaving), key=load.held_by)
        weights = {member.index: member.weight for member in staying}
        topology = Topology({member.index: member.path for member in staying})
        eligible = {member.index: member.weight for member in staying if not member.away}
        demoted = {member.index for member in staying if member.demoted}
        able = sorted((m for m in staying if not m.away and m.index not in demoted), key=load.owned_by)
        owning = {member.index: member.weight for member in able}
        return MemberSets(
            eligible=eligible,
            owning=owning or eligible,
            staying=frozenset(weights),
            away=tuple(member.index for member in staying if member.away),
            leaving=frozenset(member.index for member in members if member.leaving),
            tree=topology.tree(weights),
            topology=topology if topology.matters else None,
            replicas=replicas,
        )


def check_arguments(members: Sequence[DataMember], replicas: int) -> None:
    """Raise BadInput for what no assignment can be made of."""
    if not 1 <= replicas <= MAX_REPLICAS:
        raise BadInput(f"replicas is {replicas}; expected 1 to {MAX_REPLICAS}")
    if len(members) > MEMBERS_MAX:
        raise BadInput(f"there are {len(members)} members; at most {MEMBERS_MAX} can be planned for")
    if len({member.index for member in members}) != len(members):
        raise BadInput("two members have the same index; each needs its own")
    for member in members:
        if not 1 <= member.weight <= WEIGHT_MAX:
            raise BadInput(f"member {member.index} has weight {member.weight}; expected 1 to {WEIGHT_MAX}")
