"""A plan: the ordered migrations of one rebalance, with what it costs and what it had to refuse.

`plan` = assignment (targets), cycle elimination, ordering inside each partition, priorities across
partitions.
"""

from dataclasses import dataclass

from stele.core.assignment import DataMember, Move
from stele.core.ids import PartitionId
from stele.core.migration import Migration, Type, replay, step
from stele.core.table import Replicas

__all__ = ["DataMember", "Migration", "Move", "Plan", "Refusal", "Type", "replay", "step"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that was wished or aimed at and is not in the plan.

    `partition` is -1 when it is about the whole cluster. Codes: TOO_FEW_MEMBERS, ZONE_FULL, CYCLE,
    NO_REPLICA, UNASSIGNED, NOT_ALLOWED.
    """

    partition: PartitionId
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Values only. Migrations of one partition run in order, those of different partitions in parallel.

    `copies` counts the replicas that get data they do not have, `lower_bound` the fewest that any balanced
    table needs. `targets` are the rows as they are after all migrations.
    """

    migrations: tuple[Migration, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    copies: int = 0
    lower_bound: int = 0
    targets: tuple[Replicas, ...] = ()
