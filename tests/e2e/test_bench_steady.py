"""The tables and goals of the steady bench: medians of rounds, ratios, what is met or missed by how much."""

from pathlib import Path
from typing import Any

import pytest

from e2e.bench import disk
from e2e.bench.report import Goal, Report
from e2e.bench.steady_goals import goals
from e2e.bench.steady_table import (
    CASES,
    COPIES_CASES,
    LETTUCE,
    PEERS,
    PLAIN,
    REDIS,
    SECURED,
    SMART,
    TRANSACTION_CASES,
    AnyCase,
    Case,
    Found,
    Rows,
    fill,
)

CASE = CASES[0]
LARGE_SET = Case("set", 16_384, 8)


def one(per_second: float, failed: float = 0) -> dict[str, float]:
    latencies = {"p50_seconds": 0.001, "p99_seconds": 0.002, "p999_seconds": 0.003}
    cpu = {"server_microseconds": 50.0, "client_microseconds": 40.0}
    return {"per_second": per_second, "failed": failed} | latencies | cpu


def sections(rounds: Rows, *disk_bytes_per_second: float) -> list[list[Any]]:
    """The rows of each table."""
    report = Report("steady", quick=True)
    fill(report, Found(rounds, list(disk_bytes_per_second)))
    return [list(section.rows) for section in report.sections]


def by_system(rows: list[Any]) -> dict[str, Any]:
    return {each["system"]: each for each in rows}


def test_every_work_is_measured_with_few_and_many_connections() -> None:
    assert len(set(CASES)) == 8
    assert {(str(each), each.connections) for each in CASES} == {
        (f"{operation} {size}", connections)
        for operation in ("GET", "SET")
        for size in ("100 B", "16 KiB")
        for connections in (8, 32)
    }


def test_medians_of_the_rounds_are_compared_with_the_better_peer() -> None:
    rows = by_system(
        sections(
            {
                (CASE, SMART): [one(900.0, failed=1), one(500.0), one(100.0, failed=2)],
                (CASE, "Hazelcast"): [one(1000.0)],
                (CASE, "Infinispan"): [one(400.0), one(400.0), one(9000.0)],
            }
        )[0]
    )
    assert rows[SMART]["per_second"] == 500.0
    assert rows[SMART]["failed"] == 3
    assert rows[SMART]["of_better_peer"] == pytest.approx(0.5)
    assert rows["Hazelcast"]["of_better_peer"] is None


def test_a_run_that_ends_before_the_peers_shows_what_it_has() -> None:
    requests, *others = sections({(CASE, SMART): [one(900.0)], (CASE, "Hazelcast"): []})
    (row,) = requests
    assert others == [[], [], [], []]
    assert [row[key] for key in ("of_better_peer", "of_plain", "of_redis", "of_disk")] == [None] * 4


def test_each_client_is_compared_with_itself_at_redis_server_and_without_tls() -> None:
    rates = {SMART: 100.0, LETTUCE: 300.0, SECURED[LETTUCE]: 150.0}
    rates |= {REDIS[SMART]: 400.0, REDIS[LETTUCE]: 600.0}
    rows = by_system(sections({(CASE, name): [one(rate)] for name, rate in rates.items()})[0])
    assert rows[SMART]["of_redis"] == pytest.approx(0.25)
    assert rows[LETTUCE]["of_redis"] == pytest.approx(0.5)
    assert rows[SECURED[LETTUCE]]["of_plain"] == pytest.approx(0.5)
    assert rows[SECURED[LETTUCE]]["of_redis"] is rows[REDIS[SMART]]["of_redis"] is None


def test_large_writes_are_compared_with_each_byte_written_once_for_each_copy() -> None:
    cases: list[AnyCase] = [LARGE_SET, Case("get", 16_384, 8), Case("set", 100, 8)]
    systems = (SMART, REDIS[SMART], "Hazelcast")
    rounds: Rows = {(case, name): [one(1000.0)] for case in cases for name in systems}
    requests, _, _, allowed, _ = sections(rounds, 1.0, 4000 * 16_384 * 2, 9e12)
    shares = {(row["work"], row["system"]): row["of_disk"] for row in requests if row["of_disk"] is not None}
    assert shares == {("SET 16 KiB", SMART): pytest.approx(0.25)}
    assert allowed == [{"disk_bytes_per_second": 4000 * 16_384 * 2, "set_per_second": 4000.0}]


def test_transactions_are_compared_with_the_better_kind_of_the_peers() -> None:
    case = TRANSACTION_CASES[0]
    rounds: Rows = {
        (case, PLAIN): [one(100.0)],
        (case, "Hazelcast, two-phase"): [one(50.0)],
        (case, "Infinispan, optimistic"): [one(400.0)],
        (case, "Infinispan, pessimistic"): [one(200.0)],
    }
    rows = by_system(sections(rounds)[1])
    assert rows[PLAIN]["of_better_peer"] == pytest.approx(0.25)
    assert rows["Infinispan, pessimistic"]["of_better_peer"] is None


