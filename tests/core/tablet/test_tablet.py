"""One tablet's decisions: what is listened to, where operations go, how an owner establishes itself."""

from itertools import product

import pytest

from stele.core.table.table import Partition
from stele.core.tablet.follower import Code, Place, Tablet
from stele.core.tablet.lifecycle import TRANSITIONS, Event, TabletState, step
from stele.core.tablet.log import Log, OpId
from stele.core.tablet.owner import Fetch, Learner, LearnerState, LogPosition, Owner, Phase
from stele.errors import Corrupt, Refused


def tablet(me: int, row: Partition, *terms: int, applied: int = 0, promised: int = 0) -> Tablet:
    log = Log()
    for term in terms:
        log.append(term, 1, 10)
    log.commit(applied)
    log.apply(applied)
    made = Tablet(0, me, log, promised)
    made.row = row
    return made


ROW = Partition(4, (0, 1, 2))


def test_illegal_transitions_raise_and_legal_ones_are_the_table() -> None:
    for state, event in product(TabletState, Event):
        if (state, event) in TRANSITIONS:
            assert step(state, event) is TRANSITIONS[state, event]
        else:
            with pytest.raises(Refused, match="cannot"):
                step(state, event)


@pytest.mark.parametrize(
    ("sender", "version", "term", "code"),
    [
        (0, 4, 4, Code.OK),
        (0, 3, 4, Code.OK),
        (0, 4, 2, Code.STALE_TERM),
        (1, 4, 4, Code.STALE_VERSION),
        (1, 3, 4, Code.STALE_VERSION),
        (1, 5, 5, Code.ROW_NEEDED),
    ],
)
def test_only_the_owner_of_the_newest_row_and_term_is_heard(
    sender: int, version: int, term: int, code: Code
) -> None:
    assert tablet(2, ROW, 3, promised=3).check(sender, version, term) is code


def test_a_fence_only_rises_and_ends_following() -> None:
    made = tablet(1, ROW)
    made.follow(0, 4)
    assert not made.fence(4)
    assert made.fence(6)
    assert (made.leader, made.check(0, 4, 4)) == (None, Code.STALE_TERM)


def test_rows_of_one_version_are_equal() -> None:
    made = tablet(1, ROW)
    assert not made.adopt(ROW)
    assert not made.adopt(Partition(3, (2,)))
    with pytest.raises(Corrupt):
        made.adopt(Partition(4, (1, 0)))


@pytest.mark.parametrize(
    ("prev", "terms", "place"),
    [
        ((3, 4), [4, 4], Place(Code.OK)),
        ((1, 2), [3, 3, 4], Place(Code.OK, 2)),
        ((1, 2), [4], Place(Code.OK, 0, 2)),
        ((3, 3), [4, 4], Place(Code.OK, 0, 3)),
        ((3, 3), [3], Place(Code.OK, 1)),
        ((3, 5), [4], Place(Code.LOG_MISMATCH)),
        ((2, 3), [4], Place(Code.LOG_MISMATCH)),
        ((0, 0), [1, 1, 3, 3, 4], Place(Code.OK, 4)),
        ((0, 0), [1], Place(Code.OK, 1)),
        ((1, 1), [1, 4], Place(Code.OK, 1, 2)),
    ],
)
def test_where_operations_go(prev: OpId, terms: list[int], place: Place) -> None:
    assert tablet(1, ROW, 1, 1, 3, 3, applied=2).place(prev, terms) == place


def test_an_owner_that_contradicts_what_is_applied_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="applied here"):
        tablet(1, ROW, 1, 1, applied=2).place((1, 1), [2])


def test_log_matching_after_any_two_histories() -> None:
    """Whatever two logs with a common front hold, taking the owner's from its front makes them equal."""
    for common, mine, theirs in product(range(3), product((2, 3), repeat=2), product((2, 3, 4), repeat=3)):
        if list(mine) != sorted(mine) or list(theirs) != sorted(theirs):
            continue
        follower, terms = tablet(1, ROW, *[1] * common, *mine), [*[1] * common, *theirs]
        place = follower.place((0, 0), terms)
        if place.cut is not None:
            follower.log.truncate(place.cut)
        for term in terms[place.skip :]:
            follower.log.append(term, 1, 1)
        matched = len(terms)
        assert [follower.log.term_at(i + 1) for i in range(matched)] == terms


