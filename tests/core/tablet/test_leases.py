"""Leases: no two members may read at the same time, whatever the order of messages."""

from itertools import product

from stele.core.tablet.leases import DRIFT, LeaseGrantor, LeaseHolder

L = 10.0


def test_a_lease_counts_from_when_it_was_asked_less_the_drift() -> None:
    held = LeaseHolder()
    held.begin_session(1)
    held.followed(1, 0, 5)
    assert not held.may_read(0, 5, (1,), 0.0)
    held.renewed(1, 100.0, L, frozenset())
    end = 100.0 + L * (1 - DRIFT)
    assert held.may_read(0, 5, (1,), end - 0.01)
    assert not held.may_read(0, 5, (1,), end)
    assert held.may_read(0, 5, (), end + 100)


def test_every_other_member_has_to_grant_and_follow_in_this_term_and_session() -> None:
    held = LeaseHolder()
    for member in (1, 2):
        held.begin_session(member)
        held.renewed(member, 0.0, L, frozenset())
    held.followed(1, 0, 5)
    assert not held.may_read(0, 5, (1, 2), 1.0)
    held.followed(2, 0, 5)
    assert held.may_read(0, 5, (1, 2), 1.0)
    assert not held.may_read(0, 6, (1, 2), 1.0)
    held.begin_session(2)
    held.renewed(2, 0.0, L, frozenset())
    assert not held.may_read(0, 5, (1, 2), 1.0)


def test_an_answer_that_was_late_does_not_end_an_exclusion() -> None:
    held = LeaseHolder()
    held.begin_session(1)
    held.renewed(1, 0.0, L, frozenset({0}))
    held.followed(1, 0, 5)
    assert not held.may_read(0, 5, (1,), 1.0)
    held.renewed(1, 1.0, L, frozenset())
    assert held.may_read(0, 5, (1,), 1.5)


def test_a_new_process_counts_as_if_everybody_held_a_lease() -> None:
    granted = LeaseGrantor(100.0, L)
    granted.leave(0, 7, 101.0)
    assert granted.wait_seconds(0, 101.0) == 9.0
    assert granted.wait_seconds(0, 110.0) == 0.0


def test_leaving_nobody_known_waits_for_all() -> None:
    granted = LeaseGrantor(0.0, L)
    granted.renew(3, 50.0)
    granted.leave(0, None, 51.0)
    assert granted.wait_seconds(0, 51.0) == 9.0


def test_the_wait_is_that_of_the_last_lease_without_the_partition() -> None:
    granted = LeaseGrantor(0.0, L)
    granted.renew(7, 50.0)
    granted.leave(0, 7, 52.0)
    seconds, excluded = granted.renew(7, 53.0)
    assert (seconds, excluded) == (L, frozenset({0}))
    assert granted.wait_seconds(0, 53.0) == 7.0
    granted.follow(0, 8)
    assert granted.renew(7, 54.0)[1] == frozenset({0})
    granted.follow(0, 7)
    assert granted.renew(7, 55.0)[1] == frozenset()


def test_no_two_members_read_at_once_in_any_interleaving() -> None:
    """One granter, old owner A: after every order of renewals, deliveries and a fence, A reads no longer
    than the granter makes a new owner wait.
    """
    moves = ("renew", "deliver", "tick")
    for before, after in product(product(moves, repeat=3), repeat=2):
        _check_interleaving(before, after)


def _check_interleaving(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    granted, held = LeaseGrantor(-100.0, L), LeaseHolder()
    held.begin_session(1)
    held.followed(1, 0, 5)
    granted.follow(0, 9)
    on_the_way: list[tuple[float, float, frozenset[int]]] = []
    now = 0.0
    for moves in (before, after):
        for move in moves:
            now += 1.0 if move == "tick" else 0.0
            if move == "renew":
                on_the_way.append((now, *granted.renew(9, now)))
            elif move == "deliver" and on_the_way:
                held.renewed(1, *on_the_way.pop(0))
        if moves is before:
            granted.leave(0, 9, now)
    free_at = now + granted.wait_seconds(0, now)
    for step in range(200):
        later = free_at + step / 10
        while on_the_way:
            held.renewed(1, *on_the_way.pop(0))
        assert not held.may_read(0, 5, (1,), later)
