"""One member and what the master tells it of the table: requests and answers get lost, the member restarts or
loses its table, another master takes over. As soon as two exchanges in a row arrive the tables are equal, and
the next push is empty.
"""

from types import MappingProxyType

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from stele.core.control import commands as m
from stele.core.control.failure_detector import MemberLiveness
from stele.core.control.publication import exchange_request, note_published
from stele.core.control.state import State
from stele.core.table.table import Member, Partition, PartitionTable, trimmed
from stele.member.replication.table_cache import TableCache
from stele.wire import control as wire
from stele.wire.storage.volume import TableFile, decode_table, encode_file
from tests.property.test_planning_machine import generated

ME = Member(0, "m-0", "u-0", "10.0.0.1")
MEMBERS = MappingProxyType({0: ME, **{i: Member(i, f"m-{i}", f"u-{i}", "") for i in range(1, 4)}})
GROUPS = 3
ROWS = st.lists(st.integers(0, 3), unique=True, max_size=3).map(trimmed)


class Pushes(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 12))
    def begin(self, partitions: int) -> None:
        self.state = self.leadership(PartitionTable((Partition(0, ()),) * partitions, MEMBERS), 1)
        self.table = TableCache(TableFile())
        self.incarnation = 1
        self.last: m.ExchangeRequest | None = None

    def leadership(self, table: PartitionTable, epoch: int) -> State:
        state = State(epoch, table, 1, len(MEMBERS), 0.0, recovered=True)
        state.membership.liveness[0] = MemberLiveness(0, 0.0)
        return state

    @rule(number=st.integers(0, 11), row=ROWS, by=st.integers(1, 2))
    def store(self, number: int, row: tuple[int | None, ...], by: int) -> None:
        number %= len(self.state.table.partitions)
        version = self.state.table.partitions[number].version + by
        self.state.apply({number: Partition(version, row)})

    @rule(partitions=st.integers(1, 3))
    def add_group(self, partitions: int) -> None:
        table = self.state.table
        number = len(table.groups.groups)
        if number < GROUPS:
            table.stage_groups(table.groups.with_group(len(table.partitions), f"k{number}", partitions, 2))
            table.store_groups()

    @rule()
    def another_master(self) -> None:
        self.state = self.leadership(self.state.table.stored, self.state.epoch + 1)

    @rule(damaged=st.booleans())
    def restart(self, damaged: bool) -> None:
        """The member reads its file again; a damaged one is put aside."""
        written = encode_file(self.table.to_file())
        self.table = TableCache(TableFile() if damaged else decode_table(written, "f"), ME.uuid)
        self.incarnation += 1

    @rule(request_arrives=st.booleans(), answer_arrives=st.booleans())
    def exchange(self, request_arrives: bool, answer_arrives: bool) -> None:
        self.last, cursor = exchange_request(self.state, 0, (), cluster="c", replicas=2)
        if not request_arrives:
            return
        answer = self.taken_in(wire.decode_request(wire.encode(self.last)))
        if answer_arrives:
            report = wire.decode_reply(wire.encode(answer))
            self.state.membership.liveness[0].on_report(report, 0.0)
            if cursor is not None:
                note_published(self.state.membership.liveness[0], cursor, report)

    def taken_in(self, request: m.ExchangeRequest) -> m.ExchangeReply:
        table = self.table
        if not table.lacks_groups(request):
            self.adopt(table, request)
        return m.ExchangeReply(
            *("OK", "", ME.uuid, "c", self.incarnation, request.epoch),
            *(table.stamp, table.member_list_version),
            groups_version=table.groups.version,
        )

    def adopt(self, table: TableCache, request: m.ExchangeRequest) -> None:
        table.resize(request)
        if not table.knows(request):
            table.adopt(request)
            table.saved()
        for row in table.newer(request.rows):
            table.set(row.partition, Partition(row.version, row.replicas))

    @precondition(lambda self: hasattr(self, "state"))
    @rule()
    def all_is_well(self) -> None:
        """The first exchange tells what state the member is in, the second brings what it lacks."""
        for _ in range(2):
            self.exchange(True, True)
        assert self.table.rows == list(self.state.table.partitions), "the member lacks rows"
        assert self.table.stamp == self.state.table.stamp.value
        assert set(self.table.members) == set(MEMBERS)
        self.exchange(True, True)
        assert self.last is not None
        assert (self.last.rows, self.last.full, self.last.members) == ((), False, ()), "told twice"

    @invariant()
    def the_member_is_never_ahead(self) -> None:
        if hasattr(self, "state") and self.table.rows:
            pairs = zip(self.table.rows, self.state.table.partitions, strict=False)
            assert self.table.main == len(self.state.table.stored.main), "keys change their partition"
            assert all(mine.version <= stored.version for mine, stored in pairs)

    def teardown(self) -> None:
        if hasattr(self, "state"):
            self.all_is_well()


Pushes.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestPushes = Pushes.TestCase


class ForgetsARow(Pushes):
    """Says that it has what it was sent, and leaves the last row out: its stamp gives it away for ever."""

    def taken_in(self, request: m.ExchangeRequest) -> m.ExchangeReply:
        return super().taken_in(msgspec.structs.replace(request, rows=request.rows[:-1]))


class TellsEverything(Pushes):
    """A master that does not believe any answer."""

    def exchange(self, request_arrives: bool, answer_arrives: bool) -> None:
        self.state.membership.liveness[0].published = 0
        super().exchange(request_arrives, answer_arrives)


@pytest.mark.parametrize(
    ("broken", "reason"), [(ForgetsARow, "the member lacks rows"), (TellsEverything, "told twice")]
)
def test_broken_sides_are_seen(broken: type[Pushes], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        run_state_machine_as_test(broken, settings=generated(100, 20))