def owner(*terms: int, row: Partition = ROW, applied: int = 0, promised: int = 0) -> Owner:
    return Owner(tablet(0, row, *terms, applied=applied, promised=promised), None, None)


def establish(made: Owner, **lasts: OpId) -> None:
    """All members answer with these ends; the first operation of the term is appended and held by all."""
    for member in made.members:
        last = lasts.get(f"m{member}", made.tablet.log.last)
        made.on_probe_result(member, made.term, Code.OK, LogPosition(last, (0, 0)), 0)
    assert made.next_step() is None
    made.tablet.log.append(made.term, 1, 10)
    made.appended_first()
    made.synced = made.tablet.log.last[1]
    for member in made.members:
        made.on_ack(member, made.term, Code.OK, made.synced, 0)
    made.advance()
    made.tablet.log.apply(made.tablet.log.committed)
    assert made.applied()


def test_an_owner_asks_all_and_serves_when_its_first_operation_is_everywhere() -> None:
    made = owner(3, 3)
    assert made.to_probe(0.0) == [1, 2]
    assert made.to_probe(0.1) == []
    assert made.to_probe(0.2) == [1, 2]
    assert not made.serving
    establish(made)
    assert (made.phase, made.term, made.serving) == (Phase.SERVING, 4, True)


def test_the_longest_log_is_adopted_first() -> None:
    made = owner(3, 3)
    made.on_probe_result(1, 4, Code.OK, LogPosition((3, 2), (0, 0)), 0)
    assert made.next_step() is None
    made.on_probe_result(2, 4, Code.OK, LogPosition((3, 4), (0, 0)), 0)
    assert made.next_step() == Fetch(2, (3, 2))
    assert not made.ready_to_commit
    made.tablet.log.append(3, 2, 1)
    assert made.next_step() is None
    assert made.ready_to_commit


def test_an_owner_alone_is_at_once_ready() -> None:
    made = owner(3, row=Partition(4, (0,)))
    establish(made)
    assert made.serving


@pytest.mark.parametrize("who", [(1,), (2,), ()])
def test_nothing_is_committed_that_one_member_lacks(who: tuple[int, ...]) -> None:
    made = owner(3)
    establish(made)
    made.tablet.log.append(4, 3, 1)
    made.synced = made.tablet.log.last[1]
    for member in who:
        assert not made.on_ack(member, 4, Code.OK, made.synced, 0)
    assert made.tablet.log.committed == made.synced - 3


def test_a_member_taken_out_of_the_row_is_not_waited_for() -> None:
    made = owner(3)
    establish(made)
    made.tablet.log.append(4, 1, 1)
    made.synced = made.tablet.log.last[1]
    made.on_ack(1, 4, Code.OK, made.synced, 0)
    made.tablet.adopt(Partition(6, (0, 1)))
    made.row_changed(made.tablet.row)
    assert made.tablet.log.committed == made.synced
    assert (made.serving, made.term) == (True, 4)


def test_a_promise_of_a_higher_term_deposes_until_a_row_of_that_version() -> None:
    made = owner(3)
    establish(made)
    made.on_ack(1, 4, Code.STALE_TERM, 0, 6)
    assert made.phase is Phase.DEPOSED
    made.tablet.adopt(Partition(5, (0, 1)))
    made.row_changed(made.tablet.row)
    assert made.phase is Phase.DEPOSED
    made.tablet.adopt(Partition(6, (0, 1)))
    made.row_changed(made.tablet.row)
    assert (made.phase, made.term) == (Phase.PROBING, 6)


def learner(made: Owner) -> LearnerState:
    assert made.learner is not None
    return made.learner.state


def test_a_learner_is_probed_fed_waited_for_and_then_in_sync() -> None:
    made = owner(3)
    establish(made)
    made.add_learner("m", 7, 4)
    assert (learner(made), made.to_probe(5.0)) == (LearnerState.PROBING, [7])
    made.on_probe_result(7, 4, Code.OK, LogPosition((0, 0), (0, 0)), 0)
    assert (learner(made), made.wants_waiting) == (LearnerState.STREAMING, True)
    made.wait_for_learner("m")
    assert (learner(made), made.waited_for) == (LearnerState.STREAMING, (1, 2, 7))
    made.on_ack(7, 4, Code.OK, made.tablet.log.last[1], 0)
    assert learner(made) is LearnerState.IN_SYNC
    made.tablet.log.append(4, 1, 1)
    made.synced = made.tablet.log.last[1]
    for member in (1, 2):
        assert not made.on_ack(member, 4, Code.OK, made.synced, 0)
    assert made.on_ack(7, 4, Code.OK, made.synced, 0)


