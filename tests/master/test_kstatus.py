"""What tools that know nothing of Stele take from Ready, Reconciling, Stalled and the observed generation."""

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from msgspec import structs

from stele.adapters.kubernetes.api import KEYSPACES, USERS
from stele.core.control.commands import ExchangeReply, OpId, TabletReport
from stele.core.control.failure_detector import Life, MemberObject, PodFacts
from stele.core.control.operations.move import MigrationOperation, Step
from stele.core.control.state import State
from stele.core.control.volumes import Recovery
from stele.core.kv.keyspaces import KEYSPACES_MAX, Catalog, Settings
from stele.core.placement.migration import Migration, Type
from stele.core.placement.plan import Plan, Refusal
from stele.core.table.table import Partition, PartitionTable
from stele.core.tablet.lifecycle import TabletState
from stele.master import plan_status, status
from stele.master.cache import Cache
from stele.master.keyspace_sizes import EMPTY, Size
from stele.master.keyspaces import KeyspaceObjects
from stele.master.lost_volumes import VOLUME_CONFLICT
from stele.master.member_status import member_status
from stele.master.tablet_users import UserObjects
from stele.master.user_passwords import KnownPassword
from stele.master.view import View
from stele.model import TabletCluster, Unreadable
from stele.model.cluster_status import TabletClusterStatus
from stele.model.common import FieldProblem
from stele.model.conditions import Reason
from stele.model.ownership import NameLeaves, NameTaken
from stele.model.rebalance import RebalancePhase, TabletRebalanceStatus
from tests.fakes.kstatus import kstatus
from tests.master.test_statuses import NOON, cluster, member, rebalance, record, view


def judged(shown: Any, generation: int) -> tuple[str, str]:
    """The verdict on an object with this status, and the reason of Ready."""
    conditions = {each["type"]: each for each in shown.to_dict()["conditions"]}
    held = [name for name in ("Ready", "Reconciling", "Stalled") if conditions[name]["status"] == "True"]
    assert len(held) <= 1, held
    assert {conditions[name]["reason"] for name in held} <= {conditions["Ready"]["reason"]}
    stored = {"metadata": {"generation": generation}, "status": shown.to_dict()}
    return kstatus(stored), conditions["Ready"]["reason"]


def changed(**changes: Any) -> Callable[[View], View]:
    return lambda seen: replace(seen, **changes)


def desired(**changes: Any) -> Callable[[View], View]:
    return lambda seen: replace(seen, desired=replace(seen.desired, **changes))


def state_of(change: Callable[[State], None]) -> Callable[[View], View]:
    def changed_state(seen: View) -> View:
        change(seen.state)
        return seen

    return changed_state


def lose(seconds: float) -> Callable[[State], None]:
    def change(state: State) -> None:
        state.failover.lost, state.failover.lost_since = {0}, {0: 100.0 - seconds}

    return change


def plan(state: State) -> None:
    state.rebalance.progress = record("Running")


def propose(state: State) -> None:
    state.rebalance.progress, state.rebalance.proposal = record("Proposed"), Plan()


def migrate(progressed: float) -> Callable[[State], None]:
    def change(state: State) -> None:
        plan(state)
        migration = Migration(0, Type.MOVE, 0, 0, -1, 2, -1, 0)
        moved = MigrationOperation("m1", migration, Partition(1, (0, 1)), (2, 1), 0.0, Step.COPY, progressed)
        state.operations.begin(moved)

    return change


def refuse_space(state: State) -> None:
    plan(state)
    assert state.rebalance.progress is not None
    state.rebalance.progress.waiting = {0: Refusal("NO_SPACE", "demo-2 has 1 MiB free", 0)}


def write_much(state: State) -> None:
    plan(state)
    state.rebalance.retries.note_failed(0, 90.0, copies=3)
    report = TabletReport(
        0, TabletState.READY, 1, OpId(), OpId(), 0, 1 << 40, written_bytes_per_second=1 << 40
    )
    state.membership.liveness[0].tablets[0] = report


def fail_service(state: State) -> None:
    plan(state)
    state.rebalance.service_failures = {0: (1.0, "KeyError")}


def shrink(state: State) -> None:
    state.failover.shrinking = {0: 99.0}


def leave(state: State) -> None:
    state.membership.leaving = frozenset({2})


def lack_features(state: State) -> None:
    state.membership.liveness[2].note_incompatible("its build lacks a feature")


