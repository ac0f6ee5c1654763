"""Replicas that are right, and replicas with each fault."""

import pytest

from e2e.demo.judge import Difference, Fault, Tally, Wanted, by_partition, compare, partition_of

WANTED = Wanted({b"a": frozenset((b"1",)), b"b": frozenset((b"2",))})
RIGHT = {b"a": b"1", b"b": b"2"}


def faults(wanted: Wanted, **replicas: dict[bytes, bytes]) -> list[tuple[Fault, str, bytes]]:
    return [(each.fault, each.member, each.key) for each in compare(0, "k", wanted, replicas)]


def test_equal_replicas_have_no_difference() -> None:
    assert faults(WANTED, x=RIGHT, y=dict(RIGHT)) == []


def test_each_fault_is_found_on_the_replica_that_has_it() -> None:
    assert faults(WANTED, x=RIGHT, y={b"a": b"1"}) == [(Fault.MISSING, "y", b"b")]
    assert faults(WANTED, x=RIGHT | {b"c": b"3"}, y=RIGHT) == [(Fault.EXTRA, "x", b"c")]
    assert faults(WANTED, x=RIGHT | {b"a": b"9"}, y=RIGHT) == [(Fault.DIFFERENT, "x", b"a")]


def test_replicas_that_agree_on_something_wrong_are_both_wrong() -> None:
    assert len(faults(WANTED, x={b"a": b"1"}, y={b"a": b"1"})) == 2


def test_a_doubtful_write_may_be_anywhere_or_nowhere_but_the_same_on_all() -> None:
    wanted = Wanted({b"a": frozenset((None, b"1"))})
    assert faults(wanted, x={}, y={}) == []
    assert faults(wanted, x={b"a": b"1"}, y={b"a": b"1"}) == []
    assert faults(wanted, x={b"a": b"1"}, y={}) == [(Fault.REPLICAS, "y", b"a")]
    assert faults(wanted, x={b"a": b"2"}) == [(Fault.DIFFERENT, "x", b"a")]


def test_entries_of_other_runs_are_not_judged_but_must_be_equal() -> None:
    wanted = Wanted({}, b"ledger:now:")
    old = {b"ledger:before:1": b"1"}
    assert faults(wanted, x=old, y=old) == []
    assert faults(wanted, x=old, y={}) == [(Fault.REPLICAS, "y", b"ledger:before:1")]
    assert faults(wanted, x={b"ledger:now:1": b"1"}) == [(Fault.EXTRA, "x", b"ledger:now:1")]


def test_the_tally_counts_all_and_keeps_the_first() -> None:
    tally = Tally()
    tally.add(Difference(Fault.MISSING, 0, "m", "k", b"%d" % number) for number in range(30))
    assert tally.faults == {Fault.MISSING: 30}
    assert [each.key for each in tally.differences] == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize(
    ("key", "slot"), [(b"123456789", 12739), (b"foo", 12182), (b"{foo}.bar", 12182), (b"x{}y", 16116)]
)
def test_slots_are_those_of_redis_cluster(key: bytes, slot: int) -> None:
    assert partition_of(key, 16384) == slot


def test_every_partition_is_there_and_every_key_is_in_one() -> None:
    hashes = {b"%d" % number: frozenset((b"h",)) for number in range(100)}
    parts = by_partition(hashes, 7, b"own")
    assert list(parts) == list(range(7))
    assert sum(len(part.hashes) for part in parts.values()) == 100
    assert {part.owned for part in parts.values()} == {b"own"}
