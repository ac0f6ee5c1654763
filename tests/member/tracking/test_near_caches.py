"""Which clients of a member drop what, and when: one test for each rule."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stele.core.formats import FIRST, TRACKING
from stele.core.kv.interest import PREFIXES_MAX
from stele.core.table.table import Partition
from stele.member.tracking import near_caches
from stele.member.tracking.near_caches import NearCaches
from stele.ports.near_caches import TooManyBroadcastsError
from stele.wire import peer
from stele.wire.storage.keys import user_tail

ME, OWNER, OTHER = 0, 1, 2
ROWS = [Partition(1, (OWNER, OTHER)), Partition(1, (ME, OWNER)), Partition(1, (OTHER, ME))]
KEYS = [b"a", b"b"]


class Client:
    """A client that writes down what it has to drop."""

    def __init__(self, id: int, keyspace: bytes = b"default") -> None:
        self.id, self.keyspace = id, keyspace
        self.dropped: list[bytes | None] = []

    def invalidate(self, keys: Sequence[bytes]) -> None:
        self.dropped += keys

    def invalidate_all(self) -> None:
        self.dropped.append(None)


class Member:
    """One member, whose clock stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        self.announced: list[list[bytes]] = []
        self.sent: list[Any] = []
        self.table = SimpleNamespace(me=ME, rows=list(ROWS))
        self.link = SimpleNamespace(member=OWNER, format=TRACKING, send=self.sent.append)
        self.caches = NearCaches(
            cast(Any, self.table),
            cast(Any, {OWNER: self.link}),
            lambda: self.now,
            lambda prefixes: self.announced.append(list(prefixes)),
        )
        self.vouch()

    def vouch(self, asked: float | None = None) -> None:
        lease = peer.Lease(self.now if asked is None else asked, 4.0, ())
        self.caches.vouched(cast(Any, self.link), lease)

    def client(self, id: int = 7, keyspace: bytes = b"default") -> Client:
        client = Client(id, keyspace)
        self.caches.open(client)
        return client

    def read(self, client: Client, partition: int = 0, keys: Sequence[bytes] = KEYS, **how: Any) -> None:
        track = self.caches.begin(client, partition, keys, **how)
        self.caches.end(client, partition, keys, track)

    def changed(
        self, *keys: bytes, partition: int = 0, keyspace: bytes = b"default", writer: int = 0
    ) -> None:
        names = [user_tail(keyspace, key) for key in keys]
        self.caches.invalidate(peer.Invalidate(partition, names, writer))


@pytest.fixture
def member() -> Member:
    return Member()


def test_a_change_is_told_once_to_those_that_read_the_key(member: Member) -> None:
    one, two, three = member.client(7), member.client(8), member.client(9, b"other")
    for client in (one, two, three):
        member.read(client, keys=[b"a"])
    member.changed(b"a", b"unread")
    member.changed(b"a")
    assert (one.dropped, two.dropped, three.dropped) == ([b"a"], [b"a"], [])


def test_a_change_while_the_read_is_under_way_is_told(member: Member) -> None:
    client = member.client()
    track = member.caches.begin(client, 0, KEYS)
    assert track.names == [user_tail(b"default", key) for key in KEYS]
    member.changed(b"a")
    member.caches.end(client, 0, KEYS, track)
    assert client.dropped == [b"a"]


def test_a_new_row_drops_the_partition(member: Member) -> None:
    client = member.client()
    member.read(client)
    member.read(client, 1, [b"mine"])
    member.caches.row_changed(0)
    assert client.dropped == KEYS
    member.changed(b"a")
    assert client.dropped == KEYS


def test_a_keyspace_that_gets_other_partitions_is_dropped(member: Member) -> None:
    """Also what is being read: the answer is from where it was."""
    one, other = member.client(7, b"orders"), member.client(8, b"orders2")
    for client in (one, other):
        member.read(client)
    track = member.caches.begin(one, 1, [b"mine"])
    member.caches.moved({b"orders", b"elsewhere"})
    member.caches.end(one, 1, [b"mine"], track)
    assert (sorted(one.dropped), other.dropped) == (sorted([*KEYS, b"mine"]), [])


def test_an_answer_that_began_under_an_older_row_is_dropped(member: Member) -> None:
    client = member.client()
    track = member.caches.begin(client, 0, [b"a"])
    member.caches.row_changed(0)
    member.caches.end(client, 0, [b"a"], track)
    assert client.dropped == [b"a"]


def test_the_end_of_a_session_drops_what_its_owner_owns(member: Member) -> None:
    client = member.client()
    for partition, key in ((0, b"theirs"), (1, b"mine")):
        member.read(client, partition, [key])
    member.caches.session_ended(OWNER)
    assert client.dropped == [b"theirs"]


def test_an_answer_without_a_session_that_vouches_is_dropped_at_once(member: Member) -> None:
    client = member.client()
    member.caches.session_ended(OWNER)
    member.read(client, 0, [b"a"])
    assert client.dropped == [b"a"]
    member.vouch()
    member.read(client, 0, [b"b"])
    assert client.dropped == [b"a"]