def doubt(state: State) -> None:
    reply = ExchangeReply("OK", "", "u", "c", 1, 1, 0, 1)
    state.membership.liveness[0].report = structs.replace(reply, in_doubt=2)


def roll(state: State) -> None:
    state.stops.updating = 2


def fail_update(state: State) -> None:
    state.stops.update_problem = "demo-2 does not come back: ImagePullBackOff"


def miss_a_volume(state: State) -> None:
    state.failover.incomplete = "volumes are missing: demo-1"


def lose_volume(state: State) -> None:
    liveness = state.membership.liveness[2]
    liveness.answered_seconds = 0.0
    pod = PodFacts("u", "", "", ended=False, problem=f"Unschedulable: {VOLUME_CONFLICT}", scheduled=False)
    liveness.member_object = MemberObject(2, "demo-2", pod=pod, node="n1")


def lack_image(reason: str) -> Callable[[State], None]:
    def change(state: State) -> None:
        liveness = state.membership.liveness[2]
        liveness.answered_seconds = 0.0
        pod = PodFacts("u", "", "", ended=False, problem=f'{reason}: Back-off pulling image "a/b:1"')
        liveness.member_object = MemberObject(2, "demo-2", pod=pod)

    return change


def silence(state: State) -> None:
    del state.membership.liveness[2]


CLUSTERS: dict[str, tuple[Callable[[View], View], str, str]] = {
    "as desired": (changed(), "Current", "AsDesired"),
    "a member starts": (state_of(silence), "InProgress", "MembersStarting"),
    "data moves": (state_of(migrate(100.0)), "InProgress", "Migrating"),
    "a member leaves": (state_of(leave), "InProgress", "Migrating"),
    "an owner is replaced": (state_of(shrink), "InProgress", "MemberUnreachable"),
    "pods are outdated": (changed(outdated=("Pod demo-0 (image)",)), "InProgress", "MembersOutdated"),
    "volumes grow": (changed(resizing=("demo-0 (1Gi of 2Gi)",)), "InProgress", "VolumesResizing"),
    "objects go": (changed(removed=("Pod demo-0",)), "InProgress", "WaitsForRemoval"),
    "copies are lost, a moment ago": (state_of(lose(1.0)), "InProgress", "UnderReplicated"),
    "copies are lost": (state_of(lose(31.0)), "Failed", "AllReplicasLost"),
    "lost, to be reset": (
        lambda seen: desired(on_partition_loss="ResetToEmpty")(state_of(lose(31.0))(seen)),
        "InProgress",
        "UnderReplicated",
    ),
    "a plan waits": (state_of(propose), "InProgress", "WaitsForApproval"),
    "paused in a plan": (
        lambda seen: desired(paused=True)(state_of(plan)(seen)),
        "InProgress",
        "Migrating",
    ),
    "paused, nothing to do": (desired(paused=True), "Current", "AsDesired"),
    "a foreign volume": (changed(foreign_claims=("demo-0",)), "Failed", "ForeignVolume"),
    "a name that is taken": (changed(taken=("Service demo",)), "Failed", "NameTaken"),
    "a missing volume": (state_of(miss_a_volume), "Failed", "RecoveryIncomplete"),
    "a refused pod": (changed(refused={"Pod demo-0": "403 quota"}), "Failed", "CreationRefused"),
    "a volume that cannot grow": (changed(cannot_grow={"demo-0": "no"}), "Failed", "VolumeCannotGrow"),
    "a volume of a lost node": (state_of(lose_volume), "Failed", "VolumeUnavailable"),
    "members are updated": (state_of(roll), "InProgress", "RollingUpdate"),
    "an update that fails": (state_of(fail_update), "Failed", "UpdateFailed"),
    "an image that is not there": (state_of(lack_image("ImagePullBackOff")), "Failed", "ImagePullFailed"),
    "no name of an image": (state_of(lack_image("InvalidImageName")), "Failed", "ImagePullFailed"),
    "an image that may come": (state_of(lack_image("ErrImagePull")), "InProgress", "MembersStarting"),
    "an old build": (state_of(lack_features), "Failed", "MembersIncompatible"),
    "no rights for Spark": (changed(spark_problem="give them"), "Current", "AsDesired"),
    "no rights for Spark alone": (
        lambda seen: desired(engine="Spark")(changed(spark_problem="give them")(seen)),
        "Failed",
        "NoSecretRights",
    ),
    "no space": (state_of(refuse_space), "Failed", "NoSpace"),
    "a copy that cannot end": (state_of(write_much), "Failed", "CopyCannotEnd"),
    "a service that fails": (state_of(fail_service), "Failed", "ServiceFailed"),
    "transactions in doubt": (state_of(doubt), "Failed", "InDoubt"),
    "no progress": (state_of(migrate(0.0)), "Failed", "NoProgress"),
}


