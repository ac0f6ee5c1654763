"""Patterns as Redis reads them, none of them slow; cursors."""

import asyncio
from random import Random

import pytest

from stele.member import limits
from stele.member.replication.request import Request, RequestKind
from stele.member.resp import match
from stele.member.resp.match import read_pattern
from stele.member.resp.scan import SCAN_POSITIONS_MAX, SCAN_STEPS_MAX, Positions, scan
from stele.member.turn_budget import TurnBudget
from tests.fakes.key_value_service import FakeKeyValueService
from tests.simulation.quiet_cluster import QuietCluster

HOSTILE = b"*?" + b"a" * 1000 + b"b*"
"""At each place of a key of many `a` a thousand bytes are compared."""


def turn():
    """That of the running loop."""
    return TurnBudget(asyncio.get_running_loop().call_soon)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (b"*", [b"", b"a\nb"], []),
        (b"", [b""], [b"a"]),
        (b"a*c", [b"ac", b"abbc", b"acc"], [b"ab", b"bac"]),
        (b"a*b*c", [b"abc", b"axbxbxc"], [b"acb"]),
        (b"?x", [b"ax", b"\nx"], [b"x", b"aax"]),
        (b"[a-c]1", [b"a1", b"c1"], [b"d1"]),
        (b"[c-a]1", [b"b1"], [b"d1"]),
        (b"[^a]1", [b"b1", b"^1"], [b"a1"]),
        (b"[\\]]", [b"]"], [b"\\"]),
        (b"[ab", [b"a", b"b"], [b"c"]),
        (b"[]x", [], [b"x", b"]x"]),
        (b"\\*", [b"*"], [b"a"]),
        (b"a\\", [b"a\\"], [b"a"]),
        (b"a.c", [b"a.c"], [b"abc"]),
        (b"\xff*", [b"\xff\x00"], [b"\xfe"]),
        (b"*ab*ab", [b"abab", b"xabxab"], [b"ab", b"aab"]),
        (b"ab*ba", [b"abba"], [b"aba"]),
        (b"*[^]*x", [b"ax"], [b"x"]),
        (b"*?*?*", [b"ab", b"abc"], [b"a", b""]),
        (b"**b**", [b"b", b"abc"], [b""]),
    ],
)
async def test_patterns(pattern, yes, no):
    read = await read_pattern(pattern, turn())
    assert [key for key in [*yes, *no] if await read.matches(key)] == yes


def slow(pattern, key):
    """What a pattern of letters, `*`, `?`, `[ab]` and `[^a]` stands for, by trying everything."""
    if not pattern:
        return not key
    if pattern[0] == "*":
        return any(slow(pattern[1:], key[at:]) for at in range(len(key) + 1))
    if pattern[0] == "[":
        body, rest = pattern[1:].split("]", 1)
        fits = key[:1] not in body[1:] if body[0] == "^" else key[:1] in body
        return bool(key) and fits and slow(rest, key[1:])
    return bool(key) and pattern[0] in ("?", key[0]) and slow(pattern[1:], key[1:])


async def test_random_patterns_as_by_trying_everything(monkeypatch):
    """With windows of a few places, so that keys are cut by them."""
    monkeypatch.setattr(match, "WINDOW_STEPS_MAX", 4)
    random, both = Random(1), set()
    for _ in range(3000):
        pattern = "".join(random.choices(["a", "b", "?", "*", "[ab]", "[^a]"], k=random.randrange(7)))
        read = await read_pattern(pattern.encode(), turn())
        key = "".join(random.choices("abc", k=random.randrange(9)))
        found = await read.matches(key.encode())
        assert found is slow(pattern, key), (pattern, key)
        both.add(found)
    assert both == {True, False}


async def test_no_pattern_takes_more_steps_than_its_length_times_that_of_the_key():
    key = b"a" * 5000
    for pattern in (b"*a" * 400 + b"b", b"*" + b"a?" * 400 + b"b*", HOSTILE, b"a" * 1000 + b"*"):
        read = await read_pattern(pattern, turn())
        await read.matches(key)
        assert read.steps <= len(key) * len(pattern)


@pytest.mark.plain
async def test_what_a_turn_compares_is_limited():
    """A search is cut into windows, whose steps are counted as entries; nothing else is searched."""
    searched = []

    class Counted(TurnBudget):
        async def run(self, entries, work):
            searched.append((entries, work.args[2] - work.args[1]))
            return await super().run(entries, work)

    counted = Counted(asyncio.get_running_loop().call_soon)
    read = match.Pattern(HOSTILE, counted)
    key = b"a" * 64 * 1024
    assert not await read.matches(key)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    size = len(HOSTILE) - 2
    assert sum(length - size + 1 for _, length in searched) == len(key) - size + 1
    assert all((length - size) * size <= (entries + 1) * 4096 for entries, length in searched)
    assert limits.TURN_ENTRIES_MAX // 2 < counted.entries_max <= limits.TURN_ENTRIES_MAX


async def test_a_scan_ends_with_the_key_that_took_too_many_steps_and_goes_on_there():
    store, positions = FakeKeyValueService(2), Positions()
    keys = {b"%02d" % n + b"a" * 60_000 + (b"b" if n % 4 == 0 else b"") for n in range(12)}
    store.data[1, b"default"] = dict.fromkeys(keys)
    cursor, found, calls = 0, [], 0
    while cursor or not calls:
        pattern = await read_pattern(HOSTILE, turn())
        cursor, some = await scan(
            store, positions, b"default", cursor, count=1000, pattern=pattern, partitions=range(2)
        )
        assert pattern.steps < SCAN_STEPS_MAX + 64 * 1024 * len(HOSTILE)
        found += some
        calls += 1
    assert sorted(found) == sorted(key for key in keys if key.endswith(b"b"))
    assert calls == len(keys)


async def test_a_pattern_is_read_in_a_turn_that_has_room():
    crowded = turn()
    reading = asyncio.ensure_future(read_pattern(b"[^a]" * 256, crowded))
    crowded.spend(limits.TURN_ENTRIES_MAX, 0)
    await asyncio.sleep(0)
    assert not reading.done()
    read = await reading
    crowded._begin()
    assert crowded.entries_max == limits.TURN_ENTRIES_MAX
    assert await read.matches(b"b" * 256)


def test_a_page_of_nothing_is_work_too(quiet: QuietCluster):
    owner, executor = quiet.members[0], quiet.members[0].node.command_executor
    request = Request(RequestKind.SCAN, 0, b"default", owner.process.loop.create_future())
    request.limit = 10
    executor.run(owner.replica, request)
    assert executor.turn_budget.entries == 1


async def test_a_long_pattern_is_refused():
    with pytest.raises(ValueError, match="1025 bytes is longer than the 1024 allowed"):
        await read_pattern(b"x" * 1025, turn())


def test_positions_are_bounded_and_not_mixed_up():
    positions = Positions()
    first = positions.remember(b"default", 3, b"k")
    assert positions.recall(b"default", 3, first) == b"k"
    assert positions.recall(b"other", 3, first) is None
    assert positions.recall(b"default", 4, first) is None
    for number in range(SCAN_POSITIONS_MAX):
        positions.remember(b"default", 3, b"%d" % number)
    assert positions.recall(b"default", 3, first) is None


async def test_work_that_fails_in_a_later_turn_fails_for_who_waits():
    """Raised in a callback it would end the process."""
    budget, raised = turn(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
    budget.spend(limits.TURN_ENTRIES_MAX, 0)
    with pytest.raises(ZeroDivisionError):
        await budget.run(1, lambda: 1 // 0)
    assert not raised
