"""The benchmark of the page counts frames in a real browser, and its table is on the page of benchmarks."""

from pathlib import Path

import pytest

from e2e.bench import page
from e2e.bench.errors import BenchError
from e2e.bench.report import Report
from tests import packages

TABLE = (Path(__file__).parents[2] / "docs" / "internals" / "benchmarks.md").read_text()


def test_each_case_is_counted_and_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    packages.ensure("chromium")
    monkeypatch.setattr(page, "QUICK_SECONDS", 1.5)
    monkeypatch.setattr(page, "PARTITIONS", 1024)
    report = Report("page", quick=True)
    page.run(report, quick=True)
    (section,) = report.sections
    rows = {row["case"]: row for row in section.rows}
    assert [name for name in rows if f"| {name} | " not in TABLE] == []
    assert all(row["frames"] > 5 and row["processor_percent"] > 0 for row in rows.values())
    assert rows["at rest"]["draw_p50_seconds"] is None, "nothing changes, so nothing is drawn"
    assert min(row["draw_p99_seconds"] for name, row in rows.items() if name != "at rest") > 0
    assert "| " + " | ".join(column.title for column in section.columns) + " |" in TABLE


def test_without_a_browser_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BenchError, match="apt-get install chromium"):
        page.run(Report("page", quick=True), quick=True)


def test_shares_are_of_what_was_measured() -> None:
    assert page.shares([]) == {"p50": None, "p99": None}
    assert page.shares([float(number) for number in range(100, 0, -1)]) == {"p50": 0.051, "p99": 0.1}
