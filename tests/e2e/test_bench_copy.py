"""What the benchmark of copying computes, and the clients that it measures with."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.bench import copy_bench, copy_join, copy_load, copy_plots, copy_tls, copy_ways
from e2e.bench.copy_rig import is_spread
from e2e.bench.errors import BenchError
from e2e.bench.report import Column, Report
from stele.core.table.table import Partition
from tests.e2e.faulty_store import FaultyStore, running


def row(system: str, seconds: float, **more: Any) -> dict[str, Any]:
    found = copy_join.row_of(system, 64 << 20, copy_join.Joined(0.0, 1.0, 1.0 + seconds, 135))
    quiet = dict.fromkeys(("p50_seconds", "p99_seconds", "max_seconds", "call_max_seconds"), 0.01)
    both = {"get": quiet, "set": quiet}
    return {**found, **copy_join.latencies_of({"quiet": both, "join": both}), "failed": 0, "wrong": 0, **more}


def joins(**more: Any) -> list[dict[str, Any]]:
    return [row("stele", 1.0, **more), row("hazelcast", 2.0), row("infinispan", 3.0)]


def test_a_join_that_is_fast_and_quiet_meets_every_goal() -> None:
    found = copy_bench.join_goals(joins(), 64 << 20)
    assert len(found) == 7
    assert all(goal.met for goal in found)


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"safe_seconds": 2.5}, ["safe sooner than Hazelcast"]),
        ({"safe_seconds": 9.0}, ["safe sooner than Hazelcast", "safe sooner than Infinispan"]),
        ({"join_get_p99_seconds": 0.021}, ["p99 at most twice", "p99 and longest call"]),
        ({"join_get_p99_seconds": 0.011}, ["get during a join with 64 MiB: p99 and longest call"]),
        ({"join_set_call_max_seconds": 0.011}, ["set during a join with 64 MiB: p99 and longest call"]),
        ({"join_set_max_seconds": 0.051}, ["set during a join"]),
        ({"wrong": 1}, ["no failed operation"]),
        ({"failed": 2}, ["no failed operation"]),
    ],
)
def test_each_goal_can_be_missed(change: dict[str, Any], missed: list[str]) -> None:
    texts = [goal.text for goal in copy_bench.join_goals(joins(**change), 64 << 20) if not goal.met]
    assert len(texts) == len(missed)
    assert all(part in text for part, text in zip(missed, texts, strict=True))


def test_calls_may_take_50_ms_where_the_peers_take_longer() -> None:
    slow = [row(peer, 2.0, join_get_call_max_seconds=9.0) for peer in ("hazelcast", "infinispan")]
    for seconds, missed in ((0.05, 0), (0.051, 1)):
        found = copy_bench.join_goals([row("stele", 1.0, join_get_call_max_seconds=seconds), *slow], 64 << 20)
        assert sum(not goal.met for goal in found) == missed


def test_every_size_of_a_join_is_held_to_the_peers() -> None:
    texts = [goal.text for goal in copy_bench.safe_goals(joins(), 64 << 20)]
    assert texts == [f"a join with 64 MiB: safe sooner than {each}" for each in ("Hazelcast", "Infinispan")]


@pytest.mark.parametrize(("seconds", "met"), [(1.25, True), (1.26, False)])
def test_a_join_with_tls_may_take_a_quarter_longer(seconds: float, met: bool) -> None:
    goal = copy_bench.secured_goal([*joins(), row("stele, TLS", seconds)], 64 << 20)
    assert (goal.text, goal.met) == ("a join with 64 MiB and TLS: safe in at most 1.25 of the time", met)


def test_what_moved_is_counted_by_replicas_that_are_new_to_their_member() -> None:
    assert copy_join.moved([[0, 1], [1, 2], [2, 0]], [[1, 0], [3, 1], [2, 3]]) == 2
    assert row("stele", 2.0)["moved_bytes"] == 135 * (64 << 20) // 271
    assert row("stele", 2.0)["bytes_per_second"] == row("stele", 2.0)["moved_bytes"] / 2.0


def test_a_table_is_spread_when_rows_are_whole_and_members_even() -> None:
    rows = [Partition(1, pair) for pair in ((0, 1), (1, 2), (2, 3), (3, 0))]
    assert is_spread(rows, 4, 2)
    assert not is_spread(rows, 5, 2)
    assert not is_spread([*rows, Partition(1, (0, None))], 4, 2)
    assert not is_spread([*rows, Partition(1, (0,))], 4, 2)
    assert not is_spread([*rows, *[Partition(1, (0, 1))] * 3], 4, 2)


@pytest.fixture
async def store() -> AsyncIterator[tuple[FaultyStore, copy_load.Clients]]:
    """A member, and clients of it that loaded 40 entries."""
    made = FaultyStore()
    async with running(made) as endpoint:
        clients = copy_load.Clients([(endpoint.host, endpoint.port)])
        loaded = await asyncio.to_thread(clients.answer, ["load", "4000", "100"])
        assert loaded["entries"] == 40
        yield made, clients


async def test_clients_find_what_they_wrote(store: tuple[FaultyStore, copy_load.Clients]) -> None:
    _, clients = store
    begin = time.monotonic_ns()
    clients.answer(["live", "200", "2"])
    await asyncio.sleep(0.5)
    stats = await asyncio.to_thread(clients.answer, ["stats", str(begin), str(time.monotonic_ns())])
    assert min(stats["get"]["count"], stats["set"]["count"]) > 20
    told = await asyncio.to_thread(clients.answer, ["end"])
    assert told == {"errors": {}, "stale_reads": 0, "missing_reads": 0}
    found = await asyncio.to_thread(clients.answer, ["verify"])
    assert found == {"checked": 40, "missing": 0, "corrupt": 0, "older": 0}


async def test_clients_notice_what_was_lost_damaged_or_is_older(
    store: tuple[FaultyStore, copy_load.Clients],
) -> None:
    made, clients = store
    values = made.spaces[b"default"]
    older = {key: values[key] for key in (b"k0", b"k1", b"k2")}

    def write_and_go_back() -> dict[str, Any]:
        way = copy_load.Way(clients._addresses)
        for key in range(3):
            clients._set(way, key)
        values.update(older)
        clients._get(way, 0)
        way.close()
        return clients.end()

    assert (await asyncio.to_thread(write_and_go_back))["stale_reads"] == 1
    del values[b"k7"]
    values[b"k8"] = b"x" * 100
    found = await asyncio.to_thread(clients.verify)
    assert found == {"checked": 40, "missing": 1, "corrupt": 1, "older": 3}


def ways(**seconds: float) -> list[Any]:
    names = {"cp": "cp + sync", "two": "function, 2 processes", "direct": "Direct", "warm": "Spark, warm"}
    best = {names[key]: {"seconds": value, "first_seconds": 0.1} for key, value in seconds.items()}
    return copy_ways.rows_of(copy_ways.FULL[0], 1_000_000, best)


def test_ways_are_compared_with_cp_and_with_the_function() -> None:
    found = {row["way"]: row for row in ways(cp=1.0, two=1.5, direct=2.0, warm=1.6)}
    assert found["Direct"]["of_cp"] == 0.5
    assert found["Spark, warm"]["of_function"] == 1.5 / 1.6
    assert found["Spark, warm"]["bytes_per_second"] == 625_000
    goals = copy_ways.goals(list(found.values()))
    assert [(goal.text.split(":")[0], goal.met) for goal in goals] == [
        ("Direct", False),
        ("Spark, warm", True),
        ("Spark, warm", True),
    ]


TINY = copy_ways.Case("tiny", 271 * 200, 200)


@pytest.mark.long
def test_what_tls_costs_is_measured_at_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STELE_CACHE", str(tmp_path))
    monkeypatch.setattr(copy_tls, "WAYS", ("function, 1 process", "Direct"))
    with copy_tls.sides() as made:
        function, direct = copy_tls.measure(made, TINY, rounds=1)
        plain = replace(made.tls, dest=made.plain.dest)
        with pytest.raises(BenchError, match="426"):
            copy_tls._copy(made.source, plain, "function, 1 process")
    for row in (function, direct):
        assert row["of_plain"] == row["plain_seconds"] / row["tls_seconds"]
        assert row["bytes"] >= TINY.data_bytes


@pytest.mark.parametrize(("tls_seconds", "met"), [(1.2, True), (1.3, False)])
def test_tls_may_cost_a_quarter(tls_seconds: float, met: bool) -> None:
    rows = [copy_tls.row_of(TINY, way, 100, 1.0, 1.0) for way in copy_tls.WAYS]
    rows[1] = copy_tls.row_of(TINY, copy_tls.WAYS[1], 100, 1.0, tls_seconds)
    (goal,) = copy_tls.goals(rows)
    assert goal.met is met


def test_the_documentation_has_what_is_measured_with_tls() -> None:
    page = (Path(__file__).parents[2] / "docs/internals/benchmarks.md").read_text()
    for title in ("of plain", *copy_tls.WAYS):
        assert f"`{title}`" in page
    assert "python -m e2e.bench copy-tls" in page


def test_the_page_has_pictures_of_what_was_measured(tmp_path: Path) -> None:
    report = Report("copy", quick=True, facts={"cores": 2})
    report.section("Ways", [Column("way", "way")], "A note.").rows.extend(ways(cp=1.0, two=1.5, direct=1.2))
    copy_bench.write(report, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ways.png", "index.md"}
    report.section("Joins", [Column("system", "system")]).rows.extend(joins())
    report.goals = copy_bench.join_goals(joins(), 64 << 20)
    copy_bench.write(report, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {"ways", "joins", "latencies"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))
    page = (tmp_path / "index.md").read_text()
    assert "![joins](joins.png)" in page
    assert "| hazelcast |" in page
    assert "- met: no failed operation" in page


def test_pictures_show_every_system_that_was_measured() -> None:
    assert copy_plots._shown(joins()) == ["stele", "hazelcast", "infinispan"]
    assert set(copy_plots._COLOURS) == set(copy_join.SYSTEMS)
    everything = [row(system, 1.0) for system in reversed(copy_join.SYSTEMS)]
    assert copy_plots._shown(everything) == list(copy_join.SYSTEMS)


def test_latencies_count_from_the_moment_that_an_operation_was_due() -> None:
    samples = copy_load.Samples()
    for number in range(100):
        samples.add(number * 1_000, number * 1_000 + 500, number * 1_000 + 600)
    samples.add(100_000, 100_500, -1)
    samples.add(900_000, 900_000, 950_000)
    found = copy_load.summary([samples], 0, 200_000)
    assert (found["count"], found["failed"]) == (100, 1)
    assert found["p99_seconds"] == found["p999_seconds"] == found["max_seconds"] == 600 / 1e9
    assert found["answered"] == 100
    assert found["call_max_seconds"] == 100 / 1e9
    assert copy_load.summary([samples], 900_000, 1_000_000)["max_seconds"] == 50_000 / 1e9
    assert copy_load.summary([], 0, 1)["p99_seconds"] == 0.0
