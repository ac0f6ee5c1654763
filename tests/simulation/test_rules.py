"""Each rule that holds at every moment is broken once, in a cluster that is well: it must complain."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from stele.adapters.kubernetes.api import CLUSTERS, REBALANCES
from stele.core.control import commands as m
from stele.core.control.operations.copy_session import CopySession, Stage
from stele.core.formats import FIRST, SPOKEN
from stele.core.kv.keyspaces import Catalog, Settings
from stele.core.kv.two_phase import Intent, Outcome, TxId, Verdict
from stele.core.table.table import Partition
from stele.member.storage.volume import CONSENSUS, TABLETS
from stele.wire import peer
from stele.wire.storage.volume import (
    TABLE_FILE,
    Consensus,
    CopyRecord,
    Frozen,
    Quarantined,
    Superblock,
    TableFile,
    encode_file,
)
from stele.wire.two_phase import OUTCOMES, encode_entry, id_key
from tests.simulation.convergence import COPIES_EQUAL, COUNTS_RIGHT, check_equal, unended, unfinished
from tests.simulation.families.registry import draw
from tests.simulation.history import Operation, Violation
from tests.simulation.invariants import Rules
from tests.simulation.plans import LATE_DECISIONS
from tests.simulation.run import QUIET_SECONDS
from tests.simulation.world import World

SECONDS = 6.0
"""A cluster without faults has its table, and serves, by then."""
MOVE = {"partition": 0, "to": "demo-9"}


class Well:
    """A cluster without faults, and the rules that watch it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rules: Any = Rules(world, {})
        world.clock.run(SECONDS)
        self.row = world.rows()[0]
        self.owner = f"demo-{self.row.owner}"
        self.machine = world.kubelet.machines[self.owner]
        self.replica: Any = self.machine.node.replicas[0]  # type: ignore[union-attr]

    @property
    def master(self) -> Any:
        return self.world.master

    def store(self, row: Partition) -> None:
        self.rules._stored((row, *self.world.rows()[1:]), self.rules._epoch_of_table())

    def look(self, uuid: str = "u", **changes: Any) -> None:
        """As if its process were another one, with these differences."""
        tablet = self.replica.tablet
        seen = {"row": tablet.row, "promised": tablet.promised, "log": tablet.log} | changes
        owner = SimpleNamespace(phase=self.replica.owner.phase, learner=None, appending=True, term=999)
        fake = SimpleNamespace(owner=owner, ready=True, tablet=SimpleNamespace(**seen))
        self.rules._look_at(self.owner, uuid, 0, fake, 999)


@pytest.fixture
def well() -> Iterator[Well]:
    profile = replace(draw(1), faults=(), rates={}, ending="", members=3, replicas=2)
    with profile.turned(), World(profile) as world:
        yield Well(world)


def _lower_epoch(well: Well) -> None:
    for epoch in (9, 8):
        request: Any = SimpleNamespace(recipient="u", epoch=epoch, rows=(), commands=(), format=FIRST)
        reply: Any = SimpleNamespace(code="OK", uuid="u", results=(), formats=SPOKEN, adopting=False)
        well.rules._exchanged(well.owner, request, reply)


def _features_without_a_word(well: Well) -> None:
    head = well.world.head()
    assert head is not None
    well.rules.features.features = FIRST
    well.rules.features.head(replace(head, epoch=head.epoch + 1))


def _joins_in_frozen(well: Well) -> None:
    head = well.world.head()
    assert head is not None
    well.rules.states.head(replace(head, state="Frozen"), ())
    replaced_by_uuid = replace(head.members[0], uuid="another")
    well.rules.states.head(replace(head, state="Frozen", members=(*head.members, replaced_by_uuid)), ())


def _leaves_its_rows(well: Well) -> None:
    head = well.world.head()
    assert head is not None
    rest = tuple(each for each in head.members if each.index != well.row.owner)
    well.rules.states.head(replace(head, members=rest), well.world.rows())


