"""Three planners behind one interface: this project's, Hazelcast's and Infinispan's."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Protocol

from e2e.bench.peers import Peers
from e2e.bench.planning_cases import Case, Event
from e2e.bench.quality import Quality, Rows, check, judge
from e2e.bench.timing import Sample, median, timed
from stele.core.placement.assignment import assign
from stele.core.placement.members import DataMember
from stele.core.placement.plan import Plan, plan
from stele.core.table.table import Partition, PartitionTable, Replicas, trimmed

SLOW_SECONDS = 1.0


class Planner(Protocol):
    """Plans one prepared case again and again, each time from the same table."""

    name: str
    current: Rows
    """What was planned on; known once `quality` was asked for."""

    def prepare(self, case: Case) -> None:
        """Make the system's own balanced table, and let the event happen."""

    def measure(self, count: int) -> list[Sample]:
        """`count` plans."""

    def parts(self, count: int) -> tuple[float, float]:
        """Median seconds for the new table, and for what leads to it; `count` more plans are made."""

    def quality(self) -> Quality:
        """What the last plan is worth; raises PlanError for a wrong one."""


def samples(planner: Planner, count: int) -> list[Sample]:
    """`count` plans after one that warms the caches; that one alone when it is slow."""
    first = planner.measure(1)
    return first if first[0].seconds > SLOW_SECONDS else planner.measure(count)


class Ours:
    """Begins with the table that it plans for an empty one, or with rows of another system."""

    name = "stele"

    def __init__(self) -> None:
        self._case: Case
        self.current: Rows = ()
        self._rows: list[Replicas] = []
        self._members: list[DataMember] = []
        self._plan = Plan()

    def prepare(self, case: Case, rows: Rows | None = None) -> None:
        """`rows` are those after the event, already repaired when it is a crash."""
        self._case = case
        self._members = data_members(case)
        self._rows = after_event(balanced(case), case) if rows is None else [trimmed(row) for row in rows]
        self.current = self._rows
        gc.collect()  # what was prepared is not collected inside a measurement

    def measure(self, count: int) -> list[Sample]:
        return [self._timed(self._make) for _ in range(count)]

    def parts(self, count: int) -> tuple[float, float]:
        pairs = [(self._timed(self._assign), self._timed(self._make)) for _ in range(count)]
        rows, whole = (median(each.seconds for each in side) for side in zip(*pairs, strict=True))
        return rows, max(0.0, whole - rows)

    def quality(self) -> Quality:
        case, made = self._case, self._plan
        return check(self._rows, made.migrations, made.targets, case.staying, case.replicas)

    def _timed(self, work: Callable[[PartitionTable], None]) -> Sample:
        # A new table for each plan: nothing that is kept beside one may help the next.
        table = PartitionTable(tuple(Partition(1, row) for row in self._rows), {})
        return timed(lambda: work(table))

    def _make(self, table: PartitionTable) -> None:
        self._plan = plan(table, self._members, self._case.replicas)

    def _assign(self, table: PartitionTable) -> None:
        assign(table, self._members, self._case.replicas)


def data_members(case: Case) -> list[DataMember]:
    """Who the planner is told of: a member that crashed is not there any more."""
    last = case.members - 1
    leaving = [DataMember(last, leaving=True)] if case.event is Event.LEAVE else []
    return [*(DataMember(index) for index in case.staying), *leaving]


def balanced(case: Case) -> tuple[Replicas, ...]:
    """Our table of the case's members before the event."""
    members = [DataMember(index) for index in range(case.members)]
    return assign(PartitionTable.empty(case.partitions), members, case.replicas)


def after_event(rows: tuple[Replicas, ...], case: Case) -> list[Replicas]:
    """After a crash the dead is out of each row, and the hottest backup owns what it owned."""
    if case.event is not Event.CRASH:
        return list(rows)
    return [_without(row, case.members - 1) for row in rows]


def _without(row: Replicas, dead: int) -> Replicas:
    slots = [None if member == dead else member for member in row]
    if slots[0] is None:
        hottest = next(index for index, member in enumerate(slots) if member is not None)
        slots[0], slots[hottest] = slots[hottest], None
    return trimmed(slots)


class Theirs:
    """A planner in the JVM of `peers`; `name` is how it calls it."""

    def __init__(self, name: str, peers: Peers) -> None:
        self.name = name
        self.current: Rows = ()
        self._peers = peers
        self._case: Case

    def prepare(self, case: Case) -> None:
        self._case = case
        self._ask("prepare", case.members, case.partitions, case.replicas, case.event)

    def measure(self, count: int) -> list[Sample]:
        nanos = self._ask("plan", count)["nanos"]
        return [Sample((first + second) / 1e9, cpu / 1e9) for first, second, cpu in nanos]

    def parts(self, count: int) -> tuple[float, float]:
        first, second, _ = zip(*self._ask("plan", count)["nanos"], strict=True)
        return median(first) / 1e9, median(second) / 1e9

    def quality(self) -> Quality:
        rows = self._ask("rows")
        self.current = _named(rows["current"])
        return judge(self.current, _named(rows["target"]), self._case.staying, self._case.replicas)

    def _ask(self, request: str, *words: object) -> dict[str, Any]:
        return self._peers.ask(request, self.name, *words)


def _named(rows: list[list[int]]) -> Rows:
    """-1 is nobody."""
    return [tuple(None if member < 0 else member for member in row) for row in rows]
