"""`make simulate`: many seeds, with progress; the story of the first failure, and how to see it again."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from tests.simulation.families.registry import FAMILIES, draw
from tests.simulation.families.swarm import SWARM
from tests.simulation.kinds import BEGUN, ENDINGS, RATES
from tests.simulation.profile import Profile
from tests.simulation.run import Result, run_profile
from tests.simulation.shrink import shrink

PROGRESS_SECONDS = 5.0
FAILURES_MAX = 3
"""After so many failures the others are not waited for."""


class Totals:
    """Sums over seeds; rates are per second of this process's own time, so that neighbours do not count."""

    def __init__(self) -> None:
        self.began = self.told = time.process_time()
        self.seeds = self.steps = self.messages = self.acknowledged = self.unknown = 0
        self.simulated_seconds = 0.0
        self.failed: list[int] = []
        self.faults: Counter[str] = Counter()
        self.covered: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.steps += result.steps
        self.messages += result.messages
        self.acknowledged += result.acknowledged
        self.unknown += result.unknown
        self.simulated_seconds += result.seconds
        self.faults.update(result.faults)
        self.covered.update(result.covered)
        self.checked.update(result.checked)
        if result.failure:
            self.failed.append(result.seed)

    @property
    def migrations(self) -> int:
        """Rows that were stored and that brought a member in or changed the order."""
        return sum(number for what, number in self.covered.items() if what.startswith("moved "))

    def line(self) -> str:
        seconds = max(time.process_time() - self.began, 1e-9)
        moved = f"{self.migrations:,} migrations ({self.migrations / seconds:,.0f}/s)"
        hours, faults = self.simulated_seconds / 3600, sum(self.faults.values())
        return (
            f"{self.seeds} seeds, {len(self.failed)} failed, {hours:.2f} h simulated in {seconds:.0f} s: "
            f"{self.steps / seconds:,.0f} steps/s, {self.messages / seconds:,.0f} messages/s, "
            f"{moved}, {faults:,} faults, {len(self.covered)} states"
        )

    def tell(self) -> None:
        now = time.process_time()
        if now - self.told >= PROGRESS_SECONDS:
            self.told = now
            print(self.line(), flush=True)


def tell_failure(result: Result, profile: Profile, family: str) -> None:
    """What is wrong, and the story of the smallest run that breaks the same rule."""
    again = f"make simulate SEED={result.seed}" + ("" if family == SWARM else f" PROFILE={family}")
    print(f"\nseed {result.seed} failed: {result.failure}\n\n{profile}\n", flush=True)
    smaller = shrink(profile, result)
    print("\n".join(smaller.result.story))
    print(f"\nneeded ({smaller.replays} replays): {', '.join(smaller.needed) or 'no fault at all'}")
    print(f"\nto see it again: {again}\nand this story: {again}{smaller.command}\n", flush=True)


def summary(totals: Totals) -> None:
    print(f"\n{totals.acknowledged:,} operations acknowledged, {totals.unknown:,} with an unknown end")
    titles = ("faults", "states and transitions", "rules, and how often each was looked at")
    for title, counts in zip(titles, (totals.faults, totals.covered, totals.checked), strict=True):
        print(f"\n{title}:")
        for name, number in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
            print(f"  {number:>9,}  {name}")
    print(f"\n{totals.line()}")
    if totals.failed:
        print(f"failed: {' '.join(map(str, totals.failed))}")


def main(arguments: list[str] | None = None) -> int:
    """0: all was well; 1: a seed failed; 2: wrong arguments; 130: interrupted, after the summary."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=_positive, default=200, help="how many seeds (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, default=None, help="only this one")
    parser.add_argument("--profile", choices=FAMILIES, default=SWARM, help="what is drawn (swarm)")
    parser.add_argument("--without", type=_kinds, default=frozenset(), help="kinds of faults to leave out")
    parser.add_argument("--until", type=float, default=None, help="when faults end, in simulated seconds")
    given = parser.parse_args(arguments)
    seeds = range(given.first, given.first + given.seeds) if given.seed is None else [given.seed]
    totals = Totals()
    interrupted = False
    try:
        _run_all(seeds, given, totals)
    except KeyboardInterrupt:
        interrupted = True
    summary(totals)
    return 1 if totals.failed else 130 if interrupted else 0


def _run_all(seeds: Iterable[int], given: argparse.Namespace, totals: Totals) -> None:
    for seed in seeds:
        drawn = draw(seed, given.profile)
        until = drawn.chaos_seconds if given.until is None else given.until
        profile = replace(drawn, without=given.without, chaos_seconds=until)
        result = run_profile(profile)
        totals.add(result)
        if result.failure:
            tell_failure(result, profile, given.profile)
        if len(totals.failed) >= FAILURES_MAX:
            return
        totals.tell()


def _kinds(text: str) -> frozenset[str]:
    """Names with commas between them."""
    names = frozenset(filter(None, text.split(",")))
    known = (*BEGUN, *RATES, *ENDINGS)
    for name in names.difference(known):
        raise argparse.ArgumentTypeError(f"{name!r} is no kind of fault: expected {', '.join(known)}")
    return names


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seeds: expected 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
