"""What the simulation found, each as small as it gets.

A seed that is named is of `swarm` where no family is, and failed just before the commit that brought the test
(`git log -S`); of the first finds no seed was noted.
"""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stele.adapters.kubernetes.api import Kind
from stele.adapters.kubernetes.table_store import KubernetesTableStore
from stele.core.control import commands as m
from stele.core.control.commands import DeleteTablet
from stele.core.control.failover.repair import repair
from stele.core.control.failover.take_over import take_over
from stele.core.control.failure_detector import MemberLiveness, Timing
from stele.core.control.gc import collect_garbage
from stele.core.control.migration_queue import Queues
from stele.core.control.operations.move import Step
from stele.core.control.rebalance.scheduler import follow, start
from stele.core.control.state import Observation, State
from stele.core.control.table_view import TableView
from stele.core.placement.plan import DataMember, plan
from stele.core.table.table import Member, Partition, PartitionTable
from stele.core.tablet.follower import Tablet
from stele.core.tablet.leases import LeaseHolder
from stele.core.tablet.log import Log
from stele.core.tablet.owner import Learner, Owner, Phase
from stele.master.loop import fresh_head
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.keyspaces import Keyspaces
from stele.member.serving.executor import CommandExecutor
from stele.wire.configmap import decode_shard
from stele.wire.storage.volume import Consensus
from tests.fakes.api import ApiServer, SimApi
from tests.fakes.loop import Clock, ProcessLoop
from tests.fakes.network import Network
from tests.fakes.spec import desired_spec
from tests.simulation.quiet_cluster import QuietCluster, QuietMember


@pytest.fixture
def member(tmp_path: Path) -> Iterator[QuietMember]:
    """One member, which knows no table yet."""
    made = QuietCluster(tmp_path, 1)
    yield made.members[0]
    made.close()


def test_a_list_of_members_that_was_left_out_empties_no_dictionary(member: QuietMember) -> None:
    """Before a leadership is settled the master sends versions and no members: a member took that for an
    empty list of that version, which nobody sent it anew.
    """
    member.exchange(member_list_version=1, members=(member.info,))
    reply = member.exchange(member_list_version=2, members=())
    assert reply.member_list_version == 1
    assert list(member.node.table.members) == [0]
    assert member.exchange(member_list_version=2, members=(member.info,)).member_list_version == 2


def test_an_owner_that_is_deposed_by_a_wider_row_survives_the_end_of_a_sync() -> None:
    """The row named a member that the owner never asked; counting what it holds ended the process."""
    tablet = Tablet(0, 0, Log(), 1)
    tablet.adopt(Partition(1, (0, 1)))
    owner = Owner(tablet, None, None)
    tablet.fence(9)
    tablet.adopt(Partition(3, (0, 1, 2)))
    owner.row_changed(tablet.row)
    assert owner.phase is Phase.DEPOSED
    assert not owner.advance()


def test_damaged_promises_take_a_tablet_offline_and_not_for_ever(member: QuietMember) -> None:
    """It promised everything for ever: its owner never served again, and rows reached the last version."""
    row = m.Row(0, 1, (0,))
    member.exchange(member_list_version=1, members=(member.info,), rows=(row,))
    member.exchange(commands=(m.Fence(0, 1, False),))
    member.disk.files["consensus-meta/0"] = b"damaged"
    member.crash()
    member.start()
    assert member.replica.broken
    assert not member.exchange().tablets
    member.exchange(rows=(m.Row(0, 5, (1,)),))
    assert member.replica.meta.promised == member.replica.tablet.promised == 5
    started = member.exchange(commands=(m.StartTabletCopy("m", 0, 5, 1),))
    assert [each.code for each in started.results] == ["OK"]
    assert not member.replica.broken


def test_silence_of_a_member_counts_from_when_it_is_known(member: QuietMember) -> None:
    """The first table of a cluster that formed slowly lost its backups at once: they had never been heard."""
    member.cluster.run(60.0)
    other = m.MemberInfo(1, "demo-1", "uuid-1", "10.0.0.2")
    rows = (m.Row(0, 1, (0, 1)),)
    reply = member.exchange(member_list_version=1, members=(member.info, other), rows=rows)
    assert not reply.silent
    member.cluster.run(5.0)
    assert [each.member for each in member.exchange().silent] == [1]
    assert member.exchange().silent[0].silent_ms < 10_000


