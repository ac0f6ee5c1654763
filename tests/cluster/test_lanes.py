"""Work side by side: results in order, the first failure told, nothing left running."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster import cache, lanes
from e2e.cluster.errors import ClusterError
from e2e.cluster.lanes import side_by_side
from e2e.cluster.steps import run, succeeds

HOUR = ["sleep", "3600"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def fails_after(begun: threading.Event) -> Callable[[], None]:
    """Work that fails as soon as other work has begun."""

    def work() -> None:
        assert begun.wait(60)
        raise ClusterError("no network")

    return work


def runs(log: Path, begun: threading.Event) -> Callable[[], None]:
    """Work that says that it has begun, and then runs a program that takes an hour."""

    def work() -> None:
        begun.set()
        run(HOUR, log)

    return work


def test_results_are_in_the_order_of_the_works() -> None:
    first_may_end = threading.Event()

    def second() -> int:
        first_may_end.set()
        return 2

    assert side_by_side(lambda: first_may_end.wait(60), second) == [True, 2]


def test_a_failure_ends_the_programs_of_the_others_and_is_the_one_that_is_told(log: Path) -> None:
    begun = threading.Event()

    def other() -> None:
        with lanes.program(HOUR, stdout=subprocess.DEVNULL) as process:
            begun.set()
            process.wait()
        lanes.check()

    with pytest.raises(ClusterError, match="no network"):
        side_by_side(other, fails_after(begun))
    run(["true"], log)  # Nothing is given up any more.


def test_who_is_given_up_starts_no_further_program(log: Path, tmp_path: Path) -> None:
    failed, made = threading.Event(), tmp_path / "made"

    def fails() -> None:
        failed.set()
        raise ClusterError("no network")

    def other() -> None:
        assert failed.wait(60)
        while succeeds(["true"]):
            pass
        run(["touch", made], log)

    with pytest.raises(ClusterError, match="no network"):
        side_by_side(other, fails)
    assert not made.exists()


def test_a_failure_of_work_within_work_is_the_one_that_is_told(log: Path) -> None:
    begun = threading.Event()
    with pytest.raises(ClusterError, match="no network"):
        side_by_side(runs(log, begun), lambda: side_by_side(lambda: run(HOUR, log), fails_after(begun)))


def test_who_waits_for_a_lock_gives_up_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STELE_CACHE", str(tmp_path))
    begun = threading.Event()

    def waits() -> None:
        begun.set()
        with cache.locked("x"):
            pytest.fail("the lock was given twice")

    with cache.locked("x"), pytest.raises(ClusterError, match="no network"):
        side_by_side(waits, fails_after(begun))


def test_an_interruption_ends_the_programs(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def interrupted(*_: object, **__: object) -> None:
        assert begun.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(lanes, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(runs(log, begun), lambda: run(HOUR, log))
