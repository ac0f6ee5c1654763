"""What `seed` observes of a system, its tables, its page, and that Stele's cluster gets through events."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from e2e.bench import copy_rig, peers, seed, seed_systems
from e2e.bench.copy_rig import Process
from e2e.bench.errors import BenchError
from e2e.bench.master_rig import NAMESPACE, rig
from e2e.bench.report import Report
from e2e.bench.seed_cases import FULL, MOST, QUICK, Event, Measured, Series
from e2e.bench.seed_plots import BEGIN, END, file_of, pasted
from e2e.bench.seed_rig import NODE, SeedRig, spec_of
from e2e.bench.seed_systems import SYSTEMS, Collections, Observe, System
from e2e.cluster.control_plane import ControlPlane
from stele.adapters.kubernetes.api import EVENTS, PODS, Kind
from stele.adapters.members.client import MemberClient
from stele.master.supervisor import Supervisor
from stele.model import TabletCluster
from stele.playground.api import FileApi
from stele.playground.objects import ObjectFiles
from stele.playground.up import SETTINGS
from tests.worker import networks

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "benchmarks.md"
NOT_YET = "No figures yet."
QUIET_SECONDS = 5.0
SMALL = Series(partitions=31, data_bytes=1 << 20, parallel=5, maps=2)


class Clients:
    """A process of clients that answers at once, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask(self, *words: Any, seconds: float = 0.0) -> dict[str, Any]:
        self.asked.append(words[0])
        latencies = dict.fromkeys(("p50_seconds", "p99_seconds", "p999_seconds", "max_seconds"), 0.01)
        kind = {"answered": 30, "failed": 1, **latencies}
        told: dict[str, dict[str, Any]] = {
            "load": {"seconds": 2.0},
            "lag": {"seconds": 0.0},
            "stats": {"get": kind, "set": kind},
            "course": {"get": [[500, 0, 0.004, 0.01]] * 3, "set": [[500, 1, 0.0, 0.0]] * 3},
            "end": {"stale_reads": 1, "missing_reads": 0},
            "verify": {"missing": 2, "corrupt": 0, "older": 0},
        }
        return told.get(words[0], {})