def test_a_copy_that_is_away_is_not_given_up_for_one_that_nobody_saw() -> None:
    """A damaged tablet was kept as the only copy, and the whole one of a restarting member dropped."""
    state = State(1, PartitionTable((Partition(3, (0, 1)),), {}), 1, 3, 0.0, recovered=True)
    for index in (0, 1):
        state.membership.liveness[index] = MemberLiveness(index, 0.0)
        members = dict(state.table.members)
        members[index] = Member(index, f"demo-{index}", f"uuid-{index}", "10.0.0.1")
        state.table.set_members(members)
    report = m.ExchangeReply("OK", "", "uuid-0", "cluster", 1, 1, 0, 1)
    state.membership.liveness[0].on_report(report, 100.0)
    repair(state, desired_spec(3, 2), 100.0)
    assert not state.table.staged
    assert state.failover.lost == {0}


def test_what_could_not_be_saved_is_adopted_with_the_next_exchange(member: QuietMember) -> None:
    """After an error of the disk the epoch was known in memory only, and new members were never connected."""
    other = m.MemberInfo(1, "demo-1", "uuid-1", "10.0.0.2")
    member.disk.failing_part = 1.0
    with pytest.raises(OSError, match="simulated"):
        member.exchange(epoch=5, member_list_version=1, members=(member.info, other))
    member.disk.failing_part = 0.0
    assert member.exchange(epoch=5).code == "OK"
    assert list(member.node.links) == [1]
    member.crash()
    member.start()
    assert member.exchange(epoch=4).code == "STALE_EPOCH"


def test_two_masters_that_create_a_table_at_once_lower_no_epoch() -> None:
    """The second replaced the shard of the first without a look at its epoch: it went from 2 to 1."""
    clock = Clock(1)
    server = ApiServer(clock, Network(clock))
    fresh, owner = fresh_head(4, 2), {"kind": "TabletCluster", "name": "demo", "uid": "u"}
    stores = []
    for number in range(2):
        api: Any = SimApi(server, ProcessLoop(clock, f"master-{number}"))
        stores.append((api._loop, KubernetesTableStore(api, "default", "demo", owner, {})))
    epochs: list[int] = []

    def stored(kind: Kind, found: dict[str, Any], gone: bool) -> None:
        if found["metadata"]["name"] == "demo-table-0":
            epochs.append(decode_shard(found["data"], 0, 4).epoch)

    server.changed.append(stored)
    (first, older), (second, newer) = stores
    # Its members have seen epoch 4, and it ends before there is a head.
    dies = first.create_task(older.take_over(fresh, epoch_above=4))
    while not epochs:
        clock.run(clock.now + 0.0005)
    first.kill()
    taken = second.create_task(newer.take_over(fresh))
    clock.run(clock.now + 1.0)
    assert not dies.done()
    assert epochs == [5, 6]
    assert taken.result().head.epoch == 6


def test_a_promise_is_forgotten_when_the_row_came_from_an_owner(member: QuietMember) -> None:
    """Only rows of the master were tidied after: a copy was reported for ever, and its partition never
    moved again.
    """
    member.exchange(member_list_version=1, members=(member.info,), rows=(m.Row(0, 1, (1,)),))
    started = member.exchange(commands=(m.StartTabletCopy("m", 0, 1, 1),))
    assert [each.code for each in started.results] == ["OK"]
    assert [each.id for each in started.copies] == ["m"]
    node = member.node
    copying = member.replica
    member.do(lambda: node.roles._fill(copying, copying.meta.copy))  # type: ignore[arg-type]
    node.roles.adopt_from_owner(0, Partition(2, (1, 0)))
    assert not member.exchange().copies
    assert member.replica.meta.copy is None


def test_a_promise_that_a_stored_row_overtook_is_forgotten_after_a_start(member: QuietMember) -> None:
    """A process that ended between the table and the promise kept the promise for ever."""
    row = m.Row(0, 1, (0,))
    member.exchange(member_list_version=1, members=(member.info,), rows=(row,))
    node = member.node
    meta = Consensus(accepted=row, accepted_id="p")
    member.do(lambda: node.metadata.save_meta(member.replica, accepted=meta.accepted, accepted_id="p"))
    member.crash()
    member.start()
    assert member.replica.meta.accepted == row
    member.exchange()
    assert member.replica.meta.accepted is None


