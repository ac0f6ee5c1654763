"""The check of histories: right ones pass, each sort of wrong one is found."""

import pytest

from tests.simulation.history import RECENT, Loss, Operation, Violation, check
from tests.simulation.lossy import explained

KEY = b"k"


def history(*rows: tuple[str, bytes, float, float | None, object]) -> list[Operation]:
    return [
        Operation(number, "c", kind, KEY, value, begin, end, reply)
        for number, (kind, value, begin, end, reply) in enumerate(rows)
    ]


RIGHT = {
    "one after the other": history(("set", b"1", 0, 1, "OK"), ("get", b"", 2, 3, b"1")),
    "at the same time in either order": history(
        ("set", b"1", 0, 5, "OK"), ("set", b"2", 0, 5, "OK"), ("get", b"", 6, 7, b"1")
    ),
    "an unknown write that was done late": history(
        ("set", b"1", 0, None, None), ("get", b"", 1, 2, None), ("get", b"", 3, 4, b"1")
    ),
    "an unknown write that never was": history(("set", b"1", 0, None, None), ("get", b"", 9, 10, None)),
    "an unknown write that only a delete tells of": history(
        ("set", b"1", 0, None, None), ("delete", b"", 1, 2, 1)
    ),
    "only when nothing is there": history(("add", b"1", 0, 1, "OK"), ("add", b"2", 2, 3, None)),
    "a counter with an unknown increment": history(
        ("increment", b"", 0, 1, 1), ("increment", b"", 0, None, None), ("increment", b"", 2, 3, 3)
    ),
    "a list": history(("append", b"a", 0, 1, 1), ("append", b"b", 0, 1, 2), ("get", b"", 2, 3, b"ab")),
}

WRONG = {
    "an acknowledged write is lost": history(("set", b"1", 0, 1, "OK"), ("get", b"", 2, 3, None)),
    "an older value is read after a newer one": history(
        ("set", b"1", 0, 1, "OK"),
        ("set", b"2", 2, 9, "OK"),
        ("get", b"", 3, 4, b"2"),
        ("get", b"", 5, 6, b"1"),
    ),
    "a value that nobody wrote": history(("get", b"", 0, 1, b"x")),
    "a write seen before it began": history(("get", b"", 0, 1, b"1"), ("set", b"1", 2, 3, "OK")),
    "two were the first": history(("add", b"1", 0, 1, "OK"), ("add", b"2", 2, 3, "OK")),
    "a deleted value comes back": history(
        ("set", b"1", 0, 1, "OK"), ("delete", b"", 2, 3, 1), ("get", b"", 4, 5, b"1")
    ),
    "an increment is lost": history(("increment", b"", 0, 1, 1), ("increment", b"", 2, 3, 1)),
    "an increment is counted twice": history(
        ("increment", b"", 0, 1, 1), ("increment", b"", 2, None, None), ("get", b"", 4, 5, b"3")
    ),
    "an append is done twice": history(("append", b"a", 0, 1, 1), ("get", b"", 2, 3, b"aa")),
    "a part of a list is lost": history(
        ("append", b"a", 0, 1, 1), ("append", b"b", 2, 3, 2), ("get", b"", 4, 5, b"b")
    ),
    "an unknown append comes true twice": history(
        ("append", b"a", 0, None, None), ("get", b"", 2, 3, b"a"), ("get", b"", 4, 5, b"aa")
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_some_order_explains_is_right(name: str) -> None:
    check(KEY, RIGHT[name])


@pytest.mark.parametrize("name", WRONG)
def test_what_no_order_explains_is_found(name: str) -> None:
    with pytest.raises(Violation, match="no order of the operations explains"):
        check(KEY, WRONG[name])


def test_many_writes_without_an_answer_do_not_take_for_ever() -> None:
    unknown = [("set", b"%d" % n, float(n), None, None) for n in range(40)]
    known = [("delete", b"", 50.0 + 2 * n, 51.0 + 2 * n, n % 2) for n in range(30)]
    with pytest.raises(Violation):
        check(KEY, history(*unknown, *known, ("get", b"", 200, 201, b"nothing of all that")))


LOST = (Loss(at=10.0, since=8.0),)
EXPLAINED = {
    "the last write was not synced": history(
        ("set", b"1", 0, 1, "OK"), ("set", b"2", 9, 9.5, "OK"), ("get", b"", 11, 12, b"1")
    ),
    "it was synced": history(("set", b"2", 9, 9.5, "OK"), ("get", b"", 11, 12, b"2")),
    "the last two were not": history(
        ("set", b"1", 0, 1, "OK"),
        ("set", b"2", 7, 8.5, "OK"),
        ("set", b"3", 9, 9.5, "OK"),
        ("get", b"", 9.6, 9.7, b"3"),
        ("get", b"", 11, 12, b"1"),
    ),
    "lost, and sent again": history(
        ("append", b"a", 9, 13, 1), ("get", b"", 9.5, 9.6, b"a"), ("get", b"", 11, 12, None)
    ),
}
NOT_EXPLAINED = {
    "it was synced long before": history(("set", b"1", 0, 7.9, "OK"), ("get", b"", 11, 12, None)),
    "it was written afterwards": history(("set", b"1", 10.5, 10.6, "OK"), ("get", b"", 11, 12, None)),
    "the last one stayed and one before it went": history(
        ("append", b"a", 8, 8.5, 1), ("append", b"b", 9, 9.5, 2), ("get", b"", 11, 12, b"b")
    ),
    "it comes back": history(
        ("set", b"1", 9, 9.5, "OK"), ("get", b"", 11, 12, None), ("get", b"", 13, 14, b"1")
    ),
    "lost before the power was": history(("set", b"1", 8.5, 8.6, "OK"), ("get", b"", 9, 9.5, None)),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_loss_of_power_explains_the_last_writes(name: str) -> None:
    assert explained(EXPLAINED[name], LOST)


@pytest.mark.parametrize("name", NOT_EXPLAINED)
def test_a_loss_of_power_explains_nothing_more(name: str) -> None:
    assert not explained(NOT_EXPLAINED[name], LOST)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_without_a_loss_is_wrong_without_one_at_that_time(name: str) -> None:
    assert not explained(WRONG[name], [Loss(100.0, 99.0)])


def _read(number: int, begin: float, end: float, reply: bytes, **more: object) -> Operation:
    return Operation(number, "c", "get", b"k", b"", begin, end, reply, stale_seconds=1.0, **more)  # type: ignore[arg-type]


_ONE = Operation(1, "c", "set", b"k", b"one", 0.0, 1.0, "OK")
_TWO = Operation(2, "c", "set", b"k", b"two", 2.0, 3.0, "OK")


@pytest.mark.parametrize(
    ("read", "rule"),
    [
        (_read(3, 3.9, 4.0, b"one"), ""),
        (_read(3, 4.1, 4.2, b"one"), RECENT),
        (_read(3, 4.1, 4.2, b"two"), ""),
        (_read(3, 3.5, 3.6, b"one", after=2), RECENT),
        (_read(3, 3.5, 3.6, b"lost"), RECENT),
    ],
    ids=["recent enough", "too old", "the newest", "before its own write", "never committed"],
)
def test_a_read_from_a_backup_may_be_old_but_not_too_old(read: Operation, rule: str) -> None:
    if not rule:
        check(b"k", [_ONE, _TWO, read])
        return
    with pytest.raises(Violation) as found:
        check(b"k", [_ONE, _TWO, read])
    assert found.value.rule == rule
