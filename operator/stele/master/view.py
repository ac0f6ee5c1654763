"""What a status is made from: the leadership's memory, the desired spec, and the time. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from stele.core.control.failure_detector import Life
from stele.core.control.member_list import holds_data, life_of
from stele.core.control.rebalance.data_members import expected_members
from stele.core.control.requests import RebalanceRequest
from stele.core.control.state import DesiredSpec, State
from stele.core.table.ids import MAX_REPLICAS, MemberIndex
from stele.model.cluster_status import PartitionCounts, SecurityStatus
from stele.model.conditions import Reason

OUTDATED_SHOWN = 20
"""Objects that a condition's message lists."""


def partition_counts(state: State, replicas: int) -> PartitionCounts:
    """Count partitions; `replicas` is for those outside of groups."""
    table, lost = state.table, len(state.failover.lost)
    total = len(table.partitions)
    # Rows that still name silent members are not safe, whatever they have.
    silent = sum(
        len(table.partitions[number].members) >= table.full(number, replicas, MAX_REPLICAS)
        for number in state.failover.lost | state.failover.kept
    )
    safe = total - table.lacking(replicas) - silent
    return PartitionCounts(total=total, safe=safe, under_replicated=total - safe - lost, lost=lost)


@dataclass(frozen=True)
class SecurityFacts:
    """What is in force towards clients and among members.

    `problem` is why certificates are not as they should be, with its reason, `users` the same of users;
    `waits` is what the levels that are asked for wait for. `asks_tls`: members need certificates.
    """

    status: SecurityStatus = field(default_factory=SecurityStatus)
    reason: Reason = Reason.AS_DESIRED
    problem: str = ""
    waits: str = ""
    changes_ca: bool = False
    users: tuple[Reason, str] = Reason.AS_DESIRED, ""
    asks_tls: bool = False


@dataclass(frozen=True)
class View:
    """A snapshot for one status: the leadership's memory, the desired spec, and the time on both clocks.

    `outdated` are pods, `resizing` volume claims that are smaller than the spec says. `spark_problem` is why
    the namespace lacks what Spark needs, None when that is not the operator's task; `nodes_problem` why nodes
    cannot be read; `maintenance_problems` what is wrong with members' stele.dev/maintenance-until.
    `member_image` is what members are to run.
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
    resizing: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    cannot_grow: Mapping[str, str] = field(default_factory=dict)
    spark_problem: str | None = None
    nodes_problem: str = ""
    maintenance_problems: Mapping[MemberIndex, str] = field(default_factory=dict)
    member_image: str = ""
    security: SecurityFacts = field(default_factory=SecurityFacts)

    @property
    def formed(self) -> bool:
        return self.state.table.formed

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
    def cannot_start(self) -> str:
        """Return what Kubernetes says about the first pod that cannot start; where to look when nothing."""
        texts = (f"{name}: {problem}" for name, problem in self.pod_problems)
        return next(texts, "the Events of a pod say why it does not start")

    @property
    def pod_problems(self) -> list[tuple[str, str]]:
        """Return members whose pods cannot start, and what Kubernetes says about each."""
        objects = (each.member_object for _, each in sorted(self.state.membership.liveness.items()))
        pods = ((each.name, each.pod) for each in objects if each is not None and each.pod is not None)
        return [(name, pod.problem) for name, pod in pods if pod.problem]

    @property
    def as_desired(self) -> str:
        """Summarize the cluster when nothing is left to do."""
        members = f"{self.ready} of {self.desired.members} members ready"
        return f"{members}, {self.parts.safe} of {self.parts.total} partitions fully replicated"

    @cached_property
    def takes_data(self) -> bool:
        """Whether some data member keeps its data, or may soon: a member is to come or to come back."""
        members = expected_members(self.state, self.desired, self.now)
        return self.short or not all(each.leaving for each in members)

    @cached_property
    def kept(self) -> Counter[MemberIndex]:
        """Count each member's rows that the cluster state keeps although one of their members is silent."""
        rows = self.state.table.partitions
        return Counter(member for number in self.state.failover.kept for member in rows[number].members)

    @property
    def waits(self) -> str:
        """Return the message for a plan that waits for approval; empty when none does."""
        if self.state.rebalance.proposal is None or self.state.rebalance.progress is None:
            return ""
        name = f"{self.name}-{self.state.plan_id}"
        left = self.state.rebalance.progress.copies_left
        text = (
            ""
            if left is None
            else f"; it leaves {left} of {self.state.table.most_replicas(self.desired.replicas)} copies"
        )
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
        """Return which pods differ from the spec and how to fix it; empty when none does."""
        return f"not as the spec says: {_listed(self.outdated)}; {self.update}" if self.outdated else ""

    @property
    def growing(self) -> str:
        """Return which volumes are smaller than the spec says; empty when none is."""
        waits = "the storage driver makes them larger"
        return f"volumes grow: {_listed(self.resizing)}; {waits}" if self.resizing else ""

    @property
    def update(self) -> str:
        """Return what becomes of outdated members."""
        if self.state.stops.update_problem:
            return self.state.stops.update_problem
        if self.state.stops.updating is not None:
            return f"{self.state.name_of(self.state.stops.updating)} is emptied, then restarted"
        if self.rolling:
            return self.state.stops.update_waits or "the restarted member catches up"
        return self.state.stops.update_waits or "they are replaced by themselves"

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


def _listed(names: Sequence[str]) -> str:
    more = len(names) - OUTDATED_SHOWN
    return ", ".join(names[:OUTDATED_SHOWN]) + (f" and {more} more" if more > 0 else "")


def lives(state: State, desired: DesiredSpec, now: float) -> dict[int, Life]:
    return {index: life_of(state, index, desired, now) for index in state.membership.liveness}
