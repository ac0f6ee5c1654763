"""A READY tablet that a copy replaces goes into quarantine like a deleted one: data and log, for as long."""

from pathlib import Path

import pytest

from stele.core.control import commands as m
from stele.errors import Refused
from stele.member import limits
from stele.member.admin.quarantine import Quarantine
from stele.member.replication.stored_log import log_range
from stele.wire.storage.log_record import put_record
from stele.wire.storage.volume import Quarantined
from tests.member.harness.single_member import COPIED, OTHER, THIRD, P, SingleMember, single_member

HOUR = 3600


async def replace(made: SingleMember, id: str, last: m.OpId = COPIED) -> int:
    """A whole copy, by the book, that the row named and names no more; its generation."""
    await made.receive(id, last)
    await made.store((OTHER, 0))
    return made.replica.generation


async def leave(made: SingleMember) -> None:
    await made.store((OTHER, THIRD))


async def append(made: SingleMember, values: list[bytes], committed: int) -> m.OpId:
    """Of the term of the present row; so many of them are known to be committed."""
    term, prev = made.rows[P].version, made.replica.tablet.log.last
    records = [put_record(term, b"default", b"k", value, 0) for value in values]
    await made.acked(made.append(prev, records, commit=prev[1] + committed))
    return made.replica.last


def quarantined(made: SingleMember) -> tuple[Quarantined, ...]:
    assert made.replica.block is not None
    return made.replica.block.quarantined


async def test_what_a_copy_replaced_stays_for_the_retention(tmp_path: Path) -> None:
    async with single_member(tmp_path, HOUR) as made:
        old = await replace(made, "one")
        last = await append(made, [b"1", b"2", b"3"], committed=2)
        await leave(made)
        await replace(made, "two")
        (entry,) = quarantined(made)
        assert (entry.generation, entry.last) == (old, last)
        assert HOUR - 60 < entry.until_s - made.node.background.wall() <= HOUR
        await made.node.migrations.collect_garbage()
        await made.restart(power_lost=True)
        lines = [page async for page in Quarantine(made.node).entries(P, old)]
        assert b"".join(lines).count(b"\n") == 2
        (shown,) = (await Quarantine(made.node).listing()).tablets
        assert (shown.generation, shown.last, shown.entries) == (old, last, 2)


async def test_without_a_retention_it_goes_with_the_next_sweep(made: SingleMember) -> None:
    await replace(made, "one")
    await leave(made)
    await replace(made, "two")
    await made.node.migrations.collect_garbage()
    assert (quarantined(made), made.get(b"copied")) == ((), b"yes")


async def test_each_generation_is_restored_with_the_log_that_was_its_own(tmp_path: Path) -> None:
    """Whatever is left of the others: operations of one are never taken for those of another."""
    async with single_member(tmp_path, HOUR) as made:
        first = await replace(made, "one")
        of_first = await append(made, [b"1", b"2", b"3"], committed=2)
        await leave(made)
        second = await replace(made, "two", m.OpId(3, of_first.index - 1))
        of_second = await append(made, [b"4", b"5"], committed=1)
        await leave(made)
        await made.delete()
        for generation, last, value in ((first, of_first, b"2"), (second, of_second, b"4")) * 2:
            await Quarantine(made.node).restore(P, generation)
            for _ in range(2):
                assert (made.replica.state.value, made.replica.generation) == ("READY", generation)
                assert (made.replica.last, made.get(b"k")) == (last, value)
                await made.restart(power_lost=True)
            await made.delete()
        assert {each.generation: each.last for each in quarantined(made)} == {
            first: of_first,
            second: of_second,
        }


async def test_a_tombstone_that_is_copied_anew_is_still_whole(tmp_path: Path) -> None:
    """Its log made room for the copy's: what was not flushed went with it before."""
    async with single_member(tmp_path, HOUR) as made:
        old = await replace(made, "one")
        last = await append(made, [b"1", b"2", b"3"], committed=2)
        await leave(made)
        await made.delete()
        assert await made.code(m.StartTabletCopy("two", P, made.rows[P].version, OTHER)) == "OK"
        await made.restart(power_lost=True)
        assert await made.code(m.Abort("two", P)) == "OK"
        await Quarantine(made.node).restore(P, old)
        assert (made.replica.last, made.get(b"k")) == (last, b"2")


async def test_what_is_not_whole_is_not_restored_and_nothing_changes(tmp_path: Path) -> None:
    async with single_member(tmp_path, HOUR) as made:
        old = await replace(made, "one")
        await append(made, [b"1", b"2"], committed=1)
        await leave(made)
        await made.delete()
        assert made.engine.log_bounds(*log_range(P)) is not None
        made.engine.write_log([], [log_range(P)])
        before = made.replica.block
        with pytest.raises(Refused, match="it had operations up to"):
            await Quarantine(made.node).restore(P, old)
        assert made.replica.block == before


async def test_of_one_tablet_no_more_generations_are_kept_than_the_limit(tmp_path: Path) -> None:
    """Those whose time ends first go first, with the next sweep."""
    async with single_member(tmp_path, HOUR) as made:
        seen = []
        for turn in range(limits.QUARANTINED_MAX + 3):
            seen.append(await replace(made, f"c{turn}"))
            await leave(made)
            await made.node.migrations.collect_garbage()
            kept = [entry.generation for entry in quarantined(made)]
            assert kept == seen[:-1][-limits.QUARANTINED_MAX :]
            assert made.get(b"copied") == b"yes"
