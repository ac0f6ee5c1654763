"""Expired entries go by themselves, everywhere the same, and nothing else does."""

import asyncio
from itertools import pairwise

import pytest

from stele.core.kv.dedup import ONCE
from stele.errors import Corrupt
from stele.member import limits
from stele.member.serving.expiry import Expiry
from tests.simulation.quiet_cluster import QuietCluster, QuietMember


def fill(owner: QuietMember, number: int, value: bytes = b"v") -> None:
    """Entries that are over when the times of day jump."""
    for n in range(number):
        assert owner.ask(b"SET", b"gone%d" % n, value, b"EX", b"100").text == "OK"


def expire(owner: QuietMember) -> None:
    owner.pass_days(200.0)


def test_expired_entries_go_at_every_replica_and_others_stay(quiet: QuietCluster) -> None:
    owner = quiet.members[0]
    fill(owner, 20)
    assert owner.ask(b"SET", b"later", b"v", b"EX", b"500").text == "OK"
    assert owner.ask(b"SET", b"stays", b"v").text == "OK"
    assert owner.ask(ONCE, b"client", b"1", b"INCR", b"n") == 1
    quiet.run(5.0)
    assert owner.replica.entries == 23
    expire(owner)
    quiet.run(3.0)
    for member in quiet.members[:3]:
        assert member.keys() == {b"later", b"stays", b"n", b"client"}
        assert member.replica.entries == 3
    appended = owner.log.last
    quiet.run(5.0)
    assert owner.log.last == appended


def test_what_is_written_again_in_the_meantime_stays(quiet: QuietCluster) -> None:
    owner = quiet.members[0]
    fill(owner, 2)
    expire(owner)

    async def write_around() -> "list[asyncio.Future[object]]":
        before = owner.send(b"SET", b"gone0", b"new")
        node = owner.node
        removed = node.expired_entries.removed
        expiry = Expiry(node.tablets, node.command_executor, node.delayed_replies, node.gate, removed)
        assert expiry.run_once() == 1
        return [before, owner.send(b"SET", b"gone1", b"new")]

    replies = owner.do(write_around)
    quiet.run(3.0)
    assert all(reply.done() for reply in replies)
    for member in quiet.members[:3]:
        assert member.keys() == {b"gone0", b"gone1"}


@pytest.mark.parametrize(("limit", "value", "most"), [("EXPIRY_ENTRIES", 7, 7), ("EXPIRY_BYTES", 1300, 2)])
def test_one_turn_looks_at_a_bounded_piece_and_the_next_goes_on(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, most: int
) -> None:
    """Of 20 entries, each of 600 bytes; a turn is once a second."""
    monkeypatch.setattr(limits, limit, value)
    owner = quiet.members[0]
    fill(owner, 20, bytes(600))
    expire(owner)
    left = [20]
    for _ in range(20):
        quiet.run(1.0)
        left.append(len(owner.keys()))
    assert max(before - after for before, after in pairwise(left)) == most
    assert left[-1] == 0


def test_nothing_is_removed_while_writes_are_refused_or_wait(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = quiet.members[0]
    fill(owner, 3)
    quiet.publish(state="Passive")
    expire(owner)
    quiet.run(3.0)
    assert len(owner.keys()) == 3
    quiet.publish(state="Active")
    monkeypatch.setattr(limits, "PENDING_BYTES_MAX", 0)
    quiet.run(3.0)
    assert len(owner.keys()) == 3
    monkeypatch.setattr(limits, "PENDING_BYTES_MAX", 1)
    quiet.run(3.0)
    assert owner.keys() == set()


def test_a_damaged_tablet_goes_offline_and_nothing_else_ends(
    quiet: QuietCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = quiet.members[0]
    fill(owner, 3)

    def damaged(*_: object) -> None:
        raise Corrupt("database: block checksum mismatch")

    monkeypatch.setattr(owner.node.engine._engine, "scan", damaged)
    quiet.run(2.0)
    assert "block checksum mismatch" in owner.replica.broken
    assert owner.process.loop.alive
