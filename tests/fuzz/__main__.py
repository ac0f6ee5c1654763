"""Feeds bytes that are nearly valid to all decoders, and ends with what it found.

python -m tests.fuzz                               all targets, 10,000 inputs each
python -m tests.fuzz resp frames --inputs 1000000  these two, a million inputs each
python -m tests.fuzz --minutes 30 --seed 7         as many inputs as fit, others than before
python -m tests.fuzz resp --only 123456            one input again, with its bytes and its error
"""

import argparse
import sys
import time
from collections.abc import Sequence

from tests.fuzz.driver import Fuzzer, Outcome, Target, peaks_of
from tests.fuzz.targets import TARGETS

INPUTS = 10_000
SHOWN_BYTES = 400


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        "python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"all when none is named: {', '.join(TARGETS)}"
    )
    found.add_argument("--inputs", type=int, help=f"of each target; {INPUTS}, with --minutes as many as fit")
    found.add_argument("--seed", type=int, default=0, help="of the first input; each further one is one more")
    found.add_argument("--minutes", type=float, help="at most, for all targets together")
    found.add_argument("--only", type=int, metavar="SEED", help="run the one input of this seed, and show it")
    return found


def say(text: str) -> None:
    print(text, flush=True)


def run_all(targets: Sequence[Target], first: int, inputs: int, minutes: float | None) -> list[Outcome]:
    """Run the targets in turn, each with its share of the time that is left."""
    end = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    outcomes = []
    for left, target in zip(range(len(targets), 0, -1), targets, strict=True):
        now = time.monotonic()
        outcome = Fuzzer(target).run(first, inputs, now + (end - now) / left, say)
        say(str(outcome))
        for finding in outcome.findings.values():
            say(f"\n{finding}\n")
        outcomes.append(outcome)
    return outcomes


def run_one(target: Target, seed: int) -> int:
    """Show one input and what becomes of it."""
    data = target.input_of(seed)
    more = f" ... of {len(data)} bytes" if len(data) > SHOWN_BYTES else ""
    say(f"input {seed} of {target.name}: {data[:SHOWN_BYTES]!r}{more}")
    outcome = Fuzzer(target).run(seed, 1)
    for finding in outcome.findings.values():
        say(str(finding))
    if outcome.findings:
        return 1
    (peak,) = peaks_of(target, [data])
    say(f"{'refused' if outcome.refused else 'read'}, with {peak} bytes of memory")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when nothing was found, 1 otherwise, 2 for a wrong argument."""
    wanted = parser().parse_args(arguments)
    if unknown := [name for name in wanted.targets if name not in TARGETS]:
        parser().error(f"unknown target {unknown[0]!r}; expected some of {', '.join(TARGETS)}")
    targets = [TARGETS[name] for name in wanted.targets or TARGETS]
    if wanted.only is not None:
        if len(targets) != 1:
            parser().error("--only needs the one target that the seed belongs to")
        return run_one(targets[0], wanted.only)
    inputs = wanted.inputs or (INPUTS if wanted.minutes is None else sys.maxsize)
    outcomes = run_all(targets, wanted.seed, inputs, wanted.minutes)
    count, seconds = sum(each.inputs for each in outcomes), sum(each.seconds for each in outcomes)
    say(f"{count} inputs in {seconds:.0f} s")
    return 1 if any(each.findings for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
