"""How old the data of a backup is, by what its owner answered."""

from math import inf

from stele.core.tablet.leases import DRIFT, LeaseHolder
from stele.core.tablet.read_index import WANTED_SECONDS, ReadIndexes, is_recent

P, OWNER, OTHER = 3, 1, 2
LEASE = 2.0


def answered(indexes: ReadIndexes, asked: float, index: int, applied: int, owner: int = OWNER) -> None:
    indexes.answered(P, owner, asked, index, applied=applied, lease_seconds=LEASE)


def test_nothing_is_known_without_an_answer() -> None:
    assert ReadIndexes().fresh(P, OWNER, 10**9) == -inf


def test_data_is_as_fresh_as_the_question_once_the_index_is_applied() -> None:
    indexes = ReadIndexes()
    answered(indexes, 1.0, 10, applied=9)
    assert indexes.fresh(P, OWNER, 9) == -inf
    assert indexes.fresh(P, OWNER, 10) == 1.0
    assert indexes.fresh(P, OTHER, 10) == -inf, "of another owner"


def test_an_answer_that_is_not_reached_does_not_take_back_the_one_before() -> None:
    indexes = ReadIndexes()
    answered(indexes, 1.0, 10, applied=10)
    answered(indexes, 1.5, 20, applied=12)
    assert indexes.fresh(P, OWNER, 19) == 1.0
    assert indexes.fresh(P, OWNER, 20) == 1.5


def test_a_backup_that_stays_behind_reaches_the_first_answer() -> None:
    indexes = ReadIndexes()
    answered(indexes, 1.0, 10, applied=0)
    answered(indexes, 1.5, 20, applied=5)
    assert indexes.fresh(P, OWNER, 10) == 1.0
    answered(indexes, 2.0, 30, applied=12)
    assert indexes.fresh(P, OWNER, 30) == 2.0


def test_an_answer_that_was_not_reached_for_a_lease_makes_way() -> None:
    indexes = ReadIndexes()
    answered(indexes, 1.0, 10**6, applied=0)
    answered(indexes, 1.0 + LEASE, 20, applied=5)
    assert indexes.fresh(P, OWNER, 20) == 1.0 + LEASE


def test_answers_that_arrive_late_change_nothing() -> None:
    indexes = ReadIndexes()
    answered(indexes, 5.0, 20, applied=20)
    answered(indexes, 4.0, 10, applied=20)
    assert indexes.fresh(P, OWNER, 20) == 5.0


def test_a_tablet_that_was_replaced_by_an_older_copy_is_not_fresh() -> None:
    indexes = ReadIndexes()
    answered(indexes, 1.0, 10, applied=10)
    assert indexes.fresh(P, OWNER, 10) == 1.0
    assert indexes.fresh(P, OWNER, 7) == -inf


def test_the_time_is_a_lease_less_the_drift_from_the_question() -> None:
    assert is_recent(10.0, 10.0 + LEASE * (1 - DRIFT) - 0.01, LEASE)
    assert not is_recent(10.0, 10.0 + LEASE * (1 - DRIFT), LEASE)
    assert not is_recent(-inf, 0.0, LEASE)


def test_owners_are_asked_while_clients_read() -> None:
    indexes = ReadIndexes()
    assert indexes.want(P, 1.0)
    assert not indexes.want(P, 2.0)
    answered(indexes, 2.0, 1, applied=1)
    assert indexes.wanted(2.0 + WANTED_SECONDS) == [P]
    assert indexes.wanted(2.1 + WANTED_SECONDS) == []
    assert indexes.fresh(P, OWNER, 1) == -inf, "what nobody reads is forgotten"


def test_an_owner_knows_until_when_it_could_read() -> None:
    holder = LeaseHolder()
    assert holder.read_until(P, 1, ()) == inf
    assert holder.read_until(P, 1, (OTHER,)) == -inf
    holder.begin_session(OTHER)
    holder.renewed(OTHER, 10.0, 1.6, frozenset())
    assert holder.read_until(P, 1, (OTHER,)) == -inf, "it does not follow this member yet"
    holder.followed(OTHER, P, 1)
    assert holder.read_until(P, 1, (OTHER,)) == 11.5
    assert holder.read_until(P, 2, (OTHER,)) == -inf
    holder.renewed(OTHER, 11.0, 1.6, frozenset({P}))
    assert holder.read_until(P, 1, (OTHER,)) == -inf, "it promised a higher term"
