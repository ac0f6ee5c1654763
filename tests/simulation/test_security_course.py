"""Levels of TLS among members, renewals and changes of the CA cut nobody off, whatever happens in between."""

from collections import Counter
from itertools import chain

import pytest

from tests.simulation.mutants.certificates import CERTIFICATES
from tests.simulation.mutants.plant import Plant
from tests.simulation.security_course import CutOffError, run

SEEDS = range(6)
EVENTS = 1200
SEEDS_OF_A_BUG = 20
HAPPENS = (
    "TLS among members: Accept, after Off",
    "TLS among members: Dial, after Accept",
    "TLS among members: Required, after Dial",
    "TLS among members: Dial, after Required",
    "TLS among members: Off, after Accept",
    "a next CA is stored",
    "a new CA beside the old one is stored",
    "one CA is stored",
    "leaves are renewed",
    "a member joins",
    "a member starts anew",
    "the master is killed at a write",
    "the master is killed between head and members",
)


def test_no_step_of_the_master_cuts_anybody_off() -> None:
    done = Counter[str]()
    for seed in SEEDS:
        done.update(run(seed, EVENTS).done)
    assert not [what for what in HAPPENS if not done[what]], done


@pytest.mark.parametrize(
    ("plant", "noted"), CERTIFICATES.items(), ids=[each.__name__ for each in CERTIFICATES]
)
def test_a_seed_shows_what_is_planted(plant: Plant, noted: int) -> None:
    for seed in chain([noted], range(SEEDS_OF_A_BUG)):
        with plant():
            try:
                run(seed, EVENTS)
            except CutOffError:
                return
    pytest.fail(f"none of {SEEDS_OF_A_BUG} seeds shows it")
