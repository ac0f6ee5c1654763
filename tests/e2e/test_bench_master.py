"""How the benchmark of the master reads what it measures, that its members are members, and that the page has
what it makes.
"""

import re
from pathlib import Path

import pytest

from e2e.bench import master
from e2e.bench.light_members import LightMember
from e2e.bench.master import EVENTS, FULL, PARALLEL, quantile
from e2e.bench.master_page import BEGIN, END
from e2e.bench.master_rig import settings_of
from e2e.bench.report import Goal, Report
from stele.core.control import commands as m
from stele.core.table.table import stamp_of

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "benchmarks.md"


def measured() -> Report:
    """A whole run in which everything took a second."""
    report = Report("master", quick=False, facts={"commit": "0123456789", "cores": 2}, complete=True)
    report.facts.update(settings_of(PARALLEL))
    section = report.section("One master, empty tablets", master.COLUMNS)
    row = {"changes": 1_024, "seconds": 1.0, "per_second": 1_024.0, "operator_seconds": 0.5}
    row |= {"puts_per_change": 0.01, "step_seconds": 0.01, "memory_bytes": 74 << 20}
    for size in FULL:
        place = {"partitions": size.partitions, "members": size.members}
        section.rows += [{**place, "event": event, **row} for event in EVENTS]
    report.goals = master._goals(section)
    return report


def without_figures(lines: list[str]) -> list[str]:
    """Settings, columns, cases and goals: what does not depend on the machine or the commit."""
    found = []
    for line in lines[2:]:
        cells = line.strip("| ").split(" | ")
        kept = 1 if cells[-1] in {"yes", "**no**"} else 3 if cells[0][:1].isdigit() else len(cells)
        found.append(" | ".join(cells[:kept]))
    return found


def test_the_page_has_what_the_benchmark_writes(tmp_path: Path) -> None:
    """To publish figures is to paste master.md: settings, cases, columns and goals are those of the code."""
    master.write(measured(), tmp_path)
    written = tmp_path.joinpath("master.md").read_text(encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    assert (page.count(BEGIN), page.count(END), written.startswith(BEGIN)) == (1, 1, True)
    shown = page[page.index(BEGIN) : page.index(END)].splitlines()[1:]
    made = written[: written.index(END)].splitlines()[1:]
    assert without_figures(shown) == without_figures(made)
    assert re.match(r"Commit [0-9a-f]{10};", shown[0]), "figures are of a commit, without changes beside it"


@pytest.mark.parametrize(("quick", "complete"), [(True, True), (False, False)])
def test_a_part_of_the_run_says_so(tmp_path: Path, quick: bool, complete: bool) -> None:
    report = measured()
    report.quick, report.complete = quick, complete
    report.goals.append(Goal("be quick", "slow", met=False))
    master.write(report, tmp_path)
    text = tmp_path.joinpath("master.md").read_text(encoding="utf-8")
    assert "the run took 0 s, not all of it.\n" in text
    assert "| be quick | slow | **no** |\n" in text


def request(epoch: int = 1, known: int = 0, **more: object) -> m.ExchangeRequest:
    return m.ExchangeRequest(1, "c", epoch, "light-1", self_index=0, partitions=2, known=known, **more)


def test_the_quantile_is_of_what_came_between_the_readings() -> None:
    before = {0.01: 90, 0.02: 90, 0.05: 100}
    after = {0.01: 93, 0.02: 99, 0.05: 110}
    assert quantile(before, after, 0.3) == 0.01
    assert quantile(before, after, 0.9) == 0.02
    assert quantile(before, after, 0.99) == 0.05
    assert quantile(after, after, 0.5) is None


def test_a_light_member_adopts_rows_and_tells_what_changed() -> None:
    member = LightMember("light-1")
    first = member.serve(request(rows=(m.Row(0, 1, (0, 1)), m.Row(1, 1, (1, 0)))))
    assert first.stamp == stamp_of([1, 1])
    assert [(tablet.partition, tablet.state) for tablet in first.tablets] == [(0, "READY"), (1, "READY")]
    again = member.serve(request(known=first.number))
    assert (again.base, again.tablets) == (first.number, ())


def test_a_light_learner_is_in_sync_one_exchange_later() -> None:
    member = LightMember("light-1")
    asked = member.serve(request(commands=(m.AddLearner("m", 0, 1, 3),)))
    assert [(each.id, each.state) for each in asked.learners] == [("m", "STREAMING")]
    assert [each.state for each in member.serve(request()).learners] == ["IN_SYNC"]


def test_a_light_member_refuses_a_master_that_was_replaced() -> None:
    member = LightMember("light-1")
    member.serve(request(epoch=4))
    assert member.serve(request(epoch=3)).code == "STALE_EPOCH"