@pytest.mark.parametrize("what", CLUSTERS)
def test_a_cluster(what: str) -> None:
    change, verdict, reason = CLUSTERS[what]
    shown = status.cluster_status(cluster(), change(view((0, 1), (1, 0))), "")
    assert judged(shown, 7) == (verdict, reason)
    assert judged(shown, 8)[0] == "InProgress", "its spec was changed since"


@pytest.mark.parametrize("formed", [True, False])
def test_what_keeps_a_pod_from_starting_is_said_at_the_cluster(formed: bool) -> None:
    seen = view((0, 1))
    pod = PodFacts("u", "", "", ended=False, problem="ErrImagePull: no:such is not found")
    liveness = replace(seen.state.membership.liveness[2], answered_seconds=0.0)
    liveness.member_object = MemberObject(2, "demo-2", pod=pod)
    if not formed:
        seen = replace(seen, state=State(1, PartitionTable.empty(8), 1, 0, 0.0))
    seen.state.membership.liveness[2] = liveness
    shown = status.cluster_status(cluster(), seen, "")
    text = next(each.message for each in shown.conditions if each.type == "Ready")
    assert text.endswith("demo-2: ErrImagePull: no:such is not found" + ("" if formed else ")"))


@pytest.mark.parametrize("formed", [True, False])
def test_an_image_that_cannot_be_pulled_is_reported_until_it_can(formed: bool) -> None:
    """Kubernetes alternates between two reasons, while it tries again."""
    before = cluster()

    def shown(*changes: Callable[[State], None]) -> tuple[str, str]:
        nonlocal before
        seen = view((0, 1), (1, 0))
        if not formed:
            liveness = seen.state.membership.liveness
            seen = replace(seen, state=State(1, PartitionTable.empty(8), 1, 0, 0.0))
            seen.state.membership.liveness.update(liveness)
        for change in changes:
            change(seen.state)
        found = status.cluster_status(before, seen, "")
        before = before.model_copy(update={"status": found})
        return judged(found, 7)

    starting = ("InProgress", "MembersStarting" if formed else "Forming")
    assert shown(lack_image("ErrImagePull")) == starting
    for reason in ("ImagePullBackOff", "ErrImagePull", "ImagePullBackOff"):
        assert shown(lack_image(reason)) == ("Failed", "ImagePullFailed")
    text = next(each.message for each in before.status.conditions if each.type == "Stalled")
    assert text.startswith('demo-2: ImagePullBackOff: Back-off pulling image "a/b:1"; correct spec.images')
    assert shown(lack_image("CrashLoopBackOff")) == starting
    assert shown(lack_image("ErrImagePull")) == starting
    assert shown(lack_image("ImagePullBackOff"), fail_update) == ("Failed", "UpdateFailed")


def test_nothing_is_under_way_while_a_user_holds_it_back() -> None:
    for hold in (state_of(propose), lambda seen: desired(migration_paused=True)(state_of(plan)(seen))):
        shown = status.cluster_status(cluster(), hold(view((0, 1))), "")
        conditions = {each.type: each.status.value for each in shown.conditions}
        assert (conditions["Paused"], conditions["Reconciling"]) == ("True", "False")
    # What began before the pause is completed.
    running = desired(migration_paused=True)(state_of(migrate(100.0))(view((0, 1))))
    shown = status.cluster_status(cluster(), running, "")
    assert {each.type: each.status.value for each in shown.conditions}["Reconciling"] == "True"


def test_a_cluster_that_forms() -> None:
    forming = replace(view(), state=State(1, PartitionTable.empty(8), 1, 0, 0.0))
    assert judged(status.cluster_status(cluster(), forming, ""), 7) == ("InProgress", "Forming")


def test_the_member_that_was_restarted_last_catches_up() -> None:
    seen = view((0, 1))
    liveness = seen.state.membership.liveness[1]
    assert liveness.member_object is not None
    liveness.member_object = replace(liveness.member_object, restart_until_seconds=200.0)
    shown = status.cluster_status(cluster(), seen, "")
    assert judged(shown, 7) == ("InProgress", "RollingUpdate")
    assert {each.type: each.message for each in shown.conditions}[
        "Ready"
    ] == "the restarted member catches up"


