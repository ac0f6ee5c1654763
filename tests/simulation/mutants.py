"""Bugs planted in the product, to show that the simulation finds them. Each is a patch of one place."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from msgspec import structs

from stele.adapters.kubernetes import table_store
from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.core.control import answers, decide
from stele.core.control.commands import OpId
from stele.core.control.failover import adoption, repair, take_over
from stele.core.control.failure_detector import MemberLiveness, Timing
from stele.core.control.operations.move import MigrationOperation, Step
from stele.core.control.operations.promotion import Promotion
from stele.core.control.operations.promotion import Step as Promoting
from stele.core.control.progress import RebalancePhase
from stele.core.control.rebalance import planner, user_plans
from stele.core.control.restarts import rolling_update
from stele.core.control.state import State, TableCursor
from stele.core.control.table_view import TableView
from stele.core.formats import FIRST
from stele.core.tablet.leases import LeaseGrantor, LeaseHolder
from stele.core.tablet.log import Log
from stele.core.tablet.owner import LearnerState, Owner, Phase
from stele.errors import Conflict, Uncertain
from stele.master import conditions, view
from stele.member.control import migrations
from stele.member.control.exchange import Exchange
from stele.member.control.fencing import Fencing
from stele.member.control.migrations import Migrations
from stele.member.replication import tablet_store
from stele.member.replication.group_commit import GroupCommit
from stele.member.replication.links import InboundConnections
from stele.member.replication.metadata_store import MetadataStore
from stele.member.replication.replicator import Replicator
from stele.member.replication.table_cache import TableCache
from stele.member.replication.tablet_store import TabletStore, log_range
from stele.member.serving import executor
from stele.member.serving.router import RequestRouter
from stele.member.settings import Fsync
from stele.member.storage.write_back import WriteBack
from stele.model.cluster import PartitionCounts
from stele.wire.storage import volume as volume_files
from stele.wire.storage.keys import SERVICE
from tests.fakes.disk import SimEngine
from tests.simulation.profile import SWARM

Plant = Callable[[], AbstractContextManager[Any]]


def source_clears_early() -> AbstractContextManager[Any]:
    """The old owner gives its tablet up when it has handed over, before the row is stored."""
    real = Migrations.hand_over

    async def hand_over(self: Migrations, command: Any) -> Any:
        result = await real(self, command)
        if result.code == "OK":
            replica = self._tablets.replicas[command.partition]
            if replica.ready:
                await self._tombstone(replica, keep_seconds=0)
        return result

    return patch.object(Migrations, "hand_over", hand_over)


def commit_before_the_destination() -> AbstractContextManager[Any]:
    """The row is stored as soon as the owner knows of the destination."""
    real = MigrationOperation.on_learner_report

    def heard(self: MigrationOperation, learner: Any, now: float) -> None:
        if learner is not None and self.step in (Step.CATCH_UP, Step.COPY):
            self.step = Step.STORE
        else:
            real(self, learner, now)

    return patch.object(MigrationOperation, "on_learner_report", heard)


def epoch_not_checked() -> AbstractContextManager[Any]:
    """A member obeys a master that was replaced."""
    real = Exchange._refusal

    def refusal(self: Exchange, request: Any) -> tuple[str, str]:
        code, detail = real(self, request)
        return ("", "") if code == "STALE_EPOCH" else (code, detail)

    return patch.object(Exchange, "_refusal", refusal)


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

    return patch.object(view, "partition_counts", counts)


def members_forgotten() -> AbstractContextManager[Any]:
    """A list of members that was left out of an exchange counts as an empty one."""
    newer = "member_list_version"
    return patch.object(
        TableCache, "brings_members", lambda self, request: getattr(request, newer) > getattr(self, newer)
    )


def stamp_not_compared() -> AbstractContextManager[Any]:
    """What was sent counts as taken in, also by a member that lost its table meanwhile."""

    def note_published(liveness: MemberLiveness, mark: TableCursor, report: Any) -> None:
        liveness.published = mark.number

    return patch.object(answers, "note_published", note_published)


def one_version_for_two_rows() -> AbstractContextManager[Any]:
    """A change skips no version although somebody may have accepted another row."""

    def next_version(self: TableView, number: int, least: int = 0) -> int:
        return self.partitions[number].version + 1

    return patch.object(TableView, "next_version", next_version)


def committed_entries_cut() -> AbstractContextManager[Any]:
    """A start drops the operations that are not applied yet, the acknowledged ones too."""
    real = TabletStore._restore_log

    def restore_log(self: TabletStore, partition: int, applied: tuple[int, int]) -> Log:
        self.engine.write_log([], [log_range(partition, applied[1] + 1)])
        return real(self, partition, applied)

    return patch.object(TabletStore, "_restore_log", restore_log)


def what_ran_once_is_forgotten() -> AbstractContextManager[Any]:
    """A sequence that was answered before runs again."""
    real = executor.run_once

    def run_once(engine: Any, replica: Any, attempt: Any, read: Any) -> Any:
        service = replica.prefix(SERVICE)
        return real(engine, replica, attempt, lambda key: None if key.startswith(service) else read(key))

    return patch.object(executor, "run_once", run_once)


def promotion_without_a_fence() -> AbstractContextManager[Any]:
    """A backup becomes the owner at once: nobody waits for the leases of the one before."""
    real = Promotion.commands

    def commands(self: Promotion, now: float) -> Any:
        if self.chosen is None:
            self.chosen, self.step = self.live[0], Promoting.ACCEPT
            self.lasts[self.chosen] = None  # type: ignore[assignment]
        return real(self, now)

    return patch.object(Promotion, "commands", commands)


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


def given_up_too_soon() -> AbstractContextManager[Any]:
    """A member that did not answer for a heartbeat is lost."""
    return patch.object(Timing, "silence", property(lambda self: self.heartbeat))


def never_given_up() -> AbstractContextManager[Any]:
    """The place of a member that is away is kept for ever."""

    def in_grace(self: MemberLiveness, now: float, timing: Timing) -> bool:
        return self.lost_seconds is not None

    return patch.object(MemberLiveness, "in_grace", in_grace)


def the_absent_are_believed() -> AbstractContextManager[Any]:
    """What a member said last is told for ever, also when it owns nothing any more."""

    def served(state: State) -> bool:
        reports = [each.report for each in state.membership.liveness.values() if each.report is not None]
        return not state.operations.promotions and not any(each.unserved for each in reports)

    return patch.object(conditions, "_served", served)


def acknowledges_while_stopping() -> AbstractContextManager[Any]:
    """A member that stops goes on taking and acknowledging writes while its database is being closed, and
    nobody has these later.
    """

    def close(self: SimEngine) -> None:
        self.flush()
        self.kept = copy.deepcopy((self._log, self._synced, self._unsynced))  # type: ignore[attr-defined]

    def after_crash(self: SimEngine, **how: Any) -> SimEngine:
        if hasattr(self, "kept"):
            self._log, self._synced, self._unsynced = self.kept
        return crashed(self, **how)

    def write_out_and_close(self: WriteBack) -> None:
        self.write_out()
        self._engine.close()

    async def stop(self: GroupCommit) -> None:
        self._mode = Fsync.NEVER

    crashed, stack = SimEngine.after_crash, ExitStack()
    stack.enter_context(patch.object(SimEngine, "close", close))
    stack.enter_context(patch.object(WriteBack, "close", write_out_and_close))
    stack.enter_context(patch.object(SimEngine, "after_crash", after_crash))
    stack.enter_context(patch.object(RequestRouter, "stop", lambda self: None))
    stack.enter_context(patch.object(GroupCommit, "stop", stop))
    stack.enter_context(patch.object(Replicator, "stop", lambda self: None))
    stack.enter_context(patch.object(InboundConnections, "close_all", lambda self, reason: None))
    return stack


def a_new_pod_is_proof() -> AbstractContextManager[Any]:
    """A process counts as dead as soon as there is another pod of its member's name."""

    def known_dead(self: MemberLiveness) -> bool:
        return self.ended and self.member_object is not None and self.member_object.pod is not None

    return patch.object(MemberLiveness, "known_dead", property(known_dead))