def _recovers_an_old_row(well: Well) -> None:
    well.rules.forget_table()
    well.store(Partition(well.row.version - 1, (9,)))


def _purges_the_last(well: Well) -> None:
    now = well.world.clock.now
    well.rules.losses._alone[0] = (now - 100.0, now)
    last = Superblock("DELETED", 1, 1, quarantined=(Quarantined(1, 0.0),))
    for member in well.row.members:
        well.world.kubelet.machines[f"demo-{member}"].process.loop.kill()
    well.rules.losses.saved(well.owner, 0, Superblock("DELETED", 2, 2), last)


def _moves_in_frozen(well: Well) -> None:
    well.rules.states.state = "Frozen"
    well.store(Partition(well.row.version + 1, (*well.row.replicas, 9)))


def _another_owner_in_frozen(well: Well) -> None:
    well.rules.states.state = "Frozen"
    well.store(Partition(well.row.version + 1, well.row.replicas[::-1]))


def _silent_in_frozen(well: Well) -> None:
    """The rules that forgive the loss of a silent member say nothing."""
    states = well.rules.states
    well.rules._may_be_lost = states._may_be_lost = lambda *_: True  # type: ignore[method-assign]
    states.state, states._since = "Frozen", -100.0
    well.store(Partition(well.row.version + 1, well.row.replicas[:1]))


def _written_while_passive(well: Well) -> None:
    states = well.rules.states
    states.state, states._passive_since = "Passive", 1.0
    for machine in well.world.kubelet.running():
        assert machine.node is not None
        machine.node.table.state = "Passive"
    done = Operation(1, "client-0", "set", b"k", b"v", 2.0, 2.1, "OK")
    for operation in (replace(done, kind="delete", reply=0), done):
        assert well.world.clock.failure is None
        well.world.keys.histories.answered(operation)
        states.look()


def _ready_with_something_pending(well: Well) -> None:
    well.master.state.table.staged[0] = well.row
    well.rules._says(well.master, CLUSTERS, {"phase": "Running"})


def _ready_during_a_wave(well: Well, stage: Stage) -> None:
    well.master.state.operations.begin(CopySession(f"s-{stage}", 0, 1, {}, {}, 0.0, stage=stage))
    well.rules._says(well.master, CLUSTERS, {"phase": "Running"})


def test_a_session_that_is_only_closed_is_nothing_pending(well: Well) -> None:
    """A member that was just lost answers no Ingest or CloseSession, and all rows are stored."""
    for stage in (Stage.INGEST, Stage.CLOSE, Stage.CLOSED):
        _ready_during_a_wave(well, stage)
        assert well.world.clock.failure is None
    _ready_during_a_wave(well, Stage.COPY)
    assert isinstance(well.world.clock.failure, Violation)


def _waits_for_the_rest(well: Well) -> None:
    state = well.master.state
    state.apply({0: Partition(well.row.version + 1, well.row.replicas[:1])})
    state.rebalance.queues.left = 1
    for _ in range(LATE_DECISIONS + 2):
        state.decided_seconds += 1.0
        well.rules.plans.look()


def _copy_while_forbidden(well: Well) -> None:
    well.rules._forbidden_since = 0.0
    well.rules._promised(well.owner, m.StartTabletCopy("m", 0, 1, 1))


def _running(well: Well) -> None:
    cluster = well.world.cluster
    generation = cluster["metadata"]["generation"]
    status = {**cluster["status"], "phase": "Running", "observedGeneration": generation}
    well.rules._desired({**cluster, "status": status})


def _running_with_too_few(well: Well) -> None:
    well.rules._rows = (Partition(well.row.version, (0,)), *well.world.rows()[1:])
    _running(well)


def _running_with_a_part(well: Well) -> None:
    well.machine.disk.files[f"{TABLETS}/0"] = encode_file(Superblock("COPYING", 1, 1))
    _running(well)


def _committed_anew(well: Well) -> None:
    log = SimpleNamespace(committed=1, first=1, term_at=lambda index: 77)
    well.rules._committed[0] = {1: 1}
    well.look(log=log)


