"""Our planner on every case of the benchmark, and how the benchmark reads what the others say."""

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from e2e.bench import peers, planning
from e2e.bench.peers import Peers
from e2e.bench.planners import Ours, Theirs, after_event, data_members
from e2e.bench.planning_cases import FULL, QUICK, REFERENCES, Case, Event, cases, grown_members
from e2e.bench.quality import Quality, Rows
from e2e.bench.report import Report, Section, draw
from e2e.bench.timing import Sample
from stele.core.placement.members import DataMember


@pytest.mark.parametrize("case", cases(), ids=str)
def test_our_plans_are_even_and_copy_no_more_than_the_bound(case: Case) -> None:
    ours = Ours()
    ours.prepare(case)
    ours.measure(1)
    found = ours.quality()
    assert found.good
    assert found.copies == found.lower_bound
    if len(case.staying) > case.replicas:  # else no row has a choice of members, and copies decide
        assert (found.owner_spread <= 1, found.replica_spread <= 1) == (True, True)


def test_the_cases_are_all_that_are_possible() -> None:
    every = cases()
    assert len(every) == len(set(every)) == 48
    assert set(REFERENCES) <= set(cases(QUICK)) <= set(every)
    assert not any(
        case.members == 3 and case.replicas == 3 and case.event is not Event.JOIN for case in every
    )


def test_events_say_who_is_told_to_the_planner() -> None:
    join, leave, crash = (Case(event, 3, 4, 2) for event in Event)
    assert [list(case.staying) for case in (join, leave, crash)] == [[0, 1, 2, 3], [0, 1], [0, 1]]
    assert data_members(join) == [DataMember(index) for index in range(4)]
    assert data_members(leave) == [DataMember(0), DataMember(1), DataMember(2, leaving=True)]
    assert data_members(crash) == [DataMember(0), DataMember(1)]
    rows = ((0, 1), (2, 0), (1, 2), (2, 1))
    assert after_event(rows, leave) == list(rows)
    assert after_event(rows, crash) == [(0, 1), (0,), (1,), (1,)]


def test_a_crash_leaves_the_other_replicas_where_they_are() -> None:
    rows = ((3, 1, 2), (1, 3, 2), (1, 2, 3))
    assert after_event(rows, Case(Event.CRASH, 4, 3, 3)) == [(1, None, 2), (1, None, 2), (1, 2)]


def test_no_growth_has_more_members_than_a_table_may_name() -> None:
    largest = [grown_members(event, FULL.growth_members)[-1] for event in Event]
    assert [(size, max(case.members, len(case.staying))) for size, case in largest] == [(1_000, 1_000)] * 3


class Slow:
    """A planner that takes the seconds it is told."""

    name = "slow"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def prepare(self, case: Case) -> None: ...

    def measure(self, count: int) -> list[Sample]:
        return [Sample(self.seconds, self.seconds / 2)] * count

    def parts(self, count: int) -> tuple[float, float]:
        return self.seconds, 0.0

    def quality(self) -> Quality:
        return Quality(0, 0, 0, 0, 0, 0)


class Scripted(Peers):
    """Answers what it is told, without a process."""

    def __init__(self, *answers: str) -> None:
        self._log = peers.cache.root()
        self._lines, self.requests = list(answers), []

    def ask(self, *words: object) -> dict[str, Any]:
        self.requests.append(" ".join(map(str, words)))
        return self._parsed(self.requests[-1], self._lines.pop(0))


def test_answers_of_the_java_side_are_read() -> None:
    rows = {"current": [[2, 0], [1, -1]], "target": [[1, 0], [1, 0]]}
    nanos = {"nanos": [[1_000_000, 2_000_000, 2_500_000], [3_000_000, 1_000_000, 4_000_000]]}
    process = Scripted("{}", json.dumps(nanos), json.dumps(rows))
    theirs = Theirs("hazelcast", process)
    theirs.prepare(Case(Event.CRASH, 3, 2, 2))
    assert theirs.measure(2) == [Sample(0.003, 0.0025), Sample(0.004, 0.004)]
    found = theirs.quality()
    assert (found.copies, found.lower_bound, found.owner_spread, found.missing) == (2, 2, 2, 0)
    assert theirs.current == [(2, 0), (1, None)]
    assert process.requests == ["prepare hazelcast 3 2 2 crash", "plan hazelcast 2", "rows hazelcast"]