def an_answer_disproves_nothing() -> AbstractContextManager[Any]:
    """What the kubelet showed counts as the end of a process that has answered since."""

    def note_proof(self: MemberLiveness) -> None:
        report = self.report
        since = 0.0 if report is None else self.pod_states.get(report.pod_uid, (0.0, 0.0))[0]
        if report is not None and int(report.started_seconds) < since:
            self.dead_incarnation = report.incarnation

    return patch.object(MemberLiveness, "_note_proof", note_proof)


def fence_waits_for_no_lease() -> AbstractContextManager[Any]:
    """A backup promises a term while the owner before may still read by its leave."""
    return patch.object(LeaseGrantor, "wait_seconds", lambda *_: 0.0)


def sent_before_it_is_written() -> AbstractContextManager[Any]:
    """A window that opens takes operations which the owner's own log has not got yet."""
    real = Replicator.send_behind

    def send_behind(self: Replicator, link: Any) -> None:
        with patch.object(TabletStore, "write", lambda self: True):
            real(self, link)

    return patch.object(Replicator, "send_behind", send_behind)


def deletions_not_counted() -> AbstractContextManager[Any]:
    """What is deleted goes on being counted, at every replica the same."""
    real = tablet_store.count_entry

    def count_entry(totals: Any, data_key: bytes, old: bytes | None, new: bytes | None) -> None:
        real(totals, data_key, old, old if new is None else new)

    return patch.object(tablet_store, "count_entry", count_entry)