class Fake:
    """A system in which everything takes two seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.clients: Any = Clients()
        self._collected: Iterator[Collections] = iter([{1: (5, 0.5)}, {1: (7, 0.75), 2: (1, 0.25)}] * 4)

    def happen(self, event: Event) -> Measured:
        return Measured(10.0, 12.0, 100, 1.5)

    def pids(self) -> Sequence[int]:
        return []

    def collections(self) -> Collections:
        return next(self._collected) if self.name == "Hazelcast" else {}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_SECONDS", "WARM_SECONDS", "QUICK_QUIET_SECONDS", "QUICK_WARM_SECONDS"):
        monkeypatch.setattr(seed, name, 0.0)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch, soon: None) -> None:
    """Both systems are fakes, and nothing is built."""

    def run(name: str, series: Series, observe: Observe) -> None:
        observe(Fake(name))

    monkeypatch.setattr(seed_systems, "run", run)
    monkeypatch.setattr(peers, "check_java", lambda: None)
    monkeypatch.setattr(peers, "ensure", lambda: None)
    monkeypatch.setattr(seed.disk, "until_idle", lambda folder: 0.0)


def test_a_system_is_observed_from_before_an_event_until_after_it(soon: None) -> None:
    results = seed.Results()
    system: System = Fake("Hazelcast")
    seed.observe(system, SMALL, True, results)
    assert [row["event"] for row in results.events] == list(Event)
    row = results.events[0]
    assert (row["safe_seconds"], row["member_seconds"], row["moved_per_second"]) == (2.0, 1.5, 50.0)
    assert (row["during_per_second"], row["failed"]) == (30.0, 6)
    assert (row["collections"], row["collection_seconds"]) == (3, 0.5)
    (series,) = results.series
    assert (series["wrong"], len(series["marks"]), len(series["course"]["get"])) == (3, 4, 3)


def test_members_that_do_not_tell_of_collections_have_none() -> None:
    assert seed.collected_since({}, {}) == {"collections": None, "collection_seconds": None}


def row(system: str, seconds: float) -> dict[str, Any]:
    place = {"event": str(Event.LOSS), "series": str(FULL[-1]), "partitions": 16_384, "parallel": 20}
    latencies = {"during_get_p99_seconds": seconds, "during_set_p99_seconds": seconds}
    return {
        **place,
        **latencies,
        "system": system,
        "safe_seconds": seconds,
        "memory_bytes": 1 << 20,
        "failed": 0,
    }


def test_stele_is_compared_with_hazelcast_of_the_same_event_and_series() -> None:
    rows = [row("Stele", 3.0), row("Hazelcast", 2.0), {**row("Hazelcast", 9.0), "series": str(FULL[0])}]
    found = seed.with_ratios(rows[0], rows)
    assert (found["safe_of_hazelcast"], found["memory_of_hazelcast"]) == (1.5, 1.0)
    assert seed.with_ratios(rows[1], rows)["safe_of_hazelcast"] is None
    assert seed.with_ratios(rows[0], rows[:1])["safe_of_hazelcast"] is None


@pytest.mark.parametrize(("seconds", "missed"), [(2.0, 0), (2.1, 3)])
def test_stele_is_to_be_as_good_as_hazelcast(seconds: float, missed: int) -> None:
    rows = [row("Stele", seconds), row("Hazelcast", 2.0)]
    found = seed.goals([seed.with_ratios(each, rows) for each in rows], seed.Results())
    assert sum(not goal.met for goal in found) == missed


def test_an_interrupted_run_has_what_was_measured(fakes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, series: Series, observe: Observe) -> None:
        if name == SYSTEMS[1]:
            raise KeyboardInterrupt
        observe(Fake(name))

    monkeypatch.setattr(seed_systems, "run", run)
    report = Report("seed", quick=True)
    with pytest.raises(KeyboardInterrupt):
        seed.run(report, True)
    assert [len(section.rows) for section in report.sections] == [4, 4, 4, 1]


def test_a_series_that_fails_is_told_and_the_others_are_measured(
    fakes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, series: Series, observe: Observe) -> None:
        if (name, series) == ("Stele", QUICK[0]):
            raise BenchError("not safe")
        observe(Fake(name))

    monkeypatch.setattr(seed_systems, "run", run)
    report = Report("seed", quick=True)
    seed.run(report, True)
    assert len(report.sections[0].rows) == 4 * (2 * len(QUICK) - 1)
    assert report.goals[-1].found == f"Stele, {QUICK[0]}"
    assert not report.goals[-1].met


def whole_run() -> Report:
    report = Report("seed", quick=False, facts={"commit": "0123456789", "cores": 2}, complete=True)
    seed.run(report, False)
    return report


def test_the_page_of_a_run_has_pictures(fakes: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(seed, "QUICK", QUICK[-1:])
    report = Report("seed", quick=True, facts={"commit": "0123456789"})
    seed.run(report, True)
    seed.write(report, tmp_path)
    course = file_of(str(QUICK[-1]))
    assert course == "course-271-partitions-20x-10-maps.png"
    assert {path.name for path in tmp_path.glob("*.png")} == {"safe.png", course}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))
    assert f"({course})" in (tmp_path / "index.md").read_text()
    assert (tmp_path / "seed.md").read_text().startswith(BEGIN)


def case_cells(cells: list[str]) -> int:
    """How many cells of a line say what was measured; all of a line that is none of a table of figures."""
    if cells[0] in list(Event):
        return len(seed.CASE)
    if cells[0] in {f"{series.partitions:,}" for series in FULL}:
        return len(seed.CASE) - 1
    return 1 if cells[-1] in {"yes", "**no**"} else len(cells)


def without_figures(lines: Sequence[str]) -> list[str]:
    """Settings, columns and cases: what does not depend on machine or commit."""
    split = [line.strip("| ").split(" | ") for line in lines[2:]]
    return [" | ".join(cells[: case_cells(cells)]) for cells in split]


def test_the_documentation_has_what_a_run_writes(fakes: None) -> None:
    """To publish figures is to paste seed.md in place of what is between its marks."""
    written = pasted(whole_run())
    page = PAGE.read_text(encoding="utf-8")
    assert (page.count(BEGIN), page.count(END), written.startswith(BEGIN)) == (1, 1, True)
    shown = page[page.index(BEGIN) : page.index(END)].splitlines()[1:]
    if shown != [NOT_YET]:
        made = written[: written.index(END)].splitlines()[1:]
        assert without_figures(shown) == without_figures(made)
        assert re.match(r"Commit [0-9a-f]{10};", shown[0]), (
            "figures are of a commit, without changes beside it"
        )


def test_the_documentation_names_what_is_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "make bench-seed" in page
    assert all(f"| {event} |" in page for event in Event)
    assert all(f"{series.partitions:,} partitions" in page for series in FULL)


def test_the_cluster_is_as_a_user_gets_it() -> None:
    """But for what the series say, and that the master need not wait for a member that is lost for good."""
    body = {"apiVersion": "stele.dev/v1alpha1", "kind": "TabletCluster", "metadata": {"name": "bench"}}
    found = TabletCluster.read({**body, "spec": spec_of(SMALL, 4)})
    assert isinstance(found, TabletCluster)
    assert found.spec.migration.max_parallel_per_member == SMALL.parallel
    assert found.spec.failure_detection.rejoin_grace_period_seconds == 30


def test_a_process_that_ends_by_itself_ends_the_measurement() -> None:
    """Nothing starts it again, so that all would wait for it until the time is up."""
    made = object.__new__(SeedRig)
    runs, ended = (
        cast(Process, SimpleNamespace(returncode=None)),
        cast(Process, SimpleNamespace(returncode=1)),
    )
    made._pods = {"bench-0": [runs, runs], "bench-1": [runs]}
    made._check_processes()
    made._pods["bench-1"].append(ended)
    with pytest.raises(BenchError, match="a process of bench-1 has ended by itself"):
        made._check_processes()


class InFiles(SeedRig):
    """The cluster with the playground's API server, and the operator's loop in this process."""

    def __init__(self, folder: Path) -> None:
        (folder / "files" / "logs").mkdir(parents=True)
        self._files = ObjectFiles(folder / "files")
        api = FileApi(self._files)
        super().__init__(cast(ControlPlane, None), api, folder)
        self._master = Supervisor(api, MemberClient, SETTINGS)
        self.tasks: list[asyncio.Task[None]] = []

    async def start_operator(self) -> float:
        self._files.changed.append(self._note)
        await self._master.list_all()
        self.tasks.append(asyncio.create_task(self._master.run()))
        return time.monotonic()

    def _note(self, kind: Kind, stored: dict[str, Any], gone: bool) -> None:
        (self._master.cache.remove if gone else self._master.cache.put)(kind, stored)

    async def _bind(self, name: str) -> None:
        self._files.patch(PODS, name, {"spec": {"nodeName": NODE}})

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._master.close()
        await super().close()


@asynccontextmanager
async def in_files(folder: Path) -> AsyncIterator[SeedRig]:
    made = InFiles(folder)
    made.tasks.append(asyncio.create_task(made.run_pods()))
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.long
@pytest.mark.parametrize("place", ["files", pytest.param("kubernetes", marks=pytest.mark.control_plane)])
async def test_a_cluster_gets_through_all_events(
    place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(copy_rig, "NETWORK", next(networks(74)))
    found: dict[Event, Measured] = {}
    async with in_files(tmp_path) if place == "files" else rig(SeedRig) as made:
        await made.form(SMALL)
        for event in Event:
            found[event] = await made.happen(event)
        rows = await made.rows(SMALL.partitions)
    assert found[Event.SHUTDOWN].replicas_moved == 0, "the member has its data on its volume"
    assert all(found[event].replicas_moved >= 14 for event in Event if event is not Event.SHUTDOWN)
    assert len(Counter(member for each in rows for member in each.replicas)) == 3


@pytest.mark.control_plane
async def test_members_that_get_thousands_of_tablets_are_not_taken_for_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them write for longer than a lease: one that was lost would leave as much to write to others."""
    monkeypatch.setattr(copy_rig, "NETWORK", next(networks(74)))
    async with rig(SeedRig) as made:
        await made.form(Series(MOST, data_bytes=0, parallel=20, maps=1))
        await asyncio.sleep(QUIET_SECONDS)
        reasons = Counter(each["reason"] for each in await made.api.list(EVENTS, NAMESPACE))
    assert reasons["TableAssigned"] == 1
    assert reasons.keys().isdisjoint({"MemberUnreachable", "DataLoss"})
