"""What a leadership remembers, in parts; each is written by one room only (tests/guard/test_writers.py)."""

from dataclasses import dataclass, field

from stele.core.control.invariants import hold
from stele.core.control.migration_queue import Queues
from stele.core.control.operations.copy_session import Copied, Engine, SparkFailure
from stele.core.control.operations.registry import Operations
from stele.core.control.progress import FINAL, Phase, RebalanceProgress
from stele.core.control.retries import Retries
from stele.core.placement.plan import Plan, Refusal
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import PartitionTable


@dataclass(slots=True)
class Failover:
    """Rows that lost members; written by the room `failover`.

    `fenced` have an owner that was fenced, or promised a term that no row has: they get another promotion.
    `shrinking` are to lose a dead member once a member that stays reported, and since when they wait.
    `lost` have no live replica, `lost_since` says since when; `reset_partitions` were reset to empty.
    """

    fenced: set[PartitionId] = field(default_factory=set)
    shrinking: dict[PartitionId, float] = field(default_factory=dict)
    lost: set[PartitionId] = field(default_factory=set)
    lost_since: dict[PartitionId, float] = field(default_factory=dict)
    reset_partitions: set[PartitionId] = field(default_factory=set)


@dataclass(slots=True)
class Rebalance:
    """Plans, and what waits to be started; written by the room `rebalance`, others call its methods.

    `progress` is the present plan of the master, `finished` are the last ones, `user_plans` those of users by
    name; `counted_for` names the plans that count an operation, by its id. `proposal` is what of the present
    plan waits for approval, `approved` the situation whose plans may start; nothing is planned of the
    partitions in `stopped`.
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

    def drop(self, number: PartitionId) -> None:
        """What waits for a partition is void, because its row is about to be another."""
        self.queues.drop(number)

    def forget(self, id: str) -> None:
        """No plan counts an operation any more that came to nothing."""
        self.counted_for.pop(id, None)

    def check(self, operations: Operations) -> None:
        """Raise BrokenInvariant for what contradicts itself."""
        waits = self.queues.left > 0 if self.queues.waiting else self.queues.left == 0
        hold(waits, "{} migrations of {} partitions wait", self.queues.left, len(self.queues.waiting))
        over = [id for id in self.counted_for if id not in operations]
        hold(not over, "plans count what is over: {}", over)
        own = self.progress
        hold(own is None or own.phase not in FINAL, "the present plan is over: {}", own)
        proposed = own is not None and own.phase is Phase.PROPOSED
        hold(self.proposal is None or proposed, "what waits for approval is in no plan that does: {}", own)
        for progress in self.user_plans.values() if own is None else (own, *self.user_plans.values()):
            progress.check()


@dataclass(slots=True)
class Copies:
    """Copies of this leadership; written by the modules of `rebalance` about copies.

    `spark_failures` are the destinations that Spark is not used for; `spark_used_seconds` says when it copied
    to one last; `copied` counts what was copied; `short` are members without space, and when that was.
    """

    spark_failures: dict[MemberIndex, SparkFailure] = field(default_factory=dict)
    spark_used_seconds: dict[MemberIndex, float] = field(default_factory=dict)
    copied: dict[tuple[MemberIndex, Engine], Copied] = field(default_factory=dict)
    short: dict[MemberIndex, float] = field(default_factory=dict)
