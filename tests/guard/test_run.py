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
PLAIN = """
import pytest, stele

@pytest.mark.plain
def test_plain():
    assert "made" not in stele.__file__

def test_compiled():
    assert "made" in stele.__file__
"""
OF_THE_CLUSTER = """
import pytest

@pytest.mark.cluster
def test_of_the_cluster():
    test_of_time()
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


def _run(folder: Path, text: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  cluster: of it\n  plain: of it\n")
    file = folder / "test_it.py"
    file.write_text(text)
    command = [
        sys.executable,
        "-m",
        "tests.run",
        *options,
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
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


def test_a_failure_is_printed_while_others_still_run(tmp_path: Path) -> None:
    ran = _run(tmp_path, f"{FAILS}\n\ndef test_later():\n    print('later')\n", "-s")
    at_once, later = ran.stdout.index("FAILED"), ran.stdout.index("later")
    assert at_once < later
    assert "test_it.py::test_wrong (0 s): assert 1 == 2" in ran.stdout[:later]


def test_the_cluster_is_tested_beside_all_else_and_what_failed_runs_again(tmp_path: Path) -> None:
    ran = _run(tmp_path, FAILS_ONCE + OF_THE_CLUSTER, "--all", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    others, cluster = ran.stdout.split("The tests of the kind cluster:")
    assert "2 passed" in others or "1 failed, 1 passed" in others
    assert "deselected" in cluster, "each test runs in one of the two"


PASSES = """
def test_right():
    assert True
"""


@pytest.mark.parametrize("fails", ["test_wrong", "test_of_the_cluster"])
def test_a_failure_in_either_run_fails_all(tmp_path: Path, fails: str) -> None:
    text = (FAILS if fails == "test_wrong" else PASSES) + OF_THE_CLUSTER
    ran = _run(
        tmp_path, text.replace("test_of_time()", f"assert {fails == 'test_wrong'}"), "--all", str(tmp_path)
    )
    assert ran.returncode == 1, ran.stdout
    assert ran.stdout.count("test session starts") == 4
    assert f"::{fails}" in ran.stdout.splitlines()[-2]


def test_what_is_marked_runs_in_plain_python_and_all_else_with_compiled_modules(tmp_path: Path) -> None:
    (tmp_path / "made" / "stele").mkdir(parents=True)
    (tmp_path / "made" / "stele" / "__init__.py").touch()
    ran = _run(tmp_path, PLAIN, "--all", str(tmp_path / "made"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("1 passed") == 2


def test_a_run_that_cannot_begin_fails_all(tmp_path: Path) -> None:
    ran = _run(tmp_path, FAILS_ONCE + OF_THE_CLUSTER, "--all", str(tmp_path), "--no-such-option")
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "run once more" not in ran.stdout


def test_tests_of_the_cluster_are_where_its_run_looks_for_them() -> None:
    mark = "mark." + "cluster"
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if mark in path.read_text()}
    marked -= {Path(__file__)}
    assert marked
    assert all(path.is_relative_to(ROOT / "tests/e2e") for path in marked), marked
