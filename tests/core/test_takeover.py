"""What a new master makes of tables, accepted rows and learners."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from stele.core.errors import Corrupt
from stele.core.table import Member, Partition, PartitionTable
from stele.core.takeover import resolve
from stele.wire.messages import ExchangeReply, LearnerReport, Row

MEMBERS = MappingProxyType({i: Member(i, f"m{i}", f"u{i}", f"10.0.0.{i}") for i in range(3)})
TABLE = PartitionTable((Partition(4, (0, 1)), Partition(2, (1, 2))), MEMBERS)
REPLY = ExchangeReply("OK", "", "u", "c", 1, 1, 0, 0)


def says(**fields: object) -> ExchangeReply:
    made: ExchangeReply = REPLY.__class__(
        **{name: getattr(REPLY, name) for name in REPLY.__struct_fields__} | fields
    )
    return made


def test_equal_tables_need_nothing() -> None:
    found = resolve(TABLE, [says(rows=(Row(0, 4, (0, 1)), Row(1, 2, (1, 2))))], frozenset())
    assert not found.rows
    assert not found.claimed


def test_a_row_that_was_accepted_and_not_stored_is_stored() -> None:
    found = resolve(TABLE, [says(accepted=(Row(0, 5, (2, 1)),))], frozenset())
    assert found.rows == {0: Partition(5, (2, 1))}


def test_the_higher_of_two_accepted_rows_wins_in_any_order() -> None:
    answers = [says(accepted=(Row(0, 6, (1,)),)), says(accepted=(Row(0, 5, (2, 1)),))]
    for some in (answers, answers[::-1]):
        assert resolve(TABLE, some, frozenset()).rows == {0: Partition(6, (1,))}


def test_an_accepted_row_that_the_table_overtook_is_void() -> None:
    assert not resolve(TABLE, [says(accepted=(Row(0, 4, (2, 1)),))], frozenset()).rows


def test_a_published_row_above_the_stored_one_is_stored_again() -> None:
    found = resolve(TABLE, [says(rows=(Row(1, 3, (2, 0)),))], frozenset())
    assert found.rows == {1: Partition(3, (2, 0))}


def test_two_published_rows_of_one_version_stop_everything() -> None:
    with pytest.raises(Corrupt, match="partition 0 version 4"):
        resolve(TABLE, [says(rows=(Row(0, 4, (1, 0)),))], frozenset())


def test_what_a_gone_destination_may_have_accepted_is_skipped() -> None:
    learner = LearnerReport("m1", 0, 2, "IN_SYNC", 0)
    found = resolve(TABLE, [says(learners=(learner,))], frozenset({2}))
    assert found.rows[0] == Partition(6, (0, 1))
    assert found.claimed[0] == 5


def test_changes_of_rows_with_gone_members_skip_what_they_may_have_accepted() -> None:
    found = resolve(TABLE, [], frozenset({1}))
    assert found.claimed == {0: 6, 1: 4}
    assert not found.rows


def test_the_table_itself_is_not_changed() -> None:
    before = replace(TABLE)
    resolve(TABLE, [says(accepted=(Row(0, 5, (2, 1)),))], frozenset({1}))
    assert before == TABLE