def test_an_answer_of_an_owner_of_an_earlier_build_is_dropped_at_once(member: Member) -> None:
    client = member.client()
    track = member.caches.begin(client, 0, [b"a"])
    track.lost = True
    member.caches.end(client, 0, [b"a"], track)
    assert client.dropped == [b"a"]


def test_silence_for_a_lease_drops_what_the_owner_owns(member: Member) -> None:
    client = member.client()
    member.read(client)
    member.now += 3.7
    member.caches.tick()
    assert not client.dropped
    member.now += 0.1
    member.caches.tick()
    assert client.dropped == KEYS


def test_a_heartbeat_counts_from_when_it_was_asked(member: Member) -> None:
    """What it vouches for may have waited in the socket of a process that was stopped."""
    client = member.client()
    member.read(client)
    asked, member.now = member.now + 1, member.now + 30
    member.vouch(asked)
    assert client.dropped == KEYS
    member.read(client, 0, [b"a"])
    assert client.dropped == [*KEYS, b"a"]


def test_a_heartbeat_after_a_gap_does_not_vouch_for_what_was_before(member: Member) -> None:
    client = member.client()
    member.read(client)
    member.now += 4
    member.vouch()
    assert client.dropped == KEYS


def test_what_is_forgotten_is_dropped(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    member.caches._interest._keys_max = 3
    client = member.client()
    member.read(client, 0, [b"a", b"b", b"c"])
    assert not client.dropped
    member.read(client, 1, [b"d"])
    assert client.dropped == [b"a", b"b", b"c"]
    assert member.caches.keys <= 3


def test_who_does_not_want_to_hear_of_its_own_writes_hears_of_those_of_others(member: Member) -> None:
    one, two = member.client(7), member.client(8)
    for client in (one, two):
        member.read(client, keys=[b"a"], noloop=client is one)
    member.changed(b"a", writer=one.id)
    assert (one.dropped, two.dropped) == ([], [b"a"])
    member.changed(b"a")
    assert one.dropped == [b"a"]


def test_a_client_that_is_gone_is_not_told(member: Member) -> None:
    client = member.client()
    member.read(client)
    member.caches.close(client)
    member.changed(b"a")
    assert not client.dropped


# -- broadcasts


def test_broadcasts_are_told_of_all_keys_with_their_prefix_in_their_keyspace(member: Member) -> None:
    one, two = member.client(7), member.client(8, b"other")
    member.caches.broadcast(one, [b"user:", b"x"])
    member.caches.broadcast(two, [b""])
    assert member.announced == [[b"user:", b"x"], [b"user:", b"x", b""]]
    assert member.sent[-1] == peer.Broadcast([b"user:", b"x", b""])
    member.changed(b"user:1", b"user", b"xyz", partition=2)
    member.changed(b"q", keyspace=b"other")
    assert (one.dropped, two.dropped) == ([b"user:1", b"xyz"], [b"q"])
    member.changed(b"x1", writer=one.id)
    assert one.dropped == [b"user:1", b"xyz"]


def test_what_a_client_read_before_it_asked_for_broadcasts_is_told_once(member: Member) -> None:
    client = member.client()
    member.read(client, keys=[b"a", b"b"])
    member.caches.broadcast(client, [b"a"])
    member.changed(b"a", b"b")
    assert client.dropped == [b"a"]


def test_broadcasts_end_with_the_client(member: Member) -> None:
    client = member.client()
    member.caches.broadcast(client, [b"a"])
    member.caches.close(client)
    assert member.announced[-1] == []
    assert member.sent[-1] == peer.Broadcast([])
    member.changed(b"a")
    assert not client.dropped


def test_a_new_session_is_asked_for_broadcasts(member: Member) -> None:
    member.caches.session_began(cast(Any, member.link))
    assert not member.sent
    member.caches.broadcast(member.client(), [b"a"])
    member.sent.clear()
    member.caches.session_began(cast(Any, member.link))
    assert member.sent == [peer.Broadcast([b"a"])]
    member.link.format = FIRST
    member.sent.clear()
    member.caches.session_began(cast(Any, member.link))
    assert not member.sent


@pytest.mark.parametrize("missed", ["row", "session", "silence", "owner"])
def test_who_gets_broadcasts_drops_everything_when_some_may_be_missed(member: Member, missed: str) -> None:
    client = member.client()
    member.caches.broadcast(client, [b"a"])
    if missed == "row":
        member.caches.row_changed(2)
    elif missed == "session":
        member.caches.session_ended(OWNER)
    elif missed == "silence":
        member.now += 4
        member.caches.tick()
    else:
        member.caches.invalidate(peer.Invalidate(1))
    assert client.dropped == [None]


def test_broadcasts_are_bounded(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooManyBroadcastsError, match="ask for 1024 prefixes, which is the limit"):
        member.caches.broadcast(member.client(), [b"%d" % n for n in range(PREFIXES_MAX + 1)])
    with pytest.raises(TooManyBroadcastsError, match="exceed 65536 bytes"):
        member.caches.broadcast(member.client(), [b"p" * 65_537])
    monkeypatch.setattr(near_caches, "BROADCASTING_MAX", 1)
    member.caches.broadcast(member.client(1), [b"a"])
    with pytest.raises(TooManyBroadcastsError, match="1 clients of this member are in BCAST mode"):
        member.caches.broadcast(member.client(2), [b"a"])
