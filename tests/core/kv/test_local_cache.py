"""One member's entries of a keyspace with mode Invalidation: what stays, what may fill them, and commands."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stele.core.kv import local_cache
from stele.core.kv.commands import OK, Failure, Reply, Stored
from stele.core.kv.local_cache import ENTRY_BYTES, LocalCache, Misses
from stele.core.kv.local_commands import OFFERED_WRITES, Outcome, fitting, refusal, run

NOW_MS = 1_000
KEYS = st.sampled_from([b"a", b"b", b"c"])


def _cache(bytes_max: int = 1 << 20) -> LocalCache:
    return LocalCache(b"ks", bytes_max)


def _run(cache: LocalCache, *args: bytes, misses: Misses | None = None, ttl_ms: int = 0) -> Outcome:
    return run(args, cache, Misses() if misses is None else misses, NOW_MS, ttl_ms, covered=True)


def test_the_least_recently_used_entries_make_room() -> None:
    cache = _cache(3 * (ENTRY_BYTES + 2))
    for key in (b"a", b"b", b"c"):
        cache.change(key, (b"1", 0))
    assert cache.get(b"a", NOW_MS)
    cache.change(b"d", (b"1", 0))
    assert [key for key in (b"a", b"b", b"c", b"d") if cache.get(key, NOW_MS)] == [b"a", b"c", b"d"]
    assert cache.evicted == 1
    cache.limit(ENTRY_BYTES + 2)
    assert len(cache) == 1


def test_a_value_beyond_the_limit_is_not_kept() -> None:
    cache = _cache(1000)
    assert _run(cache, b"SET", b"k", b"v" * 1000).reply == OK
    assert (len(cache), cache.held_bytes) == (0, 0)


def test_its_memory_is_what_it_says() -> None:
    cache = _cache(1 << 30)
    tracemalloc.start()
    for number in range(20_000):
        cache.change(b"key:%d" % number, (b"v" * 200 + b"%d" % number, NOW_MS + number))
    real = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.7 < real / cache.held_bytes < 1.3


@given(st.lists(st.tuples(st.sampled_from(["set", "ttl", "drop", "get", "clear", "limit"]), KEYS)))
def test_bytes_are_those_of_its_entries(steps: list[tuple[str, bytes]]) -> None:
    cache = _cache(3 * ENTRY_BYTES)
    for now_ms, (what, key) in enumerate(steps, 1):
        if what in ("set", "ttl"):
            cache.change(key, (key * 3, now_ms + 3 if what == "ttl" else 0))
        elif what == "drop":
            cache.change(key, None)
        elif what == "clear":
            cache.clear()
        elif what == "limit":
            cache.limit(2 * ENTRY_BYTES)
        else:
            cache.expire(now_ms, 1)
        entries = {each: stored for each in (b"a", b"b", b"c") if (stored := cache.get(each, 0))}
        assert cache.held_bytes == sum(ENTRY_BYTES + len(each) + len(v[0]) for each, v in entries.items())
        assert cache.held_bytes <= cache.bytes_max


def test_entries_expire() -> None:
    cache = _cache()
    cache.change(b"a", (b"1", NOW_MS + 5))
    cache.change(b"a", (b"2", NOW_MS + 9))
    cache.change(b"b", (b"1", NOW_MS + 5))
    assert cache.get(b"b", NOW_MS + 5) is None
    cache.change(b"b", (b"1", NOW_MS + 6))
    assert cache.expire(NOW_MS + 8) == [b"b"]
    assert cache.expire(NOW_MS + 9) == [b"a"]
    assert not len(cache)


# -- fills


def test_a_fill_needs_a_miss_after_the_last_change() -> None:
    cache, misses = _cache(), Misses()
    fill = (b"SET", b"k", b"old", b"NX")
    assert _run(cache, *fill, misses=misses) == Outcome(None)  # Never missed.
    assert _run(cache, b"GET", b"k", misses=misses).reply is None
    cache.change(b"k", None)
    assert _run(cache, *fill, misses=misses) == Outcome(None)
    assert _run(cache, b"GET", b"k", misses=misses).reply is None
    cache.change(b"another", None)
    assert _run(cache, *fill, misses=misses) == Outcome(OK, changed=True)
    assert _run(cache, b"GET", b"k", misses=misses).reply == b"old"
    assert _run(cache, *fill, misses=misses) == Outcome(None)


def test_no_fill_after_a_clearing() -> None:
    cache, misses = _cache(), Misses()
    _run(cache, b"GET", b"k", misses=misses)
    cache.clear()
    assert _run(cache, b"SETNX", b"k", b"v", misses=misses) == Outcome(0)
    _run(cache, b"EXISTS", b"k", misses=misses)
    assert _run(cache, b"SETNX", b"k", b"v", misses=misses) == Outcome(1, changed=True)


def test_a_fill_has_the_expiry_of_the_keyspace() -> None:
    cache, misses = _cache(), Misses()
    _run(cache, b"GET", b"k", misses=misses)
    _run(cache, b"SET", b"k", b"v", b"NX", misses=misses, ttl_ms=5_000)
    assert _run(cache, b"PTTL", b"k").reply == 5_000


@given(st.lists(st.tuples(st.sampled_from(["change", "miss", "fill", "clear"]), KEYS), max_size=40))
def test_what_is_forgotten_is_never_filled(steps: list[tuple[str, bytes]]) -> None:
    """With room for two changes it refuses whatever one with all of them refuses."""
    small, large = _cache(), _cache()
    missed: dict[bytes, int] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local_cache, "CHANGES_MAX", 2)
        for what, key in steps:
            if what == "change":
                small.change(key, None)
            elif what == "clear":
                small.clear()
            elif what == "fill" and key in missed and small.fill(key, (b"v", 0), missed[key]):
                assert large.fill(key, (b"v", 0), missed[key])
            elif what == "miss":
                missed[key] = small.clock
            if what == "change":
                patched.setattr(local_cache, "CHANGES_MAX", 1 << 20)
                large.change(key, None)
                patched.setattr(local_cache, "CHANGES_MAX", 2)
            elif what == "clear":
                large.clear()


def test_remembered_changes_and_misses_have_limits() -> None:
    cache, misses = _cache(), Misses()
    missed = cache.clock
    for number in range(local_cache.CHANGES_MAX + 1):
        cache.change(b"%d" % number, None)
    assert len(cache._changes) == local_cache.CHANGES_MAX
    assert not cache.fill(b"0", (b"v", 0), missed)
    assert not cache.fill(b"another", (b"v", 0), missed)
    for number in range(local_cache.MISSES_MAX + 1):
        misses.missed(b"ks", b"%d" % number, 7)
    assert len(misses) == local_cache.MISSES_MAX
    assert [misses.take(b"ks", key) for key in (b"0", b"1")] == [-1, 7]
    misses.missed(b"ks", b"long" * 20_000, 7)
    assert not len(misses)


# -- commands


@pytest.mark.parametrize(
    ("args", "reply"),
    [
        ((b"SET", b"k", b"w"), OK),
        ((b"SET", b"k", b"w", b"EX", b"10"), OK),
        ((b"SETEX", b"k", b"10", b"w"), OK),
        ((b"DEL", b"k"), 1),
        ((b"DEL", b"missing"), 0),
        ((b"EXPIRE", b"k", b"10"), 1),
        ((b"EXPIRE", b"missing", b"10"), 0),
        ((b"EXPIRE", b"k", b"-1"), 1),
    ],
)
def test_writes_are_told(args: tuple[bytes, ...], reply: Reply) -> None:
    cache = _cache()
    cache.change(b"k", (b"v", 0))
    assert _run(cache, *args) == Outcome(reply, changed=True, told=True)


def test_nothing_is_told_of_what_changes_nothing() -> None:
    cache = _cache()
    cache.change(b"k", (b"v", 0))
    assert _run(cache, b"EXPIRE", b"k", b"10", b"XX") == Outcome(0)
    assert isinstance(_run(cache, b"SET", b"k", b"v", b"EX").reply, Failure)
    assert _run(cache, b"GET", b"k") == Outcome(b"v")


def test_without_cover_reads_miss_and_writes_take_effect() -> None:
    cache, misses = _cache(), Misses()
    cache.change(b"k", (b"v", 0))

    def uncovered(*args: bytes) -> Reply:
        return run(args, cache, misses, NOW_MS, covered=False).reply

    assert uncovered(b"GET", b"k") is None
    assert uncovered(b"EXPIRE", b"k", b"10") == 0
    assert _run(cache, b"GET", b"k").reply is None  # Its expiry is not known to be the one asked for.
    assert uncovered(b"SET", b"k", b"w") == OK
    assert _run(cache, b"GET", b"k").reply == b"w"


@pytest.mark.parametrize(
    "name", [b"INCR", b"APPEND", b"GETSET", b"GETDEL", b"GETEX", b"SETRANGE", b"STELE.ONCE"]
)
def test_commands_that_need_the_value_are_refused(name: bytes) -> None:
    refused = refusal(name, [name, b"k"])
    assert refused is not None
    assert "is not possible in a keyspace with mode Invalidation" in refused.text


@pytest.mark.parametrize("option", [b"xx", b"GET", b"KEEPTTL"])
def test_options_that_need_the_value_are_refused(option: bytes) -> None:
    reply = _run(_cache(), b"SET", b"k", b"v", option).reply
    assert isinstance(reply, Failure)
    assert reply.text.startswith(f"SET with {option.decode().upper()} is not possible")


def test_reads_and_other_writes_are_offered() -> None:
    for name in (b"GET", b"MGET", b"MSET", b"TTL", b"EXISTS", b"STRLEN", *OFFERED_WRITES):
        assert refusal(name, [name, b"k", b"v"]) is None


def test_room_for_replies_counts_what_the_same_commands_write() -> None:
    cache = _cache()
    stored: Stored = b"v" * 10, 0
    cache.change(b"k", stored)
    commands = [[b"GET", b"k"], [b"SET", b"k", b"w" * 50], [b"get", b"k"], [b"GET", b"missing"]]
    assert fitting(commands, cache, NOW_MS, 60) == 4
    assert fitting(commands, cache, NOW_MS, 59) == 2
    assert fitting(commands, cache, NOW_MS, 9) == 0
