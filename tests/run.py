"""Runs tests, and those that fail once more, alone: `python -m tests.run [arguments of pytest]`.

`python -m tests.run --all COMPILED` runs every test but those marked `long`: those of the kind cluster, which
mostly wait for pods, beside all others, which leave the processor to them. What the first print is shown
after what the others print. The others import `stele` from the folder COMPILED, where modules are compiled as
images have them (`python -m e2e.cluster compiled`); those marked `plain` do not.

Many tests start processes and wait for leases and disks. Beside others on a busy machine one of them may miss
its time. A test that fails passes only if it passes with the machine to itself, and it is named at the end.
When more than AGAIN_MAX fail, no processor is to blame: nothing is run again.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import pytest

AGAIN_MAX = 16
"""Most tests that are run again."""

COMPILED = "STELE_COMPILED_TESTS"
"""Set where tests run with compiled modules."""

FAILED = "STELE_FAILED_TESTS"
"""Names the file to which a run writes the tests that failed, a line each, instead of running them again."""

CLUSTER = ("-o", "testpaths=tests/e2e", "-m", "cluster and not long")
"""The one folder that has such tests: to collect all others takes half a minute."""

_SEVERAL = ("-n", "3", "--dist", "worksteal", "-m")
OTHERS = (*_SEVERAL, "not plain and not cluster and not long")
PLAIN = (*_SEVERAL, "plain and not cluster and not long")
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
    return _again(code, {tuple(failures.tests): os.environ})


def run_all(compiled: str, arguments: Sequence[str]) -> int:
    """Run the tests of the cluster beside all others; return the worse exit code, as `run` does."""
    plain, as_in_images = dict(os.environ), _with_modules(compiled)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        failed, shown = [folder / "others", folder / "plain", folder / "cluster"], folder / "cluster.log"
        with shown.open("wb") as log, _start([*CLUSTER, *arguments], failed[2], log, plain) as cluster:
            # Those that start from here on, not the tests of the cluster.
            os.nice(NICENESS)
            with _start([*OTHERS, *arguments], failed[0], None, as_in_images) as others:
                codes = [others.wait()]
            with _start([*PLAIN, *arguments], failed[1], None, plain) as others:
                codes += [others.wait(), cluster.wait()]
        print(f"\nThe tests of the kind cluster:\n{shown.read_text(errors='replace')}", flush=True)
        names = [file.read_text().splitlines() if file.exists() else [] for file in failed]
    # Of a few tests that somebody chooses, one run may have none.
    codes = [code for code in codes if code != pytest.ExitCode.NO_TESTS_COLLECTED] or codes
    broken = [code for code in codes if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)]
    if broken:
        return broken[0]
    return _again(max(codes), {tuple(names[0]): as_in_images, (*names[1], *names[2]): plain})


def _with_modules(folder: str) -> Mapping[str, str]:
    """The environment of processes that import `stele` from there."""
    folders = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders), COMPILED: "1"}


def _start(
    arguments: Sequence[str], failed: Path, output: IO[bytes] | None, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.run", *arguments]
    environment = {**environment, FAILED: str(failed)}
    return subprocess.Popen(command, env=environment, stdout=output, stderr=output)


def _again(code: int, failed: Mapping[Sequence[str], Mapping[str, str]]) -> int:
    """Run the tests that failed once more, alone and in the same environment, if they are few.

    Returns the exit code of the whole.
    """
    all_names = [name for names in failed for name in names]
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(all_names) <= AGAIN_MAX:
        return code
    listed = "".join(f"\n  {each}" for each in all_names)
    print(f"\nThese failed, and run once more, with the machine to themselves:{listed}", flush=True)
    command = [sys.executable, "-m", "pytest", "-n", "0"]
    codes = [
        subprocess.run([*command, *names], env=environment, check=False).returncode
        for names, environment in failed.items()
        if names
    ]
    if max(codes) == pytest.ExitCode.OK:
        print(f"\nThese failed beside others and passed alone; they need a look:{listed}", flush=True)
    return max(codes)


if __name__ == "__main__":
    sys.exit(run_all(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == ["--all"] else run(sys.argv[1:]))
