"""What a new master makes of tables, accepted rows and learners."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from stele.core.control.commands import ExchangeReply, LearnerReport, Row
from stele.core.control.recovery import resolve
from stele.core.control.state import State
from stele.core.table.table import EPOCHS_APART, Member, Partition, PartitionTable
from stele.errors import Corrupt

MEMBERS = MappingProxyType({i: Member(i, f"m{i}", f"u{i}", f"10.0.0.{i}") for i in range(3)})
TABLE = PartitionTable((Partition(4, (0, 1)), Partition(2, (1, 2))), MEMBERS)
EPOCH = 6
REPLY = ExchangeReply("OK", "", "u", "c", 1, 1, 0, 0)


def says(**fields: object) -> ExchangeReply:
    made: ExchangeReply = REPLY.__class__(
        **{name: getattr(REPLY, name) for name in REPLY.__struct_fields__} | fields
    )
    return made


def test_equal_tables_need_nothing() -> None:
    found = resolve(TABLE, [says(rows=(Row(0, 4, (0, 1)), Row(1, 2, (1, 2))))], frozenset(), EPOCH)
    assert not found.rows
    assert not found.claimed


def test_a_row_that_was_accepted_and_not_stored_is_stored() -> None:
    found = resolve(TABLE, [says(accepted=(Row(0, 5, (2, 1)),))], frozenset(), EPOCH)
    assert found.rows == {0: Partition(5, (2, 1))}


def test_the_higher_of_two_accepted_rows_wins_in_any_order() -> None:
    answers = [says(accepted=(Row(0, 6, (1,)),)), says(accepted=(Row(0, 5, (2, 1)),))]
    for some in (answers, answers[::-1]):
        assert resolve(TABLE, some, frozenset(), EPOCH).rows == {0: Partition(6, (1,))}


def test_an_accepted_row_that_the_table_overtook_is_void() -> None:
    assert not resolve(TABLE, [says(accepted=(Row(0, 4, (2, 1)),))], frozenset(), EPOCH).rows


def test_a_published_row_above_the_stored_one_is_stored_again() -> None:
    found = resolve(TABLE, [says(rows=(Row(1, 3, (2, 0)),))], frozenset(), EPOCH)
    assert found.rows == {1: Partition(3, (2, 0))}


def test_two_published_rows_of_one_version_stop_everything() -> None:
    with pytest.raises(Corrupt, match="partition 0 version 4"):
        resolve(TABLE, [says(rows=(Row(0, 4, (1, 0)),))], frozenset(), EPOCH)


def test_what_a_gone_destination_may_have_accepted_is_skipped() -> None:
    learner = LearnerReport("m1", 0, 2, "IN_SYNC", 0)
    found = resolve(TABLE, [says(learners=(learner,))], frozenset({2}), EPOCH)
    assert found.rows[0] == Partition(6, (0, 1))
    assert found.claimed[0] == 5


def test_changes_of_rows_with_gone_members_skip_what_they_may_have_accepted() -> None:
    found = resolve(TABLE, [], frozenset({1}), EPOCH)
    assert found.claimed == {0: 6, 1: 4}
    assert not found.rows


def test_leaderships_that_store_nothing_never_choose_one_version() -> None:
    """A member may have accepted what each of them chose, and none of those after it could ask that member.

    Found by seeds 400078, 400244 and 400263 of `migrations` (145eaf0).
    """
    chosen: dict[int, int] = {}
    learner = LearnerReport("m1", 0, 2, "IN_SYNC", 0)
    for epoch in range(1, 1 + EPOCHS_APART):
        state = State(epoch, TABLE, 1, 3, 0.0)
        for _ in range(5):
            state.table.claimed[0] = state.table.next_version(0)
            assert chosen.setdefault(state.table.claimed[0], epoch) == epoch
        again = resolve(TABLE, [says(learners=(learner,))], frozenset({2}), epoch).rows[0].version
        assert chosen.setdefault(again, epoch) == epoch
        assert state.table.next_version(0, least=1_000) in range(1_000, 1_000 + EPOCHS_APART)


def test_the_table_itself_is_not_changed() -> None:
    before = replace(TABLE)
    resolve(TABLE, [says(accepted=(Row(0, 5, (2, 1)),))], frozenset({1}), EPOCH)
    assert before == TABLE
