"""What an owner tells members whose clients cache its keys: one test for each rule."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.member.tracking import invalidations
from stele.member.tracking.invalidations import Invalidations
from stele.ports.near_caches import Track
from stele.wire import peer
from stele.wire.storage.keys import user_tail

ME, FIRST, SECOND = 0, 1, 2
TERM = 5


def names(*keys: bytes) -> list[bytes]:
    return [user_tail(b"default", key) for key in keys]


class Session:
    """A member's connection: what was sent on it."""

    def __init__(self, sender: int) -> None:
        self.sender, self.sent, self.open = sender, list[Any](), True

    def push(self, message: Any, size: int) -> bool:
        if self.open:
            self.sent.append(message)
        return self.open


class Tablets:
    """The part of the store that is used: who watches it."""

    def __init__(self, replicas: dict[int, Any]) -> None:
        self.me, self.replicas = ME, replicas
        self.on_applied: Any = None
        self.on_replaced: Any = None

    def watch(self, on_applied: Any, on_replaced: Any) -> None:
        self.on_applied, self.on_replaced = on_applied, on_replaced

    @property
    def watched(self) -> bool:
        return self.on_applied is not None


class Owner:
    """The owner of partition 3, and two members with sessions."""

    def __init__(self) -> None:
        self.sessions = {FIRST: Session(FIRST), SECOND: Session(SECOND)}
        self.here: list[peer.Invalidate] = []
        self.readable = True
        log = SimpleNamespace(term_at=lambda index: TERM)
        tablet = SimpleNamespace(log=log)
        self.replica = SimpleNamespace(
            partition=3, tablet=tablet, owner=SimpleNamespace(term=TERM), waiters=[]
        )
        self.tablets = Tablets({3: self.replica})
        self.part = Invalidations(
            cast(Any, self.tablets),
            lambda replica: self.readable,
            cast(Any, self.sessions.get),
            self.here.append,
        )

    def read(self, member: int, *keys: bytes) -> None:
        self.part.register(3, Track(member, names(*keys)))

    def apply(self, *changes: tuple[int, bytes]) -> None:
        if self.tablets.on_applied is not None:
            changed = [(index, user_tail(b"default", key)) for index, key in changes]
            self.tablets.on_applied(self.replica, changed)

    def wrote(self, member: int, writer: int, index: int) -> None:
        request = SimpleNamespace(index=index, writes=1)
        self.part.wrote(cast(Any, self.replica), cast(Any, request), Track(member, [], writer))


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_each_member_that_read_a_key_is_told_once(owner: Owner) -> None:
    owner.read(FIRST, b"a", b"b")
    owner.read(SECOND, b"b")
    owner.read(ME, b"b")
    owner.apply((1, b"a"), (2, b"b"), (3, b"unread"))
    owner.apply((4, b"b"))
    assert owner.sessions[FIRST].sent == [peer.Invalidate(3, names(b"a", b"b"))]
    assert owner.sessions[SECOND].sent == owner.here == [peer.Invalidate(3, names(b"b"))]


def test_nothing_is_handed_over_while_nobody_is_interested(owner: Owner) -> None:
    assert owner.tablets.on_applied is None
    owner.read(FIRST, b"a")
    assert owner.tablets.on_applied is not None
    owner.apply((1, b"a"))
    owner.part.tick()
    assert owner.tablets.on_applied is None


def test_what_may_not_be_read_any_more_is_taken_back(owner: Owner) -> None:
    owner.read(FIRST, b"a")
    owner.part.tick()
    assert not owner.sessions[FIRST].sent
    owner.readable = False
    owner.part.tick()
    owner.part.tick()
    assert owner.sessions[FIRST].sent == [peer.Invalidate(3)]
    assert not owner.sessions[SECOND].sent


def test_a_tablet_that_is_gone_is_taken_back(owner: Owner) -> None:
    owner.read(ME, b"a")
    owner.tablets.replicas.clear()
    owner.part.tick()
    assert owner.here == [peer.Invalidate(3)]


def test_a_bulk_load_takes_the_partition_back(owner: Owner) -> None:
    owner.read(FIRST, b"a")
    owner.tablets.on_replaced(3)
    assert owner.sessions[FIRST].sent == [peer.Invalidate(3)]


def test_what_is_evicted_is_told(owner: Owner) -> None:
    owner.part._interest._keys_max = 1
    owner.read(FIRST, b"a")
    owner.part.register(4, Track(SECOND, names(b"z")))
    assert owner.sessions[FIRST].sent == [peer.Invalidate(3, names(b"a"))]
    assert owner.part.keys == 1


