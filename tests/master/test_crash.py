"""Each kind of change, interrupted at each of its steps: at every write of the table and every message.

The master dies before or after it, or it lives on and does not learn whether it was done. Each scenario
is run once to count its steps, then again for each of them; afterwards all that must hold is looked at.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from stele.errors import SteleError
from stele.master.loop import Deposed
from stele.wire.configmap import decode_head, encode_head
from tests.fakes.members import FakeMember
from tests.master.checks import check_state
from tests.master.fuse import Crash, Fuse, crash, lose
from tests.master.harness import Harness, formed
from tests.master.scenarios import SCENARIOS, begun, finish, heal, prepared, run, steps_of
from tests.sampled import sampled

INTERRUPTIONS = {
    "dies before": (False, crash),
    "dies after": (True, crash),
    "request lost": (False, lose),
    "answer lost": (True, lose),
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_each_story_makes_its_kind_of_change(name: str) -> None:
    scenario = SCENARIOS[name]
    harness = await run(scenario, Fuse())
    planned = [kind for record in harness.state.rebalance.finished for kind in record.planned]
    assert scenario.makes is None or scenario.makes in planned
    await heal(harness)


CASES = [
    sampled(name, how, kept=(number + turn) % 2 == 0)
    for number, name in enumerate(SCENARIOS)
    for turn, how in enumerate(INTERRUPTIONS)
]
"""`make test` interrupts each scenario in two of the four ways, which take turns."""


@pytest.mark.parametrize(("name", "how"), CASES)
async def test_a_change_ends_well_however_it_is_interrupted(name: str, how: str) -> None:
    scenario, (after, act) = SCENARIOS[name], INTERRUPTIONS[how]
    total = await steps_of(scenario)
    for at in range(1, total + 1):
        try:
            harness = await run(scenario, Fuse(at, after, act))
            await heal(harness)
        except AssertionError as error:
            raise AssertionError(f"{name}, {how} step {at} of {total}: {error}") from error
        await harness.loop.close()


async def until(harness: Harness, at: int, held: Callable[[FakeMember], object]) -> None:
    """Let the master die as soon as member `at` holds that."""
    harness.start_master(Fuse())
    await harness.until(lambda: held(harness.world.volumes[at]))
    await harness.loop.close()


def copied(harness: Harness) -> list[int]:
    """Partitions of all sessions that were opened, each as often as it was copied."""
    volumes = harness.world.volumes.values()
    return sorted(p for volume in volumes for tablets in volume.opened.values() for p in tablets)


COPIES = ["move of the owner", "move of a backup", "copy", "shift down", "scale up"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", COPIES)
async def test_no_byte_is_copied_twice_whenever_the_master_dies(name: str, after: bool) -> None:
    """Each migration goes on with the next master where it was, once both sides take part in it."""
    scenario = SCENARIOS[name]
    undisturbed = copied(await run(scenario, Fuse()))
    assert undisturbed
    for at in range(1, await steps_of(scenario) + 1):
        harness = await run(scenario, Fuse(at, after))
        assert copied(harness) == undisturbed, f"{name}, step {at}, after: {after}"
        await harness.loop.close()


async def test_a_new_master_counts_what_it_adopts_in_its_plan() -> None:
    harness = await prepared(SCENARIOS["move of the owner"])
    SCENARIOS["move of the owner"].begin(harness)
    await until(harness, 1, lambda member: member.sessions)
    (id,) = harness.world.volumes[0].events.begun
    harness.start_master()
    await finish(harness)
    assert harness.world.volumes[0].events.committed == [id]
    (plan,) = harness.state.rebalance.finished
    assert plan.done == plan.planned == {"MOVE": 1}
    assert plan.plan.copies == 1
    assert plan.destinations[2].engine is not None


@pytest.mark.parametrize("side", [0, 2])
async def test_a_migration_of_which_a_side_restarted_is_rolled_back(side: int) -> None:
    """It does not know any more what it had not persisted."""
    harness = await prepared(SCENARIOS["move of the owner"])
    SCENARIOS["move of the owner"].begin(harness)
    await until(harness, 1, lambda member: member.sessions)
    (id,) = harness.world.volumes[0].events.begun
    harness.kill(side)
    harness.revive(side)
    harness.start_master()
    await finish(harness)
    assert harness.world.volumes[0].events.rolled_back == [id]
    assert harness.table().partitions[0].replicas == (2, 1)


async def test_nothing_continues_in_a_state_that_forbids_migrations() -> None:
    """Its change has waited for migrations to end: what is still reported was rolled back before it."""
    harness = await prepared(SCENARIOS["move of the owner"])
    SCENARIOS["move of the owner"].begin(harness)
    await until(harness, 1, lambda member: member.sessions)
    (id,) = harness.world.volumes[0].events.begun
    version, data = harness.shared.objects["head"]
    harness.shared.put("head", encode_head(replace(decode_head(data), state="Frozen")), version)
    harness.change_spec(state="Frozen")
    harness.start_master()
    await harness.until_quiet()
    assert harness.world.volumes[0].events.rolled_back == [id]


async def test_a_migration_that_its_destination_refused_is_rolled_back() -> None:
    """Its frozen owner was told so: it serves, or is about to."""
    harness = await prepared(SCENARIOS["move of the owner"])
    SCENARIOS["move of the owner"].begin(harness)
    await until(harness, 0, lambda member: member.frozen)
    (id,) = harness.world.volumes[0].events.begun
    harness.world.volumes[2].copies[0].refused = True
    harness.start_master()
    await finish(harness)
    assert harness.world.volumes[0].events.rolled_back == [id]
    assert harness.table().partitions[0].replicas == (2, 1)


async def test_completed_at_the_destination_is_completed_at_the_source() -> None:
    """The destination committed, the master died before anybody else knew: it is committed."""
    harness = await prepared(SCENARIOS["move of the owner"])
    SCENARIOS["move of the owner"].begin(harness)
    await until(harness, 2, lambda member: member.accepted)
    assert harness.table().partitions[0].replicas == (0, 1)
    (id,) = harness.world.volumes[0].events.begun
    harness.world.drained = set()
    harness.change_spec(members=3)
    harness.start_master()
    await finish(harness)
    assert harness.table().partitions[0].replicas == (2, 1)
    assert harness.table().partitions[0].version == 2
    assert harness.world.volumes[0].events.committed == [id]
    assert harness.world.volumes[2].events.committed == [id]


@pytest.mark.parametrize("name", ["move of the owner", "copy", "shift down", "promotion", "scale down"])
async def test_an_older_table_is_brought_up_to_date_by_the_members(name: str) -> None:
    """The ConfigMaps are behind what was published, as after a restore of a copy."""
    harness = await prepared(SCENARIOS[name])
    older = harness.stored()
    harness.start_master()
    SCENARIOS[name].begin(harness)
    await finish(harness)
    newest = harness.table().partitions
    await harness.restore(older)
    harness.start_master()
    await heal(harness)
    assert all(row.version >= newest[number].version for number, row in enumerate(harness.table().partitions))


async def test_an_older_member_list_that_was_restored_is_outdone() -> None:
    """Members take newer lists only: the next one has to be above all that they were ever told."""
    harness = await formed(members=2, partitions=4)
    older = harness.stored()
    for members in (3, 4):
        await harness.apply(members=members)
    told = harness.world.volumes[0].member_list_version
    await harness.restore(older)
    harness.start_master()
    await harness.until_quiet()
    assert harness.head().member_list_version > told
    for volume in harness.world.volumes.values():
        assert volume.member_list_version == harness.head().member_list_version
        assert {each.index for each in volume.members} == set(harness.table().members)
    await harness.apply(state="Frozen")
    assert harness.head().state == "Frozen", "all members have the list that the master has"


async def test_members_that_a_restored_list_lacks_are_waited_for() -> None:
    """Rows that the others tell name them: nothing is stored before they are in the list again."""
    harness = await formed(members=2, partitions=4)
    older = harness.stored()
    await harness.apply(members=4)
    rows = harness.table().partitions
    await harness.restore(older)
    harness.cut(2)
    harness.cut(3)
    harness.start_master()
    await harness.ticks(10, 1.0)
    assert not harness.state.recovered
    said = [each.message for each in harness.world.events if each.reason == "MemberListOlder"]
    assert said == [
        "rows name member 2, member 3, which the restored member list lacks: waiting for their replies"
    ]
    harness.net.cut.clear()
    await harness.until_quiet()
    assert [row.members for row in harness.table().partitions] == [row.members for row in rows]
    assert harness.table().members.keys() == {0, 1, 2, 3}


async def test_a_row_that_was_stored_and_not_published_is_published() -> None:
    """The ConfigMaps are one step ahead of all members."""
    scenario = SCENARIOS["move of the owner"]
    harness = await prepared(scenario)
    stored = harness.table().partitions[0]
    harness.start_master(Fuse(act=crash))
    scenario.begin(harness)
    await harness.until(lambda: harness.world.volumes[2].accepted)
    harness.fuse.left, harness.fuse.after = 1, True
    with pytest.raises(Crash):
        await harness.ticks(3)
    assert harness.table().partitions[0].version == stored.version + 1
    assert {volume.row(0).version for volume in harness.world.volumes.values()} == {stored.version}
    await harness.restart()
    await finish(harness)
    assert harness.table().partitions[0].replicas == (2, 1)


class PausedStore:
    """A master's store that stands still before it writes a row, as a stopped process does."""

    def __init__(self, store: object) -> None:
        self._store, self.go, self.reached = store, asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def write_shard(self, number: int, rows: object) -> None:
        self.reached.set()
        await self.go.wait()
        await self._store.write_shard(number, rows)  # type: ignore[attr-defined]


