"""Each rule that clients and subscribers check themselves is broken once: it must complain."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from stele.core.kv.commands import Failure
from stele.core.kv.notifications import ARRIVED, DEPARTED
from stele.wire.peer import EventBatch
from tests.fakes.loop import ProcessLoop
from tests.simulation.bank import SUMS, Bank
from tests.simulation.cluster_clients import NOT_FORWARDED, REDIRECTED, ClusterClient
from tests.simulation.expiring_clients import TAKEN_ONCE, ExpiringClient
from tests.simulation.families.registry import draw
from tests.simulation.history import RECENT, Operation, Violation, check
from tests.simulation.ledger import COUNTED, WHOLE, Ledger
from tests.simulation.redis_clients import LIFETIME, SCANNED, RedisClient
from tests.simulation.resp_subscribers import ARRIVALS, EXPIRATIONS, RespSubscribers
from tests.simulation.serializability.transactions import SERIALIZABLE, Append, Outcome, Read
from tests.simulation.subscribers import APPLIED, DEPARTED_ONCE, HEARD
from tests.simulation.tracking_clients import OVERTAKEN, TrackingClient
from tests.simulation.transfer_clients import TransferClient
from tests.simulation.world import World

SECONDS = 6.0
"""A cluster without faults has its table, serves, and has its subscribers by then."""
KEY = b"life-1"


@pytest.fixture
def world() -> Iterator[World]:
    profile = draw(1, "subscriptions")
    with (
        (calm := replace(profile, faults=(), rates={}, clients=1, members=3, expiring_clients=0)).turned(),
        World(calm) as made,
    ):
        made.clock.run(SECONDS)
        yield made


def _client(world: World, make: Callable[..., Any] = RedisClient, **parts: Any) -> Any:
    """A client that does nothing by itself."""
    made = make("client-x", world.network, world.kubelet, world.keys, world.trace, **parts)
    made._loop.kill()
    world.clients.append(made)
    return made


def _answers(client: Any, *replies: Sequence[Any]) -> None:
    """Have each request answered with the next of these, and the last one again and again."""
    left = deque(replies)

    async def call(*_: Any) -> Sequence[Any]:
        return left.popleft() if len(left) > 1 else left[0]

    client._call = client._call_at = call


def _rule_of(world: World, work: Callable[[], Awaitable[object]]) -> str:
    """The rule that a piece of a client's work breaks."""
    loop = ProcessLoop(world.clock, "client-y", world.network)

    async def run() -> None:
        try:
            await work()
        except Violation as violation:
            world.clock.fail(violation)

    loop.create_task(run())
    with pytest.raises(Violation) as found:
        world.clock.run(world.clock.now + 30.0)
    loop.kill()
    return found.value.rule


# -- Redis clients


def test_a_scan_without_a_key_that_is_there_is_found(world: World) -> None:
    client = _client(world)
    client._kept = dict.fromkeys([b"kept-client-x-%d" % number for number in range(6)], 0.0)
    _answers(client, [[b"0", [b"kept-client-x-1"]]])
    machine = world.kubelet.running()[0]
    assert _rule_of(world, lambda: client._scan(machine)) == SCANNED


@pytest.mark.parametrize("replies", [([b"OK"], [None]), ([b"OK"], [b"brief"])])
def test_an_entry_that_is_gone_too_early_or_stays_is_found(world: World, replies: Any) -> None:
    client = _client(world)
    _answers(client, *replies)
    machine = world.kubelet.running()[0]

    async def brief() -> None:
        while True:
            await client._brief(machine)
            await asyncio.sleep(0.1)

    assert _rule_of(world, brief) == LIFETIME


@pytest.mark.parametrize(
    ("values", "rule"), [((1, 0, 1), WHOLE), ((1, -1, 3), COUNTED), ((1, -1, 0), COUNTED)]
)
def test_a_transaction_that_is_not_whole_is_found(values: tuple[int, ...], rule: str) -> None:
    ledger = Ledger(0)
    ledger.begun = 2
    with pytest.raises(Violation) as found:
        ledger.check(values, 1)
    assert found.value.rule == rule


def test_a_count_that_is_written_twice_is_found() -> None:
    ledger = Ledger(0)
    ledger.transferred(1)
    with pytest.raises(Violation) as found:
        ledger.transferred(1)
    assert found.value.rule == COUNTED


@pytest.mark.parametrize("values", [[b"1", None, None], [1, -1, Failure("ERR", "not run")]])
def test_accounts_with_another_sum_are_found(world: World, values: list[Any]) -> None:
    client = _client(world, TransferClient, bank=world.bank)
    _answers(client, [b"OK", values])
    machine = world.kubelet.running()[0]
    assert _rule_of(world, lambda: client._audit_any(machine)) == SUMS


@pytest.mark.parametrize("reply", [Failure("EXECABORT", "refused"), None, [2]])
def test_what_clients_are_told_of_a_transaction_counts(world: World, reply: Any) -> None:
    """An append that was refused, or given up since something watched has changed, is never read."""
    bank = Bank(apart=False)
    client, group = _client(world, TransferClient, bank=bank), bank.groups[0]
    key, now = group.lists()[0], world.clock.now
    client._end(bank.begin("a", [Append(key, b"1")], now), reply)
    client._end(bank.begin("b", [Read(key)], now), [b"1 "])
    if reply == [2]:
        bank.check(world.trace)
        return
    assert bank.transactions[0].outcome is Outcome.ABORTED
    with pytest.raises(Violation) as found:
        bank.check(world.trace)
    assert found.value.rule == SERIALIZABLE


