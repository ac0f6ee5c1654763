"""State of a leadership, in parts, each written by one room only (tests/guard/test_writers.py)."""

from collections import Counter
from dataclasses import dataclass, field

from stele.core.control.invariants import hold
from stele.core.control.migration_queue import Queues
from stele.core.control.operations.copy_session import Copied, Engine, SparkFailure
from stele.core.control.operations.registry import Operations
from stele.core.control.progress import FINAL, RebalancePhase, RebalanceProgress
from stele.core.control.retries import Retries
from stele.core.control.volumes import Volume
from stele.core.placement.migration import Type
from stele.core.placement.plan import Plan, Refusal
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import PartitionTable


@dataclass(slots=True)
class Failover:
    """Rows that lost members; written by the room `failover`.

    `fenced` rows have a fenced owner, or a promised term that no row has, and get another promotion.
    `shrinking` rows lose a failed member once a remaining one has reported; the value is since when they
    wait. `kept` rows keep a silent member, because the cluster state lets no row change. `lost` rows have no
    live replica, `lost_since` says since when; `reset_partitions` were reset to empty. While the table is
    `recovering` from volumes, `incomplete` is why that is not possible yet, and
    `used_epoch` the highest epoch of a volume; this leadership must have a higher one. `volumes` are what
    members reported, and `refused` those, with the desired recovery, that `incomplete` is about.
    """

    fenced: set[PartitionId] = field(default_factory=set)
    shrinking: dict[PartitionId, float] = field(default_factory=dict)
    kept: set[PartitionId] = field(default_factory=set)
    lost: set[PartitionId] = field(default_factory=set)
    lost_since: dict[PartitionId, float] = field(default_factory=dict)
    reset_partitions: set[PartitionId] = field(default_factory=set)
    recovering: bool = False
    incomplete: str = ""
    used_epoch: int = 0
    volumes: dict[MemberIndex, Volume] = field(default_factory=dict)
    refused: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Demotion:
    """A member that is to own nothing, and the one that takes over; None: any backup may."""

    member: MemberIndex
    destination: MemberIndex | None = None


@dataclass(slots=True)
class Rebalance:
    """Plans and waiting migrations; written by the room `rebalance`, others call its methods.

    `progress` is the master's present plan, `finished` are the last ones, and `user_plans` those of users, by
    name. `counted_for` names the plans that count an operation, by its id. `proposal` is the part of the
    present plan that waits for approval, `approved` the situation whose plans may start; partitions in
    `stopped` are not planned. `demotions` has the members that are to own nothing, by who wants that.
    `migrations_ended` counts migrations since the master leads by type, and whether their row was stored.
    """

    queues: Queues = field(default_factory=Queues)
    retries: Retries = field(default_factory=Retries)
    progress: RebalanceProgress | None = None
    finished: list[RebalanceProgress] = field(default_factory=list)
    user_plans: dict[str, RebalanceProgress] = field(default_factory=dict)
    counted_for: dict[str, tuple[RebalanceProgress, ...]] = field(default_factory=dict)
    proposal: Plan | None = None
    approved: str = ""
    cancelled: bool = False
    stopped: set[PartitionId] = field(default_factory=set)
    refusals: tuple[Refusal, ...] = ()
    plan_key: tuple[object, ...] = ()
    planned_table: PartitionTable | None = None
    planned_seconds: float = float("-inf")
    plan_number: int = 0
    service_failures: dict[PartitionId, tuple[float, str]] = field(default_factory=dict)
    demotions: dict[str, Demotion] = field(default_factory=dict)
    migrations_ended: Counter[tuple[Type, bool]] = field(default_factory=Counter)

    @property
    def plans(self) -> list[RebalanceProgress]:
        """The present plan, if there is one, and those of users."""
        return [*([] if self.progress is None else [self.progress]), *self.user_plans.values()]

    def operations_of(self, progress: RebalanceProgress) -> set[str]:
        """Return the ids of the operations that a plan counts."""
        return {id for id, plans in self.counted_for.items() if progress in plans}

    def drop(self, number: PartitionId) -> None:
        """Drop the waiting migrations of a partition whose row is about to change."""
        self.queues.drop(number)

    def forget(self, id: str) -> None:
        """Stop counting an operation that had no effect."""
        self.counted_for.pop(id, None)

    def check(self, operations: Operations) -> None:
        """Raise BrokenInvariant for contradictions."""
        waits = self.queues.left > 0 if self.queues.waiting else self.queues.left == 0
        hold(waits, "{} migrations of {} partitions wait", self.queues.left, len(self.queues.waiting))
        over = [id for id in self.counted_for if id not in operations]
        hold(not over, "plans count what is over: {}", over)
        own = self.progress
        hold(own is None or own.phase not in FINAL, "the present plan is over: {}", own)
        proposed = own is not None and own.phase is RebalancePhase.PROPOSED
        hold(self.proposal is None or proposed, "what waits for approval is in no plan that does: {}", own)
        for progress in self.plans:
            progress.check()


@dataclass(slots=True)
class PlannedStops:
    """Members that stop for a while on purpose; written by the room `restarts`.

    `since` has the members that are emptied, and since when. Those in `emptied` own nothing that another
    member could own, and nothing is planned for them; nothing more is moved off those in `may_stop`. The rows
    that a member left as a backup are in `left` until it is back: they wait for it.
    `updating` is the member that the rolling update restarts next, `update_waits` says why no other one
    follows, `update_problem` why a restarted member does not come back; empty when there is no reason.
    `replaced_pods` are the UIDs of pods that never started and are being replaced.
    """

    since: dict[MemberIndex, float] = field(default_factory=dict)
    emptied: frozenset[MemberIndex] = frozenset()
    may_stop: frozenset[MemberIndex] = frozenset()
    left: dict[MemberIndex, set[PartitionId]] = field(default_factory=dict)
    updating: MemberIndex | None = None
    update_waits: str = ""
    update_problem: str = ""
    replaced_pods: frozenset[str] = frozenset()


@dataclass(slots=True)
class Copies:
    """Copies of this leadership; written by the modules of `rebalance` about copies.

    `spark_failures` are destinations for which Spark is not used; `spark_used_seconds` is its last use, by
    destination; `copied` counts what was copied; `short` are members without space, and since when.
    """

    spark_failures: dict[MemberIndex, SparkFailure] = field(default_factory=dict)
    spark_used_seconds: dict[MemberIndex, float] = field(default_factory=dict)
    copied: dict[tuple[MemberIndex, Engine], Copied] = field(default_factory=dict)
    short: dict[MemberIndex, float] = field(default_factory=dict)