async def test_an_old_master_that_wakes_up_in_the_middle_of_a_commit_is_fenced() -> None:
    """Its destination agreed, then it stood still; what it stores or sends afterwards changes nothing."""
    harness = await begun("move of the owner")
    await harness.until(lambda: harness.world.volumes[2].accepted)
    old = harness.loop
    old._store = paused = PausedStore(old._store)  # type: ignore[assignment]
    stands_still = asyncio.create_task(old.tick())
    await paused.reached.wait()
    harness.start_master()
    await finish(harness)
    rows, epochs = harness.table(), [each.epoch for each in harness.world.volumes.values() if each.alive]
    paused.go.set()
    with pytest.raises(SteleError, match="CONFLICT"):
        await stands_still
    with pytest.raises(Deposed):
        await old.step_down()
    assert harness.table() == rows
    assert [each.epoch for each in harness.world.volumes.values() if each.alive] == epochs
    await finish(harness)


async def test_members_refuse_what_an_old_master_still_sends() -> None:
    """The other half of fencing: its messages carry a lower epoch than members have seen."""
    harness = await prepared(SCENARIOS["move of the owner"])
    harness.start_master()
    await finish(harness)
    old = harness.loop
    harness.start_master()
    await finish(harness)
    assert old.state is not None
    harness.loop = old
    with pytest.raises(Deposed):
        await harness.ticks(3, 1.0)


