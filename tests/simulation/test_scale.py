"""The benchmark of large clusters: what it counts, and that the page has what it writes."""

import re
from pathlib import Path
from typing import Any

import pytest

from e2e.bench.report import Report
from stele.adapters.kubernetes.api import MEMBERS, Kind
from stele.master import kubernetes, manifests, member_objects
from tests.e2e.test_bench_master import without_figures
from tests.simulation import scale_bench
from tests.simulation.scale_bench import ALL, BEGIN, END, EVENTS, Size, power, run, write
from tests.simulation.scale_rig import ScaleRig

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "benchmarks.md"
SMALL = (Size(64, 4), Size(256, 8))


@pytest.fixture(scope="module")
def measured() -> Report:
    report = Report("scale", quick=True, facts={"commit": "0123456789", "cores": 2})
    run(report, SMALL)
    return report


def row(report: Report, size: Size, event: str) -> dict[str, Any]:
    (found,) = (
        each
        for each in report.sections[0].rows
        if (each["partitions"], each["members"], each["event"]) == (*size, event)
    )
    return dict(found)


def test_each_event_is_measured_and_makes_its_changes(measured: Report) -> None:
    for size in SMALL:
        found = {event: row(measured, size, event) for event in EVENTS}
        share = 2 * size.partitions // size.members
        assert found["form"]["changes"] == size.partitions
        assert found["at rest"]["changes"] is None
        assert found["join"]["changes"] >= 2 * size.partitions // (size.members + 1)
        assert found["leave"]["changes"] >= 2 * size.partitions // (size.members + 1)
        assert found["crash"]["changes"] >= share
        assert all(each["cpu_seconds"] > each["step_seconds"] > 0 for each in found.values())


def test_a_take_over_and_a_rest_send_no_rows_whatever_the_size(measured: Report) -> None:
    for size in SMALL:
        assert row(measured, size, "take-over")["rows"] == 0
        assert row(measured, size, "at rest")["rows"] == 0


def test_messages_at_rest_are_heartbeats(measured: Report) -> None:
    for size in SMALL:
        found = row(measured, size, "at rest")
        assert found["messages"] <= size.members * (2 * found["seconds"] + 2)


def test_groups_of_partitions_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.scale_rig.GROUP_PARTITIONS", 24)
    report = Report("scale", quick=True, facts={})
    run(report, [Size(64, 4)])
    assert row(report, Size(64, 4), "take-over")["rows"] == 0
    assert row(report, Size(64, 4), "crash")["changes"] > 0


def at_rest(members: int = 8) -> ScaleRig:
    rig = ScaleRig(64, members, 40)
    rig.create()
    rig.until("it settles", lambda: rig.settled(members))
    rig.clock.run(rig.clock.now + 5.0)
    return rig


@pytest.mark.parametrize(
    ("module", "name"),
    [(member_objects, "pod_facts"), (manifests, "member_object"), (kubernetes, "desired_spec_of")],
)
def test_a_master_at_rest_reads_no_object_again(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    rig, real, number = at_rest(), getattr(module, name), 0

    def counted(*words: Any) -> Any:
        nonlocal number
        number += 1
        return real(*words)

    monkeypatch.setattr(module, name, counted)
    rig.clock.run(rig.clock.now + 20.0)
    assert number == 0


def test_few_statuses_of_members_are_written_in_a_round_and_all_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kubernetes, "STATUSES_MAX", 3)
    rig, written = at_rest(), list[tuple[float, str]]()

    def changed(kind: Kind, stored: dict[str, Any], gone: bool) -> None:
        if kind is MEMBERS:
            written.append((rig.clock.now, stored["metadata"]["name"]))

    assert len({each["status"]["stamp"] for each in rig.api.list(MEMBERS)}) == 1
    rig.api.changed.append(changed)
    rig.scale(9)
    rig.until("it settles", lambda: rig.settled(9))
    rig.clock.run(rig.clock.now + 10.0)
    assert len({each["status"]["stamp"] for each in rig.api.list(MEMBERS)}) == 1
    moments = [when for when, _ in written]
    assert {name for _, name in written} == {f"demo-{index}" for index in range(9)}
    assert all(sum(0 <= other - when < 0.9 for other in moments) <= 3 + 1 for when in moments)


@pytest.mark.parametrize("wanted", [0.0, 0.5, 1.0, 2.0])
def test_the_power_is_found(wanted: float) -> None:
    points = [(size, 3.0 * size**wanted) for size in (10, 100, 1_000)]
    assert power(points) == pytest.approx(wanted)
    assert power(points[:1]) is None
    assert power([(10, 1.0), (20, 0.0)]) is None


def test_the_page_has_what_the_benchmark_writes(tmp_path: Path, measured: Report) -> None:
    """Settings, columns, sizes and goals are those of the code; the command is there."""
    report = Report("scale", quick=False, facts=dict(measured.facts), complete=True)
    section = report.section("One master", scale_bench.COLUMNS)
    example = row(measured, SMALL[0], "join")
    for size in ALL:
        place = {"partitions": size.partitions, "members": size.members}
        section.rows += [{**example, **place, "event": event} for event in EVENTS]
    report.section("Growth", scale_bench.GROWTH).rows += [{"event": event} for event in EVENTS]
    report.goals = scale_bench._goals(section)
    write(report, tmp_path)
    written = tmp_path.joinpath("scale.md").read_text(encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    assert (page.count(BEGIN), page.count(END), "make bench-scale" in page) == (1, 1, True)
    shown = page[page.index(BEGIN) : page.index(END)].splitlines()[1:]
    made = written[: written.index(END)].splitlines()[1:]
    assert [*map(_case, without_figures(made))] == [*map(_case, without_figures(shown))]
    assert re.match(r"Commit [0-9a-f]{10};", shown[0]), "figures are of a commit, without changes beside it"


def _case(line: str) -> str:
    """What of a line does not depend on the figures: of a growth the event alone."""
    event = line.partition(" | ")[0]
    return event if event in EVENTS else line


def test_a_size_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("4096", "1x2", "1x1001", "ax3"):
        with pytest.raises(SystemExit):
            scale_bench._arguments([text])
    refused = capsys.readouterr().err
    assert "is no size such as 4096x30" in refused
    assert "3 to 1,000 members" in refused


def test_no_event_takes_more_members_than_the_size_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of 1,000 members cannot grow: a join that asks for more is never done."""
    asked: list[int] = []
    scale = ScaleRig.scale

    def noted(rig: ScaleRig, members: int) -> None:
        asked.append(members)
        scale(rig, members)

    monkeypatch.setattr(ScaleRig, "scale", noted)
    run(Report("scale", quick=True, facts={}), [Size(64, 4)])
    assert asked == [3, 4]
