"""Runs tests, and those that fail once more, alone: `python -m tests.run [arguments of pytest]`.

`python -m tests.run --all` runs every test but those marked `long`: those of the kind cluster, which mostly
wait for pods, beside all others, which leave the processor to them. What the first print is shown after what
the others print.

Many tests start processes and wait for leases and disks. Beside others on a busy machine one of them may miss
its time. A test that fails passes only if it passes with the machine to itself, and it is named at the end.
When more than AGAIN_MAX fail, no processor is to blame: nothing is run again.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

AGAIN_MAX = 16
"""Most tests that are run again."""

FAILED = "STELE_FAILED_TESTS"
"""Names the file to which a run writes the tests that failed, a line each, instead of running them again."""

CLUSTER = ("-o", "testpaths=tests/e2e", "-m", "cluster and not long")
"""The one folder that has such tests: to collect all others takes half a minute."""

OTHERS = ("-n", "3", "--dist", "worksteal", "-m", "not cluster and not long")
NICENESS = 10
"""Of the others: a pod that starts must not wait for them."""


class Failures:
    """A plugin of pytest that notes the tests that failed, in order, and prints each at once.

    pytest itself prints them at the end, which a run that is stopped for its time never reaches.
    """

    def __init__(self) -> None:
        self.tests: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests[report.nodeid] = None
            crash = getattr(report.longrepr, "reprcrash", None)
            why = str(getattr(crash, "message", report.longrepr)).splitlines() or [""]
            text = f"{time.strftime('%H:%M:%S')} FAILED {report.nodeid} ({report.duration:.0f} s): {why[0]}"
            print(f"\n{text}", flush=True)


def run(arguments: Sequence[str]) -> int:
    """Run the tests; return pytest's exit code, that of the second run if there is one."""
    failures = Failures()
    code = int(pytest.main(list(arguments), plugins=[failures]))
    if (file := os.environ.get(FAILED)) is not None:
        Path(file).write_text("".join(f"{each}\n" for each in failures.tests))
        return code
    return _again(code, list(failures.tests))


def run_all(arguments: Sequence[str]) -> int:
    """Run the tests of the cluster beside all others; return the worse exit code, as `run` does."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        failed, shown = [folder / "others", folder / "cluster"], folder / "cluster.log"
        with shown.open("wb") as log, _start([*CLUSTER, *arguments], failed[1], log) as cluster:
            # Those that start from here on, not the tests of the cluster.
            os.nice(NICENESS)
            with _start([*OTHERS, *arguments], failed[0], None) as others:
                codes = [others.wait(), cluster.wait()]
        print(f"\nThe tests of the kind cluster:\n{shown.read_text(errors='replace')}", flush=True)
        names = [name for file in failed if file.exists() for name in file.read_text().splitlines()]
    broken = [code for code in codes if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)]
    return broken[0] if broken else _again(max(codes), names)


def _start(arguments: Sequence[str], failed: Path, output: IO[bytes] | None) -> "subprocess.Popen[bytes]":
    command, environment = [sys.executable, "-m", "tests.run", *arguments], os.environ | {FAILED: str(failed)}
    return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


def _again(code: int, failed: Sequence[str]) -> int:
    """Run the tests that failed once more, alone, if they are few; return the exit code of the whole."""
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= AGAIN_MAX:
        return code
    names = "".join(f"\n  {each}" for each in failed)
    print(f"\nThese failed, and run once more, with the machine to themselves:{names}", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *failed], check=False).returncode
    if code == pytest.ExitCode.OK:
        print(f"\nThese failed beside others and passed alone; they need a look:{names}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[2:]) if sys.argv[1:2] == ["--all"] else run(sys.argv[1:]))
