"""The table of the steady bench: medians of rounds, and the ratio to the better peer."""

import pytest

from e2e.bench.report import Report
from e2e.bench.steady import CASES, COPIES_CASES, PLAIN, TRANSACTION_CASES, Rows, _fill

CASE = CASES[0]


def one(per_second: float, failed: float = 0) -> dict[str, float]:
    latencies = {"p50_seconds": 0.001, "p99_seconds": 0.002, "p999_seconds": 0.003}
    cpu = {"server_microseconds": 50.0, "client_microseconds": 40.0}
    return {"per_second": per_second, "failed": failed} | latencies | cpu


def test_every_work_is_measured_with_few_and_many_connections() -> None:
    assert len(set(CASES)) == 8
    assert {(str(each), each.connections) for each in CASES} == {
        (f"{operation} {size}", connections)
        for operation in ("GET", "SET")
        for size in ("100 B", "16 KiB")
        for connections in (8, 32)
    }


def test_medians_of_the_rounds_are_compared_with_the_better_peer() -> None:
    results: Rows = {
        (CASE, "Stele, port 6380"): [one(900.0, failed=1), one(500.0), one(100.0, failed=2)],
        (CASE, "Hazelcast"): [one(1000.0)],
        (CASE, "Infinispan"): [one(400.0), one(400.0), one(9000.0)],
    }
    report = Report("steady", quick=True)
    _fill(report, results)
    rows = {each["system"]: each for each in report.sections[0].rows}
    assert rows["Stele, port 6380"]["per_second"] == 500.0
    assert rows["Stele, port 6380"]["failed"] == 3
    assert rows["Stele, port 6380"]["of_better_peer"] == pytest.approx(0.5)
    assert rows["Hazelcast"]["of_better_peer"] is None


def test_a_run_that_ends_before_the_peers_shows_what_it_has() -> None:
    report = Report("steady", quick=True)
    _fill(report, {(CASE, "Stele, port 6380"): [one(900.0)], (CASE, "Hazelcast"): []})
    (row,) = report.sections[0].rows
    assert not report.sections[1].rows
    assert row["of_better_peer"] is None


def test_transactions_are_compared_with_the_better_kind_of_the_peers() -> None:
    case = TRANSACTION_CASES[0]
    results: Rows = {
        (case, "Stele, port 6379"): [one(100.0)],
        (case, "Hazelcast, two-phase"): [one(50.0)],
        (case, "Infinispan, optimistic"): [one(400.0)],
        (case, "Infinispan, pessimistic"): [one(200.0)],
    }
    report = Report("steady", quick=True)
    _fill(report, results)
    rows = {each["system"]: each for each in report.sections[1].rows}
    assert rows["Stele, port 6379"]["of_better_peer"] == pytest.approx(0.25)
    assert rows["Infinispan, pessimistic"]["of_better_peer"] is None


def test_keyspaces_with_a_copy_everywhere_have_a_table_of_their_own() -> None:
    case = COPIES_CASES[0]
    report = Report("steady", quick=True)
    _fill(report, {(case, PLAIN): [one(300.0)], (case, "Hazelcast"): [one(100.0)]})
    assert [len(section.rows) for section in report.sections] == [0, 0, 2]
    assert report.sections[2].rows[0]["of_better_peer"] == pytest.approx(3.0)
