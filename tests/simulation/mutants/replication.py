"""Bugs planted in logs, leases and what counts as acknowledged."""

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from stele.core.tablet.leases import LeaseHolder
from stele.core.tablet.log import Log
from stele.core.tablet.owner import LearnerState, Owner
from stele.member.replication import operations, tablet_store
from stele.member.replication.group_commit import GroupCommit
from stele.member.replication.log_writer import LogWriter
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replicator import Replicator
from stele.member.replication.stored_log import log_range
from stele.member.settings import Fsync
from tests.simulation.families.swarm import SWARM
from tests.simulation.mutants.plant import Mutants


def vote_not_persisted() -> AbstractContextManager[Any]:
    """A promise is only kept in memory."""
    real = MetadataStore.save_meta

    async def save_meta(self: MetadataStore, replica: Any, **changes: Any) -> None:
        changes.pop("promised", None)
        await real(self, replica, **changes)

    return patch.object(MetadataStore, "save_meta", save_meta)


def lease_ignored() -> AbstractContextManager[Any]:
    """An owner reads whether its replicas follow it or not."""
    return patch.object(LeaseHolder, "may_read", lambda *_: True)


def acknowledged_before_the_replicas() -> AbstractContextManager[Any]:
    """The owner's own log is enough to commit."""
    return patch.object(Owner, "advance", lambda self: self.appending and self.tablet.log.commit(self.synced))


def answered_before_the_disk() -> AbstractContextManager[Any]:
    """Operations count as held before they are synced."""
    return patch.object(GroupCommit, "after_write", lambda self, then: then())


def committed_entries_cut() -> AbstractContextManager[Any]:
    """A start drops the operations that are not applied yet, the acknowledged ones too."""
    real = tablet_store.restore_log

    def restore_log(engine: Any, partition: int, applied: tuple[int, int]) -> Log:
        engine.write_log([], [log_range(partition, applied[1] + 1)])
        return real(engine, partition, applied)

    return patch.object(tablet_store, "restore_log", restore_log)


def learner_in_sync_too_early() -> AbstractContextManager[Any]:
    """A destination counts as in sync as soon as it is fed, before it has what was acknowledged."""
    real = Owner._learner_moved

    def moved(self: Owner, member: int) -> None:
        real(self, member)
        learner = self.learner
        if learner is not None and learner.member == member and learner.state is LearnerState.STREAMING:
            learner.state = LearnerState.IN_SYNC

    return patch.object(Owner, "_learner_moved", moved)


def freeze_not_persisted() -> AbstractContextManager[Any]:
    """An owner that handed over and restarts knows nothing of it."""
    real = MetadataStore.save_meta

    async def save_meta(self: MetadataStore, replica: Any, **changes: Any) -> None:
        if changes.get("frozen") is not None:
            del changes["frozen"]
        await real(self, replica, **changes)

    return patch.object(MetadataStore, "save_meta", save_meta)


def interval_without_end() -> AbstractContextManager[Any]:
    """With fsync Interval the log is synced when data is flushed, and never in between."""
    real = GroupCommit.after_write

    def after_write(self: GroupCommit, then: Any) -> None:
        if self._mode is Fsync.INTERVAL:
            then()
        else:
            real(self, then)

    return patch.object(GroupCommit, "after_write", after_write)


def acknowledged_by_the_owner_alone() -> AbstractContextManager[Any]:
    """With another fsync than Always nobody waits for the replicas: then one loss of power loses writes."""
    real = Owner.advance

    def advance(self: Owner) -> bool:
        return self.appending and self.tablet.log.commit(self.synced) if self.members else real(self)

    return patch.object(Owner, "advance", advance)


def sent_before_it_is_written() -> AbstractContextManager[Any]:
    """A window that opens takes operations which the owner's own log has not got yet."""
    real = Replicator.send_behind

    def send_behind(self: Replicator, link: Any) -> None:
        with patch.object(LogWriter, "write", lambda self: True):
            real(self, link)

    return patch.object(Replicator, "send_behind", send_behind)


def deletions_not_counted() -> AbstractContextManager[Any]:
    """What is deleted goes on being counted, at every replica the same."""
    real = operations.count_entry

    def count_entry(totals: Any, data_key: bytes, old: bytes | None, new: bytes | None) -> None:
        real(totals, data_key, old, old if new is None else new)

    return patch.object(operations, "count_entry", count_entry)


def clear_forgotten_at_learners() -> AbstractContextManager[Any]:
    """A tablet that its row does not name yet keeps the entries that an operation clears."""
    real = tablet_store.take_cleared

    def cleared(replica: Any, record: bytes, totals: Any) -> Any:
        return real(replica, record, totals) if replica.tablet.named else []

    return patch.object(tablet_store, "take_cleared", cleared)


REPLICATION: Mutants = {
    vote_not_persisted: (SWARM, 5, "promises are on disk"),
    lease_ignored: ("leases", 28, "linearizable per key"),
    acknowledged_before_the_replicas: (SWARM, 2, "what is committed stays"),
    answered_before_the_disk: ("power", 17, "lost within the interval"),
    committed_entries_cut: (SWARM, 5, "what is committed stays"),
    learner_in_sync_too_early: ("strikes", 20, "what is committed stays"),
    freeze_not_persisted: ("strikes", 0, "safe, balanced and at rest in the end"),
    interval_without_end: ("power", 0, "lost within the interval"),
    acknowledged_by_the_owner_alone: ("power", 12, "linearizable per key"),
    sent_before_it_is_written: (SWARM, 0, "written before it is sent"),
    deletions_not_counted: (SWARM, 1, "counts are those of the entries"),
    clear_forgotten_at_learners: ("clears", 1, "linearizable per key"),
}
