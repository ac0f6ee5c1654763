"""Leases: no two members may read at the same time, whatever the order of messages.

What each half does alone is in `tests/golden/leases`.
"""

from itertools import product

from stele.core.tablet.leases import LeaseGrantor, LeaseHolder

L = 10.0
LEASES = {"shorten": 2.0, "lengthen": 15.0}


def test_no_two_members_read_at_once_in_any_interleaving() -> None:
    """One granter, old owner A: after every order of renewals, deliveries and a fence, A reads no longer
    than the granter makes a new owner wait.
    """
    moves = ("renew", "deliver", "tick")
    for before, after in product(product(moves, repeat=3), repeat=2):
        _check_interleaving(before, after)


def test_nor_when_leases_become_shorter_or_longer_meanwhile() -> None:
    moves = ("renew", "deliver", "tick", "shorten", "lengthen")
    for before, after in product(product(moves, repeat=3), ((), ("renew", "deliver"), ("shorten", "renew"))):
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
            elif move in LEASES:
                granted.change(LEASES[move])
        if moves is before:
            granted.leave(0, 9, now)
    free_at = now + granted.wait_seconds(0, now)
    for step in range(200):
        later = free_at + step / 10
        while on_the_way:
            held.renewed(1, *on_the_way.pop(0))
        assert not held.may_read(0, 5, (1,), later)


def test_a_dead_process_is_not_waited_for_but_its_successor_is() -> None:
    granted = LeaseGrantor(-100.0, L)
    granted.follow(0, 9)
    granted.renew(9, 0.0, 3)
    granted.renew(9, 1.0, 4)
    granted.leave(0, 9, 2.0)
    assert [granted.wait_seconds(0, 2.0, dead) for dead in (0, 3, 4)] == [9.0, 9.0, 0.0]
    granted.leave(0, 9, 3.0)
    assert [granted.wait_seconds(0, 3.0, dead) for dead in (3, 4)] == [8.0, 0.0], "a fence is sent again"


def test_what_a_process_before_this_one_granted_is_waited_for() -> None:
    granted = LeaseGrantor(0.0, L)
    granted.renew(9, 1.0, 4)
    granted.leave(0, 9, 2.0)
    assert [granted.wait_seconds(0, 2.0, dead) for dead in (3, 4)] == [9.0, 8.0]
    other = LeaseGrantor(-100.0, L)
    other.renew(9, 1.0, 4)
    other.leave(0, None, 2.0)
    assert other.wait_seconds(0, 2.0, 4) == 9.0, "whose lease it is, is not known"
    other.renew(8, 2.0)
    other.leave(1, 8, 2.0)
    assert other.wait_seconds(1, 2.0, 4) == L, "an older build does not name its process"


def test_the_shortest_lease_of_those_that_are_still_there() -> None:
    held = LeaseHolder()
    assert held.shortest_seconds(0.0) == float("inf")
    for granter, seconds in ((1, 10.0), (2, 1.0)):
        held.begin_session(granter)
        held.renewed(granter, 0.0, seconds, frozenset())
    assert held.shortest_seconds(5.0) == 1.0
    held.renewed(1, 100.0, 10.0, frozenset())
    assert held.shortest_seconds(100.0) == 10.0
