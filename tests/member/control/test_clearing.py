"""Keyspaces that are deleted with their entries: cleared once, by the member that is asked."""

from pathlib import Path
from typing import Any

import pytest

from stele.core.control import commands as m
from stele.core.formats import SPOKEN
from stele.core.kv.keyspaces import Catalog
from tests.member.harness.single_member import ME, SingleMember

KEYSPACE = b"sessions"


@pytest.fixture
async def owner(tmp_path: Path) -> Any:
    """It owns all partitions alone."""
    made = SingleMember(tmp_path)
    made.rows = {p: m.Row(p, 1, (ME,)) for p in made.rows}
    made.format = SPOKEN.most
    await made.start()
    yield made
    await made.stop()


async def fill(made: SingleMember) -> None:
    for partition in made.rows:
        await made.node.router.execute(partition, KEYSPACE, [[b"SET", b"k", b"v"]])
        await made.node.router.execute(partition, b"default", [[b"SET", b"k", b"v"]])


async def counts(made: SingleMember, keyspace: bytes = KEYSPACE) -> list[int]:
    return [await made.node.router.count(partition, keyspace) for partition in made.rows]


async def test_all_partitions_are_cleared_once_for_each_version(owner: SingleMember) -> None:
    await fill(owner)
    wanted = m.ClearKeyspaces(3, ("sessions",))
    assert (await owner.ask(catalog=Catalog(3), clear=wanted)).cleared == 0
    await owner.until_quiet()
    assert (await owner.ask(clear=wanted)).cleared == 3
    assert await counts(owner) == [0, 0]
    assert await counts(owner, b"default") == [1, 1]
    await fill(owner)
    await owner.ask(clear=wanted)
    await owner.until_quiet()
    assert await counts(owner) == [1, 1], "it was completed before"
    await owner.ask(clear=m.ClearKeyspaces(4, ("sessions",)))
    await owner.until_quiet()
    assert await counts(owner) == [0, 0]


async def test_a_clear_that_comes_late_is_refused_and_not_reported(owner: SingleMember) -> None:
    await fill(owner)
    await owner.ask(catalog=Catalog(4))
    await owner.ask(clear=m.ClearKeyspaces(3, ("sessions",)))
    await owner.until_quiet()
    assert (await owner.ask()).cleared == 0
    assert await counts(owner) == [1, 1]


@pytest.mark.parametrize("name", ["", "@quota", "A"])
async def test_names_that_no_client_can_select_are_refused(owner: SingleMember, name: str) -> None:
    """An empty name would stand for all keyspaces."""
    await fill(owner)
    with pytest.raises(AssertionError, match="BAD_REQUEST"):
        await owner.ask(clear=m.ClearKeyspaces(3, (name,)))
    assert await counts(owner) == [1, 1]


async def test_while_writes_are_refused_it_is_tried_again(owner: SingleMember) -> None:
    await fill(owner)
    table, wanted = owner.node.table, m.ClearKeyspaces(3, ("sessions",))
    table.state = "Passive"
    owner.node.gate.update()
    owner.exchange._clearer.on_exchange(wanted)
    await owner.until_quiet()
    assert await counts(owner) == [1, 1]
    table.state = "Active"
    owner.node.gate.update()
    await owner.ask(clear=wanted)
    await owner.until_quiet()
    assert (await owner.ask()).cleared == 3
