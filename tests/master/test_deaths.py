"""Members die or fall silent at each step of each kind of change: the source, the destination, both, another.

At the same moment the master may die too. First the others go on without them for longer than the grace
period, and all that can hold without them holds; then they come back, and everything holds.
"""

from dataclasses import dataclass

import pytest

from tests.master.fuse import Crash, Fuse
from tests.master.harness import Harness
from tests.master.scenarios import SCENARIOS, Scenario, finish, heal, prepared, steps_of
from tests.sampled import sampled

ROLES = ("source", "destination", "both", "third")


async def roles_of(scenario: Scenario) -> dict[str, set[int]]:
    """Who takes part: by the first partition whose row changes, and by who is promoted when none is new."""
    harness = await prepared(scenario)
    rows = harness.table().partitions if scenario.forms else ()
    harness.start_master()
    scenario.begin(harness)
    await finish(harness)
    after = harness.table().partitions
    changed = next((n for n, row in enumerate(rows) if row.replicas != after[n].replicas), 0)
    old = set(rows[changed].members) if rows else set()
    new = set(after[changed].members)
    source = min(old - new, default=min(old, default=0))
    destination = min(new - old, default=min(new - {source}, default=source))
    everybody = set(harness.world.volumes)
    third = everybody - {source, destination}
    await harness.loop.close()
    return {
        "source": {source},
        "destination": {destination},
        "both": {source, destination},
        "third": set(sorted(third)[:1]),
    }


@dataclass(frozen=True)
class Trouble:
    """Who goes at which step; silent ones run on and reach nobody."""

    victims: set[int]
    at: int
    after: bool
    silent: bool
    master: bool


def fuse_of(harness: Harness, trouble: Trouble) -> Fuse:
    def act(after: bool, name: str) -> None:
        for index in trouble.victims & harness.world.pods.keys():
            if trouble.silent:
                harness.cut(index)
            else:
                harness.kill(index)
        if trouble.master:
            raise Crash

    return Fuse(trouble.at, trouble.after, act)


async def interrupted(scenario: Scenario, trouble: Trouble) -> None:
    harness = await prepared(scenario)
    harness.start_master(fuse_of(harness, trouble))
    try:
        scenario.begin(harness)
        await finish(harness)
    except Crash:
        await harness.restart()
        await finish(harness)
    await heal(harness)
    await harness.loop.close()


CASES = [
    sampled(name, role, kept=number % len(ROLES) == turn)
    for number, name in enumerate(SCENARIOS)
    for turn, role in enumerate(ROLES)
]
"""`make test` runs each scenario once, the roles in turn."""


@pytest.mark.parametrize(("name", "role"), CASES)
async def test_members_go_at_each_step_and_come_back(name: str, role: str) -> None:
    """At every step; whether dead or silent, with the master or not, before it or after it, takes turns.

    Two of the eight each time; the four roles together see all eight at each step of each scenario.
    """
    scenario = SCENARIOS[name]
    victims = (await roles_of(scenario))[role]
    total = await steps_of(scenario)
    first = 2 * ROLES.index(role) + list(SCENARIOS).index(name)
    for at in range(1, total + 1):
        for turn in (first + at, first + at + 3):
            trouble = Trouble(victims, at, bool(turn & 4), silent=bool(turn & 1), master=bool(turn & 2))
            try:
                await interrupted(scenario, trouble)
            except AssertionError as error:
                raise AssertionError(f"{name}: {trouble} of {total}: {error}") from error