def _two_copies(*, silent_ms: int = 0) -> State:
    """Members 0 and 1 have partition 0; 0 owns it and has not heard 1 for so long."""
    members = {n: Member(n, f"demo-{n}", f"uuid-{n}", "10.0.0.1") for n in (0, 1)}
    state = State(1, PartitionTable((Partition(3, (0, 1)),), members), 1, 2, 0.0, recovered=True)
    for index in (0, 1):
        liveness = state.membership.liveness[index] = MemberLiveness(index, 0.0)
        silent = (m.SilentPeer(1, silent_ms),) if silent_ms and index == 0 else ()
        tablet = m.TabletReport(0, "READY", 1, m.OpId(), m.OpId(), 0, 0)
        uuid = f"uuid-{index}"
        report = m.ExchangeReply("OK", "", uuid, "cluster", 1, 1, 0, 1, tablets=(tablet,), silent=silent)
        liveness.on_report(report, 100.0)
    return state


TIMING = Timing(1.0, 3.0, 30.0)


def test_an_owner_that_was_away_itself_is_not_believed_that_others_are_silent() -> None:
    """A backup was taken out of its row because the owner, whose own network was slow, had not heard it."""
    state = _two_copies(silent_ms=60_000)
    for liveness in state.membership.liveness.values():
        liveness.note_loss(100.0, TIMING)
    repair(state, desired_spec(2, 2, TIMING), 100.0)
    assert not state.table.staged
    for liveness in state.membership.liveness.values():
        liveness.answered_seconds = 110.0
    repair(state, desired_spec(2, 2, TIMING), 110.0)
    assert not state.table.staged
    state.membership.liveness[0].answered_seconds = 110.1
    repair(state, desired_spec(2, 2, TIMING), 110.2)
    assert state.table.staged[0].replicas == (0,)


def test_a_promotion_takes_a_member_along_that_is_back_in_time() -> None:
    """While the lease of a lost owner ran out it came back, and its whole copy was given up all the same."""
    state = _two_copies()
    desired = desired_spec(2, 2, TIMING)
    state.membership.liveness[0].answered_seconds = 90.0
    repair(state, desired, 100.0)
    assert state.operations.promotions[0].live == (1,)
    state.membership.liveness[0].answered_seconds = 100.0
    repair(state, desired, 100.5)
    repair(state, desired, 101.0)
    assert set(state.operations.promotions[0].live) == {0, 1}


def test_a_row_shrinks_to_nobody_who_was_not_heard_since_the_master_stood_still() -> None:
    """Seed 106: a master that had waited for the API server took the copy away that was left, and kept one on
    a volume that was lost meanwhile: after its own pause it counts nobody as gone.
    """
    state = _two_copies()
    desired, now = desired_spec(2, 1, TIMING), 105.0
    for liveness in state.membership.liveness.values():
        liveness.since = now
    made = plan(state.table.stored, (DataMember(0), DataMember(1)), 1)
    state.rebalance.queues = Queues.of(made, state.table.partitions)
    seen = Observation(now, desired, ())
    start(state, seen)
    assert not state.operations.migrations
    for liveness in state.membership.liveness.values():
        liveness.answered_seconds = now
    start(state, seen)
    assert state.operations.migrations[0].result == (0,)


