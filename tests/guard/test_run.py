"""A test that fails runs once more, alone; one that fails again, or with many others, fails the run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.run import AGAIN_MAX

ROOT = Path(__file__).parents[2]

FAILS_ONCE = """
from pathlib import Path

def test_of_time():
    first = Path(__file__).with_name("ran")
    ran = first.exists()
    first.touch()
    assert ran

def test_beside():
    assert True
"""
FAILS = """
def test_wrong():
    assert 1 == 2
"""
FAIL_ALL = f"""
import pytest

@pytest.mark.parametrize("number", range({AGAIN_MAX + 1}))
def test_wrong(number):
    assert number < 0
"""


def _run(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    (folder / "pytest.ini").write_text("[pytest]\n")
    file = folder / "test_it.py"
    file.write_text(text)
    command = [
        sys.executable,
        "-m",
        "tests.run",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        str(file),
    ]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_test_that_passes_alone_is_named(tmp_path: Path) -> None:
    ran = _run(tmp_path, FAILS_ONCE)
    assert ran.returncode == 0, ran.stdout
    assert "1 failed, 1 passed" in ran.stdout
    last = ran.stdout.splitlines()[-2:]
    assert last[0].startswith("These failed beside others and passed alone")
    assert "test_it.py::test_of_time" in last[1]


@pytest.mark.parametrize(("text", "runs"), [(FAILS, 2), (FAIL_ALL, 1)])
def test_what_fails_again_or_with_many_fails(tmp_path: Path, text: str, runs: int) -> None:
    ran = _run(tmp_path, text)
    assert ran.returncode == 1
    assert ran.stdout.count("test session starts") == runs
