"""Planning beside Hazelcast's and Infinispan's planners: seconds, copies, evenness, growth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from e2e.bench import peers
from e2e.bench.planners import Ours, Planner, Theirs, samples
from e2e.bench.planning_cases import (
    FULL,
    GOAL_PARTITIONS,
    QUICK,
    REFERENCES,
    Case,
    Event,
    Scope,
    cases,
    grown_members,
    grown_partitions,
)
from e2e.bench.quality import Quality
from e2e.bench.report import Column, Goal, Report, Row, Section, factor, milliseconds, plain
from e2e.bench.timing import Sample, exponent, median, ratio
from e2e.cluster.steps import say
from stele.adapters.collector import tune_gc

TITLE = "plans beside Hazelcast's and Infinispan's: seconds, copies, evenness, growth (minutes; quick: one)"
WARM_SECONDS_MAX = 40.0
POINT_SECONDS_MAX = 5.0
"""A system that takes longer for one plan is not asked for the next size of a growth."""

NAMES = {"stele": "Stele", "hazelcast": "Hazelcast", "infinispan": "Infinispan"}
_PEERS = ("hazelcast", "infinispan")
_Times = Mapping[str, list[Sample]]
_CASE = (
    Column("event", "event"),
    Column("members", "members"),
    Column("partitions", "partitions"),
    Column("replicas", "replicas"),
)
_TIME_NOTE = """\
Median of plans that take turns, each system on its own balanced table. Hazelcast plans seven replicas of each
partition whatever is asked for, Infinispan makes a table without ordered migrations. processor: the ratio of
what the planning threads used of the processor, which other programs disturb little."""
_QUALITY_NOTE = """\
copies/bound: replicas on members that had none, and the fewest that even shares allow from the same table.
own, rep: the most owned partitions (replicas) of a member less the fewest. Fewer copies than the bound are
bought with uneven replicas."""
_FOREIGN_NOTE = """\
The same events on the table that Hazelcast made, cut to the replicas. Where its owners are uneven and every
member that stays holds every partition, evening them out takes copies beyond the bound."""
_PARTS = {
    "stele": ("assign", "order"),
    "hazelcast": ("arrange", "MigrationPlanner"),
    "infinispan": ("updateMembers", "rebalance"),
}
_GROWTH_NOTE = """\
^: the power of the size that the time grows with since the size before; in the last row from the first size.
1 is linear. A system that took over {seconds:.0f} s for a plan was not asked for the next size."""


def run(report: Report, quick: bool) -> None:
    """Fill the report; raises BenchError and ClusterError when something outside is not as it must be."""
    scope = QUICK if quick else FULL
    peers.check_java()
    tune_gc()  # As an operator does at its start.
    with peers.Peers(peers.ensure()) as process:
        report.facts.update(process.ask("versions"))
        Planning(report, scope, Ours(), [Theirs(name, process) for name in _PEERS]).run()


class Planning:
    """One run; `theirs` begins with Hazelcast."""

    def __init__(self, report: Report, scope: Scope, ours: Ours, theirs: Sequence[Planner]) -> None:
        self._report, self._scope = report, scope
        self._ours, self._theirs = ours, theirs
        self._planners: list[Planner] = [ours, *theirs]
        self._start = time.monotonic()

    def run(self) -> None:
        """The parts of the benchmark, the most important first."""
        self._warm()
        found = self._compare()
        self._take_apart()
        self._grow("partitions", grown_partitions, self._scope.growth_partitions)
        self._grow("members", grown_members, self._scope.growth_members)
        self._report.goals += [_quality_goal(found), *_speed_goals(self._report.sections[0])]

    def _warm(self) -> None:
        """Plan until a just-in-time compiler has little left to do."""
        for planner in self._planners[1:]:
            end = time.monotonic() + WARM_SECONDS_MAX
            for _ in range(self._scope.warm_rounds):
                for case in REFERENCES:
                    planner.prepare(case)
                    planner.measure(self._scope.samples)
                if time.monotonic() > end:
                    break
            self._say(f"{NAMES[planner.name]} is warmed up")

    def _compare(self) -> list[tuple[Case, Quality]]:
        """All cases on all systems; the quality of our plans."""
        seconds = self._report.section("Seconds of a plan", _time_columns(), _TIME_NOTE)
        quality = self._report.section("Copies and evenness", _quality_columns(), _QUALITY_NOTE)
        foreign = self._report.section("On Hazelcast's table", _foreign_columns(), _FOREIGN_NOTE)
        every = cases(self._scope)
        found = []
        for number, case in enumerate(every, 1):
            times, worths = self._measure(case)
            seconds.rows.append({**_case(case), **_time_values(times)})
            quality.rows.append({**_case(case), **{name: asdict(each) for name, each in worths.items()}})
            foreign.rows.append(self._foreign(case, times))
            found.append((case, worths["stele"]))
            self._say(f"{number} of {len(every)}: {case}: {_times_text(seconds.rows[-1])}")
        return found

    def _measure(self, case: Case) -> tuple[_Times, dict[str, Quality]]:
        times: dict[str, list[Sample]] = {planner.name: [] for planner in self._planners}
        for planner in self._planners:
            planner.prepare(case)
        for _ in range(self._scope.rounds):
            for planner in self._planners:
                times[planner.name] += samples(planner, self._scope.samples)
        return times, {planner.name: planner.quality() for planner in self._planners}

    def _foreign(self, case: Case, times: _Times) -> dict[str, Any]:
        self._ours.prepare(case, self._theirs[0].current)
        measured = {"stele": samples(self._ours, self._scope.samples), "hazelcast": times["hazelcast"]}
        return {**_case(case), **_time_values(measured), "stele": asdict(self._ours.quality())}

    def _take_apart(self) -> None:
        section = self._report.section("Where the time goes", _parts_columns())
        for case in REFERENCES:
            row = _case(case)
            for planner in self._planners:
                planner.prepare(case)
                planner.measure(1)
                for part, seconds in zip(
                    _PARTS[planner.name], planner.parts(self._scope.samples), strict=True
                ):
                    row[f"{planner.name}_{part}_seconds"] = seconds
            section.rows.append(row)
        self._say("parts measured")

    def _grow(self, axis: str, grown: Callable[..., list[tuple[int, Case]]], sizes: Sequence[int]) -> None:
        note = _GROWTH_NOTE.format(seconds=POINT_SECONDS_MAX)
        section = self._report.section(f"Growth with {axis}", _growth_columns(axis), note)
        for event in self._scope.growth_events:
            points: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
            for size, case in grown(event, sizes):
                times = {planner.name: self._point(planner, case, points) for planner in self._planners}
                for name, seconds in times.items():
                    points[name] += [] if seconds is None else [(size, seconds)]
                section.rows.append(_growth_row(event, axis, size, times, points))
                self._say(f"growth: {case}: {_times_text(section.rows[-1])}")
            section.rows.append(_whole_growth(event, axis, points))

    def _point(
        self, planner: Planner, case: Case, points: Mapping[str, list[tuple[float, float]]]
    ) -> float | None:
        before = points[planner.name]
        if before and before[-1][1] > POINT_SECONDS_MAX:
            return None
        planner.prepare(case)
        return median(each.seconds for each in samples(planner, self._scope.samples))

    def _say(self, text: str) -> None:
        say(f"[{time.monotonic() - self._start:6.1f} s] {text}")


def _case(case: Case) -> dict[str, Any]:
    return {
        "event": str(case.event),
        "members": case.members,
        "partitions": case.partitions,
        "replicas": case.replicas,
    }


def _time_values(times: _Times) -> dict[str, Any]:
    """Medians, least and most of each system, and the ratios of the medians."""
    row: dict[str, Any] = {}
    for name, measured in times.items():
        seconds = [each.seconds for each in measured]
        row[f"{name}_seconds"] = median(seconds)
        row[f"{name}_seconds_min"], row[f"{name}_seconds_max"] = min(seconds), max(seconds)
        row[f"{name}_cpu_seconds"] = median(each.cpu_seconds for each in measured)
    for name in times.keys() - {"stele"}:
        row[f"stele_to_{name}"] = ratio(row["stele_seconds"], row[f"{name}_seconds"])
        row[f"stele_to_{name}_cpu"] = ratio(row["stele_cpu_seconds"], row[f"{name}_cpu_seconds"])
    return row


def _times_text(row: Mapping[str, Any]) -> str:
    seconds = ((title, row[f"{name}_seconds"]) for name, title in NAMES.items())
    return ", ".join(f"{title} {milliseconds(each)} ms" for title, each in seconds if each is not None)


def _growth_row(
    event: str,
    axis: str,
    size: int,
    times: Mapping[str, float | None],
    points: Mapping[str, list[tuple[float, float]]],
) -> dict[str, Any]:
    row: dict[str, Any] = {"event": str(event), axis: size}
    for name, seconds in times.items():
        row[f"{name}_seconds"] = seconds
        row[f"{name}_exponent"] = None if seconds is None else exponent(points[name][-2:])
    return row


def _whole_growth(event: str, axis: str, points: Mapping[str, list[tuple[float, float]]]) -> dict[str, Any]:
    exponents = {f"{name}_exponent": exponent(each) for name, each in points.items()}
    return {"event": str(event), axis: "all", **exponents}


def _quality_goal(found: Sequence[tuple[Case, Quality]]) -> Goal:
    poor = [f"{case}: {quality}" for case, quality in found if not quality.good]
    text = "every plan leaves members within 1 of their share and copies no more than the bound"
    return Goal(text, "; ".join([f"{len(found) - len(poor)} of {len(found)} cases", *poor]), not poor)


def _speed_goals(seconds: Section) -> list[Goal]:
    return [_speed_goal(row) for row in seconds.rows if row["partitions"] == GOAL_PARTITIONS]


def _speed_goal(row: Row) -> Goal:
    case = Case(Event(row["event"]), row["members"], row["partitions"], row["replicas"])
    found = row["stele_to_hazelcast"]
    text = f"ratio {factor(found)}, of processor time {factor(row['stele_to_hazelcast_cpu'])}"
    return Goal(f"{case}: no slower than Hazelcast", text, found <= 1)


def _time_columns() -> list[Column]:
    seconds = [Column(f"{title} ms", f"{name}_seconds", milliseconds) for name, title in NAMES.items()]
    return [*_CASE, *seconds, *(column for name in _PEERS for column in _ratio_columns(name))]


def _ratio_columns(name: str) -> list[Column]:
    against = f"Stele/\n{NAMES[name]}"
    return [
        Column(against, f"stele_to_{name}", factor),
        Column("pro-\ncessor", f"stele_to_{name}_cpu", factor),
    ]


def _worth_columns(name: str, title: str) -> list[Column]:
    return [
        Column(f"{title}\ncopies/bound", name, _copies),
        Column("own", name, partial(_value, "owner_spread")),
        Column("rep", name, partial(_value, "replica_spread")),
    ]


def _quality_columns() -> list[Column]:
    return [*_CASE, *(column for pair in NAMES.items() for column in _worth_columns(*pair))]


def _foreign_columns() -> list[Column]:
    seconds = Column("Stele ms", "stele_seconds", milliseconds)
    return [*_CASE, seconds, *_ratio_columns("hazelcast"), *_worth_columns("stele", "Stele")]


def _parts_columns() -> list[Column]:
    return [
        *_CASE,
        *(
            Column(f"{title}\n{part} ms", f"{name}_{part}_seconds", milliseconds)
            for name, title in NAMES.items()
            for part in _PARTS[name]
        ),
    ]


def _growth_columns(axis: str) -> list[Column]:
    measured = [
        (Column(f"{title} ms", f"{name}_seconds", milliseconds), Column("^", f"{name}_exponent", factor))
        for name, title in NAMES.items()
    ]
    return [Column("event", "event"), Column(axis, axis), *(column for pair in measured for column in pair)]


def _value(key: str, quality: Mapping[str, Any]) -> str:
    return plain(quality[key])


def _copies(quality: Mapping[str, Any]) -> str:
    return f"{quality['copies']:,}/{quality['lower_bound']:,}"
