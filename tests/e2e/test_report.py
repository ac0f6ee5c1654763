"""Exit code 0 only when every promise was kept; every broken one is told."""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from e2e.cluster.steps import Part
from e2e.demo.history import Breach, Violation
from e2e.demo.judge import Difference, Fault, Tally
from e2e.demo.loader import Load
from e2e.demo.measure import READ, WRITE, PhaseMeasure
from e2e.demo.phases import PhaseResult
from e2e.demo.report import Result, draw
from e2e.demo.settings import PhaseName
from e2e.demo.state import Moves
from e2e.demo.verify import Verification


def measured(name: PhaseName, kinds: tuple[str, ...] = (READ, WRITE), failed: str = "") -> dict[str, Any]:
    """What clients measured in a phase in which one request of each of the kinds was answered."""
    phase = PhaseMeasure.begin(name, 0.0)
    for kind in kinds:
        phase.meters[kind].latencies.add(0.002)
        phase.meters[kind].pauses.success(1, 0.5)
    if failed:
        phase.meters[WRITE].errors[failed] += 1
    return phase.summary(1.0)


def good() -> Result:
    summary = measured(PhaseName.SCALE_UP)
    tally = Tally(Counter(packages=20), 4, 2)
    moves = Moves(
        planned=Counter(move=3), done=Counter(move=3), bytes_copied=2_000_000, bytes_by_spark=1_000_000
    )
    return Result(
        "run",
        "test",
        10,
        1,
        setup=[Part("build Kubernetes", 0.04, 700.0), Part("build the image member", 12.0, 20.26)],
        loads=[Load("packages", 10, 1000, 1.0)],
        phases=[PhaseResult(PhaseName.SCALE_UP, 10.0, moves)],
        measures=[summary],
        clients={"total": summary, "violations_total": 0, "violations": [], "acknowledged": 1, "doubtful": 0},
        verification=Verification(tally, [], 5, 2.0),
        spark_expected=True,
    )


def without_spark() -> Result:
    result = good()
    result.phases[0].moves = replace(result.phases[0].moves, bytes_by_spark=0)
    return result


def drawn(result: Result) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        draw(result, console)
    return console.export_text()


def test_a_good_run() -> None:
    result = good()
    assert (result.exit_code, result.problems()) == (0, [])
    made = json.loads(json.dumps(result.as_json()))
    assert made["ok"] is True
    assert made["phases"][0]["moves"]["megabytes_per_second"] == 0.2
    assert made["phases"][0]["reads"]["p99_ms"] == 2.0
    assert made["setup"] == [
        {"step": "build Kubernetes", "begin_seconds": 0.0, "seconds": 700.0},
        {"step": "build the image member", "begin_seconds": 12.0, "seconds": 20.3},
    ]
    text = drawn(result)
    assert all(word in text for word in ("build Kubernetes", "700.0 s", "12.0 s", "20.3 s"))
    assert all(word in text for word in ("scale-up", "3 move", "2.0 MB", "1.0 MB", "Every promise was kept"))


def lost_write(result: Result) -> None:
    assert result.verification
    result.verification.violations.append(Violation(Breach.LOST, "ledger:k", "nothing is stored"))


def stale_read(result: Result) -> None:
    broken = {"key": "ledger:k", "breach": Breach.STALE, "detail": "read 1"}
    result.clients |= {"violations_total": 1, "violations": [broken]}


def differing_replica(result: Result) -> None:
    assert result.verification
    result.verification.tally.add([Difference(Fault.MISSING, 7, "demo-1", "padded", b"ledger:k")])


def failed_phase(result: Result) -> None:
    result.phases[0].error = "ledger:k is not safe"


def no_verification(result: Result) -> None:
    result.verification = None
    result.failure = "ledger:k cannot be read"


@pytest.mark.parametrize(
    "break_it", [lost_write, stale_read, differing_replica, failed_phase, no_verification]
)
def test_each_broken_promise_is_told_and_gives_exit_code_1(break_it) -> None:  # type: ignore[no-untyped-def]
    result = good()
    break_it(result)
    assert result.exit_code == 1
    assert any("ledger:k" in problem for problem in result.problems())
    assert result.as_json()["ok"] is False
    assert "ledger:k" in drawn(result)


def test_a_run_in_which_spark_copied_nothing_is_broken() -> None:
    result = without_spark()
    assert result.exit_code == 1
    assert "Spark copied nothing" in result.problems()[0]


@pytest.mark.parametrize(("open_at_kill", "told"), [(None, "was not killed"), (0, "was killed too late")])
def test_an_operator_that_was_not_killed_in_the_middle_is_told(open_at_kill: int | None, told: str) -> None:
    result = good()
    result.phases.append(PhaseResult(PhaseName.SCALE_DOWN, 5.0, Moves(), open_at_kill=open_at_kill))
    assert result.exit_code == 1
    assert told in result.problems()[0]
    result.phases[-1].open_at_kill = 1
    assert result.problems() == []


NOTHING_ASKED: dict[str, Any] = {"phase": PhaseName.UPGRADE}


@pytest.mark.parametrize(
    ("missing", "copied", "measure", "told"),
    [
        (1, 0, measured(PhaseName.UPGRADE), ""),
        (2, 0, measured(PhaseName.UPGRADE), "Copies of 2 members were missing in the upgrade."),
        (None, 0, measured(PhaseName.UPGRADE), "Nobody counted the copies that were missing in the upgrade."),
        (1, 7, measured(PhaseName.UPGRADE), "The upgrade copied 7 bytes; it needs no copy."),
        (1, 0, measured(PhaseName.UPGRADE, failed="MOVED"), "Requests failed in the upgrade: "),
        (1, 0, measured(PhaseName.UPGRADE, (READ,)), "No writes were measured in the upgrade."),
        (1, 0, measured(PhaseName.UPGRADE, ()), "No reads and no writes were measured in the upgrade."),
        (1, 0, NOTHING_ASKED, "No reads and no writes were measured in the upgrade."),
        (1, 0, measured(PhaseName.EVICT), "No reads and no writes were measured in the upgrade."),
    ],
)
def test_planned_stops_copy_nothing_lack_one_member_and_fail_no_request_of_many(
    missing: int | None, copied: int, measure: dict[str, Any], told: str
) -> None:
    result = good()
    moves = Moves(bytes_copied=copied)
    result.phases.append(PhaseResult(PhaseName.UPGRADE, 5.0, moves, members_missing=missing))
    result.measures.append(measure)
    assert [problem.startswith(told) for problem in result.problems()] == [True] * bool(told)
    assert result.exit_code == bool(told)


def test_spark_is_not_missed_where_it_is_not_expected_or_nothing_was_scaled() -> None:
    small, quiet = without_spark(), without_spark()
    small.spark_expected = False
    quiet.phases[0].name = PhaseName.QUIET
    assert small.problems() == quiet.problems() == []