def plans_end_first() -> AbstractContextManager[Any]:
    """What a row lacks is planned when everything that was planned before is done."""
    return patch.object(planner, "_short", lambda state, seen: False)


def swapped_with_one_that_is_behind() -> AbstractContextManager[Any]:
    """An owner hands over at once, and a backup accepts whatever it has."""

    def point(replica: Any) -> Any:
        frozen = replica.owner is not None and replica.owner.frozen
        return OpId(*replica.tablet.log.last) if frozen else None

    def follows(self: Owner, member: int) -> bool:
        return self.phase is Phase.SERVING

    def holds(self: Log, op: tuple[int, int]) -> bool:
        return True

    real = Fencing._check_accept

    def check_accept(self: Fencing, replica: Any, command: Any) -> None:
        with patch.object(Log, "holds", holds):
            real(self, replica, command)

    stack = ExitStack()
    stack.enter_context(patch.object(migrations, "hand_over_point", point))
    stack.enter_context(patch.object(Owner, "_follows_closely", follows))
    stack.enter_context(patch.object(Fencing, "_check_accept", check_accept))
    return stack


def features_without_a_word() -> AbstractContextManager[Any]:
    """The features rise although a member has not said in this epoch what it speaks."""

    def usable_features(state: State) -> int:
        reports = [each.report for each in state.membership.liveness.values() if each.report is not None]
        formats = [report.formats.most for report in reports]
        return max(state.operations.change.features, min(formats, default=FIRST))

    return patch.object(decide, "usable_features", usable_features)


def written_before_all_can_read_it() -> AbstractContextManager[Any]:
    """A member writes its table in the format that its own build prefers."""
    return patch.object(volume_files, "RANGES", FIRST)


def features_forgotten() -> AbstractContextManager[Any]:
    """A new master begins with the first format, whatever the head says."""
    real = table_store.decode_head
    return patch.object(table_store, "decode_head", lambda data: replace(real(data), features=FIRST))


def swaps_before_all_know_them() -> AbstractContextManager[Any]:
    """Owners are exchanged with backups whatever the features are."""
    return patch.object(planner, "_possible", lambda state, plan: plan)


def copies_begin_again() -> AbstractContextManager[Any]:
    """A new master continues migrations, but closes the sessions that copy their tablets."""
    return patch.object(adoption, "_adopt_session", lambda *_: None)


def adopted_on_earlier_reports() -> AbstractContextManager[Any]:
    """Members report to a new master before its epoch is on their disk, and it adopts by that."""
    real, adopt = take_over.adopt, Exchange._adopt

    async def adopt_table(self: Exchange, request: Any) -> None:
        if not request.want_tablets:
            await adopt(self, request)

    def adopt_all(state: State, reports: Any, *others: Any) -> int:
        current = {index: structs.replace(each, epoch=state.epoch) for index, each in reports.items()}
        return real(state, current, *others)

    stack = ExitStack()
    stack.enter_context(patch.object(Exchange, "_adopt", adopt_table))
    stack.enter_context(patch.object(take_over, "adopt", adopt_all))
    return stack


def restarted_before_it_is_empty() -> AbstractContextManager[Any]:
    """A member counts as emptied as soon as it is to stop."""
    real = decide.empty_stopping

    def empty_stopping(state: State, observation: Any) -> None:
        real(state, observation)
        state.stops.may_stop = frozenset(state.stops.since)

    return patch.object(decide, "empty_stopping", empty_stopping)


def the_next_restarts_at_once() -> AbstractContextManager[Any]:
    """A member that was restarted counts as back as soon as it answers, whatever copies are missing."""
    stack = ExitStack()
    stack.enter_context(patch.object(rolling_update, "_unsettled", lambda *_: ""))
    stack.enter_context(patch.object(rolling_update, "_is_needed", lambda *_: False))
    stack.enter_context(patch.object(rolling_update, "_lacking", lambda *_: 0))
    return stack


