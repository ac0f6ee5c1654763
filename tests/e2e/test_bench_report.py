"""What people and programs see of a benchmark, and how it ends."""

import io
import json
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from e2e.bench import cli
from e2e.bench.errors import BenchError
from e2e.bench.report import Column, Goal, Report, draw, factor, milliseconds
from e2e.bench.timing import exponent, ratio
from e2e.cluster.errors import ClusterError, MachineUnfitError

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "benchmarks.md"
COMMAND = re.compile(r"make bench-([\w-]+)|-m e2e\.bench ([a-z][\w-]*)|-m ((?:e2e|tests)\.[\w.]+)")


def filled() -> Report:
    report = Report("planning", quick=True, facts={"cores": 2, "memory_bytes": 3 << 29}, seconds=12.4)
    section = report.section(
        "Times", [Column("case", "case"), Column("ms", "seconds", milliseconds)], "A note."
    )
    section.rows += [{"case": 20_000, "seconds": 0.0123, "hidden": 7}, {"case": "b", "seconds": None}]
    report.goals.append(Goal("be quick", "ratio 2.00", met=False))
    return report


def test_people_see_the_columns_and_what_was_missed() -> None:
    console = Console(file=io.StringIO(), width=100)
    draw(filled(), console)
    text = console.file.getvalue()
    assert text.startswith("planning (quick), 12 s, not complete: cores 2, memory_bytes 1.5 GiB\n")
    for shown in ("20,000", "12.3", "│    - │", "A note.", "│ be quick │ ratio 2.00 │ MISSED │"):
        assert shown in text
    assert "hidden" not in text


def test_ratios_and_exponents() -> None:
    assert (ratio(2.0, 4.0), ratio(None, 4.0), ratio(1.0, 0.0), factor(0.456)) == (0.5, None, None, "0.46")
    assert exponent([(10, 1.0), (20, 9.0), (100, 100.0)]) == pytest.approx(2.0)
    assert exponent([(10, 1.0)]) is exponent([]) is exponent([(10, 1.0), (10, 2.0)]) is None


def bench(monkeypatch: pytest.MonkeyPatch, end: BaseException | None, met: bool = True) -> None:
    """Put in place of the benchmark one that measures one thing and then ends as told."""

    def run(report: Report, quick: bool) -> None:
        report.section("Times", [Column("case", "case")]).rows.append({"case": "measured"})
        report.goals.append(Goal("hold", "held", met))
        if end is not None:
            raise end

    monkeypatch.setitem(cli.BENCHES, "planning", SimpleNamespace(TITLE="", run=run))


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (None, 0, ""),
        (BenchError("The Java side ended."), 1, "Error: The Java side ended."),
        (ClusterError("mvn failed"), 1, "Error: mvn failed"),
        (MachineUnfitError("Java is missing; install it."), 2, "Java is missing; install it."),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (PermissionError(13, "no", "/root/x"), 1, "this user may not use /root/x"),
    ],
)
def test_what_was_measured_is_shown_however_it_ends(
    end: BaseException | None,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench(monkeypatch, end)
    assert cli.main(["planning"]) == code
    out, err = capsys.readouterr()
    assert (said in err, "Traceback" in err, "measured" in out) == (True, False, True)


@pytest.mark.parametrize("end", [None, KeyboardInterrupt()])
def test_the_file_says_whether_it_is_whole(
    end: BaseException | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench(monkeypatch, end)
    path = tmp_path / "result.json"
    cli.main(["planning", "--json", str(path)])
    found = json.loads(path.read_text())
    assert (found["complete"], found["sections"][0]["rows"]) == (end is None, [{"case": "measured"}])


@pytest.mark.parametrize(
    "words",
    [[], ["flying"], ["planning", "--json", "/no/such/folder/r.json"], ["planning", "--json", "/tmp"]],
)
def test_wrong_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_every_section_of_the_page_says_how_its_figures_are_measured() -> None:
    """And every benchmark has its place on the page."""
    named: set[str] = set()
    start, planning, *others = PAGE.read_text(encoding="utf-8").split("\n## ")
    for section in (start + planning, *others):
        found = [match.groups() for match in COMMAND.finditer(section)]
        assert found, section.partition("\n")[0]
        named |= {target or bench for target, bench, _ in found if target or bench}
        assert [module for *_, module in found if module and find_spec(module) is None] == []
    # It runs in the simulation, which e2e does not import.
    assert named - {"scale"} == set(cli.BENCHES)
