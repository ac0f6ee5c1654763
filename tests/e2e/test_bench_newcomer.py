"""The newcomer's benchmark does what the page of the playground says, and says when a step fails."""

import sys
from pathlib import Path

import pytest

from e2e.bench import newcomer
from e2e.bench.errors import BenchError
from e2e.bench.newcomer import MEMBERS, MORE, Playground, finish
from e2e.bench.report import Report

DOCS = Path(__file__).parents[2] / "docs"


def test_a_playground_starts_grows_and_ends(tmp_path: Path) -> None:
    made = Playground(Path(sys.executable).parent / "kubectl-stele", tmp_path / "playground")
    with made.running("up"):
        made.until_running(MEMBERS)
        with made.load():
            made.scale()
        assert (tmp_path / "playground" / "cluster.yaml").exists()
        assert made.has(MORE)
        assert not made.has(MEMBERS)


def test_a_step_that_fails_is_said() -> None:
    with pytest.raises(BenchError, match=r"^git clone -q /nowhere ended with 128: "):
        finish("git", "clone", "-q", "/nowhere", "/nowhere/else")


def test_the_page_has_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "internals" / "benchmarks.md").read_text()
    for act in ("clone", "install"):
        monkeypatch.setattr(newcomer.Newcomer, act, lambda self: None)
    for act in ("until_running", "scale"):
        monkeypatch.setattr(Playground, act, lambda self, *members: None)
    monkeypatch.setattr(Playground, "_words", lambda self, command: ["sleep", "0"])
    report = Report("newcomer", quick=False, facts={}, complete=True)
    newcomer.run(report, quick=False)
    assert [row["step"] for row in report.sections[0].rows if f"| {row['step']} | " not in page] == []
    assert report.missed == []
    assert "make bench-newcomer" in page