async def test_a_destination_that_was_given_up_takes_the_master_s_table() -> None:
    """It agreed to a row, was lost, and the master decided otherwise: that holds when it comes back."""
    harness = await begun("move of the owner")
    destination = harness.world.volumes[2]
    destination.dies_at = "!Accept"
    await harness.until(lambda: not destination.alive)
    destination.dies_at = ""
    assert destination.accepted[0].version == 2
    await finish(harness)
    assert harness.table().partitions[0].version > 2
    harness.world.drained = set()
    harness.change_spec(members=3)
    await heal(harness)
    assert not destination.accepted
    assert destination.row(0).version == harness.table().partitions[0].version


async def test_a_promise_to_a_master_that_died_is_overtaken_when_its_member_returns() -> None:
    """A backup agreed to be promoted and was lost with that master: no other row gets the same version."""
    harness = await begun("promotion")
    await harness.until(lambda: harness.world.volumes[1].accepted)
    await harness.loop.close()
    promised = harness.world.volumes[1].accepted[0].version
    harness.kill(1)
    harness.start_master()
    await harness.ticks(20)
    await heal(harness)
    assert harness.table().partitions[0].version > promised


async def test_two_masters_at_once_end_with_one() -> None:
    harness = await formed(members=3, partitions=3)
    first = harness.loop
    harness.start_master()
    await harness.until_quiet()
    harness.loop, second = first, harness.loop
    harness.change_spec(members=4)
    with pytest.raises(Deposed):
        await harness.ticks(5)
    harness.loop = second
    await harness.until_quiet()
    check_state(harness)
    await asyncio.gather(first.close(), second.close())


async def test_a_status_of_a_newer_master_ends_a_leadership_and_one_of_nobody_is_outdone() -> None:
    """The status says that somebody leads with a higher epoch; the table decides whether that is so."""
    harness = await formed(members=3, partitions=3)
    first = harness.loop
    harness.start_master()
    await harness.until_quiet()
    harness.world.shown_epoch = newer = harness.state.epoch
    harness.loop, second = first, harness.loop
    with pytest.raises(Deposed):
        await harness.ticks(1)
    harness.loop = second
    await harness.until_quiet()
    assert harness.state.epoch == newer

    # The ConfigMaps were restored from an older copy, or made anew.
    harness.world.shown_epoch = newer + 10
    await harness.until_quiet()
    assert harness.state.epoch > newer + 10
    check_state(harness)
    await asyncio.gather(first.close(), second.close())
