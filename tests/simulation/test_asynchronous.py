"""The rules for Async keyspaces: each can be broken, and allows what it has to."""

import pytest

from stele.adapters.kubernetes.api import CONFIG_MAPS
from stele.core.control import commands as m
from stele.core.table.table import Partition
from tests.fakes.loop import Clock
from tests.simulation.asynchronous import (
    CONFIRMED,
    IN_ORDER,
    LOST,
    ONLY_WITH_AN_OWNER,
    Append,
    Lists,
    OwnersLost,
    Read,
)
from tests.simulation.history import Violation
from tests.simulation.trace import Trace

KEY = b"list"
A, B, C = b"<a>", b"<b>", b"<c>"


def broken(appends: list[Append], reads: list[Read], *times: float) -> str:
    """The rule that this breaks when the owner was lost at these times; "" for none."""
    lists, lost = Lists(), OwnersLost(lambda: (), lambda: 0.0)
    lists.appends[KEY], lists.reads[KEY] = appends, reads
    lost.times[0] = list(times)
    try:
        lists.check(Trace(Clock(1)), lambda key: 0, lost)
    except Violation as violation:
        return violation.rule
    return ""


@pytest.mark.parametrize(
    ("times", "confirmed", "rule"),
    [
        ((), None, ONLY_WITH_AN_OWNER),
        ((0.5,), None, ONLY_WITH_AN_OWNER),
        ((1.5,), None, ""),
        ((3.5,), None, ""),
        ((9.0,), None, ONLY_WITH_AN_OWNER),
        ((3.5,), 2.5, CONFIRMED),
        ((3.5,), 8.0, ""),
    ],
)
def test_what_was_acknowledged_is_there(times: tuple[float, ...], confirmed: float | None, rule: str) -> None:
    """It is appended from 1 to 2, and missing in a read from 3 to 4."""
    appends = [Append(A, 1.0, 2.0, confirmed), Append(B, 1.0), Append(C, 3.0, 4.0)]
    assert broken(appends, [Read(3.0, 4.0, [])], *times) == rule
    assert broken(appends, [Read(3.0, 4.0, [A])], *times) == ""


@pytest.mark.parametrize(
    ("first", "second", "times", "rule"),
    [
        (Read(1, 2, [A]), Read(3, 4, [A, B]), (), ""),
        (Read(1, 2, [A, B]), Read(3, 4, [A]), (), IN_ORDER),
        (Read(1, 2, [A, B]), Read(3, 4, [A, C]), (), IN_ORDER),
        (Read(1, 2, [A, B]), Read(3, 4, [A, C]), (2.5,), ""),
        (Read(1, 2, [A, B]), Read(3, 4, [A, C]), (0.5,), IN_ORDER),
        (Read(1, 3, [A, B]), Read(2, 4, [A]), (), ""),
        (Read(1, 3, [A, B]), Read(2, 4, [C]), (), IN_ORDER),
    ],
)
def test_what_was_read_stays_in_its_order(
    first: Read, second: Read, times: tuple[float, ...], rule: str
) -> None:
    appends = [Append(token, 0.0) for token in (A, B, C)]
    assert broken(appends, [first, second], *times) == rule


def test_a_loss_is_told() -> None:
    lists, lost, trace = Lists(), OwnersLost(lambda: (), lambda: 0.0), Trace(Clock(1))
    lists.appends[KEY], lists.reads[KEY] = [Append(A, 1.0, 2.0)], [Read(3.0, 4.0, [])]
    lost.times[0] = [2.5]
    lists.check(trace, lambda key: 0, lost)
    assert trace.covered[LOST] == 1


def test_an_owner_is_lost_when_another_one_follows_without_a_hand_over() -> None:
    rows, now = [Partition(1, (0, 1))], [5.0]
    lost = OwnersLost(lambda: rows, lambda: now[0])

    def store(row: Partition) -> None:
        rows[0] = row
        now[0] += 1.0
        lost.stored(CONFIG_MAPS, None, False)

    store(Partition(1, (0, 1)))
    lost.sent((m.HandOver("move", 0), m.Accept("move", m.Row(0, 2, (1, 0)))))
    store(Partition(2, (1, 0)))
    store(Partition(3, (1,)))
    assert not lost.times[0]
    lost.sent((m.Accept("promotion", m.Row(0, 4, (0, 1))),))
    store(Partition(4, (0, 1)))
    assert lost.times[0] == [9.0]
