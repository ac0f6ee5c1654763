"""Values that a member keeps for a keyspace with a near cache: one test for each rule."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.core.formats import TRACKING
from stele.core.kv.commands import Reply
from stele.core.kv.keyspaces import Catalog, NearCache, Settings
from stele.core.table.table import Partition
from stele.member.replication.keyspaces import Keyspaces
from stele.member.replication.request import Request, RequestKind
from stele.member.tracking.near_caches import NearCaches
from stele.member.tracking.near_values import VALUE_BYTES, NearValues
from stele.wire import peer
from stele.wire.storage.keys import user_tail

OWNER = 1
NEAR = b"near"


class Outcome:
    def __init__(self) -> None:
        self.result: Any = None

    def done(self) -> bool:
        return self.result is not None

    def set_result(self, result: list[Reply]) -> None:
        self.result = result

    def set_exception(self, error: BaseException) -> None:
        self.result = error


class Member:
    """One member that owns nothing, and the owner of partition 0, which has said something just now."""

    def __init__(self, bytes_max: int = 10_000, seconds: int = 60) -> None:
        self.now = 100.0
        self.keyspaces = Keyspaces()
        self.declare(NearCache(bytes_max, seconds))
        self.rows = [Partition(1, (OWNER,))]
        table = SimpleNamespace(me=0, rows=self.rows)
        self.link: Any = SimpleNamespace(member=OWNER, format=TRACKING)
        self.caches = NearCaches(cast(Any, table), {}, lambda: self.now, lambda prefixes: None)
        self.values = NearValues(self.keyspaces, self.caches, lambda: self.now)
        self.vouch()

    def declare(self, near: NearCache | None) -> None:
        self.keyspaces.use(Catalog(1, {NEAR.decode(): Settings(near_cache=near)}))

    def vouch(self) -> None:
        self.caches.vouched(self.link, peer.Lease(self.now, 4.0, ()))

    def ask(self, *keys: bytes, name: bytes = b"GET", keyspace: bytes = NEAR) -> Request:
        request = Request(RequestKind.EXECUTE, 0, keyspace, Outcome())
        request.commands = [[name, key] for key in keys]
        return request

    def get(self, *keys: bytes, owner: tuple[Reply, ...] = ()) -> Any:
        """What is read; the owner answers, if it is asked, with these replies to GET and PTTL."""
        request = self.ask(*keys)
        found = self.values.answer(request)
        if found is not None:
            return found
        outcome = cast(Any, request.future)._outcome
        request.done(list(owner))
        return outcome.result

    def changed(self, key: bytes) -> None:
        self.caches.invalidate(peer.Invalidate(0, [user_tail(NEAR, key)]))


@pytest.fixture
def member() -> Member:
    return Member()


def test_what_the_owner_answered_is_kept(member: Member) -> None:
    assert member.get(b"a", b"b", owner=(b"1", -1, None, -2)) == [b"1", None]
    assert member.get(b"b", b"a") == [None, b"1"]
    assert (member.values.hits, member.values.misses) == (2, 2)


def test_what_changes_is_dropped(member: Member) -> None:
    member.get(b"a", owner=(b"1", -1))
    member.changed(b"a")
    assert member.get(b"a", owner=(b"2", -1)) == [b"2"]


def test_what_changes_while_it_is_read_is_not_kept(member: Member) -> None:
    request = member.ask(b"a")
    assert member.values.answer(request) is None
    member.changed(b"a")
    request.done([b"1", -1])
    assert member.get(b"a", owner=(b"2", -1)) == [b"2"]


def test_a_new_row_empties_it(member: Member) -> None:
    member.get(b"a", owner=(b"1", -1))
    member.caches.row_changed(0)
    assert member.values.answer(member.ask(b"a")) is None


def test_the_clock_decides_whether_the_owner_vouches_for_it(member: Member) -> None:
    """A process that was stopped reads requests before it does anything else."""
    member.get(b"a", owner=(b"1", -1))
    member.now += 4
    assert member.get(b"a", owner=(b"2", -1)) == [b"2"]
    member.vouch()
    assert member.values.answer(member.ask(b"a")) is None


def test_a_value_is_kept_for_its_seconds_and_no_longer_than_it_lives(member: Member) -> None:
    member.get(b"a", b"b", owner=(b"1", -1, b"2", 1500))
    member.now += 1.4
    assert member.get(b"b") == [b"2"]
    member.now += 0.2
    assert member.values.answer(member.ask(b"b")) is None
    member.vouch()
    assert member.get(b"a") == [b"1"]
    for _ in range(30):
        member.now += 2
        member.vouch()
    assert member.values.answer(member.ask(b"a")) is None


def test_its_bytes_are_bounded() -> None:
    member = Member(bytes_max=3 * VALUE_BYTES)
    for key in (b"a", b"b", b"c"):
        member.get(key, owner=(b"1", -1))
    assert member.values.answer(member.ask(b"a")) is None
    assert member.get(b"b", b"c") == [b"1", b"1"]
    member.get(b"long", owner=(b"x" * 5 * VALUE_BYTES, -1))
    assert member.values._values[NEAR].held_bytes == 0


def test_only_reads_of_such_keyspaces_are_answered_from_it(member: Member) -> None:
    member.get(b"a", owner=(b"1", -1))
    assert member.values.answer(member.ask(b"a", keyspace=b"other")) is None
    assert member.values.answer(member.ask(b"a", name=b"STRLEN")) is None
    forwarded = member.ask(b"a")
    forwarded.version = 1
    assert member.values.answer(forwarded) is None
    caching = member.ask(b"a")
    caching.track = member.caches.begin(member.values._values[NEAR], 0, [])
    assert member.values.answer(caching) is None


def test_a_connection_that_reads_from_backups_is_not_taken_back(member: Member) -> None:
    """A backup may have told it what the owner has not told the near cache yet."""
    member.get(b"a", owner=(b"1", -1))
    request = member.ask(b"a")
    request.saw = lambda operation: None
    assert member.values.answer(request) == [b"1"]
    member.rows[0] = Partition(1, (OWNER, 0))
    assert member.values.answer(request) is None
    assert member.get(b"a") == [b"1"]


def test_an_error_and_a_short_answer_are_passed_on(member: Member) -> None:
    assert member.get(b"a", b"b", owner=(b"1", -1, b"2")) == [b"1", b"2"]
    assert member.get(b"a") == [b"1"]
    assert member.get(b"b", owner=()) == []
    assert not member.values._values[NEAR].fills


def test_a_keyspace_without_a_near_cache_is_forgotten(member: Member) -> None:
    member.get(b"a", owner=(b"1", -1))
    member.declare(None)
    assert member.values.answer(member.ask(b"a")) is None
    member.values.tick()
    assert not member.values._values
    assert member.caches.clients == 0