def test_an_empty_learner_is_not_waited_for_before_it_takes_operations() -> None:
    made = owner(3)
    establish(made)
    made.add_learner("m", 7, 4)
    made.on_probe_result(7, 4, Code.NO_TABLET, LogPosition((0, 0), (0, 0), empty=True), 0)
    assert (learner(made), made.wants_waiting) == (LearnerState.STREAMING, False)
    made.on_ack(7, 4, Code.OK, 1, 0)
    assert made.wants_waiting


def test_a_learner_beyond_the_log_needs_a_copy() -> None:
    made = owner(1, 1, 1, applied=3)
    establish(made)
    made.tablet.log.trim(2)
    made.add_learner("m", 7, 4)
    made.on_probe_result(7, 4, Code.OK, LogPosition((1, 1), (1, 1)), 0)
    assert learner(made) is LearnerState.NEEDS_COPY
    made.on_probe_result(7, 4, Code.OK, LogPosition((9, 9), (1, 3)), 0)
    assert learner(made) is LearnerState.STREAMING


def test_hand_over_freezes_and_tells_the_end_when_all_is_there() -> None:
    made = owner(3)
    establish(made)
    made.add_learner("m", 7, 4)
    with pytest.raises(Refused, match="IN_SYNC"):
        made.freeze("m")
    made.on_probe_result(7, 4, Code.OK, LogPosition((0, 0), (0, 0)), 0)
    made.wait_for_learner("m")
    end = made.tablet.log.last
    made.on_ack(7, 4, Code.OK, end[1], 0)
    made.tablet.log.append(4, 1, 1)
    made.synced = made.tablet.log.last[1]
    made.freeze("m")
    assert (made.serving, made.handed_over) == (False, None)
    for member in (1, 2, 7):
        made.on_ack(member, 4, Code.OK, made.synced, 0)
    assert made.handed_over is None
    made.tablet.log.apply(made.synced)
    assert made.handed_over == made.tablet.log.last
    assert made.drop_learner("m")
    assert (made.serving, made.waited_for) == (True, (1, 2))


def test_a_frozen_owner_that_restarts_asks_nobody() -> None:
    made = Owner(tablet(0, ROW, 3), None, ("m", 4))
    assert (made.phase, made.to_probe(9.0)) == (Phase.HELD, [])
    assert made.drop_learner("m")
    assert made.phase is Phase.PROBING


@pytest.mark.parametrize("answers", range(4))
def test_a_learner_may_be_dropped_at_any_time_while_its_owner_establishes_itself(answers: int) -> None:
    """After a restart the promise to wait for it is on disk, so that it is asked like a member of the row."""
    learner = Learner("m", 7, 4, 0, waited=True)
    made = Owner(tablet(0, ROW, 3), learner, None)
    said = [(7, (3, 2)), (1, (3, 1)), (2, (3, 1))]
    for member, last in said[:answers]:
        made.on_probe_result(member, 4, Code.OK, LogPosition(last, (0, 0)), 0)
    if answers == len(said):
        assert made.next_step() == Fetch(7, (3, 1)), "its log is the longest"
    assert made.drop_learner("m")
    for member, last in said[max(answers, 1) :]:
        made.on_probe_result(member, 4, Code.OK, LogPosition(last, (0, 0)), 0)
    assert made.next_step() is None
    assert made.ready_to_commit
    made.tablet.log.append(4, 1, 1)
    made.appended_first()
    assert (made.phase, set(made.progress), made.waited_for) == (Phase.COMMITTING, {1, 2}, (1, 2))


def test_learners_are_one_at_a_time_and_of_the_present_row() -> None:
    made = owner(3)
    establish(made)
    for id, member, base, code in (("m", 7, 3, "STALE_VERSION"), ("m", 1, 4, "ILLEGAL_STATE")):
        with pytest.raises(Refused) as refused:
            made.add_learner(id, member, base)
        assert refused.value.code == code
    made.add_learner("m", 7, 4)
    made.add_learner("m", 7, 4)
    with pytest.raises(Refused) as refused:
        made.add_learner("n", 8, 4)
    assert refused.value.code == "MIGRATION_ACTIVE"
