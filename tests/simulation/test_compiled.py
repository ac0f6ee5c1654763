"""Whole clusters have the same histories with the compiled module as with plain Python alone."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLAIN = 'import sys; sys.modules["stele_native"] = None\n'
RUN = """\
from stele.native import compiled
from tests.simulation.families.registry import draw
from tests.simulation.run import run_profile
for seed, family in ((1, "swarm"), (2, "redis"), (3, "cluster")):
    result = run_profile(draw(seed, family))
    print(family, result.digest, result.acknowledged, bool(result.failure))
print(compiled is not None)
"""


def lines(code: str) -> list[str]:
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_histories_are_the_same_without_the_compiled_module() -> None:
    *compiled, is_compiled = lines(RUN)
    *plain, is_plain = lines(PLAIN + RUN)
    assert (is_compiled, is_plain) == ("True", "False")
    assert compiled == plain
    assert len(plain) == 3
    assert all(line.endswith(" False") for line in plain), plain
