"""A destination tells the owner that its copy is complete, before the owner asks the next time."""

import pytest

from stele.core.control import commands as m
from stele.core.tablet.follower import Code
from stele.core.tablet.lifecycle import TabletState
from stele.wire import peer
from tests.member.harness.single_member import COPIED, OTHER, THIRD, Asker, P, SingleMember

LAST = (COPIED.term, COPIED.index)


def probe(made: SingleMember) -> peer.Probe:
    row = made.rows[P]
    return peer.Probe(
        [peer.ProbeItem(P, row.version, row.version, cut=True, row=(row.version, row.replicas))]
    )


async def beginning(made: SingleMember) -> Asker:
    """A copy that the owner waits for: it has asked once, and this is its session."""
    await made.store((OTHER, THIRD))
    assert await made.code(m.StartTabletCopy("copy", P, made.rows[P].version, OTHER)) == "OK"
    made.tell(probe(made))
    await made.until_quiet()
    owner = Asker(OTHER)
    made.node.follower._session = {OTHER: owner}.get  # type: ignore[assignment]
    return owner


async def results(made: SingleMember, owner: Asker) -> list[peer.ProbeResultItem]:
    await made.until_quiet()
    assert all(isinstance(each, peer.ProbeResult) for each in owner.answers)
    return [item for each in owner.answers if isinstance(each, peer.ProbeResult) for item in each.items]


async def test_the_owner_hears_where_the_copy_ends_as_if_it_had_asked(made: SingleMember) -> None:
    owner = await beginning(made)
    await made.take_in()
    (told,) = await results(made, owner)
    assert (told.code, told.last, told.applied, told.empty) == (Code.OK, LAST, LAST, False)
    asked = made.tell(probe(made))
    assert await results(made, asked) == [told]


async def test_an_empty_tablet_that_is_filled_from_the_log_is_announced(made: SingleMember) -> None:
    owner = await beginning(made)
    made.append((0, 0), [])
    await made.until_quiet()
    assert made.replica.state is TabletState.READY
    (told,) = await results(made, owner)
    assert (told.code, told.last, told.empty) == (Code.OK, (0, 0), False)


@pytest.mark.parametrize("owner_knows", [True, False])
async def test_nobody_is_told_who_is_no_longer_the_owner(made: SingleMember, owner_knows: bool) -> None:
    """Nor a member that has not made itself known as the owner."""
    owner = await beginning(made)
    if owner_knows:
        await made.store((THIRD, OTHER))
    else:
        made.replica.tablet.leader = None
    await made.take_in()
    assert await results(made, owner) == []


async def test_without_a_session_nothing_is_told(made: SingleMember) -> None:
    owner = await beginning(made)
    made.node.follower._session = lambda member: None
    await made.take_in()
    assert await results(made, owner) == []
