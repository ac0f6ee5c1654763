"""Two builds of Stele in turns: what a request takes of the servers' processor in one, beside the other.

    python -m e2e.bench.turns FIRST SECOND [--rounds N] [CASE...]

FIRST and SECOND are folders with the package `stele`: a checkout's `operator`, or what
`python -m e2e.cluster compiled` prints. A case is an operation, bytes of a value and connections: set:100:32.

Both run all the time, three members each, and each is asked for two seconds in turns. On a machine that
others use, the same build differs from itself by a third from one minute to the next; in turns, by 2 %.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from e2e.bench.steady import FILL_SECONDS_MAX, one
from e2e.bench.steady_systems import Running, stele
from e2e.bench.steady_table import CASES, CONNECTIONS, SIZES, SMART, Case
from e2e.cluster.steps import say

SECONDS, WARM_SECONDS = 2, 3
Asked = tuple[float, float]
"""Microseconds of the servers' processor for each request, and requests for each second."""


def case_of(text: str) -> Case:
    """Read a case. Raises ArgumentTypeError."""
    known = {f"{each.operation}:{each.size_bytes}:{each.connections}": each for each in CASES}
    if text not in known:
        raise argparse.ArgumentTypeError(f"{text} is no case; there are {', '.join(known)}")
    return known[text]


def folder_of(text: str) -> Path:
    """Return the folder. Raises ArgumentTypeError when it lacks the package."""
    if not (Path(text) / "stele" / "__init__.py").exists():
        raise argparse.ArgumentTypeError(f"{text} has no package `stele`")
    return Path(text).resolve()


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    """Three members that import `stele` from there, with all keys of all sizes."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(folder)
    try:
        with stele() as made:
            for size, keys in SIZES.items():
                made.clients[SMART].ask("fill", size, keys, max(CONNECTIONS), seconds=FILL_SECONDS_MAX)
            yield made
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def ask(system: Running, case: Case, seconds: int) -> Asked:
    """Have its clients work for so long."""
    words = ("steady", case.operation, case.size_bytes, SIZES[case.size_bytes], case.connections)
    found = one(system, system.clients[SMART], words, seconds)
    return found["server_microseconds"], found["per_second"]


def line(case: Case, first: Sequence[Asked], second: Sequence[Asked]) -> str:
    """Medians of both, and of the ratios of what was asked one after the other."""
    (us, rate), (us_second, rate_second) = (
        map(statistics.median, zip(*each, strict=True)) for each in (first, second)
    )
    less = statistics.median(b / a for (a, _), (b, _) in zip(first, second, strict=True))
    more = statistics.median(b / a for (_, a), (_, b) in zip(first, second, strict=True))
    text = f"{case}, {case.connections} connections: {us:.1f} us, {rate:,.0f}/s; {us_second:.1f} us, "
    return f"{text}{rate_second:,.0f}/s; {less:.2f} of the processor, {more:.2f} of the rate"


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print a line for each case."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.bench.turns", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("first", type=folder_of)
    parser.add_argument("second", type=folder_of)
    parser.add_argument("cases", type=case_of, nargs="*", metavar="CASE", help="default: set:100:32")
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args(words)
    with ExitStack() as stack:
        both = [stack.enter_context(running(folder)) for folder in (given.first, given.second)]
        for case in given.cases or [case_of("set:100:32")]:
            found: list[list[Asked]] = [[], []]
            for system in both:
                ask(system, case, WARM_SECONDS)
            for number in range(given.rounds):
                say(f"{case}: round {number + 1}")
                for which in (0, 1) if number % 2 else (1, 0):
                    found[which].append(ask(both[which], case, SECONDS))
            print(line(case, *found), flush=True)


if __name__ == "__main__":
    main()
