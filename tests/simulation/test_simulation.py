"""Whole clusters under faults, from seeds. `make simulate SEEDS=1000` runs more of them."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import islice, product

import pytest

from tests.fakes.loop import Clock
from tests.sampled import sampled
from tests.simulation import __main__ as command_line
from tests.simulation import shrink
from tests.simulation.families.registry import FAMILIES, draw
from tests.simulation.families.swarm import SWARM
from tests.simulation.faults import Faults
from tests.simulation.kinds import BEGUN, ENDINGS, RATES
from tests.simulation.mutants.plant import Plant
from tests.simulation.mutants.registry import MUTANTS
from tests.simulation.mutants.replication import vote_not_persisted
from tests.simulation.profile import Profile
from tests.simulation.run import Result, run
from tests.simulation.trace import Trace
from tests.simulation.world import World

SEEDS, LONG_SEEDS = 40, 200
SEEDS_AT_ONCE = 10
KILLED_WITHIN_SEEDS = 60
FAMILY_SEEDS = 4
"""Of each family; `make test` runs the first."""

_DIGESTS = "from tests.simulation.run import run; print([run(seed).digest for seed in (7, 12, 17)])"


@pytest.mark.parametrize(
    "first", [sampled(first, kept=first < SEEDS) for first in range(0, LONG_SEEDS, SEEDS_AT_ONCE)]
)
def test_nothing_is_lost_and_all_is_well_again(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_ONCE):
        result = run(seed)
        assert not result.failure, f"make simulate SEED={seed}\n{result.failure}\n" + "\n".join(result.story)
        assert result.acknowledged


@pytest.mark.parametrize(
    ("family", "seed"),
    [sampled(family, seed, kept=not seed) for family in FAMILIES for seed in range(FAMILY_SEEDS)],
)
def test_every_family_is_well(family: str, seed: int) -> None:
    result = run(seed, family)
    assert not result.failure, f"make simulate SEED={seed} PROFILE={family}\n{result.failure}"


def test_the_story_is_of_the_partition_and_the_key_alone() -> None:
    clock = Clock(1)
    trace = Trace(clock)
    trace.note("demo-0", "superblock: READY -> DELETED", 3)
    for _ in range(5):
        trace.note("demo-0", "says it again")
    trace.note("demo-1", "! killed")
    trace.note("client-0", "#1 client-0 get b'a'", 3)
    trace.note("client-1", "#2 client-1 get b'b'", 3)
    trace.note("demo-0", "superblock: READY -> DELETED", 4)
    assert [line[10:].split(maxsplit=1) for line in trace.story(3, b"a")] == [
        ["demo-0", "superblock: READY -> DELETED"],
        ["demo-0", "says it again (5 times, until 0.0000)"],
        ["client-0", "#1 client-0 get b'a'"],
    ]


def test_the_same_seed_is_the_same_history() -> None:
    first, second = run(7), run(7)
    assert first.steps > 1000
    assert (first.digest, first.steps, first.messages) == (second.digest, second.steps, second.messages)
    assert run(8).digest != first.digest


def test_a_seed_is_the_same_history_in_every_process() -> None:
    """Whatever the order of Python's sets is there."""

    def digests(hash_seed: str) -> str:
        command = [sys.executable, "-c", _DIGESTS]
        environment = {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout

    assert digests("1") == digests("2")


@pytest.mark.long
@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    """By the rule that is there for it: what only breaks the simulation kills nothing."""
    family, first, rule = MUTANTS[plant]
    others: set[str] = set()
    for seed in [first, *range(KILLED_WITHIN_SEEDS)]:
        with plant():
            found = run(seed, family).rule
        if found == rule:
            return
        others.add(found)
    raise AssertionError(f"{plant.__name__} breaks {others - {''}}, not '{rule}': {plant.__doc__}")


def test_a_failure_tells_its_seed_its_story_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(profile: Profile) -> Result:
        return Result(profile.seed, "Violation: a write is lost", "lost", ["   1.0000 demo-0     killed"])

    monkeypatch.setattr(command_line, "run_profile", fails)
    monkeypatch.setattr(shrink, "run_profile", fails)
    assert command_line.main(["--seeds", "5", "--first", "40"]) == 1
    told = capsys.readouterr().out
    assert "seed 40 failed: Violation: a write is lost" in told
    assert "demo-0     killed" in told
    assert "to see it again: make simulate SEED=40\n" in told
    assert "needed (3 replays): no fault at all" in told
    assert "failed: 40 41 42" in told


def test_a_wrong_number_of_seeds_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["--seeds", "0"])
    assert ended.value.code == 2
    assert "expected 1 or more" in capsys.readouterr().err


