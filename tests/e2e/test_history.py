"""Each rule of the history is broken on purpose, and the checker complains."""

import pytest

from e2e.demo.history import Breach, Ledger, Outcome, judge_end, number_of, replay, value_of


def ledger_with(*outcomes: Outcome) -> Ledger:
    ledger = Ledger()
    for outcome in outcomes:
        ledger.end("k", ledger.send("k"), outcome)
    return ledger


def breach(ledger: Ledger, floor: int, value: bytes | None) -> Breach | None:
    violation = ledger.judge("k", floor, value)
    return violation.breach if violation else None


ACK, REFUSED, DOUBT = Outcome.ACKNOWLEDGED, Outcome.REFUSED, Outcome.DOUBTFUL


@pytest.mark.parametrize(
    ("outcomes", "floor", "value", "seen"),
    [
        ((ACK, REFUSED, ACK), 3, value_of("k", 3), None),
        ((), 0, None, None),
        ((ACK,), 1, None, Breach.LOST),
        ((ACK, ACK), 2, value_of("k", 1), Breach.STALE),
        # The read was sent before the acknowledgement.
        ((ACK, ACK), 1, value_of("k", 1), None),
        ((ACK, REFUSED), 1, value_of("k", 2), Breach.REFUSED),
        ((ACK,), 1, value_of("k", 2), Breach.NEVER_SENT),
        *(((ACK,), 1, value, Breach.GARBLED) for value in (b"", b"k:1", b"other:1:", value_of("j", 1))),
        ((ACK,), 1, value_of("k", 1) + b"x", Breach.GARBLED),
    ],
)
def test_each_read_is_judged(
    outcomes: tuple[Outcome, ...], floor: int, value: bytes | None, seen: Breach | None
) -> None:
    assert breach(ledger_with(*outcomes), floor, value) is seen


def test_a_write_under_way_may_be_seen_or_not() -> None:
    ledger = ledger_with(ACK)
    assert ledger.send("k") == 2
    assert breach(ledger, 1, value_of("k", 1)) is None
    assert breach(ledger, 1, value_of("k", 2)) is None


def test_what_was_read_once_may_not_vanish() -> None:
    ledger = ledger_with(ACK, DOUBT)
    assert breach(ledger, ledger.floor("k"), value_of("k", 2)) is None
    assert breach(ledger, ledger.floor("k"), value_of("k", 1)) is Breach.STALE


def test_a_doubtful_write_may_be_there_or_not_and_retires_the_key() -> None:
    ledger = ledger_with(ACK, DOUBT)
    assert ledger.allowed("k") == {1, 2}
    assert ledger.retired("k")
    with pytest.raises(ValueError, match="retired"):
        ledger.send("k")


def test_a_key_whose_only_write_is_doubtful_may_be_absent() -> None:
    ledger = ledger_with(DOUBT)
    assert ledger.allowed("k") == {0, 1}
    assert breach(ledger, 0, None) is None


def test_value_round_trip() -> None:
    assert number_of("a:b", value_of("a:b", 12)) == 12
    assert number_of("a", value_of("a:b", 12)) is None


def test_replay_gives_the_same_ledger_and_doubts_what_has_no_end() -> None:
    ledger = replay(["S a 1\n", "S b 1\n", "A a 1\n", "S a 2\n", "F a 2\n", "S a 3\n", "A a 3\n"])
    assert (ledger.acknowledged_writes, ledger.doubtful_writes) == (2, 1)
    assert ledger.allowed("a") == {3}
    assert ledger.allowed("b") == {0, 1}


def test_replay_leaves_out_a_line_that_was_cut_off() -> None:
    assert replay(["S a 1\n", "A a 1\n", "S a"]).allowed("a") == {1}


@pytest.mark.parametrize("line", ["S a 7\n", "X a 1\n", "S a\n"])
def test_replay_refuses_a_history_with_holes(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        replay([line])


def test_judge_end_finds_what_is_missing_after_the_last_write() -> None:
    ledger = replay(["S a 1\n", "A a 1\n", "S b 1\n", "A b 1\n"])
    stored = {"a": value_of("a", 1), "b": None}
    assert [(each.key, each.breach) for each in judge_end(ledger, stored)] == [("b", Breach.LOST)]