class SamePlanner(Slow):
    """Another system that plans what we do."""

    def __init__(self, name: str) -> None:
        super().__init__(0.001)
        self.name, self.ours = name, Ours()

    def prepare(self, case: Case) -> None:
        self.ours.prepare(case)
        self.ours.measure(1)

    def quality(self) -> Quality:
        return self.ours.quality()

    @property
    def current(self) -> Rows:
        return self.ours.current


SMALL = replace(QUICK, partitions=(40,), warm_rounds=1, growth_partitions=(20, 40), growth_members=(3, 5))


def few_partitions(event: Event, sizes: Sequence[int]) -> list[tuple[int, Case]]:
    """As the growth with members, on a small table."""
    return [(size, replace(case, partitions=40)) for size, case in grown_members(event, sizes)]


def test_a_run_fills_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "REFERENCES", [Case(Event.JOIN, 10, 40, 2)])
    monkeypatch.setattr(planning, "GOAL_PARTITIONS", 40)
    monkeypatch.setattr(planning, "grown_members", few_partitions)
    report = Report("planning", quick=True)
    planning.Planning(report, SMALL, Ours(), [SamePlanner("hazelcast"), SamePlanner("infinispan")]).run()
    titles = {section.title: len(section.rows) for section in report.sections}
    assert titles == {
        "Seconds of a plan": 9,
        "Copies and evenness": 9,
        "On Hazelcast's table": 9,
        "Where the time goes": 1,
        "Growth with partitions": 3,
        "Growth with members": 3,
    }
    first = report.sections[0].rows[0]
    assert first["stele_to_hazelcast"] == first["stele_seconds"] / first["hazelcast_seconds"]
    assert all(row["infinispan"] == row["stele"] for row in report.sections[1].rows)
    assert [goal.text for goal in report.goals][1:] == [
        f"{event}, {members} members, 40 x 2 replicas: no slower than Hazelcast"
        for members in (3, 10, 20)
        for event in ("join", "leave", "crash")
    ]
    console = Console(file=io.StringIO(), width=160)
    draw(report, console)
    assert re.search(r"no slower than Hazelcast +│ ratio", console.file.getvalue())
    json.dumps(report.as_json())


def test_a_system_that_is_too_slow_is_not_asked_for_the_next_size() -> None:
    report = Report("planning", quick=True)
    fast, slow = SamePlanner("hazelcast"), SamePlanner("infinispan")
    slow.seconds = planning.POINT_SECONDS_MAX + 1
    run = planning.Planning(report, SMALL, Ours(), [fast, slow])
    run._grow("members", few_partitions, (3, 4, 5))
    rows = report.sections[0].rows
    assert [row.get("hazelcast_seconds") for row in rows] == [0.001, 0.001, 0.001, None]
    assert [row.get("infinispan_seconds") for row in rows] == [slow.seconds, None, None, None]
    assert [row["hazelcast_exponent"] for row in rows] == [None, 0, 0, 0]
    assert [row["infinispan_exponent"] for row in rows] == [None] * 4


def test_poor_plans_and_slow_ones_miss_their_goals() -> None:
    case = REFERENCES[0]
    good, poor = Quality(4, 4, 1, 1, 0.5, 0), Quality(5, 4, 1, 1, 0.5, 0)
    assert planning._quality_goal([(case, good)]).met
    missed = planning._quality_goal([(case, good), (case, poor)])
    assert (missed.met, "1 of 2 cases; join, 10 members" in missed.found) == (False, True)
    times = {"stele": [Sample(0.2, 0.1), Sample(0.4, 0.1)], "hazelcast": [Sample(0.1, 0.1), Sample(0.4, 0.3)]}
    section = Section("", [], rows=[planning._case(case) | planning._time_values(times)])
    (goal,) = planning._speed_goals(section)
    assert (goal.met, goal.found) == (False, "ratio 1.20, of processor time 0.50")
