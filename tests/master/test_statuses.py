"""What the statuses of clusters, members and plans say, and the generation that they are about."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stele.core.control.commands import ExchangeReply, OpId, Stats, TabletReport
from stele.core.control.failure_detector import Life, MemberLiveness, MemberObject, Timing
from stele.core.control.operations.cluster_state import StateChange, Step
from stele.core.control.operations.registry import Operations
from stele.core.control.progress import RebalanceProgress
from stele.core.control.state import State
from stele.core.control.table_view import TableView
from stele.core.placement.migration import Type
from stele.core.placement.plan import Plan
from stele.core.table.table import Member, Partition, PartitionTable
from stele.master import plan_status
from stele.master import status as facts
from stele.master.conditions import _available
from stele.master.member_status import member_status
from stele.master.view import View, lives
from stele.model import TabletCluster, TabletMember, TabletRebalance
from stele.model.cluster_status import ClusterPhase, TabletClusterStatus
from stele.model.conditions import Condition, find_condition
from stele.model.member import VolumeStatus
from stele.model.rebalance import RebalancePhase, TabletRebalanceStatus
from stele.model.rollout import RESTARTED_AT
from tests.fakes.spec import desired_spec

NOON = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
TIMING = Timing(1.0, 3.0, 30.0)
ENTRIES = {index: Member(index, f"demo-{index}", f"uuid-{index}", "10.0.0.1") for index in range(3)}


def cluster(members: int = 3, replicas: int = 2, name: str = "demo", uid: str = "u") -> TabletCluster:
    spec = {"members": members, "replicas": replicas, "storage": {"size": "1Gi"}}
    meta = {"name": name, "namespace": "ns", "uid": uid, "generation": 7}
    found = TabletCluster.read({"kind": "TabletCluster", "metadata": meta, "spec": spec})
    assert isinstance(found, TabletCluster)
    return found


def member(index: int = 0) -> TabletMember:
    spec = {"cluster": "demo", "index": index}
    meta = {"name": f"demo-{index}", "namespace": "ns", "uid": "m", "generation": 3}
    found = TabletMember.read({"kind": "TabletMember", "metadata": meta, "spec": spec})
    assert isinstance(found, TabletMember)
    return found


def stored_plan(status: Any = None, name: str = "mine", **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "ns", "uid": name, "generation": 5, "resourceVersion": "1"}
    return {
        "kind": "TabletRebalance",
        "metadata": meta,
        "spec": {"cluster": "demo", "mode": "DryRun", **spec},
        "status": status or {},
    }


def rebalance(status: Any = None, **spec: Any) -> TabletRebalance:
    found = TabletRebalance.read(stored_plan(status, **spec))
    assert isinstance(found, TabletRebalance)
    return found


def view(*rows: tuple[int | None, ...], replicas: int = 2, entries: Any = ENTRIES) -> View:
    """A table with these rows; every member answered at time 100, which is now."""
    table = PartitionTable(tuple(Partition(1, row) for row in rows), entries)
    state = State(1, table, 1, len(entries), 0.0)
    for index, entry in entries.items():
        liveness = MemberLiveness(index, 0.0, answered_seconds=100.0)
        liveness.member_object = MemberObject(index, entry.name, lite=entry.lite)
        state.membership.liveness[index] = liveness
    return View(state, desired_spec(3, replicas, TIMING), 100.0, NOON)


def record(phase: str, failed: int = 0) -> RebalanceProgress:
    planned = Counter({Type.MOVE: 4})
    finished = None if phase in ("Running", "Cancelling") else 90.0
    made = RebalanceProgress(1, Plan(), "3 members", 50.0, 400, planned, Counter({Type.MOVE: 2}), failed)
    made.phase, made.finished_seconds, made.bytes_copied = phase, finished, 400
    return made


def condition(status: Any, type_: str) -> Condition:
    """One of a status that has it."""
    found = find_condition(status.conditions, type_)
    assert found is not None
    return found


def ready_of(status: Any) -> tuple[str, str, int]:
    found = condition(status, "Ready")
    return found.status.value, found.reason, found.observed_generation


@pytest.mark.parametrize(
    ("phase", "failed", "cancel", "status", "reason"),
    [
        ("Done", 0, False, "True", "AsDesired"),
        ("Running", 0, False, "False", "Migrating"),
        ("Failed", 3, False, "False", "MigrationFailed"),
        ("Superseded", 0, False, "True", "Superseded"),
        ("Cancelling", 0, True, "False", "Cancelled"),
        ("Superseded", 0, True, "True", "Cancelled"),
    ],
)
def test_a_plan_is_ready_when_it_is_done(
    phase: str, failed: int, cancel: bool, status: str, reason: str
) -> None:
    found = plan_status.rebalance_status(record(phase, failed), view((0, 1)), rebalance(cancel=cancel))
    assert ready_of(found) == (status, reason, 5)
    assert (found.observed_generation, found.phase) == (5, phase)


def test_the_numbers_of_a_plan() -> None:
    running = plan_status.rebalance_status(record("Running"), view((0, 1)), rebalance())
    assert (running.planned.move, running.done.total, running.bytes_copied) == (4, 2, 400)
    assert (running.throughput_bytes_per_second, running.eta_seconds) == (8, 50)
    assert (running.started_at, running.finished_at) == ("2030-01-01T11:59:10Z", None)
    done = plan_status.rebalance_status(record("Done"), view((0, 1)), rebalance())
    assert (done.throughput_bytes_per_second, done.eta_seconds) == (10, None)
    assert done.finished_at == "2030-01-01T11:59:50Z"


@pytest.mark.parametrize(
    ("copied", "done", "seconds"), [(100, 0, 150), (400, 2, 50), (0, 1, 150), (0, 0, None), (900, 0, None)]
)
def test_the_end_of_a_plan_is_estimated_by_bytes_and_then_by_migrations(
    copied: int, done: int, seconds: int | None
) -> None:
    made = record("Running")
    made.bytes_copied, made.done = copied, Counter({Type.MOVE: done})
    assert plan_status.rebalance_status(made, view((0, 1)), rebalance()).eta_seconds == seconds


def test_a_plan_that_was_over_before_it_was_cancelled_stays_superseded() -> None:
    first = plan_status.rebalance_status(record("Superseded"), view((0, 1)), rebalance())
    again = plan_status.rebalance_status(
        record("Superseded"), view((0, 1)), rebalance(first.to_dict(), cancel=True)
    )
    assert ready_of(again) == ("True", "Superseded", 5)


def test_the_transition_time_of_a_plan_moves_with_the_status_only() -> None:
    first = plan_status.rebalance_status(record("Running"), view((0, 1)), rebalance())
    failed = TabletRebalanceStatus(phase=RebalancePhase.FAILED, failed=2)
    later = plan_status.with_conditions_of(failed, rebalance(first.to_dict()), NOON + timedelta(minutes=1))
    found = condition(later, "Ready")
    assert (found.last_transition_time, found.message) == (
        "2030-01-01T12:00:00Z",
        "2 migrations were rolled back",
    )


@pytest.mark.parametrize(
    ("life", "rows", "status", "reason"),
    [
        (Life.ACTIVE, [(0, 1)], "True", "AsDesired"),
        (Life.DRAINING, [(0, 1)], "False", "Draining"),
        (Life.DRAINING, [(1, 2)], "True", "AsDesired"),
        (Life.JOINING, [(1, 2)], "False", "MembersStarting"),
        (Life.UNREACHABLE, [(0, 1)], "False", "MemberUnreachable"),
        (Life.LOST, [(1, 2)], "False", "MemberUnreachable"),
        (Life.LEFT, [(1, 2)], "False", "HoldsNothing"),
    ],
)
def test_a_member_is_ready_when_it_serves_and_gives_nothing_up(
    monkeypatch: pytest.MonkeyPatch, life: Life, rows: list[tuple[int, ...]], status: str, reason: str
) -> None:
    monkeypatch.setattr("stele.master.member_status.life_of", lambda *_: life)
    found = member_status(member(), view(*rows), 0)
    assert ready_of(found) == (status, reason, 3)
    assert found.state == life.value


def test_a_member_tells_what_it_holds_and_whether_it_may_go() -> None:
    found = member_status(member(), view((0, 1), (1, 0), (0,)), 4)
    assert (found.owned, found.backups, found.restarts, found.safe_to_evict) == (2, 1, 4, False)
    assert (found.uuid, found.address, found.observed_generation) == ("uuid-0", "10.0.0.1:6379", 3)
    evict = condition(found, "SafeToEvict")
    assert (evict.status.value, evict.reason) == ("False", "HoldsLastCopies")


def test_more_replicas_than_members_is_told_with_what_to_do() -> None:
    found = facts.cluster_status(cluster(members=3, replicas=4), view((0, 1, 2), replicas=4), "")
    assert ready_of(found) == ("False", "FewerMembersThanReplicas", 7)
    ready = condition(found, "Ready")
    assert "raise spec.members to 4 or lower spec.replicas to 3" in ready.message


def data_loss(seen: View, stored: Any = None) -> tuple[str, str]:
    model = cluster() if stored is None else cluster().model_copy(update={"status": stored})
    found = condition(facts.cluster_status(model, seen, ""), "DataLoss")
    return found.status.value, found.reason


def test_a_loss_is_told_until_its_user_does_not_want_new_beginnings_any_more() -> None:
    seen = view((0, 1), (1, 0))
    assert data_loss(seen) == ("False", "AsDesired")
    seen.state.failover.lost = {0}
    assert data_loss(seen) == ("True", "AllReplicasLost")
    desired = replace(seen, desired=replace(seen.desired, on_partition_loss="ResetToEmpty"))
    seen.state.failover.lost, seen.state.failover.reset_partitions = set(), {0}
    assert data_loss(desired) == ("True", "PartitionsReset")
    told = facts.cluster_status(cluster(), desired, "")
    seen.state.failover.reset_partitions = set()
    assert data_loss(desired, told) == ("True", "PartitionsReset")
    assert data_loss(seen, told) == ("False", "AsDesired")


def test_a_plan_that_waits_for_approval_is_told_with_what_to_do() -> None:
    seen = replace(view((0, 1)), name="demo")
    seen.state.rebalance.progress, seen.state.rebalance.proposal = record("Proposed"), Plan()
    seen.state.rebalance.progress.copies_left = 1
    status = facts.cluster_status(cluster(), seen, "")
    for type_, wanted in (("Paused", "True"), ("Ready", "False"), ("Progressing", "False")):
        found = condition(status, type_)
        assert (found.status.value, found.reason) == (wanted, "WaitsForApproval")
        assert "it leaves 1 of 2 copies: kubectl stele approve demo-1-1" in found.message


def test_the_counts_of_a_cluster() -> None:
    entries = {**ENTRIES, 3: Member(3, "demo-3", "uuid-3", "10.0.0.4", lite=True)}
    found = facts.cluster_status(cluster(), view((0, 1), (1, None), entries=entries), "")
    assert found.members.to_dict() == {
        "desired": 3,
        "current": 4,
        "ready": found.members.ready,
        "lite": 1,
        "updated": 0,
    }
    assert found.partitions.to_dict() == {"total": 2, "safe": 1, "underReplicated": 1, "lost": 0}
    assert (found.observed_generation, found.version_sum, found.rebalance) == (7, 2, "")


def test_a_desired_state_shows_what_it_waits_for_and_the_one_in_force() -> None:
    seen = view((0, 1))
    found = facts.cluster_status(cluster(), seen, "")
    assert (found.state, condition(found, "Paused").status.value) == ("Active", "False")
    why = "member 1: MIGRATION_ACTIVE: m1-1"
    seen.state.operations = Operations(StateChange("Active", "Passive", Step.WAITING, reason=why))
    found = facts.cluster_status(cluster(), seen, "")
    paused = condition(found, "Paused")
    assert found.state == "Active"
    assert (paused.status.value, paused.reason) == ("True", "ClusterState")
    assert paused.message == "state Passive is not in force yet: " + why
    held = replace(seen, desired=replace(seen.desired, paused=True))
    paused = condition(facts.cluster_status(cluster(), held, ""), "Paused")
    assert paused.reason == "PausedByAnnotation"
    assert paused.message.endswith("; state Passive is not in force yet: " + why)


def test_a_member_that_may_not_join_says_why() -> None:
    seen = view((0, 1))
    liveness = seen.state.membership.liveness[7] = MemberLiveness(7, 0.0)
    liveness.problem = "demo-7 cannot join: the cluster state Frozen forbids joining"
    found = condition(member_status(member(7), seen, 0), "Ready")
    assert (found.status.value, found.message) == ("False", liveness.problem)


def test_what_an_absent_member_said_last_does_not_count_once_it_owns_nothing() -> None:
    """Its last words were that it did not serve yet: the cluster was said to be unavailable for ever."""
    shown = view((0, 1), (1, 0))
    for liveness in shown.state.membership.liveness.values():
        unserved = (1,) if liveness.index == 1 else ()
        said: Any = ExchangeReply("OK", "", f"uuid-{liveness.index}", "c", 1, 1, 0, 1, unserved=unserved)
        liveness.report = said
    assert _available(shown)[1] is False
    shown.state.apply({1: Partition(2, (0,))})
    assert _available(shown)[1] is True


def test_a_new_master_says_nothing_of_members_that_it_has_not_heard() -> None:
    """It took members for active before any had answered: the status was Running a moment after its start."""
    shown = view((0, 1))
    shown.state.recovered, shown.state.started_seconds = False, 99.0
    well = TabletClusterStatus(phase=ClusterPhase.RUNNING)
    short = TabletClusterStatus(phase=ClusterPhase.DEGRADED)
    assert facts.too_early(shown, short, well)
    assert facts.too_early(shown, well, well)
    assert not facts.too_early(shown, well, short), "rows that lack copies are known from the table"
    assert not facts.too_early(replace(shown, now=99.0 + TIMING.silence), short, well)
    shown.state.recovered = True
    assert not facts.too_early(shown, short, well)
    forming = view(())
    forming.state.recovered = False
    forming.state.table = TableView(1, PartitionTable((Partition(0, ()),), ENTRIES))
    assert not facts.too_early(forming, short, well)


def test_a_member_that_has_nothing_of_its_rows_is_still_joining() -> None:
    """Nobody had told it of the first table yet: the cluster was said to be ready."""
    shown = view((0, 1))
    said: Any = ExchangeReply("OK", "", "uuid-1", "c", 1, 1, 0, 1)
    shown.state.membership.liveness[1].report = said
    assert lives(shown.state, shown.desired, shown.now)[1] is Life.JOINING
    shown.state.membership.liveness[1].tablets = {0: TabletReport(0, "READY", 1, OpId(), OpId(), 0, 0)}
    assert lives(shown.state, shown.desired, shown.now)[1] is Life.ACTIVE


def with_role(*, lite: bool, wanted: bool, rows: tuple[int, ...] = (0, 1), answers: bool = True) -> View:
    """Member 2 is lite or not, and is to be as wanted."""
    entry = Member(2, "demo-2", "uuid-2", "10.0.0.1", lite)
    seen = view(rows, entries={**ENTRIES, 2: entry})
    liveness = seen.state.membership.liveness[2]
    liveness.member_object = MemberObject(2, "demo-2", lite=wanted)
    liveness.answered_seconds = 100.0 if answers else 0.0
    return seen


@pytest.mark.parametrize(
    ("seen", "lite", "reason", "text"),
    [
        (with_role(lite=True, wanted=True), True, "AsDesired", "it answers"),
        (with_role(lite=True, wanted=False), True, "Migrating", "a data member with the next member list"),
        (
            with_role(lite=True, wanted=False, answers=False),
            True,
            "MemberUnreachable",
            "it becomes a data member once it answers",
        ),
        (
            with_role(lite=False, wanted=True, rows=(0, 2)),
            False,
            "Draining",
            "it becomes a lite member once 1 copies are moved off",
        ),
        (with_role(lite=False, wanted=True), False, "Migrating", "a lite member with the next member list"),
    ],
)
def test_a_member_says_which_role_it_has_and_what_a_change_waits_for(
    seen: View, lite: bool, reason: str, text: str
) -> None:
    shown = member_status(member(2), seen, 0)
    ready = condition(shown, "Ready")
    assert (shown.lite, ready.reason) == (lite, reason)
    assert text in ready.message


def test_a_member_that_is_emptied_while_nothing_may_move_is_held_back() -> None:
    seen = with_role(lite=False, wanted=True, rows=(0, 2))
    seen = replace(seen, desired=replace(seen.desired, state="NoMigration"))
    shown = member_status(member(2), seen, 0)
    assert "the condition Paused of the TabletCluster" in condition(shown, "Ready").message
    assert condition(shown, "Reconciling").status.value == "False"


def test_a_member_says_how_large_its_volume_is_and_what_is_free() -> None:
    seen = view((0, 1))
    assert member_status(member(), seen, 0).volume == VolumeStatus()
    free = (15 << 30) + 5
    for liveness in seen.state.membership.liveness.values():
        stats = Stats(disk_free_bytes=free if liveness.index else (3 << 20) + 7)
        said: Any = ExchangeReply("OK", "", "u", "c", 1, 1, 0, 1, stats=stats)
        liveness.report = said
    claim = {
        "spec": {"resources": {"requests": {"storage": "4Gi"}}},
        "status": {"capacity": {"storage": "2Gi"}},
    }
    volume = member_status(member(), seen, 0, claim).volume
    assert (volume.requested, volume.capacity, volume.free) == ("4Gi", "2Gi", "3Mi")
    assert member_status(member(1), seen, 0).volume.free == "15Gi"


def test_the_status_names_what_the_count_of_updated_members_is_about() -> None:
    plain = facts.cluster_status(cluster(), replace(view((0, 1)), member_image="member:2"), "")
    assert (plain.member_image, plain.restarted_at) == ("member:2", "")
    asked = cluster()
    asked.metadata.annotations[RESTARTED_AT] = "noon"
    assert facts.cluster_status(asked, view((0, 1)), "").restarted_at == "noon"
