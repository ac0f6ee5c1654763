"""Expired entries go by themselves, everywhere the same, and nothing else does."""

from typing import Any

import pytest

from stele.core.kv.dedup import ONCE
from stele.errors import Corrupt
from stele.member import limits
from stele.member.serving.executor import PASSIVE
from stele.member.serving.expiry import Expiry
from stele.wire.storage.keys import split_user
from tests.member.sim import SimFuture, SimMember, ask
from tests.member.test_simulation import Sim, shrink


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Sim:
    """A deterministic cluster that serves, with small logs and no trouble."""
    shrink(monkeypatch.setattr)
    sim = Sim(0)
    sim.loop.run(3)
    return sim


def fill(owner: SimMember, number: int, seconds: int) -> None:
    for n in range(number):
        assert ask(owner, b"SET", b"gone%d" % n, b"v", b"EX", b"%d" % seconds).text == "OK"


def held(member: SimMember) -> set[bytes]:
    found = (split_user(key) for key, _ in member.entries())
    return {split[1] for split in found if split is not None}


def until_quiet(sim: Sim) -> None:
    sim.loop.run(sim.loop.now + 3)


def test_expired_entries_go_at_every_replica_and_others_stay(quiet: Sim) -> None:
    owner = quiet.members[0]
    fill(owner, 20, 100)
    assert ask(owner, b"SET", b"later", b"v", b"EX", b"500").text == "OK"
    assert ask(owner, b"SET", b"stays", b"v").text == "OK"
    assert ask(owner, ONCE, b"client", b"1", b"INCR", b"n") == 1
    expiry = Expiry(owner.command_executor)
    assert expiry.run_once({0: owner.replica}) == 0
    quiet.loop.wall_at_start += 200
    assert expiry.run_once({0: owner.replica}) == 20
    assert expiry.run_once({0: owner.replica}) == 0
    until_quiet(quiet)
    for member in quiet.members[:3]:
        assert held(member) == {b"later", b"stays", b"n", b"client"}
        assert member.replica.entries == 3
    assert expiry.run_once({0: owner.replica}) == 0


def test_what_is_written_again_in_the_meantime_stays(quiet: Sim) -> None:
    owner = quiet.members[0]
    fill(owner, 2, 100)
    quiet.loop.wall_at_start += 200
    replies: list[Any] = []
    assert owner.call([b"SET", b"gone0", b"new"], SimFuture(replies.append))
    assert Expiry(owner.command_executor).run_once({0: owner.replica}) == 1
    assert owner.call([b"SET", b"gone1", b"new"], SimFuture(replies.append))
    until_quiet(quiet)
    assert len(replies) == 2
    for member in quiet.members[:3]:
        assert held(member) == {b"gone0", b"gone1"}


def test_one_turn_looks_at_a_bounded_piece_and_the_next_goes_on(
    quiet: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "EXPIRY_ENTRIES", 7)
    owner = quiet.members[0]
    fill(owner, 20, 100)
    quiet.loop.wall_at_start += 200
    expiry, removed = Expiry(owner.command_executor), []
    for _ in range(8):
        removed.append(expiry.run_once({0: owner.replica}))
        until_quiet(quiet)
    assert sum(removed) == 20
    assert 0 < max(removed) <= 7
    assert held(owner) == set()


def test_large_entries_are_read_in_smaller_pieces(quiet: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXPIRY_BYTES", 1000)
    owner = quiet.members[0]
    for n in range(6):
        assert ask(owner, b"SET", b"k%d" % n, bytes(600), b"EX", b"100").text == "OK"
    read: list[int] = []
    scan = owner.engine.scan

    def watched(begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        page = scan(begin, end, limit)
        read.append(sum(len(value) for _, value in page))
        return page

    monkeypatch.setattr(owner.engine, "scan", watched)
    quiet.loop.wall_at_start += 200
    expiry = Expiry(owner.command_executor)
    for _ in range(9):
        before = sum(read)
        expiry.run_once({0: owner.replica})
        assert sum(read) - before < 1000
    until_quiet(quiet)
    assert held(owner) == set()


def test_nothing_is_removed_while_writes_are_refused_or_wait(
    quiet: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = quiet.members[0]
    fill(owner, 3, 100)
    quiet.loop.wall_at_start += 200
    expiry = Expiry(owner.command_executor)
    owner.command_executor.refusal = PASSIVE
    assert expiry.run_once({0: owner.replica}) == 0
    owner.command_executor.refusal = None
    monkeypatch.setattr(limits, "PENDING_BYTES_MAX", 0)
    assert expiry.run_once({0: owner.replica}) == 0
    monkeypatch.setattr(limits, "PENDING_BYTES_MAX", 1)
    backup = quiet.members[1]
    assert expiry.run_once({0: backup.replica}) == 0
    assert expiry.run_once({0: owner.replica}) == 3


def test_a_damaged_tablet_goes_offline_and_nothing_else_ends(
    quiet: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = quiet.members[0]
    fill(owner, 3, 100)

    def damaged(*_: object) -> None:
        raise Corrupt("database: block checksum mismatch")

    monkeypatch.setattr(owner.engine, "scan", damaged)
    assert Expiry(owner.command_executor).run_once({0: owner.replica}) == 0
    assert "block checksum mismatch" in owner.replica.broken
