"""Bugs planted in what the master decides, stores and reports."""

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from msgspec import structs

from stele.adapters.kubernetes import table_store
from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.core.control import answers, decide, member_list, volumes
from stele.core.control.failover import adoption, repair, take_over
from stele.core.control.failure_detector import MemberLiveness, Timing
from stele.core.control.operations.move import MigrationOperation, Step
from stele.core.control.operations.promotion import Promotion
from stele.core.control.operations.promotion import Step as Promoting
from stele.core.control.state import State, TableCursor
from stele.core.control.table_view import TableView
from stele.core.formats import FIRST
from stele.errors import Conflict, Uncertain
from stele.master import conditions, view
from stele.member.control.exchange import Exchange
from stele.model.cluster_status import PartitionCounts
from tests.simulation.families.swarm import SWARM
from tests.simulation.mutants.plant import Mutants


def commit_before_the_destination() -> AbstractContextManager[Any]:
    """The row is stored as soon as the owner knows of the destination."""
    real = MigrationOperation.on_learner_report

    def heard(self: MigrationOperation, learner: Any, now: float) -> None:
        if learner is not None and self.step in (Step.CATCH_UP, Step.COPY):
            self.step = Step.STORE
        else:
            real(self, learner, now)

    return patch.object(MigrationOperation, "on_learner_report", heard)


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


def promotion_without_a_fence() -> AbstractContextManager[Any]:
    """A backup becomes the owner at once: nobody waits for the leases of the one before."""
    real = Promotion.commands

    def commands(self: Promotion, now: float) -> Any:
        if self.chosen is None:
            self.chosen, self.step = self.live[0], Promoting.ACCEPT
            self.lasts[self.chosen] = None  # type: ignore[assignment]
        return real(self, now)

    return patch.object(Promotion, "commands", commands)


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


def a_new_pod_is_proof() -> AbstractContextManager[Any]:
    """A process counts as dead as soon as there is another pod of its member's name."""

    def note_proof(self: MemberLiveness) -> None:
        shown = self.member_object
        if self.report is not None and shown is not None and shown.pod is not None:
            self.dead_incarnation = self.report.incarnation
        self.replaced.clear()

    return patch.object(MemberLiveness, "_note_proof", note_proof)


def an_answer_disproves_nothing() -> AbstractContextManager[Any]:
    """What the kubelet showed counts as the end of a process that has answered since."""

    def note_proof(self: MemberLiveness) -> None:
        report = self.report
        since = 0.0 if report is None else self.pod_states.get(report.pod_uid, (0.0, 0.0))[0]
        if report is not None and int(report.started_seconds) < since:
            self.dead_incarnation = report.incarnation

    return patch.object(MemberLiveness, "_note_proof", note_proof)


def features_without_a_word() -> AbstractContextManager[Any]:
    """The features rise although a member has not said in this epoch what it speaks."""

    def usable_features(state: State) -> int:
        reports = [each.report for each in state.membership.liveness.values() if each.report is not None]
        formats = [report.formats.most for report in reports]
        return max(state.operations.change.features, min(formats, default=FIRST))

    return patch.object(decide, "usable_features", usable_features)


def features_forgotten() -> AbstractContextManager[Any]:
    """A new master begins with the first format, whatever the head says."""
    real = table_store.decode_head
    return patch.object(table_store, "decode_head", lambda data: replace(real(data), features=FIRST))


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


def ranges_that_differ_are_not_sent() -> AbstractContextManager[Any]:
    """A member that has compared its table with a new master's counts as having it."""
    real = MemberLiveness.note_published

    def note_published(self: MemberLiveness, number: int, differing: Any = ()) -> None:
        real(self, number)

    return patch.object(MemberLiveness, "note_published", note_published)


def rows_change_while_frozen() -> AbstractContextManager[Any]:
    """Every silent member is taken for one whose volume was wiped."""
    return patch.object(repair, "_wiped", lambda state: frozenset(state.table.members))


def the_oldest_table_wins() -> AbstractContextManager[Any]:
    """A recovered table has the oldest row of each partition that a volume knows."""
    return patch.object(volumes, "newer", lambda number, one, other: min(one, other, key=lambda r: r.version))


def lite_while_rows_name_it() -> AbstractContextManager[Any]:
    """A member becomes lite as soon as its user says so."""
    real = member_list._as_desired

    def as_desired(state: State, member: Any, shown: Any, *, holds: bool) -> Any:
        return real(state, member, shown, holds=False)

    return patch.object(member_list, "_as_desired", as_desired)


def removed_before_its_copies_are_elsewhere() -> AbstractContextManager[Any]:
    """A member in whose place another one comes is removed at once."""
    return patch.object(member_list, "members_in_rows", lambda state: frozenset())


def reset_while_it_is_to_wait() -> AbstractContextManager[Any]:
    """Partitions that are lost are reset whatever users say."""
    real = decide.reset_lost_partitions

    def reset(state: State, desired: Any, now: float) -> None:
        real(state, replace(desired, on_partition_loss="ResetToEmpty"), now)

    return patch.object(decide, "reset_lost_partitions", reset)


MASTER: Mutants = {
    commit_before_the_destination: (SWARM, 28, "what is committed stays"),
    conflict_taken_for_success: (SWARM, 14, "stored before published"),
    safe_before_it_is: (SWARM, 12, "Running only with all copies"),
    stamp_not_compared: ("damage", 16, "safe, balanced and at rest in the end"),
    one_version_for_two_rows: ("swaps", 7, "one row per version"),
    promotion_without_a_fence: ("leases", 19, "linearizable per key"),
    given_up_too_soon: (SWARM, 10, "never fewer copies"),
    never_given_up: (SWARM, 0, "safe, balanced and at rest in the end"),
    a_new_pod_is_proof: ("stops", 11, "linearizable per key"),
    an_answer_disproves_nothing: ("stops", 8, "linearizable per key"),
    the_absent_are_believed: (SWARM, 27, "safe, balanced and at rest in the end"),
    features_without_a_word: ("mixed", 8, "features only when all members speak them"),
    features_forgotten: ("mixed", 2, "features never fall"),
    copies_begin_again: ("takeovers", 0, "no byte is copied twice for a new master"),
    ranges_that_differ_are_not_sent: ("takeovers", 0, "safe, balanced and at rest in the end"),
    rows_change_while_frozen: ("states", 1, "rows keep silent members in a state without joining"),
    adopted_on_earlier_reports: (SWARM, 7, "no lower epoch is obeyed"),
    removed_before_its_copies_are_elsewhere: ("nodes", 1, "no row names a member that is removed"),
    reset_while_it_is_to_wait: ("quarantines", 9, "all copies of a row are given up as users say"),
    the_oldest_table_wins: ("recoveries", 4, "recovered rows are the newest"),
    lite_while_rows_name_it: ("states", 2, "members of rows stay"),
}