def _promise_falls(well: Well) -> None:
    five, four = encode_file(Consensus(promised=5)), encode_file(Consensus(promised=4))
    well.rules._check_saved(well.owner, f"{CONSENSUS}/0", four, five)


def _given_up(well: Well) -> None:
    ready, deleted = encode_file(Superblock("READY", 1, 1)), encode_file(Superblock("DELETED", 1, 1))
    well.rules._check_saved(well.owner, f"{TABLETS}/0", deleted, ready)


def _copy_not_begun(well: Well) -> None:
    made = Consensus(copy=CopyRecord("m", 1, 1, 2, True))
    well.machine.disk.files[f"{CONSENSUS}/0"] = encode_file(made)
    well.rules._promised(well.owner, m.StartTabletCopy("m", 0, 1, 1))


def _generation_above_all(well: Well) -> None:
    content = encode_file(Superblock("READY", 2, 1))
    well.rules._check_saved(well.owner, f"{TABLETS}/0", content, None)


def _two_owners(well: Well) -> None:
    well.look("one")
    well.look("another")


def _back_to_an_older_row(well: Well) -> None:
    well.look(promised=5)
    well.look(promised=4)


def _takes_over_too_early(well: Well) -> None:
    owner, backup = well.row.replicas
    well.replica.meta = msgspec.structs.replace(well.replica.meta, frozen=Frozen("m", well.row.version))
    well.replica.tablet.log.append(well.row.version, 1, 10)
    machine = well.world.kubelet.machines[f"demo-{backup}"]
    accept = m.Accept("m", m.Row(0, well.row.version + 1, (backup, owner)), m.OpId(1, 1))
    well.rules._check_swap(machine, accept)


def _copied_for_each_master(well: Well) -> None:
    for epoch in (1, 2):
        fetch = m.FetchDirect(f"s{epoch}-1", 0, "token", (m.CopyItem(0, 1, 2, 5),))
        request: Any = SimpleNamespace(epoch=epoch, commands=(fetch,))
        reply: Any = SimpleNamespace(uuid="u", results=(m.Result(),))
        well.rules.copies._exchanged(well.owner, request, reply)


def _alone_but_for_who_restarts(well: Well) -> None:
    well.world.rows = lambda: (Partition(1, (0,)),)  # type: ignore[method-assign]
    well.rules.restarts._look_at("demo-1", well.master.state, 3)


def _done_without_its_moves(well: Well) -> None:
    spec = {"cluster": "demo", "moves": [MOVE]}
    plan = {"metadata": {"name": "moves"}, "spec": spec, "status": {"phase": "Running"}}
    well.rules.user_plans.stored(plan)
    assert well.world.clock.failure is None
    well.rules.user_plans.stored(plan | {"status": {"phase": "Done"}})


def _two_catalogs_of_one_version(well: Well) -> None:
    for settings in ({}, {"a": Settings()}):
        well.rules.catalogs.stored(Catalog(1, settings))


def _catalog_sent_first(well: Well) -> None:
    request = m.ExchangeRequest(SPOKEN.most, "c", 1, "u", catalog=Catalog(9))
    well.rules.catalogs._exchanged(well.owner, request, m.ExchangeReply("OK", "", "u", "c", 1, 1, 0, 1))