def test_keyspaces_with_a_copy_everywhere_have_a_table_of_their_own() -> None:
    case = COPIES_CASES[0]
    found = sections({(case, PLAIN): [one(300.0)], (case, "Hazelcast"): [one(100.0)]})
    assert [len(rows) for rows in found] == [0, 0, 2, 0, 0]
    assert found[2][0]["of_better_peer"] == pytest.approx(3.0)


# -- goals


def row(case: Case, system: str = SMART, **ratios: float) -> dict[str, Any]:
    return {"work": str(case), "connections": case.connections, "system": system} | ratios


def memory(**bytes_per_entry: float) -> list[dict[str, Any]]:
    names = {"Stele": SMART}
    return [
        {"system": names.get(name, name), "bytes_per_entry": value} for name, value in bytes_per_entry.items()
    ]


def goal(case: Case, client: str, *rows: dict[str, Any]) -> Goal:
    start = f"{case}, {case.connections} connections, {client}: "
    (found,) = [each for each in goals(rows, []) if each.text.startswith(start)]
    return found


def test_each_client_has_a_goal_for_each_work_and_what_was_not_measured_is_missed() -> None:
    found = goals([], [])
    assert len({each.text for each in found}) == len(found) == 2 * len(CASES) + 1
    assert {(each.found, each.met) for each in found} == {("-", False)}


@pytest.mark.parametrize(
    ("of_better_peer", "of_redis", "met", "missed"),
    [(1.5, 0.1, True, ""), (0.1, 0.8, True, ""), (0.75, 0.2, False, "50.0%"), (0.15, 0.6, False, "25.0%")],
)
def test_reads_need_the_lower_of_both_bounds(
    of_better_peer: float, of_redis: float, met: bool, missed: str
) -> None:
    found = goal(CASE, "Jedis", row(CASE, of_better_peer=of_better_peer, of_redis=of_redis))
    said = f"{of_better_peer:.2f} of the better peer, {of_redis:.2f} of redis-server"
    assert (found.met, found.found) == (met, said + (f"; missed by {missed}" if missed else ""))
    assert found.text.endswith("at least 1.50 of the better peer or 0.80 of redis-server, whichever is lower")


def test_reads_beside_redis_server_alone_are_not_a_goal_met() -> None:
    assert goal(CASE, "Jedis", row(CASE, of_redis=2.0)) == goal(CASE, "Jedis")


def test_small_writes_are_held_to_the_better_peer_and_large_ones_to_the_disk() -> None:
    ratios = {"of_better_peer": 0.9, "of_redis": 5.0, "of_disk": 0.6}
    small = Case("set", 100, 32)
    assert goal(small, "Lettuce", row(small, LETTUCE, **ratios)).found == (
        "0.90 of the better peer; missed by 10.0%"
    )
    large = goal(LARGE_SET, "Lettuce", row(LARGE_SET, LETTUCE, **ratios))
    assert (large.met, large.found) == (True, "0.60 of what the disk allows")


@pytest.mark.parametrize(
    ("found", "met", "said"),
    [
        (memory(Stele=300, Hazelcast=400, Infinispan=600), True, "0.75: 300 and 400 bytes"),
        (memory(Stele=600, Hazelcast=900, Infinispan=500), False, "1.20: 600 and 500 bytes; missed by 20.0%"),
        (memory(Stele=300, Hazelcast=400), False, "-"),
        (memory(Hazelcast=300, Infinispan=400), False, "-"),
    ],
)
def test_memory_is_compared_with_the_peer_that_needs_less(
    found: list[dict[str, Any]], met: bool, said: str
) -> None:
    last = goals([], found)[-1]
    assert (last.met, last.found) == (met, said)


def test_goals_are_those_of_the_tables() -> None:
    """Names of rows and keys of ratios are what the tables have."""
    systems = (SMART, LETTUCE, REDIS[SMART], REDIS[LETTUCE], *PEERS)
    requests = sections({(case, name): [one(1000.0)] for case in CASES for name in systems}, 1e6)[0]
    found = goals(requests, memory(Stele=1, Hazelcast=2, Infinispan=2))
    assert {each.found for each in found} >= {"1.00 of the better peer, 1.00 of redis-server"}
    assert "-" not in {each.found for each in found}


def test_the_disk_is_left_as_it_was(tmp_path: Path) -> None:
    assert disk.sequential_rate(tmp_path, 2 * disk.BLOCK_BYTES + 1) > 0
    assert list(tmp_path.iterdir()) == []