def test_a_table_that_is_lost_while_members_hold_data() -> None:
    """Its ConfigMaps are empty ones: this is no new cluster, and only a user has a copy of them."""
    seen = view((0, 1))
    tablet = TabletReport(0, TabletState.READY, 1, OpId(1, 1), OpId(1, 1), 1, 0)
    for index in (0, 1):
        seen.state.membership.liveness[index].tablets = {0: tablet}
    lost = replace(seen, state=State(1, PartitionTable.empty(8), 1, 0, 0.0))
    lost.state.membership.liveness.update(seen.state.membership.liveness)
    shown = status.cluster_status(cluster(), lost, "")
    assert judged(shown, 7) == ("Failed", "TableMissing")
    texts = {each.type: each.message for each in shown.conditions}
    assert "2 members hold data (such as demo-0)" in texts["Available"]
    assert shown.phase is not None
    assert shown.phase.value == "Degraded"

    recovering = desired(recovery=Recovery("demo", "u"))(lost)
    assert judged(status.cluster_status(cluster(), recovering, ""), 7) == ("InProgress", "Forming")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"replicas": 4}, "FewerMembersThanReplicas"),
        ({"storage": {"size": "1Mi"}}, "VolumeTooSmall"),
        ({"storage": {"size": "536870911"}}, "VolumeTooSmall"),
        ({"resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}, "RequestsExceedLimits"),
    ],
)
def test_a_spec_that_cannot_be_fulfilled(spec: dict[str, Any], reason: str) -> None:
    given = {"members": 3, "storage": {"size": "1Gi"}, **spec}
    wrong = TabletCluster.read({"metadata": {"name": "demo", "generation": 7}, "spec": given})
    assert isinstance(wrong, TabletCluster)
    assert judged(status.cluster_status(wrong, view((0, 1)), ""), 7) == ("Failed", reason)


def test_the_smallest_volume_that_is_of_use() -> None:
    given = {"members": 3, "storage": {"size": "0.5Gi"}}
    smallest = TabletCluster.read({"metadata": {"name": "demo", "generation": 7}, "spec": given})
    assert isinstance(smallest, TabletCluster)
    assert judged(status.cluster_status(smallest, view((0, 1)), ""), 7) == ("Current", "AsDesired")


def test_a_cluster_that_cannot_be_read_or_begun() -> None:
    before = TabletClusterStatus(observed_generation=6)
    wrong = Unreadable("TabletCluster", "ns", "demo", (FieldProblem("spec.members", "0", "too few"),), 7)
    assert judged(status.invalid(before, wrong, NOON), 7) == ("Failed", "InvalidResource")
    taken = status.blocked(before, NameTaken(["ConfigMap demo-table"]), 7, NOON)
    assert judged(taken, 7) == ("Failed", "NameTaken")
    newer = status.stopped(before, "the cluster uses format 99", 7, NOON, lasting=True)
    assert judged(newer, 7) == ("Failed", "MasterStopped")
    defect = status.stopped(before, "a defect of Stele", 7, NOON, lasting=False)
    assert judged(defect, 7) == ("InProgress", "MasterStopped")
    leaves = status.blocked(before, NameLeaves(["ConfigMap demo-table"]), 7, NOON)
    assert judged(leaves, 7) == ("InProgress", "WaitsForRemoval")


def test_what_no_operator_has_seen_and_what_is_deleted() -> None:
    """The definitions give a new object its status."""
    unseen = {"metadata": {"generation": 1}, "status": {"observedGeneration": -1}}
    assert kstatus(unseen) == "InProgress"
    assert kstatus({"metadata": {"generation": 1, "deletionTimestamp": "now"}}) == "Terminating"


@pytest.mark.parametrize(
    ("life", "rows", "verdict", "reason"),
    [
        (Life.ACTIVE, [(0, 1)], "Current", "AsDesired"),
        (Life.DRAINING, [(0, 1)], "InProgress", "Draining"),
        (Life.DRAINING, [(1, 2)], "Current", "AsDesired"),
        (Life.JOINING, [(1, 2)], "InProgress", "MembersStarting"),
        (Life.UNREACHABLE, [(0, 1)], "InProgress", "MemberUnreachable"),
        (Life.LOST, [(1, 2)], "Failed", "MemberUnreachable"),
        (Life.LEFT, [(1, 2)], "InProgress", "HoldsNothing"),
    ],
)
def test_a_member(
    monkeypatch: pytest.MonkeyPatch, life: Life, rows: list[tuple[int, ...]], verdict: str, reason: str
) -> None:
    monkeypatch.setattr("stele.master.member_status.life_of", lambda *_: life)
    assert judged(member_status(member(), view(*rows), 0), 3) == (verdict, reason)