def test_a_long_list_is_told_in_parts(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invalidations, "NAMES_AT_ONCE", 2)
    owner.read(FIRST, b"a", b"b", b"c")
    owner.apply((1, b"a"), (1, b"b"), (1, b"c"))
    assert [message.names for message in owner.sessions[FIRST].sent] == [names(b"a", b"b"), names(b"c")]


def test_the_writer_is_named_to_its_member_alone(owner: Owner) -> None:
    for member in (FIRST, SECOND):
        owner.read(member, b"a")
    owner.wrote(FIRST, 77, 1)
    owner.apply((1, b"a"))
    assert owner.sessions[FIRST].sent == [peer.Invalidate(3, names(b"a"), 77)]
    assert owner.sessions[SECOND].sent == [peer.Invalidate(3, names(b"a"))]
    # The writer still caches what it wrote, so it hears of the next write of another.
    owner.apply((2, b"a"))
    assert owner.sessions[FIRST].sent[1:] == [peer.Invalidate(3, names(b"a"))]


def test_a_write_of_another_in_the_same_step_is_told_to_all(owner: Owner) -> None:
    owner.read(FIRST, b"a")
    owner.wrote(FIRST, 77, 2)
    owner.apply((1, b"a"), (2, b"a"))
    assert owner.sessions[FIRST].sent == [peer.Invalidate(3, names(b"a"))]


def test_an_operation_of_another_term_has_another_writer(owner: Owner) -> None:
    owner.read(FIRST, b"a")
    owner.wrote(FIRST, 77, 1)
    owner.replica.tablet.log.term_at = lambda index: TERM + 1
    owner.apply((1, b"a"))
    assert owner.sessions[FIRST].sent == [peer.Invalidate(3, names(b"a"))]


# -- broadcasts


def test_broadcasts_are_told_of_all_writes_with_their_prefix(owner: Owner) -> None:
    first = owner.sessions[FIRST]
    owner.part.on_broadcast(cast(Any, first), peer.Broadcast([b"user:"]))
    owner.part.broadcast(None, [b""])
    owner.apply((1, b"user:1"), (2, b"other"))
    assert first.sent == [peer.Invalidate(3, names(b"user:1"))]
    assert owner.here == [peer.Invalidate(3, names(b"user:1", b"other"))]
    owner.part.on_broadcast(cast(Any, first), peer.Broadcast([]))
    owner.apply((3, b"user:2"))
    assert len(first.sent) == 1


def test_a_member_that_reads_and_hears_broadcasts_is_told_once(owner: Owner) -> None:
    owner.part.broadcast(None, [b"a"])
    owner.read(ME, b"a", b"b")
    owner.wrote(ME, 77, 2)
    owner.apply((1, b"a"), (2, b"ab"), (3, b"b"))
    assert owner.here == [peer.Invalidate(3, names(b"a", b"b")), peer.Invalidate(3, names(b"ab"), 77)]


def test_backups_broadcast_only_what_they_answer(owner: Owner) -> None:
    """What they logged as the owner, and another one commits."""
    owner.part.broadcast(None, [b""])
    owner.replica.owner = None
    owner.apply((1, b"a"))
    owner.replica.waiters = ["a write"]
    owner.apply((2, b"b"))
    assert owner.here == [peer.Invalidate(3, names(b"b"))]


def test_broadcasts_leave_out_the_state_of_partitions_and_services(owner: Owner) -> None:
    owner.part.broadcast(None, [b""])
    for keyspace in (b"", b"@service"):
        owner.tablets.on_applied(owner.replica, [(1, user_tail(keyspace, b"k"))])
    assert not owner.here


def test_broadcasts_are_told_when_what_they_read_may_not_be_read_any_more(owner: Owner) -> None:
    first = owner.sessions[FIRST]
    owner.part.on_broadcast(cast(Any, first), peer.Broadcast([b"a"]))
    owner.readable = False
    owner.part.tick()
    assert not first.sent
    owner.part.register(3, Track(FIRST, []))
    owner.part.tick()
    owner.part.tick()
    assert first.sent == [peer.Invalidate(3)]


def test_a_session_that_ended_gets_no_broadcasts_any_more(owner: Owner) -> None:
    first = owner.sessions[FIRST]
    owner.part.on_broadcast(cast(Any, first), peer.Broadcast([b""]))
    first.open = False
    owner.apply((1, b"a"))
    owner.part.tick()
    assert owner.tablets.on_applied is None
