"""What is planned: a balanced table and one event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Event(StrEnum):
    """What happens to the last of the members, or to one more.

    JOIN: a member is added. LEAVE: the last member is asked to leave and is a source until it is replaced.
    CRASH: the last member is gone; the rows are repaired first, which makes the hottest backup the owner.
    """

    JOIN = "join"
    LEAVE = "leave"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Case:
    """`members` hold the table before the event."""

    event: Event
    members: int
    partitions: int
    replicas: int

    @property
    def staying(self) -> range:
        """The members that shall hold everything afterwards."""
        return range(self.members + 1 if self.event is Event.JOIN else self.members - 1)

    @property
    def possible(self) -> bool:
        """Whether the members that stay can hold all replicas."""
        return len(self.staying) >= self.replicas

    def __str__(self) -> str:
        return f"{self.event}, {self.members} members, {self.partitions:,} x {self.replicas} replicas"


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is measured: `samples` plans in each of `rounds`, in which the systems take turns."""

    partitions: Sequence[int]
    replicas: Sequence[int]
    rounds: int
    samples: int
    warm_rounds: int
    growth_events: Sequence[Event]
    growth_partitions: Sequence[int]
    growth_members: Sequence[int]


MEMBERS = (3, 10, 20)
FULL = Scope(
    partitions=(271, 5_000, 20_000),
    replicas=(2, 3),
    rounds=3,
    samples=3,
    warm_rounds=20,
    growth_events=tuple(Event),
    growth_partitions=(1_000, 4_000, 16_000, 65_536),
    growth_members=(3, 10, 30, 100, 300, 1_000),
)
QUICK = Scope(
    partitions=(271, 20_000),
    replicas=(2,),
    rounds=1,
    samples=3,
    warm_rounds=8,
    growth_events=(Event.LEAVE,),
    growth_partitions=(1_000, 65_536),
    growth_members=(3, 100),
)
REFERENCES = tuple(Case(event, members=10, partitions=20_000, replicas=2) for event in Event)
"""The cases that planners are warmed up with, and whose parts are timed."""
GOAL_PARTITIONS = 20_000
"""Plans for so many are to be no slower than Hazelcast's."""


def cases(scope: Scope = FULL) -> list[Case]:
    """Every case that is possible, small tables first."""
    every = (
        Case(event, members, partitions, replicas)
        for partitions in scope.partitions
        for members in MEMBERS
        for replicas in scope.replicas
        for event in Event
    )
    return [case for case in every if case.possible]


def grown_partitions(event: Event, sizes: Iterable[int]) -> list[tuple[int, Case]]:
    """Ever more partitions on ten members, two replicas each."""
    return [(size, Case(event, 10, size, 2)) for size in sizes]


def grown_members(event: Event, sizes: Iterable[int]) -> list[tuple[int, Case]]:
    """20,000 partitions on ever more members: the size counts the one that joins or goes, too."""
    return [(size, Case(event, size - (event is Event.JOIN), 20_000, 2)) for size in sizes]
