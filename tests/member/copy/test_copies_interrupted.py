"""A copy to this member that dies between its steps: the same order again, or another, loses nothing."""

from unittest.mock import patch

import msgspec
import pytest

from stele.core.control import commands as m
from stele.core.tablet.lifecycle import state_name
from stele.member.storage import failpoints
from stele.wire.storage.volume import Quarantined
from tests.member.harness.single_member import OTHER, THIRD, P, SingleMember

FIRST = m.StartTabletCopy("first", P, 1, OTHER)


class Died(BaseException):
    """What no code of the product catches."""


async def die_at(made: SingleMember, point: str, command: m.Command) -> None:
    """The process ends at a crash point of this command, without power, and starts again."""

    def reached(name: str) -> None:
        if name == point:
            raise Died

    with patch.object(failpoints, "hit", reached), pytest.raises(Died):
        await made.ask(command)
    await made.restart(power_lost=True)


def again(made: SingleMember, id: str) -> m.StartTabletCopy:
    return m.StartTabletCopy(id, P, made.rows[P].version, OTHER)


async def in_the_row_and_out(made: SingleMember) -> None:
    """The copy arrived, the row named it, and names it no more."""
    await made.store((OTHER, 0))
    assert made.replica.meta.copy is None
    await made.store((OTHER, THIRD))


async def one_ready(made: SingleMember) -> None:
    """A READY tablet that no row names."""
    await made.receive("one")
    await in_the_row_and_out(made)


def state(made: SingleMember) -> tuple[str, bytes | None]:
    return state_name(made.replica.state), made.get(b"copied")


async def test_an_order_whose_superblock_was_not_written_is_carried_out_when_it_comes_again(
    made: SingleMember,
) -> None:
    """Where no tablet ever was: else it would wait for operations in state DOES_NOT_EXIST."""
    await die_at(made, "copy.saved", FIRST)
    assert made.replica.state is None
    assert [copy.state for copy in (await made.ask()).copies] == ["STARTED"]
    (result,) = (await made.ask(FIRST)).results
    assert (result.code, made.replica.state.value) == ("OK", "COPYING")
    assert made.replica.block is not None
    assert made.replica.block.highest == made.replica.generation == result.generation
    await made.take_in("first")
    assert state(made) == ("READY", b"yes")


@pytest.mark.parametrize("resent", [True, False])
async def test_a_generation_is_not_given_twice_after_a_death_in_the_order(
    made: SingleMember, resent: bool
) -> None:
    """A READY tablet is to be replaced: what a sweep deletes later is never what serves."""
    await one_ready(made)
    await die_at(made, "copy.saved", again(made, "two"))
    if resent:
        assert await made.code(again(made, "two")) == "OK"
    await made.take_in("two")
    await in_the_row_and_out(made)
    await made.delete()
    await made.receive("three")
    await made.node.migrations.collect_garbage()
    for _ in range(2):
        assert state(made) == ("READY", b"yes")
        await made.restart(power_lost=True)


@pytest.mark.parametrize("held", ["nothing", "a tombstone", "a tablet"])
async def test_an_order_that_died_is_aborted_by_the_next_master(made: SingleMember, held: str) -> None:
    """What was here before the order is here after it, and the next order begins anew."""
    if held != "nothing":
        await one_ready(made)
    if held == "a tombstone":
        await made.delete()
    before = state(made)
    await die_at(made, "copy.saved", again(made, "two"))
    assert await made.code(again(made, "three")) == "ALREADY_IN_PROGRESS"
    assert await made.code(m.Abort("two", P)) == "OK"
    assert state(made) == before
    await made.receive("three")
    assert state(made) == ("READY", b"yes")


async def test_a_tablet_that_was_only_taken_offline_outlives_an_order_that_died(made: SingleMember) -> None:
    """It was to be replaced because it was offline; after the start it is well, and the abort lets it be."""
    await one_ready(made)
    made.replica.broken = "its owner and it contradicted each other"
    await die_at(made, "copy.saved", again(made, "two"))
    assert await made.code(m.Abort("two", P)) == "OK"
    await made.node.migrations.collect_garbage()
    assert state(made) == ("READY", b"yes")


async def test_a_sweep_never_deletes_what_serves_whatever_its_list_says(made: SingleMember) -> None:
    """Nor does a purge: a list may have come to name the generation that serves."""
    await one_ready(made)
    block = made.replica.block
    assert block is not None
    for _ in range(2):
        entry = Quarantined(block.generation, 0.0, m.OpId(1, 5))
        await made.node.metadata.save_block(
            made.replica, msgspec.structs.replace(block, quarantined=(entry,))
        )
        await made.node.migrations.collect_garbage()
        assert made.replica.block is not None
        assert (state(made), made.replica.block.quarantined) == (("READY", b"yes"), ())
        await made.restart(power_lost=True)


async def test_a_superblock_that_took_in_more_than_its_highest_is_not_believed(made: SingleMember) -> None:
    """As an earlier version of Stele could write it: the next copy is above what serves."""
    await one_ready(made)
    block = made.replica.block
    assert block is not None
    await made.node.metadata.save_block(
        made.replica, msgspec.structs.replace(block, highest=block.generation - 1)
    )
    await made.restart()
    (result,) = (await made.ask(again(made, "two"))).results
    assert (result.code, result.generation) == ("OK", block.generation + 1)
    assert not made.replica.received
