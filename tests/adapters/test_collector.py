"""The collector of cycles runs rarely in the processes that keep many objects."""

import subprocess
import sys
from pathlib import Path

import pytest

PRINTS = "import gc; print(gc.get_threshold()[0], gc.get_freeze_count() > 10_000)"
OPERATOR = Path(__file__).parents[2] / "operator" / "stele"


def test_what_is_there_is_never_collected_and_the_rest_rarely() -> None:
    code = f"from stele.adapters.collector import tune_gc; import aiohttp; tune_gc(); {PRINTS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "20000 True\n"


@pytest.mark.parametrize("program", ["master/__main__.py", "member/process.py"])
def test_operator_and_members_do_so_once_they_are_about_to_serve(program: str) -> None:
    assert OPERATOR.joinpath(program).read_text(encoding="utf-8").count("        tune_gc()\n") == 1
