"""The page in headless Chromium: what it shows, asks for, and does with keys."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from e2e.page.browser import Tab, chromium
from e2e.page.facts import EVIL, Known, copy_to, facts_of, report
from e2e.page.served import served
from stele.core.table.table import Partition
from tests import packages

READY = "Boolean(document.body?.dataset.version && document.querySelector('#why li'))"
HERE = "document.getElementById('here').textContent"
WHY = "document.getElementById('why-title').textContent + ' ' + document.getElementById('why').textContent"


@pytest.fixture(scope="module", autouse=True)
def _browser() -> None:
    packages.ensure("chromium")


@asynccontextmanager
async def looking(known: Known, scheme: str = "light") -> AsyncIterator[tuple[Tab, str]]:
    """Yield a tab that shows the page, and the page's address; afterwards nothing may have gone wrong."""
    async with served(known) as url, chromium() as tab:
        await tab.window(1280, 900, scheme)
        await tab.open(f"{url}/", READY)
        yield tab, url
        assert tab.problems == []


async def _text(tab: Tab, id: str) -> str:
    return str(await tab.run(f"document.getElementById('{id}').innerText"))


async def test_it_asks_nobody_else_and_runs_no_text_of_the_cluster() -> None:
    known = Known(facts_of(message=EVIL))
    async with looking(known) as (tab, url):
        assert EVIL in await _text(tab, "message")
        assert EVIL in await _text(tab, "attention")
        assert EVIL in await tab.run(WHY)
        assert await tab.run("document.querySelectorAll('main img, main script').length") == 0
        assert await tab.run("document.body.dataset.evil ?? ''") == ""
        assert {each for each in tab.requests if not each.startswith(f"{url}/")} == set()
        # The policy would have stopped it, too.
        attempt = (
            "const s = document.createElement('script'); s.textContent = 'document.body.dataset.evil = 2';"
        )
        await tab.run(f"{attempt} document.body.append(s)")
        assert await tab.run("document.body.dataset.evil ?? ''") == ""
        tab.problems.clear()


async def test_keys_move_in_the_map_and_explain() -> None:
    async with looking(Known(facts_of(members=3, partitions=12))) as (tab, _):
        await tab.press("m")
        await tab.press("ArrowRight")
        assert await tab.run(HERE) == "Partition 0: held by demo-0, demo-1"
        await tab.press("ArrowDown")
        assert await tab.run(HERE) == "Partition 0: demo-0: owner; held by demo-0, demo-1"
        await tab.press("ArrowDown")
        await tab.press("End")
        assert await tab.run(HERE) == "Partition 11: demo-1: has no copy; held by demo-2, demo-0"
        await tab.press("ArrowLeft")
        await tab.press("Enter")
        await tab.until(f"({WHY}).startsWith('Why partition 10 version 1, held by')")
        await tab.press("Home")
        await tab.press("ArrowLeft")
        await tab.press("Enter")
        await tab.until(f"({WHY}).startsWith('Why demo-1 state Active')")
        await tab.press("w")
        await tab.until(f"({WHY}).startsWith('Why demo phase Running')")


async def test_keys_jump_help_and_change_the_colours() -> None:
    async with looking(Known(facts_of(partitions=271))) as (tab, _):
        await tab.press("/")
        for key in "207":
            await tab.press(key)
        await tab.press("Enter")
        await tab.until(f"({WHY}).startsWith('Why partition 207 ')")
        assert await tab.run("document.activeElement.id") == "map"
        await tab.press("?")
        assert await tab.run("document.getElementById('help').open") is True
        await tab.press("Escape")
        await tab.until("!document.getElementById('help').open")
        themes = []
        for _ in range(3):
            themes.append(await tab.run("document.documentElement.dataset.theme ?? 'system'"))
            await tab.press("t")
        assert themes == ["system", "light", "dark"]


async def test_it_is_dark_where_the_system_is_and_where_it_is_switched() -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    async with looking(Known(facts_of()), "dark") as (tab, url):
        dark = await tab.run(colour)
        await tab.press("t")
        light = await tab.run(colour)
        assert (dark, light) == ("rgb(15, 19, 24)", "rgb(244, 245, 247)")
        await tab.open(f"{url}/#again", READY)
        assert await tab.run(colour) == light


async def test_it_follows_the_cluster() -> None:
    known = Known(facts_of(members=4, partitions=12))
    async with looking(known) as (tab, _):
        assert "Nothing" in await _text(tab, "attention") or "Ready is False" in await _text(tab, "attention")
        facts = facts_of(members=4, partitions=12, states={3: "Unreachable"})
        facts.state.table.store({5: Partition(3, (1, 0))})
        copy_to(facts, 5, 2)
        facts.state.failover.lost.add(7)
        known.shown = facts
        known.seconds += 1
        await tab.until("document.body.dataset.version === '3-2'")
        attention = await _text(tab, "attention")
        thin = [number for number, row in enumerate(facts.state.table.partitions) if 3 in row.members]
        assert attention.startswith(f"{len({*thin, 7})} partitions have too few copies, 1 of them none")
        # Those without any copy come first.
        assert attention.split("\n")[2] == "7"
        assert "demo-3 is Unreachable" in attention.replace("\n", " ")
        assert "demo-0 → demo-2" in await _text(tab, "moves")
        await tab.press("m")
        await tab.press("u")
        await tab.press("Home")
        assert (await tab.run(HERE)).startswith("Partition 7")


