"""A planned stop: when `stele-member leave` waits, and what ends its wait."""

from types import SimpleNamespace
from typing import Any

import pytest

from stele.core.control.commands import ExchangeRequest
from stele.core.table.table import Partition
from stele.core.tablet.leases import LeaseGrantor
from stele.member import limits
from stele.member.control.planned_stop import PlannedStop

ME, OTHER = 0, 1
LEASE_SECONDS = 2.0


class Stop:
    """A planned stop of a member that some rows name, on a clock that the test moves."""

    def __init__(self, *rows: tuple[int, ...]) -> None:
        self.now = 100.0
        self.rows = [Partition(1, row) for row in rows]
        table: Any = SimpleNamespace(me=ME, rows=self.rows)
        background: Any = SimpleNamespace(now=lambda: self.now)
        self.stop = PlannedStop(LeaseGrantor(0.0, LEASE_SECONDS), table, background)

    def exchange(self, *, may_stop: bool) -> None:
        self.stop.on_exchange(ExchangeRequest(1, "c", 1, "uuid", may_stop=may_stop))

    def waiting(self, seconds: float = 60.0) -> bool:
        return self.stop.announce(seconds).waiting


def test_it_waits_until_the_master_has_nothing_more_to_move() -> None:
    made = Stop((ME, OTHER))
    assert not made.stop.announced
    assert made.waiting()
    assert made.stop.announced
    made.exchange(may_stop=False)
    assert made.waiting()
    made.exchange(may_stop=True)
    assert not made.waiting()


def test_what_a_master_said_before_the_announcement_does_not_count() -> None:
    made = Stop((ME, OTHER))
    made.exchange(may_stop=True)
    assert made.waiting()


def test_a_master_that_moves_something_back_is_waited_for_again() -> None:
    made = Stop((ME, OTHER))
    made.waiting()
    made.exchange(may_stop=True)
    made.exchange(may_stop=False)
    assert made.waiting()


def test_an_absent_master_is_waited_for_as_long_as_another_takes_to_start() -> None:
    """The wait begins with the announcement, however long no master was there before."""
    made = Stop((ME, OTHER))
    made.exchange(may_stop=False)
    made.now += 3600
    assert made.waiting()
    made.now += limits.MASTER_AWAY_SECONDS_MAX - 0.1
    assert made.waiting()
    made.now += 0.1
    status = made.stop.announce(1)
    assert (status.waiting, "no master has called for 30 s" in status.text) == (False, True)
    made.exchange(may_stop=False)
    assert made.waiting()


@pytest.mark.parametrize("with_master", [True, False])
def test_a_member_that_no_row_names_waits_for_a_lease(*, with_master: bool) -> None:
    """It was drained to be removed, or has just started."""
    made = Stop((OTHER,))
    assert made.waiting()
    made.now += LEASE_SECONDS - 0.1
    if with_master:
        made.exchange(may_stop=False)
    assert made.waiting()
    made.now += 0.1
    assert not made.waiting()


def test_an_operator_evicted_from_the_same_node_finds_the_member_waiting() -> None:
    made = Stop((ME, OTHER))
    made.exchange(may_stop=False)
    assert made.waiting()
    made.now += limits.MASTER_AWAY_SECONDS_MAX - 1
    assert made.waiting()
    made.exchange(may_stop=False)
    made.now += 5
    assert made.waiting()
    made.exchange(may_stop=True)
    assert not made.waiting()


def test_the_announcement_ends_by_itself_and_can_be_taken_back() -> None:
    made = Stop((ME, OTHER))
    made.waiting(10)
    made.exchange(may_stop=True)
    made.now += 10
    assert not made.stop.announced
    assert made.waiting(10)
    assert made.stop.announced
    made.waiting(0)
    assert not made.stop.announced