def test_an_unknown_kind_of_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["--without", "scale,rain"])
    assert ended.value.code == 2
    assert "'rain' is no kind of fault: expected reset a connection" in capsys.readouterr().err


def test_a_failure_is_shrunk_to_the_kinds_of_faults_that_it_needs() -> None:
    """A promise that is only in memory is found without most of what else goes wrong, in less time of it.

    What is told may be longer: a fault that is left out may have shown the defect sooner.
    """
    family, first, _ = MUTANTS[vote_not_persisted]
    profile = draw(first, family)
    with vote_not_persisted():
        failed = run(first, family)
        smaller = shrink.shrink(profile, failed)
        again = shrink.run_profile(smaller.profile)
    assert failed.failure
    assert len(smaller.needed) <= len({*profile.faults, *profile.rates}) // 2
    assert smaller.profile.chaos_seconds < profile.chaos_seconds
    assert smaller.replays <= shrink.REPLAYS_MAX
    assert (again.rule, again.digest) == (failed.rule, smaller.result.digest)


KINDS = (
    *BEGUN,
    "plan cancelled",
    "recover the cluster",
    "bit of a copy flipped",
    *RATES,
    *ENDINGS,
    "response lost",
    "message overtaken",
    "api stale read",
    "zombie write",
    "log without room",
    "data without room",
    "files without room",
)


KINDS_IN = {
    SWARM: (37, 1, 30, 25, 18, 41, 38, 15, 40, 48, 13, 27, 56, 75),
    "mixed": (0, 4),
    "quarantines": (18, 16),
    "nodes": (9,),
    "stops": (0,),
    "strikes": (0,),
    "recoveries": (4,),
    "damage": (1,),
    "moves": (3,),
    "async": (3,),
    "transfer": (5, 1),
    "struck": (0,),
    "detection": (0,),
    "reads": (3,),
}
"""Seeds that have nearly all kinds of faults, and soon."""
KIND_SEEDS, KIND_RUNS = 60, 60
"""Others are looked for in so many seeds of each family, and in so many runs."""


def test_each_kind_that_can_begin_has_a_name() -> None:
    profile = draw(0)
    with World(profile) as world:
        assert sorted(Faults(world, {}).kinds) == sorted(BEGUN)


def drawing(kind: str) -> Iterator[tuple[str, int]]:
    """Families and seeds that draw a kind of fault; those of all families where profiles do not name it."""
    named = kind in (*BEGUN, *RATES)
    for seed, family in product(range(KIND_SEEDS), FAMILIES):
        profile = draw(seed, family)
        if not named or kind in (*profile.faults, *profile.rates):
            yield family, seed


@pytest.mark.long
def test_every_kind_of_fault_happens() -> None:
    """None of them silently stops: KINDS_IN has each, or else one of the first seeds that draw it."""
    missing = set(KINDS)
    for family, seeds in KINDS_IN.items():
        for seed in seeds:
            missing -= run(seed, family).faults.keys()
    for kind in sorted(missing):
        shown = any(kind in run(seed, family).faults for family, seed in islice(drawing(kind), KIND_RUNS))
        assert shown, f"none of {KIND_RUNS} seeds that draw it had: {kind}"