async def _select_the_last(tab: Tab, members: int) -> None:
    """Select the last partition, in the strip of the last member."""
    await tab.press("m")
    await tab.press("End")
    for _ in range(members):
        await tab.press("ArrowDown")


async def _until_drawn(tab: Tab, partitions: int, frames: int) -> None:
    """Wait until the map has drawn a table of that size, after so many frames."""
    await tab.until(f"steleMap._numbers.length === {partitions} && steleMap.frames > {frames}")


async def test_another_cluster_begins_with_nothing_selected() -> None:
    """It has fewer partitions and members than what is selected, and at first nobody answers for it."""
    small, name = facts_of(members=2, partitions=12), ("stele", "small")
    known = Known(facts_of(members=5, partitions=271), others={name: None})
    async with looking(known) as (tab, _):
        await _select_the_last(tab, members=5)
        assert (await tab.run(HERE)).startswith("Partition 270: demo-4: ")
        await tab.run("location.hash = encodeURIComponent('stele/small')")
        await tab.until("document.getElementById('problem').textContent.includes('does not run')")
        assert await tab.run(HERE) == "all members"
        for key in ("m", "End", "Enter", "u", "+"):
            await tab.press(key)
        tab.problems[:] = [each for each in tab.problems if "503" not in each]
        frames = await tab.run("steleMap.frames")
        known.others[name] = small
        await _until_drawn(tab, 12, frames)
        assert await tab.run("steleMap.at") == {"strip": 0, "partition": -1}
        await _select_the_last(tab, members=2)
        assert await tab.run(HERE) == "Partition 11: demo-1: backup 1; held by demo-0, demo-1"
        tab.problems[:] = [each for each in tab.problems if "503" not in each]


async def test_a_cluster_that_was_made_again_with_fewer_partitions_is_drawn() -> None:
    known = Known(facts_of(members=5, partitions=271))
    async with looking(known) as (tab, _):
        await _select_the_last(tab, members=5)
        frames = await tab.run("steleMap.frames")
        known.shown = facts_of(members=2, partitions=12, epoch=4)
        known.seconds += 1
        await _until_drawn(tab, 12, frames)
        assert await tab.run(HERE) == "all members"


async def test_it_says_when_nobody_answers_and_goes_on() -> None:
    known = Known(facts_of())
    async with looking(known) as (tab, _):
        known.why_not = "this process does not lead"
        await tab.until("document.getElementById('problem').textContent === 'this process does not lead'")
        assert await tab.run("document.body.classList.contains('stale')") is True
        known.why_not = ""
        await tab.until("document.getElementById('problem').hidden")
        tab.problems.clear()


async def test_a_frame_of_a_large_map_draws_what_is_visible() -> None:
    members, partitions = 100, 16384
    async with looking(Known(facts_of(members=members, partitions=partitions))) as (tab, _):
        await tab.until("steleMap.frames > 0 && steleMap.work > 0")
        most = 2 * partitions * 2 // 10
        assert await tab.run("steleMap.work") < most
        for part in (0.3, 0.7, 1):
            before = await tab.run("steleMap.frames")
            await tab.run(f"(m => m.scrollTop = m.scrollHeight * {part})(document.getElementById('map'))")
            await tab.until(f"steleMap.frames > {before}")
            assert 0 < await tab.run("steleMap.work") < most
        sizes = "(c => [c.width, c.height])(document.querySelector('#map canvas'))"
        width, height = json.loads(json.dumps(await tab.run(sizes)))
        assert width <= 1280
        assert height <= 900
        await tab.press("m")
        await tab.press("End")
        await tab.press("ArrowDown")
        assert (await tab.run(HERE)).startswith("Partition 16383: demo-0:")


RATES = """(async () => {
  const { Rates } = await import("/rates.js");
  const rates = new Rates(), bounds = [0.001, 0.01, 0.1];
  const member = ([index, process, reads, writes, durations]) =>
    ({ index, process, counters: [reads, writes, 0, 0], durations });
  const view = (seconds, ...members) => ({ seconds, bounds, members: members.map(member) });
  rates.take(view(10, [0, 1, 1000, 500, [0, 100, 0, 0]], [1, 1, 9, 9, [9, 9, 9, 9]]));
  rates.take(view(12, [0, 1, 1600, 700, [50, 139, 9, 2]], [1, 2, 5, 5, [5, 0, 0, 0]]));
  return { ...rates.last, of: [...rates.of] };
})()"""


async def test_rates_are_of_one_process_each_and_latencies_between_bounds() -> None:
    async with looking(Known(facts_of())) as (tab, _):
        found = await tab.run(RATES)
        # The second member has started again: its counters begin at 0.
        assert (found["reads"], found["writes"], found["of"]) == (300, 100, [[0, 400]])
        # 50 up to 1 ms, 39 up to 10 ms, 9 up to 100 ms, 2 above: half are within 1 ms.
        assert (found["p50"], found["p99"]) == (1.0, 100.0)


async def test_requests_and_durations_that_members_report_are_shown() -> None:
    known = Known(facts_of())
    async with looking(known) as (tab, _):
        facts = facts_of()
        facts = replace(facts, now=facts.now + 2)
        stats = {"reads": 4000, "durations": (0, 0, 0, 0, 4000)}
        facts.state.membership.liveness[1].report = report(1, **stats)
        known.shown = facts
        known.seconds += 1
        await tab.until("document.getElementById('rate-now').textContent.includes('reads 1\u202f950')")
        assert "half 7.5 ms" in await _text(tab, "latency-now")
