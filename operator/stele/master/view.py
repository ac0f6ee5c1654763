"""What a status is made from: the leadership's memory, the desired spec, and the time. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stele.core.control.failure_detector import Life
from stele.core.control.member_list import holds_data, life_of
from stele.core.control.requests import RebalanceRequest
from stele.core.control.state import DesiredSpec, State
from stele.core.table.table import version_sum
from stele.model.cluster import PartitionCounts

OUTDATED_SHOWN = 20
"""Objects that a condition's message lists."""


def partition_counts(state: State, replicas: int) -> PartitionCounts:
    rows, lost = state.table.partitions, len(state.failover.lost)
    total, full = len(rows), max(1, replicas)
    safe = sum(number for copies, number in state.table.replica_index.copies.items() if copies >= full)
    # Rows that still name silent members.
    safe -= sum(len(rows[number].members) >= full for number in state.failover.lost | state.failover.kept)
    return PartitionCounts(total=total, safe=safe, under_replicated=total - safe - lost, lost=lost)


@dataclass(frozen=True)
class View:
    """A snapshot for one status: the leadership's memory, the desired spec, and the time on both clocks.

    `spark_problem` is why the namespace lacks what Spark needs, None when that is not the operator's task;
    `nodes_problem` why nodes cannot be read.
    """

    state: State
    desired: DesiredSpec
    now: float
    clock: datetime
    foreign_claims: tuple[str, ...] = ()
    name: str = ""
    requests: tuple[RebalanceRequest, ...] = ()
    topology_problem: str = ""
    taken: tuple[str, ...] = ()
    updated: int = 0
    outdated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    cannot_grow: Mapping[str, str] = field(default_factory=dict)
    spark_problem: str | None = None
    nodes_problem: str = ""

    @property
    def formed(self) -> bool:
        return version_sum(self.state.table.stored) > 0

    @property
    def without_table(self) -> list[str]:
        """Return the members that hold data while the table is empty, and is not put together from them."""
        if self.formed or self.desired.recovery is not None:
            return []
        holders = (each for each in self.state.membership.liveness.values() if holds_data(each))
        return sorted(each.member_object.name for each in holders if each.member_object is not None)

    @property
    def moving(self) -> bool:
        return self.state.rebalance.progress is not None or bool(self.state.operations.migrations)

    @property
    def migrations_left(self) -> str:
        """Count migrations, for messages."""
        active, waiting = len(self.state.operations.migrations), len(self.state.rebalance.queues)
        return f"data is moved: {active} migrations active, {waiting} waiting"

    @property
    def present(self) -> str:
        return f"{self.ready} of {self.desired.members} members are ready"

    @property
    def as_desired(self) -> str:
        """Summarize the cluster when nothing is left to do."""
        members = f"{self.ready} of {self.desired.members} members ready"
        return f"{members}, {self.parts.safe} of {self.parts.total} partitions fully replicated"

    @property
    def waits(self) -> str:
        """Return the message for a plan that waits for approval; empty when none does."""
        if self.state.rebalance.proposal is None or self.state.rebalance.progress is None:
            return ""
        name = f"{self.name}-{self.state.plan_id}"
        left = self.state.rebalance.progress.copies_left
        text = "" if left is None else f"; it leaves {left} of {self.desired.replicas} copies"
        return f"plan {name} waits for approval{text}: kubectl stele approve {name}"

    @property
    def parts(self) -> PartitionCounts:
        return partition_counts(self.state, self.desired.replicas)

    @property
    def ready(self) -> int:
        """Count the members that serve."""
        found = Counter(lives(self.state, self.desired, self.now).values())
        return found[Life.ACTIVE] + found[Life.DRAINING]

    @property
    def old(self) -> str:
        """Return what differs from the spec and how to fix it; empty when nothing does."""
        if not self.outdated:
            return ""
        more = len(self.outdated) - OUTDATED_SHOWN
        listed = ", ".join(self.outdated[:OUTDATED_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f"not as the spec says: {listed}; {self.update}"

    @property
    def update(self) -> str:
        """Return what becomes of outdated members."""
        if self.state.stops.update_problem:
            return self.state.stops.update_problem
        if self.state.stops.updating is not None:
            return f"{self.state.name_of(self.state.stops.updating)} is emptied, then restarted"
        if self.rolling:
            return self.state.stops.update_waits or "the restarted member catches up"
        return self.state.stops.update_waits or "the storage driver makes the volumes larger"

    @property
    def rolling(self) -> bool:
        """Whether a member is restarted, or emptied for that."""
        return self.state.stops.updating is not None or any(
            liveness.member_object is not None and liveness.member_object.restart_until_seconds is not None
            for liveness in self.state.membership.liveness.values()
        )

    @property
    def short(self) -> bool:
        return self.ready < self.desired.members


def lives(state: State, desired: DesiredSpec, now: float) -> dict[int, Life]:
    return {index: life_of(state, index, desired, now) for index in state.membership.liveness}