def test_a_member_of_an_old_build() -> None:
    seen = view((0, 1))
    lack_features(seen.state)
    assert judged(member_status(member(2), seen, 0), 3) == ("Failed", "MembersIncompatible")


def test_the_last_member_that_takes_data_is_drained() -> None:
    """Nothing is planned for it: it would be drained for ever."""
    seen = view((0,), (0,))
    for liveness in seen.state.membership.liveness.values():
        assert liveness.member_object is not None
        liveness.member_object = replace(liveness.member_object, drain=True)
    shown = member_status(member(), seen, 0)
    assert judged(shown, 3) == ("Failed", "NoOtherMember")
    text = next(each.message for each in shown.conditions if each.type == "Stalled")
    assert text.startswith("2 copies cannot be moved off")
    assert "add members, or: kubectl stele drain demo-0 --undo" in text
    comes = replace(seen, desired=replace(seen.desired, members=4))
    assert judged(member_status(member(), comes, 0), 3) == ("InProgress", "Draining")


def test_a_member_without_its_volume() -> None:
    seen = view((0, 1))
    lose_volume(seen.state)
    assert judged(member_status(member(2), seen, 0), 3) == ("Failed", "VolumeUnavailable")


def test_a_member_that_may_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stele.master.member_status.life_of", lambda *_: Life.JOINING)
    seen = view((1, 2))
    seen.state.membership.liveness[0].problem = "the state Frozen forbids joining"
    assert judged(member_status(member(), seen, 0), 3) == ("Failed", "MembersStarting")


@pytest.mark.parametrize(
    ("phase", "said", "spec", "verdict", "reason"),
    [
        ("Done", "", {}, "Current", "AsDesired"),
        ("Running", "", {}, "InProgress", "Migrating"),
        ("Cancelling", "", {"cancel": True}, "InProgress", "Cancelled"),
        ("Failed", "", {}, "Failed", "MigrationFailed"),
        ("Superseded", "", {}, "Current", "Superseded"),
        ("Superseded", "", {"cancel": True}, "Current", "Cancelled"),
        ("Proposed", "", {}, "Current", "AsDesired"),
        ("Proposed", "", {"mode": "Execute"}, "InProgress", "WaitsForApproval"),
        ("Pending", "", {}, "Failed", "ClusterNotFound"),
        ("Pending", "the cluster is paused", {}, "InProgress", "Waiting"),
    ],
)
def test_a_plan(phase: str, said: str, spec: dict[str, Any], verdict: str, reason: str) -> None:
    shown = TabletRebalanceStatus(phase=RebalancePhase(phase), reason=said)
    assert judged(plan_status.with_conditions_of(shown, rebalance(**spec), NOON), 5) == (verdict, reason)


class Declared:
    """Keyspaces of the cluster, all of whose members use a catalog of one version."""

    def __init__(self, used: int) -> None:
        self.cache = Cache(lambda _kind, _stored: None)
        self.objects = KeyspaceObjects(AsyncMock(), self.cache, AsyncMock(), "ns", "demo")
        self.seen = view((1, 2))
        for liveness in self.seen.state.membership.liveness.values():
            reply = ExchangeReply("OK", "", "u", "c", 1, 1, 0, 1)
            liveness.report = structs.replace(reply, catalog_version=used)

    def add(
        self, name: str, keyspace: str | None = None, placement: dict[str, int] | None = None, **meta: Any
    ) -> None:
        fixed = {"name": name, "namespace": "ns", "uid": name, "generation": 3, "resourceVersion": "1"}
        spec: dict[str, Any] = {"cluster": "demo"} | ({} if keyspace is None else {"name": keyspace})
        spec |= {} if placement is None else {"placement": placement}
        self.cache.put(KEYSPACES, {"metadata": fixed | meta, "spec": spec})

    def judged(self, name: str) -> tuple[str, str]:
        self.objects._use(Catalog(1, self.objects.declared().settings))
        found = self.objects.statuses(self.seen.state, NOON)
        return next(judged(shown, 3) for stored, shown in found if stored["metadata"]["name"] == name)


def test_a_keyspace() -> None:
    declared = Declared(1)
    declared.add("a")
    declared.add("b", "a")
    declared.add("c", deletionTimestamp="2030-01-01T12:00:00Z")
    assert declared.judged("a") == ("Current", "AsDesired")
    assert declared.judged("b") == ("Failed", "AlreadyDeclared")
    assert declared.judged("c") == ("InProgress", "Dropping")