@pytest.mark.parametrize(
    ("replies", "found"), [([b"v", b"v"], None), ([None, None], None), ([b"v", None], b"v")]
)
def test_a_value_that_is_not_taken_once_is_found(world: World, replies: list[Any], found: Any) -> None:
    client = _client(world, ExpiringClient)
    client.check_taken(KEY, [b"v", None], None)
    client.check_taken(KEY, [None, Failure("ERR", "no answer")], b"v")
    with pytest.raises(Violation) as violation:
        client.check_taken(KEY, replies, found)
    assert violation.value.rule == TAKEN_ONCE


# -- clients that follow the map


def test_members_that_redirect_in_a_circle_are_found(world: World) -> None:
    client = _client(world, ClusterClient)
    _answers(client, [Failure("MOVED", "0 nowhere:6380")])
    assert _rule_of(world, lambda: client._check_at_rest(world.kubelet.running())) == REDIRECTED


def test_members_that_forward_are_found(world: World) -> None:
    client, machines = _client(world, ClusterClient), world.kubelet.running()
    node = machines[0].node
    assert node is not None

    async def follow(*_: object) -> tuple[object, int]:
        node.router._counters.forwarded += 1
        return object(), 0

    client._follow = follow
    assert _rule_of(world, lambda: client._check_at_rest(machines)) == NOT_FORWARDED


# -- clients with caches


@pytest.fixture
def tracking(world: World) -> Any:
    client = _client(world, TrackingClient, told=world.invalidations)
    client._data = client._heard = client
    return client


def test_a_value_older_than_an_invalidation_before_it_is_found(world: World, tracking: Any) -> None:
    told = world.invalidations
    told._index_of = {(b"k", b"old"): 1, (b"k", b"new"): 2}
    told._pushed[0] = deque([{b"k": 2}])
    tracking._fill([b"GET", b"k"], b"old")
    tracking._hear([b"invalidate", [b"k"]])
    assert tracking._cache == {}
    tracking._fill([b"GET", b"k"], b"new")
    assert world.clock.failure is None
    tracking._fill([b"GET", b"k"], b"old")
    assert isinstance(world.clock.failure, Violation)
    assert world.clock.failure.rule == OVERTAKEN


@pytest.mark.parametrize(("leases", "faults", "rule"), [(1, 1, ""), (3, 1, RECENT), (1, 0, RECENT)])
def test_a_value_that_was_cached_for_too_long_is_found(
    world: World, tracking: Any, leases: int, faults: int, rule: str
) -> None:
    """Another value was acknowledged so many leases before the old one is taken from the cache."""
    key, now = b"register-0", world.clock.now
    world.keys._profile = replace(world.profile, faults=("scale",) * faults)
    at = now - leases * world.profile.lease_seconds
    old, new = (Operation(n, "w", "set", key, b"<%d>" % n, at, at, "OK") for n in (1, 2))
    hit = Operation(3, "c", "get", key, b"", now)
    tracking._fresh_at, tracking._cache = now, {key: b"<1>"}
    world.keys.histories.began(hit, [key])
    tracking._hit(hit)
    found = ""
    try:
        check(key, [replace(old, begin=0.0, end=0.0), new, hit])
    except Violation as violation:
        found = violation.rule
    assert found == rule


# -- subscribers


def _subscriber(world: World) -> Any:
    assert isinstance(world.subscribers, RespSubscribers)
    first: Any = world.subscribers.living()[0]
    assert first.connected
    first.gaps.clear()
    return first


def test_a_write_without_its_event_is_found(world: World) -> None:
    subscriber = _subscriber(world)
    write = Operation(1, "c", "set", KEY, b"v", subscriber.since, subscriber.since + 0.1, "OK")
    with pytest.raises(Violation) as found:
        subscriber.check(KEY, 0, [write])
    assert found.value.rule == HEARD
    subscriber.hear(b"__stele__:gap", b'{"partition": 0}')
    subscriber.check(KEY, 0, [write])


def test_events_above_what_is_applied_are_found(world: World) -> None:
    subscriber = _subscriber(world)
    partition = next(iter(subscriber._tablets.replicas))
    subscriber._check_sent(None, [EventBatch(partition, 10**6, False, [])])
    assert isinstance(world.clock.failure, Violation)
    assert world.clock.failure.rule == APPLIED


def test_a_departure_that_is_reported_again_is_found(world: World) -> None:
    subscriber = _subscriber(world)
    replica: Any = SimpleNamespace(partition=0)

    async def report(*_: object) -> None:
        return

    subscriber._report = report

    async def depart() -> None:
        for _ in range(2):
            await subscriber._check_report(replica, 1, DEPARTED)

    assert _rule_of(world, depart) == DEPARTED_ONCE


def test_an_arrival_without_its_event_is_found(world: World) -> None:
    subscriber = _subscriber(world)
    subscriber.since, subscriber.arrivals = -10.0, {0: 0.5}
    with pytest.raises(Violation) as found:
        subscriber.check_arrivals([(KEY, 0, -9.0)])
    assert found.value.rule == ARRIVALS
    subscriber.events[KEY, ARRIVED].append(0.6)
    assert subscriber.check_arrivals([(KEY, 0, -9.0)]) == 1


def test_an_expired_entry_without_its_event_is_found(world: World) -> None:
    subscriber = _subscriber(world)
    subscriber.since = -10.0
    with pytest.raises(Violation) as found:
        subscriber.check_expired([(KEY, 0, -9.0, -8.0)])
    assert found.value.rule == EXPIRATIONS
    subscriber.hear(b"__keyspace@0__:" + KEY, b"expired")
    assert subscriber.check_expired([(KEY, 0, -9.0, -8.0)]) == 1
