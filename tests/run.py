"""Runs tests, and those that fail once more, alone: `python -m tests.run [arguments of pytest]`.

Many tests start processes and wait for leases and disks. Beside others on a busy machine one of them may miss
its time. A test that fails passes only if it passes with the machine to itself, and it is named at the end.
When more than AGAIN_MAX fail, no processor is to blame: nothing is run again.
"""

import subprocess
import sys
from collections.abc import Sequence

import pytest

AGAIN_MAX = 8
"""Most tests that are run again."""


class Failures:
    """A plugin of pytest that notes the tests that failed, in order."""

    def __init__(self) -> None:
        self.tests: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.tests[report.nodeid] = None


def run(arguments: Sequence[str]) -> int:
    """Run the tests; return pytest's exit code, that of the second run if there is one."""
    failures = Failures()
    code = int(pytest.main(list(arguments), plugins=[failures]))
    failed = list(failures.tests)
    if code != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= AGAIN_MAX:
        return code
    names = "".join(f"\n  {each}" for each in failed)
    print(f"\nThese failed, and run once more, with the machine to themselves:{names}", flush=True)
    code = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *failed], check=False).returncode
    if code == pytest.ExitCode.OK:
        print(f"\nThese failed beside others and passed alone; they need a look:{names}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