def test_a_keyspace_that_members_do_not_use_yet() -> None:
    declared = Declared(0)
    declared.add("a")
    assert declared.judged("a") == ("InProgress", "WaitsForMembers")


def test_a_keyspace_too_many() -> None:
    declared = Declared(1)
    for number in range(KEYSPACES_MAX + 1):
        declared.add(f"k{number:04}")
    assert declared.judged(f"k{KEYSPACES_MAX:04}") == ("Failed", "TooManyKeyspaces")


def judged_of(settings: Settings, group: tuple[int, int] | None, size: Size = EMPTY) -> tuple[str, str]:
    """Return the verdict on a keyspace of a cluster with four partitions, and perhaps some of its own."""
    declared = Declared(1)
    declared.add("a", placement={"partitions": 2, "replicas": 2})
    table = declared.seen.state.table
    if group is not None:
        table.stage_groups(table.groups.with_group(len(table.partitions), "a", *group))
        table.store_groups()
    declared.objects._use(Catalog(1, {"a": settings}))
    declared.objects._sizes = {"a": size}
    ((_, shown),) = declared.objects.statuses(declared.seen.state, NOON)
    return judged(shown, 3)


def test_a_keyspace_with_partitions_of_its_own() -> None:
    own = Settings(own_partitions=True)
    assert judged_of(own, None) == ("InProgress", "WaitsForMembers")
    assert judged_of(Settings(), None, Size(1, 10)) == ("Failed", "NotEmpty")
    assert judged_of(own, (2, 2)) == ("InProgress", "UnderReplicated")
    assert judged_of(own, (3, 2)) == ("Failed", "OtherPlacement")


def test_a_keyspace_whose_partitions_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stele.core.table.groups.PARTITIONS_MAX", 1)
    assert judged_of(Settings(), None) == ("Failed", "TooManyPartitions")


async def judged_user(known: KnownPassword) -> tuple[str, str]:
    """Return the verdict on a user, when that is known of its password."""
    passwords: Any = SimpleNamespace(of=lambda _: known, look=AsyncMock())
    cache = Cache(lambda _kind, _stored: None)
    meta = {"name": "shop", "namespace": "ns", "uid": "1", "generation": 3, "resourceVersion": "1"}
    cache.put(USERS, {"metadata": meta, "spec": {"cluster": "demo", "password": {"generated": True}}})
    users = UserObjects(cache, "ns", "demo", passwords)
    await users.look({}, AsyncMock(), 0.0, asks_certificates=True)
    ((_, shown),) = users.statuses({}, None, NOON)
    return judged(shown, 3)


async def test_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    unusable = KnownPassword("", 0.0, problem=(Reason.PASSWORD_UNUSABLE, "Secret shop has no password"))
    assert await judged_user(KnownPassword("", 0.0)) == ("Current", "AsDesired")
    assert await judged_user(unusable) == ("Failed", "PasswordUnusable")
    monkeypatch.setattr("stele.master.tablet_users.USERS_MAX", 1)
    assert await judged_user(KnownPassword("", 0.0)) == ("Failed", "TooManyUsers")


OTHERS = {
    "PartitionsReset": "DataLoss says it; the cluster is as desired",
    "TopologyUnknown": "TopologyKnown says it; the cluster is as desired",
    "PausedByAnnotation": "of Paused",
    "PausedBySpec": "of Paused",
    "ClusterState": "of Paused",
    "HoldsLastCopies": "of SafeToEvict",
    "HoldsData": "of SafeToEvict",
    "AtQuota": "of QuotaReached: its settings are in use all the same",
    "BelowQuota": "of QuotaReached",
    "NoQuota": "of QuotaReached",
    "NotAsked": "of Secured",
    "OpenLoadBalancer": "of Secured: the cluster is as desired",
    "CertificateUnusable": "of CertificatesHealthy: members keep the certificates that they have",
    "UsersUnusable": "of Secured: members keep the users that they have",
    "CertificateEnds": "of CertificatesHealthy",
}


def test_every_reason_is_judged() -> None:
    """A reason is an expected one of some test here, or has a sentence above that says why it need not be."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    strings = Counter(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    named = {reason.value for reason in Reason if strings[reason.value] > (reason.value in OTHERS)}
    assert named | OTHERS.keys() == {reason.value for reason in Reason}
    assert named.isdisjoint(OTHERS)
