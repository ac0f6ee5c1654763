"""The events of each command, compared with those that redis-server publishes."""

from collections.abc import Callable

import pytest
import redis

from stele.core.kv.commands import Stored, evaluate
from stele.core.kv.notifications import (
    NAMED_OPERATIONS_MAX,
    KeyEvents,
    OperationEvents,
    enabled,
    events_of,
    may_match,
    messages,
)
from stele.core.kv.transaction import evaluate_all
from stele.core.kv.two_phase import TxId
from tests.member.harness.reference import redis_server

NOW_MS = 1_000_000
COMMANDS = [
    "SET k 1", "SET k 1 EX 100", "SET k 1 NX", "SET k 1 PXAT 99999999999999", "SETNX k 1", "SETEX k 100 1",
    "PSETEX k 100000 1", "GETSET k 1", "GETDEL k", "GETEX k EX 100", "GETEX k PERSIST", "GETEX k",
    "APPEND k 1", "SETRANGE k 1 x", "INCR k", "DECR k", "INCRBY k 5", "DECRBY k 5", "INCRBYFLOAT k 1.5",
    "EXPIRE k 100", "PEXPIRE k 100000", "EXPIREAT k 99999999999", "PEXPIREAT k 99999999999999", "EXPIRE k -1",
    "PERSIST k", "DEL k", "UNLINK k", "GET k", "TTL k", "EXISTS k",
]  # fmt: skip
STORED = {"missing": None, "there": (b"7", 0), "expiring": (b"7", NOW_MS + 50_000)}


@pytest.fixture(scope="module")
def reference():
    """A client of a redis-server that publishes all events."""
    with redis_server("--notify-keyspace-events", "EA") as port, redis.Redis(port=port) as client:
        yield client


def theirs(client: redis.Redis, words: list[str], stored: Stored | None) -> list[str]:
    """What redis-server publishes for a command on a value."""
    client.delete("k")
    if stored is not None:
        client.set("k", stored[0], px=50_000 if stored[1] else None)
    return [event for event, _ in published(client, lambda: client.execute_command(*words))]


def published(client: redis.Redis, run: Callable[[], object]) -> list[tuple[str, bytes]]:
    """What redis-server publishes: (event, key)."""
    with client.pubsub() as listener:
        listener.psubscribe("__keyevent@0__:*")
        listener.get_message(timeout=5)
        run()
        client.publish("__keyevent@0__:over", "")
        found: list[tuple[str, bytes]] = []
        while not found or found[-1][0] != "over":
            message = listener.get_message(timeout=5)
            assert message is not None
            found.append((message["channel"].decode().partition(":")[2], message["data"]))
        return found[:-1]


def ours(words: list[str], stored: Stored | None) -> list[str]:
    args = [word.encode() for word in words]
    op = evaluate(args, stored, NOW_MS).op
    return [] if op is None else [event for event in events_of(args, op) if enabled("EA", event)]


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("command", COMMANDS)
def test_events_are_those_of_redis(reference, command, stored):
    words = command.split()
    assert ours(words, STORED[stored]) == theirs(reference, words, STORED[stored])


TRANSACTIONS = [
    "SET a 1 / INCR b / APPEND a 2 / DEL b / GET a",
    "SETEX a 100 1 / PERSIST a / GETDEL a / SET a 2 / EXPIRE a -1",
    "SET a x / INCR a / INCR c / EXPIRE missing 5 / DEL missing",
    "SETRANGE a 0 x / SET b 1 EX 5 / GETSET b 2 / INCRBYFLOAT c 1.5 / DECR b",
]


@pytest.mark.parametrize("transaction", TRANSACTIONS)
def test_events_of_transactions_are_those_of_redis_in_their_order(reference, transaction):
    commands = [each.split() for each in transaction.split(" / ")]
    reference.delete("a", "b", "c")

    def run():
        pipeline = reference.pipeline()
        for words in commands:
            pipeline.execute_command(*words)
        pipeline.execute(raise_on_error=False)

    noted: list[KeyEvents] = []
    args = [[word.encode() for word in words] for words in commands]
    _, changed = evaluate_all(args, lambda key: None, NOW_MS, noted=noted)
    named = OperationEvents()
    named.add_transaction(1, 5, noted)
    entries = [(b"default", key, stored is None) for key, stored in changed.items()]
    ours = [(event, key) for _, key, event in named.of(1, 5, entries)]
    assert ours == published(reference, run)
    named.forget(1)
    assert named._count == 0


def test_transactions_with_long_keys_are_set_and_del():
    named = OperationEvents()
    for index in range(100):
        named.add_transaction(1, index, [(b"k" * 60_000, ("incrby",))])
    assert named.of(1, 0, [(b"default", b"k" * 60_000, False)])[0][2] == "incrby"
    assert named.of(1, 99, [(b"default", b"k" * 60_000, False)])[0][2] == "set"
    assert named._count <= NAMED_OPERATIONS_MAX
    named.forget(1)
    named.add_transaction(1, 0, [(b"k", ("append",))] * 70_000)
    assert named.of(1, 0, [(b"default", b"k", True)]) == [(b"default", b"k", "del")]
    assert named._count == 0


def test_a_part_of_a_transaction_has_its_events_when_it_is_applied():
    named, changed = OperationEvents(), [(b"default", b"k", False), (b"@@intents", b"t", True)]
    one, other, third = (TxId("member", 1, number) for number in range(3))
    for each in (one, other, third):
        named.prepare(1, each, [(b"k", ("incrby",))])
    named.end(1, other, None)
    named.end(1, one, 5)
    named.end(1, one, 6)
    assert named.of(1, 5, changed) == [(b"default", b"k", "incrby")]
    assert named.of(1, 6, changed)[0] == (b"default", b"k", "set")
    named.forget(1, 5)
    assert named._count == 1, "the third is not over"
    named.forget(1)
    assert named._count == 0


def test_flags_choose_classes_and_channels():
    assert enabled("KEA", "set") == enabled("KE$", "set") == "KE"
    assert enabled("Kg", "set") == enabled("K$", "del") == enabled("A", "set") == ""
    assert enabled("EA", "arrived") == ""
    assert enabled("EM", "departed") == "E"


def test_keyspaces_are_named_as_select_takes_them():
    for keyspace, name in ((b"default", b"0"), (b"db7", b"7"), (b"orders", b"orders"), (b"db07", b"db07")):
        (channel, _), *_ = messages(keyspace, b"a\0:b", "set", "K")
        assert channel == b"__keyspace@%b__:a\0:b" % name


@pytest.mark.parametrize(
    "pattern", [b"*", b"__key*", b"_?key*", b"__keyspace@0__:a*", b"[_]*", b"__stele__:gap"]
)
def test_patterns_that_may_match_events_listen(pattern):
    assert may_match(pattern, pattern=True)


@pytest.mark.parametrize("pattern", [b"news*", b"__keyspacf*", b"__stelf*"])
def test_other_patterns_do_not(pattern):
    assert not may_match(pattern, pattern=True)