def test_a_row_shrinks_to_nobody_who_lost_its_copy_before_that_was_heard() -> None:
    """Seed 200099 of `migrations`: a volume broke, and 50 ms later the user wished for one copy: the row
    shrank to the member that had none before its next exchange told.
    """
    state = _two_copies()
    desired, now = desired_spec(2, 1, TIMING), 105.0
    whole = {0: m.TabletReport(0, "READY", 1, m.OpId(), m.OpId(), 0, 0)}
    for liveness in state.membership.liveness.values():
        liveness.answered_seconds, liveness.tablets = now, whole
    state.rebalance.queues = Queues.of(
        plan(state.table.stored, (DataMember(0), DataMember(1)), 1), state.table.partitions
    )
    start(state, Observation(now, desired, ()))
    follow(state, Observation(now + 0.1, desired, ()))
    assert state.operations.migrations[0].step is Step.CONFIRM
    state.membership.liveness[1].answered_seconds = now + 0.2
    follow(state, Observation(now + 0.3, desired, ()))
    assert state.operations.migrations[0].step is Step.CONFIRM, (
        "who leaves need not be heard, who stays must be"
    )
    state.membership.liveness[0].answered_seconds = now + 0.3
    state.membership.liveness[0].tablets = {}
    follow(state, Observation(now + 0.4, desired, ()))
    assert state.operations.migrations[0].step is Step.CONFIRM, "it answers, and has nothing"
    state.membership.liveness[0].tablets = whole
    follow(state, Observation(now + 0.5, desired, ()))
    assert state.operations.migrations[0].step is Step.STORE


def test_a_copy_stays_until_the_row_without_it_is_known_to_be_whole() -> None:
    """Seed 50119 of `damage`: a destination lost its volume between its word and the stored row, and the
    owner right after: the third member, that had left the row, gave its copy up all the same.
    """
    state = _two_copies()
    state.apply({0: Partition(4, (0,))})
    owner, left = state.membership.liveness[0], state.membership.liveness[1]
    for liveness in (owner, left):
        assert liveness.report is not None
        liveness.report = msgspec.structs.replace(liveness.report, stamp=state.table.stamp.value)
    desired, delete = desired_spec(1, 1, TIMING), DeleteTablet(0, 4)
    owner.ended = True
    assert delete not in collect_garbage(state, desired, 1, left, 200.0)
    owner.ended, whole = False, owner.tablets
    owner.tablets = {}
    assert delete not in collect_garbage(state, desired, 1, left, 300.0)
    owner.tablets = whole
    assert delete in collect_garbage(state, desired, 1, left, 400.0)


@pytest.mark.plain
def test_an_owner_reads_by_leave_of_whom_its_writes_wait_for() -> None:
    """Seed 50065 of strikes: a row with the destination was stored while its owner was away, and the
    destination became the owner; the old one went on reading by the lease of the member replaced.
    """
    tablet = Tablet(0, 0, Log(), 1)
    tablet.adopt(Partition(1, (0, 1)))
    owner = Owner(tablet, Learner("m", 5, 1, 0, waited=True), None)
    owner.phase = Phase.SERVING
    replica: Any = SimpleNamespace(partition=0, owner=owner)
    lease_holder = LeaseHolder()
    table = SimpleNamespace(keyspaces=Keyspaces())
    replicator: Any = SimpleNamespace(
        tablets=SimpleNamespace(engine=None, table=table), lease_holder=lease_holder
    )
    answers = DelayedReplies(lease_holder, lambda: 1.0)
    serving = CommandExecutor(
        replicator, answers, replicator, replicator, lambda: 1.0, lambda: 1.0, replicator
    )
    for granter in (1, 5):
        assert not answers.may_read(replica)
        assert not serving.serves_reads(replica, 1.0)
        lease_holder.begin_session(granter)
        lease_holder.renewed(granter, 1.0, 3.0, frozenset())
        lease_holder.followed(granter, 0, 1)
    assert answers.may_read(replica)
    assert serving.serves_reads(replica, 1.0)


def test_a_new_master_passes_the_promises_of_those_that_a_row_does_not_name() -> None:
    """Seed 50173 of strikes: a member had promised terms for promotions that came to nothing, and then lost
    its place in the row. Every later copy to it was refused: its partition had too few copies for ever.
    """
    state = _two_copies()
    state.recovered = False
    state.table = TableView(1, PartitionTable((Partition(3, (1,)),), state.table.members))
    tombstone = m.TabletReport(0, "DELETED", 1, m.OpId(), m.OpId(), 6, 0)
    state.membership.liveness[0].tablets[0] = tombstone
    desired = desired_spec(2, 2, TIMING)
    assert take_over(state, Observation(100.0, desired, ()))
    repair(state, desired, 100.0)
    assert state.table.staged[0].replicas == (1,)
    assert state.table.staged[0].version > tombstone.promised
