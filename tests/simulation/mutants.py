"""Bugs planted in the product, to show that the simulation finds them. Each is a patch of one place."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.core.errors import Conflict, Uncertain
from stele.core.moving import Running, Step
from stele.core.reign import State
from stele.core.tablet_owner import Owner
from stele.core.votes import Held
from stele.master import facts
from stele.member.exchange import Exchange
from stele.member.migrations import Migrations
from stele.member.node import Node
from stele.member.syncer import Syncer
from stele.model.cluster import PartitionCounts

Plant = Callable[[], AbstractContextManager[Any]]


def source_clears_early() -> AbstractContextManager[Any]:
    """The old owner gives its tablet up when it has handed over, before the row is stored."""
    real = Migrations.hand_over

    async def hand_over(self: Migrations, command: Any) -> Any:
        result = await real(self, command)
        if result.code == "OK":
            replica = self._node.replicas[command.partition]
            if replica.ready:
                await self._tombstone(replica, keep_seconds=0)
        return result

    return patch.object(Migrations, "hand_over", hand_over)


def commit_before_the_destination() -> AbstractContextManager[Any]:
    """The row is stored as soon as the owner knows of the destination."""
    real = Running.heard_from_owner

    def heard(self: Running, learner: Any, now: float) -> None:
        if learner is not None and self.step in (Step.CATCH_UP, Step.COPY):
            self.step = Step.STORE
        else:
            real(self, learner, now)

    return patch.object(Running, "heard_from_owner", heard)


def epoch_not_checked() -> AbstractContextManager[Any]:
    """A member obeys a master that was replaced."""
    real = Exchange._refusal

    def refusal(self: Exchange, request: Any) -> tuple[str, str]:
        code, detail = real(self, request)
        return ("", "") if code == "STALE_EPOCH" else (code, detail)

    return patch.object(Exchange, "_refusal", refusal)


def vote_not_persisted() -> AbstractContextManager[Any]:
    """A promise is only kept in memory."""
    real = Node.save_meta

    async def save_meta(self: Node, replica: Any, **changes: Any) -> None:
        changes.pop("promised", None)
        await real(self, replica, **changes)

    return patch.object(Node, "save_meta", save_meta)


def lease_ignored() -> AbstractContextManager[Any]:
    """An owner reads whether its replicas follow it or not."""
    return patch.object(Held, "may_read", lambda *_: True)


def acknowledged_before_the_replicas() -> AbstractContextManager[Any]:
    """The owner's own log is enough to commit."""
    return patch.object(Owner, "advance", lambda self: self.appending and self.tablet.log.commit(self.synced))


def answered_before_the_disk() -> AbstractContextManager[Any]:
    """Operations count as held before they are synced."""
    return patch.object(Syncer, "after_write", lambda self, then: then())


def conflict_taken_for_success() -> AbstractContextManager[Any]:
    """A compare-and-set that failed counts as stored."""
    real = KubernetesTableStore.write_shard

    async def write_shard(self: KubernetesTableStore, number: int, rows: Any) -> None:
        try:
            await real(self, number, rows)
        except (Conflict, Uncertain):
            return

    return patch.object(KubernetesTableStore, "write_shard", write_shard)


def safe_before_it_is() -> AbstractContextManager[Any]:
    """The status counts every partition as safe."""

    def counts(state: State, replicas: int) -> PartitionCounts:
        total = len(state.table.partitions)
        return PartitionCounts(total=total, safe=total, under_replicated=0, lost=0)

    return patch.object(facts, "partition_counts", counts)


def members_forgotten() -> AbstractContextManager[Any]:
    """A list of members that was left out of an exchange counts as an empty one."""
    newer = "member_list_version"
    return patch.object(
        Exchange,
        "_brings_members",
        lambda self, request: getattr(request, newer) > getattr(self._node.table, newer),
    )


MUTANTS: dict[Plant, int] = {
    source_clears_early: 2,
    commit_before_the_destination: 2,
    epoch_not_checked: 15,
    vote_not_persisted: 2,
    lease_ignored: 35,
    acknowledged_before_the_replicas: 4,
    answered_before_the_disk: 54,
    conflict_taken_for_success: 9,
    safe_before_it_is: 2,
    members_forgotten: 25,
}
"""Each with the first seed that killed it when this was written."""