BROKEN: dict[str, Callable[[Well], None]] = {
    "one catalog per version": _two_catalogs_of_one_version,
    "catalogs are stored before they are sent": _catalog_sent_first,
    "stored epochs only grow": lambda well: well.rules._epoch("demo-table", 0),
    "versions only grow": lambda well: well.store(Partition(well.row.version, well.row.replicas[::-1])),
    "one row per version": lambda well: well.rules._one_row_per_version(0, well.row.version, (9,)),
    "never fewer copies": lambda well: well.store(Partition(well.row.version + 1, well.row.replicas[:1])),
    "no move in a state without": _moves_in_frozen,
    "no member joins in a state without": _joins_in_frozen,
    "no copy while forbidden": _copy_while_forbidden,
    "rows stay as they are in a state without": _another_owner_in_frozen,
    "rows keep silent members in a state without joining": _silent_in_frozen,
    "no row names a member that is removed": lambda well: well.rules.removals.gone(
        {"metadata": {"name": well.owner}, "spec": {"index": well.row.owner}}
    ),
    "a member that is removed knows that its rows name it no more": lambda well: well.rules.removals.decided(
        well.row.owner
    ),
    "all copies of a row are given up as users say": lambda well: well.store(
        Partition(well.row.version + 1, (9,))
    ),
    "nothing is purged that may be the last copy": _purges_the_last,
    "recovered rows are the newest": _recovers_an_old_row,
    "members of rows stay": _leaves_its_rows,
    "no write while all are passive": _written_while_passive,
    "Running only with all copies": _running_with_too_few,
    "Running only with whole copies": _running_with_a_part,
    "Running and Ready only with nothing pending": _ready_with_something_pending,
    "missing copies do not wait for a plan": _waits_for_the_rest,
    "no byte is copied twice for a new master": _copied_for_each_master,
    "features never fall": lambda well: well.rules.features.head(replace(well.world.head(), features=FIRST)),
    "features only when all members speak them": _features_without_a_word,
    "nothing beyond the features": lambda well: well.rules.features.saved(
        well.owner, TABLE_FILE, encode_file(TableFile(features=SPOKEN.most + 1)), None
    ),
    "no lower epoch is obeyed": _lower_epoch,
    "stored before published": lambda well: well.rules._published(m.Row(0, well.row.version + 1, (0,))),
    "promises are on disk": lambda well: well.rules._promised(well.owner, m.Fence(0, 50, False)),
    "accepted rows are on disk": lambda well: well.rules._promised(
        well.owner, m.Accept("m", m.Row(0, 50, (0,)), None)
    ),
    "promises never fall": _promise_falls,
    "who takes over has everything": _takes_over_too_early,
    "only emptied members restart": lambda well: well.rules.restarts._look_at(
        well.owner, well.master.state, 2
    ),
    "moves are done before they are said to be": _done_without_its_moves,
    "one member restarts, and every other copy is there": _alone_but_for_who_restarts,
    "copies that began are on disk": _copy_not_begun,
    "generations only grow": _generation_above_all,
    "kept while the stored row names it": _given_up,
    "one owner per term": _two_owners,
    "members only go forward": _back_to_an_older_row,
    "no row before it is stored": lambda well: well.look(row=Partition(50, (0,))),
    "what is committed stays": _committed_anew,
    "written before it is sent": lambda well: well.rules._sent(
        well.machine, peer.AppendItem(0, 1, 1, 1, 998, 0, [b"operation 999"])
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_rule_that_is_broken_complains(well: Well, rule: str) -> None:
    assert well.world.clock.failure is None
    BROKEN[rule](well)
    failure = well.world.clock.failure
    assert isinstance(failure, Violation)
    assert failure.rule == rule


def test_a_copy_that_differs_is_found(well: Well) -> None:
    for client in well.world.clients:
        client.active = False
    well.world.clock.run(well.world.clock.now + QUIET_SECONDS)
    check_equal(well.world)
    key = well.replica.prefix(b"default") + b"only here"
    well.machine.disk.engine.write_data([(key, b"value")])
    with pytest.raises(Violation) as found:
        check_equal(well.world)
    assert found.value.rule == COPIES_EQUAL


def test_a_count_that_is_not_that_of_the_entries_is_found(well: Well) -> None:
    for machine in well.world.kubelet.running():
        assert machine.node is not None
        if 0 in machine.node.replicas:
            machine.node.replicas[0].keyspaces = {b"default": (7, 700)}
    with pytest.raises(Violation) as found:
        check_equal(well.world)
    assert found.value.rule == COUNTS_RIGHT


def test_what_is_left_of_a_transaction_is_told(well: Well) -> None:
    assert unended(well.world) == ""
    uuid = well.machine.node.instance.uuid  # type: ignore[union-attr]
    id, intent = TxId(uuid, 1, 1), Intent(1, b"", (0, 1), ((b"default", b"k"),), (), 0, 0)
    well.replica.lock_keys(id, intent, 0.0)
    assert "locks: True" in unended(well.world)
    well.replica.unlock_keys(id)
    assert unended(well.world) == ""
    key = well.replica.prefix(OUTCOMES) + id_key(id)
    well.machine.disk.engine.write_data([(key, bytes(8) + encode_entry(Outcome(Verdict.ABORT)))])
    assert "has outcomes" in unended(well.world)


def test_all_rules_of_every_moment_are_broken_here(well: Well) -> None:
    """What is looked at in a cluster that is well, and may do all, is what is broken above."""
    assert set(well.world.trace.checked) <= set(BROKEN)


def _first_row(well: Well, *replicas: int) -> None:
    rows = (Partition(well.row.version, replicas), *well.world.rows()[1:])
    table = replace(well.world.table(), partitions=rows)
    well.world.table = lambda: table  # type: ignore[method-assign]


def _frozen_for_ever(well: Well) -> None:
    frozen = Frozen("m1-1", well.row.version)
    well.replica.meta = msgspec.structs.replace(well.replica.meta, frozen=frozen)


def _of_another_row(well: Well) -> None:
    well.master.state.table.stamp.set(0, 999)


def _gone_without_a_word(well: Well) -> None:
    assert well.machine.process is not None
    well.machine.process.end("killed")


def _left(well: Well, **changes: Any) -> None:
    for name, value in changes.items():
        setattr(well.replica, name, value)


def _too_few(well: Well) -> None:
    _first_row(well, well.row.replicas[0] or 0)


def _everything_on_two(well: Well) -> None:
    rows = tuple(Partition(row.version, (0, 1)) for row in well.world.rows())
    table = replace(well.world.table(), partitions=rows)
    well.world.table = lambda: table  # type: ignore[method-assign]


def _no_master(well: Well) -> None:
    for each in well.world.masters:
        each.kill()


UNFINISHED: dict[str, Callable[[Well], object]] = {
    "no master leads": _no_master,
    "4 are desired": lambda well: well.world.api.change_spec(CLUSTERS, "demo", members=4),
    "2 run": _gone_without_a_word,
    "2 copies are desired": _too_few,
    "not balanced": _everything_on_two,
    "has another table": _of_another_row,
    "does not serve": lambda well: _left(well, owner=None),
    "is offline": lambda well: _left(well, broken="its file is damaged"),
    "frozen=Frozen": _frozen_for_ever,
    "0 of 3 members are updated": lambda well: well.world.api.patch_status(
        CLUSTERS, "demo", {"members": {"updated": 0}}
    ),
    "moves is None": lambda well: well.world.api.create(
        REBALANCES, {"metadata": {"name": "moves"}, "spec": {"cluster": "demo", "moves": [MOVE]}}
    ),
    "the status says Lost": lambda well: well.world.api.patch_status(CLUSTERS, "demo", {"phase": "Lost"}),
}


@pytest.mark.parametrize("told", UNFINISHED)
def test_what_is_not_well_is_told(well: Well, told: str) -> None:
    well.world.clock.run(2 * SECONDS)
    assert unfinished(well.world) == ""
    UNFINISHED[told](well)
    assert told in unfinished(well.world)


def test_without_a_member_all_must_be_well_but_that_it_is_missed(well: Well) -> None:
    world = well.world
    world.clock.run(2 * SECONDS)
    world.away = well.owner
    assert "2 copies are desired" in unfinished(world)
    assert well.machine.process is not None
    well.machine.process.loop.pause(math.inf)
    world.clock.run(world.clock.now + 10 * SECONDS)
    assert unfinished(world) == ""
    world.away = ""
    assert f"{well.owner} has another table" in unfinished(world)
    world.away = well.owner
    world.api.patch_status(CLUSTERS, "demo", {"phase": "Running"})
    assert "the status says Running" in unfinished(world)
