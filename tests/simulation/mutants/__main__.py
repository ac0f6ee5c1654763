"""`python -m tests.simulation.mutants`: note for each planted bug a seed that shows it now.

A seed is another history after a change of the product, and then a bug may need another seed. Tests look for
one by themselves, which takes long.
"""

import argparse
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

from tests.simulation.mutants.registry import PLANTED
from tests.simulation.run import run

PROCESSES = 2
FILES = sorted(Path(__file__).parent.glob("*.py"))


def main() -> int:
    """0: each has a seed; 1: some have none within --seeds."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to try (200)")
    parser.add_argument("names", nargs="*", help="functions that plant bugs (all)")
    given = parser.parse_args()
    if unknown := set(given.names) - {plant.__name__ for plant in PLANTED}:
        parser.error(f"no planted bugs: {', '.join(sorted(unknown))}")
    names = given.names or [plant.__name__ for plant in PLANTED]
    without: list[str] = []
    with ProcessPoolExecutor(PROCESSES) as pool:
        for name, seed in zip(names, pool.map(first_seed, names, [given.seeds] * len(names)), strict=True):
            print(f"{name}: {'no seed' if seed is None else seed}", flush=True)
            if seed is None:
                without.append(name)
            else:
                note(name, seed)
    return 1 if without else 0


def first_seed(name: str, seeds: int) -> int | None:
    """Return the noted seed if it still shows the bug, or else the first that does."""
    plant, (family, noted, rule) = next(item for item in PLANTED.items() if item[0].__name__ == name)
    for seed in chain([noted], range(seeds)):
        with plant():
            if run(seed, family).rule == rule:
                return seed
    return None


def note(name: str, seed: int) -> None:
    for path in FILES:
        before = path.read_text()
        after = re.sub(rf"^(    {name}: \([^,]+, )\d+", rf"\g<1>{seed}", before, flags=re.MULTILINE)
        if after != before:
            path.write_text(after)


if __name__ == "__main__":
    sys.exit(main())