def moves_taken_for_done() -> AbstractContextManager[Any]:
    """A move of a user counts as done once nothing of it is under way."""
    return patch.object(user_plans, "_satisfied", lambda state, move: True)


def what_is_cancelled_never_ends() -> AbstractContextManager[Any]:
    """A plan of a user counts as busy for ever once it is cancelled."""
    real = user_plans._busy

    def busy(state: State, progress: Any) -> bool:
        return progress.phase is RebalancePhase.CANCELLING or real(state, progress)

    return patch.object(user_plans, "_busy", busy)


def rows_change_while_frozen() -> AbstractContextManager[Any]:
    """Every silent member is taken for one whose volume was wiped."""
    return patch.object(repair, "_wiped", lambda state: frozenset(state.table.members))


MUTANTS: dict[Plant, tuple[str, int, str]] = {
    source_clears_early: (SWARM, 2, "kept while the stored row names it"),
    commit_before_the_destination: (SWARM, 4, "what is committed stays"),
    epoch_not_checked: (SWARM, 7, "no lower epoch is obeyed"),
    vote_not_persisted: (SWARM, 2, "promises are on disk"),
    lease_ignored: ("leases", 19, "linearizable per key"),
    acknowledged_before_the_replicas: (SWARM, 10, "linearizable per key"),
    answered_before_the_disk: ("power", 17, "lost within the interval"),
    conflict_taken_for_success: (SWARM, 10, "stored before published"),
    safe_before_it_is: (SWARM, 8, "Running only with all copies"),
    members_forgotten: (SWARM, 51, "safe, balanced and at rest in the end"),
    stamp_not_compared: ("damage", 16, "safe, balanced and at rest in the end"),
    one_version_for_two_rows: ("swaps", 0, "one row per version"),
    committed_entries_cut: (SWARM, 2, "what is committed stays"),
    what_ran_once_is_forgotten: (SWARM, 2, "linearizable per key"),
    promotion_without_a_fence: ("leases", 4, "linearizable per key"),
    learner_in_sync_too_early: ("strikes", 16, "what is committed stays"),
    freeze_not_persisted: ("strikes", 0, "safe, balanced and at rest in the end"),
    interval_without_end: ("power", 0, "lost within the interval"),
    acknowledged_by_the_owner_alone: ("power", 1, "linearizable per key"),
    given_up_too_soon: (SWARM, 10, "never fewer copies"),
    never_given_up: (SWARM, 0, "safe, balanced and at rest in the end"),
    acknowledges_while_stopping: ("stops", 9, "linearizable per key"),
    a_new_pod_is_proof: ("stops", 7, "linearizable per key"),
    an_answer_disproves_nothing: ("stops", 7, "linearizable per key"),
    the_absent_are_believed: (SWARM, 27, "safe, balanced and at rest in the end"),
    fence_waits_for_no_lease: ("leases", 52, "linearizable per key"),
    sent_before_it_is_written: (SWARM, 0, "written before it is sent"),
    deletions_not_counted: (SWARM, 0, "counts are those of the entries"),
    features_without_a_word: ("mixed", 6, "features only when all members speak them"),
    written_before_all_can_read_it: ("mixed", 0, "nothing beyond the features"),
    features_forgotten: ("mixed", 10, "features never fall"),
    swaps_before_all_know_them: ("mixed", 44, "nothing beyond the features"),
    plans_end_first: ("plans", 1, "missing copies do not wait for a plan"),
    swapped_with_one_that_is_behind: ("swaps", 0, "who takes over has everything"),
    copies_begin_again: ("takeovers", 0, "no byte is copied twice for a new master"),
    rows_change_while_frozen: ("states", 1, "rows keep silent members in a state without joining"),
    adopted_on_earlier_reports: (SWARM, 4, "no lower epoch is obeyed"),
    moves_taken_for_done: ("moves", 0, "moves are done before they are said to be"),
    what_is_cancelled_never_ends: ("moves", 0, "safe, balanced and at rest in the end"),
    restarted_before_it_is_empty: ("updates", 0, "only emptied members restart"),
    the_next_restarts_at_once: ("updates", 1, "one member restarts, and every other copy is there"),
}
"""Each with what was drawn, the first seed that killed it when this was written, and the rule that saw it."""
