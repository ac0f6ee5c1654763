"""Keyspaces that have reached their quota: what makes them larger is refused, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from stele.core.control import commands as m
from stele.core.formats import SPOKEN
from stele.core.kv.commands import OK, Failure, Reply
from stele.core.kv.dedup import ONCE
from stele.core.kv.keyspaces import Catalog, Quota, Settings
from stele.core.kv.transaction import EXEC
from stele.wire.transaction import encode_transaction
from tests.member.harness.single_member import ME, SingleMember

CATALOG = Catalog(1, {"sessions": Settings(quota=Quota(2, 1000)), "other": Settings()})
FULL = Failure(
    "OOM",
    "keyspace sessions has reached its quota of 2 entries and 1000 bytes: "
    "delete entries, or raise spec.quota",
)


@pytest.fixture
async def owner(tmp_path: Path) -> Any:
    """It owns all partitions alone, and was told that `sessions`, with two entries, may not grow."""
    made = SingleMember(tmp_path)
    made.rows = {p: m.Row(p, 1, (ME,)) for p in made.rows}
    made.format = SPOKEN.most
    await made.start()
    for key in (b"a", b"b"):
        await run(made, b"SET", key, b"value")
    await made.ask(catalog=CATALOG, over_quota=("sessions", "other", "unknown"))
    yield made
    await made.stop()


async def run(made: SingleMember, *args: bytes, keyspace: bytes = b"sessions") -> Reply:
    [reply] = await made.node.router.execute(0, keyspace, [list(args)])
    return reply


@pytest.mark.parametrize(
    "command",
    [
        [b"SET", b"c", b""],
        [b"SET", b"a", b"value+"],
        [b"SET", b"c", b"v", b"NX"],
        [b"INCR", b"c"],
        [b"APPEND", b"a", b"+"],
        [b"SETRANGE", b"a", b"5", b"+"],
    ],
)
async def test_what_makes_it_larger_is_refused(owner: SingleMember, command: list[bytes]) -> None:
    before = owner.node.replicas[0].tablet.log.last
    assert await run(owner, *command) == FULL
    assert await run(owner, ONCE, b"client", b"1", *command) == FULL
    assert owner.node.replicas[0].tablet.log.last == before


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ([b"GET", b"a"], b"value"),
        ([b"SET", b"a", b"other"], OK),
        ([b"SET", b"a", b"", b"XX"], OK),
        ([b"SET", b"c", b"v", b"XX"], None),
        ([b"EXPIRE", b"a", b"5"], 1),
        ([b"PERSIST", b"a"], 0),
        ([b"DEL", b"a"], 1),
        ([b"GETDEL", b"a"], b"value"),
    ],
)
async def test_what_does_not_make_it_larger_works(
    owner: SingleMember, command: list[bytes], reply: Reply
) -> None:
    assert await run(owner, *command) == reply


async def test_a_refused_attempt_can_be_repeated_when_there_is_room(owner: SingleMember) -> None:
    once = (ONCE, b"client", b"1", b"SET", b"c", b"v")
    assert await run(owner, *once) == FULL
    await owner.ask(over_quota=())
    assert await run(owner, *once) == OK
    assert await run(owner, b"GET", b"c") == b"v"


async def test_a_transaction_is_refused_as_a_whole_when_it_makes_it_larger(owner: SingleMember) -> None:
    def exec_of(*commands: list[bytes]) -> tuple[bytes, ...]:
        return EXEC, b"a", encode_transaction([], list(commands))

    grows = exec_of([b"DEL", b"a"], [b"SET", b"c", b"1"], [b"SET", b"d", b"1"])
    assert await run(owner, *grows) == FULL
    assert await run(owner, b"GET", b"a") == b"value"
    longer = exec_of([b"SET", b"a", b"longer value"], [b"GET", b"b"])
    assert await run(owner, *longer) == FULL
    swaps = exec_of([b"DEL", b"a"], [b"SET", b"c", b"value"])
    assert await run(owner, *swaps) == [1, OK]


async def test_other_keyspaces_grow_on(owner: SingleMember) -> None:
    """Those that have no quota too, whatever an older list of the master says."""
    for keyspace in (b"other", b"unknown", b"default"):
        assert await run(owner, b"SET", b"c", b"v", keyspace=keyspace) == OK


async def test_a_member_keeps_what_it_was_told_until_it_is_told_otherwise(owner: SingleMember) -> None:
    await owner.ask()
    assert await run(owner, b"SET", b"c", b"v") == FULL
    await owner.ask(catalog=Catalog(2, {"sessions": Settings(quota=Quota(5))}))
    reply = await run(owner, b"SET", b"c", b"v")
    assert isinstance(reply, Failure)
    assert "quota of 5 entries:" in reply.text
    await owner.ask(catalog=Catalog(3, {"sessions": Settings()}))
    assert await run(owner, b"SET", b"c", b"v") == OK


async def test_it_can_be_cleared(owner: SingleMember) -> None:
    await owner.node.router.clear(0, b"sessions")
    assert await owner.node.router.count(0, b"sessions") == 0
