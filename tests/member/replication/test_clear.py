"""Clearing a keyspace: one operation of the log, applied in its order at every replica."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stele.adapters.memory.engine import MemoryEngine
from stele.core.control import commands as m
from stele.core.formats import SPOKEN
from stele.core.kv.commands import OK
from stele.core.kv.keyspaces import Catalog, Settings
from stele.errors import Refused, Unavailable, Uncertain
from stele.member.replication.replicator import APPLY_AGAIN_SECONDS
from stele.member.replication.request import Request, RequestKind
from stele.member.storage import failpoints
from stele.wire.storage.log_record import Change, batch_record, clear_record, put_record
from tests.member.harness.single_member import ME, OTHER, P, SingleMember

KEYSPACE = b"default"


def put(key: bytes, keyspace: bytes = KEYSPACE) -> bytes:
    return put_record(2, keyspace, key, b"v", 0)


RECORDS = [put(b"a"), put(b"x", b"other"), clear_record(2, KEYSPACE), put(b"b"), clear_record(2, b"db1")]
RECORDS += [batch_record(2, [Change(KEYSPACE, b"c", b"v"), Change(b"", b"client", b"1")])]
END = 5 + len(RECORDS)


async def backup(made: SingleMember) -> None:
    """It holds what a copy brought, up to (1, 5), and backs another member up."""
    await made.receive()
    await made.store((OTHER, ME))


async def take(made: SingleMember, records: list[bytes], end: int = END) -> None:
    made.append((1, 5), records, commit=end)
    await made.until_quiet()


def held(made: SingleMember) -> dict[bytes, list[bytes]]:
    spaces = {name: made.replica.prefix(name) for name in (KEYSPACE, b"other", b"db1")}
    return {
        name: [key[len(prefix) :] for key, _ in made.engine.scan(prefix, prefix + b"\xff", 99)]
        for name, prefix in spaces.items()
    }


CLEARED = {KEYSPACE: [b"b", b"c"], b"other": [b"x"], b"db1": []}


async def test_a_clear_takes_what_was_written_before_it_and_nothing_else(made: SingleMember) -> None:
    await backup(made)
    assert made.get(b"copied") == b"yes"
    await take(made, RECORDS)
    assert held(made) == CLEARED
    assert made.replica.tablet.log.applied == (2, END)
    totals = made.replica.keyspaces
    assert {name: count for name, (count, _) in totals.items()} == {KEYSPACE: 2, b"other": 1, b"": 1}


async def test_without_a_name_all_keyspaces_of_users_are_cleared(made: SingleMember) -> None:
    await backup(made)
    await take(made, [*RECORDS, clear_record(2, b""), put(b"d")], END + 2)
    assert held(made) == {KEYSPACE: [b"d"], b"other": [], b"db1": []}
    assert set(made.replica.keyspaces) == {KEYSPACE, b""}, "what services keep stays"


async def test_with_all_that_was_cleared_gone_a_clear_of_everything_is_applied(made: SingleMember) -> None:
    await backup(made)
    await take(made, [clear_record(2, b"")] * 2, 7)
    assert made.replica.tablet.log.applied == (2, 7)


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_crash_at_any_step_of_a_clear_leaves_what_the_log_says(
    made: SingleMember, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    """What a restart finds after each step, with the data on disk or not, becomes the same with the log."""
    await backup(made)
    found: list[tuple[str, MemoryEngine]] = []

    def hit(name: str) -> None:
        if name in ("write.logged", "write.applied", "write.cleared"):
            if flushed:
                made.engine.flush()
            found.append((name, made.engine.crashed(power_lost=False)))

    monkeypatch.setattr(failpoints, "hit", hit)
    await take(made, RECORDS)
    monkeypatch.undo()
    assert "write.cleared" in {name for name, _ in found}
    for _, engine in found:
        await made.stop()
        made.engine = engine
        await made.start()
        await take(made, RECORDS)
        assert held(made) == CLEARED
        assert {name for name, (count, _) in made.replica.keyspaces.items() if count} == {
            KEYSPACE,
            b"other",
            b"",
        }


async def test_a_full_volume_delays_a_clear_and_what_follows(made: SingleMember) -> None:
    await backup(made)
    write, full = made.engine.write_data, [True]

    def maybe(changes: Any, drops: Any = ()) -> None:
        if full[0]:
            raise Unavailable("database: No space left on device", "NO_SPACE")
        write(changes, drops)

    made.engine.write_data = maybe  # type: ignore[method-assign]
    await take(made, RECORDS)
    assert held(made)[KEYSPACE] == [b"copied"]
    assert made.failures == []
    full[0] = False
    await asyncio.sleep(2 * APPLY_AGAIN_SECONDS)
    await made.until_quiet()
    assert held(made) == CLEARED


# -- at the owner


class Owner(SingleMember):
    """It owns all partitions alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rows = {p: m.Row(p, 1, (ME,)) for p in self.rows}
        self.format = SPOKEN.most


@pytest.fixture
async def owner(tmp_path: Path) -> Any:
    made = Owner(tmp_path)
    await made.start()
    yield made
    await made.stop()


async def test_requests_wait_for_a_clear_and_see_its_effect(owner: Owner) -> None:
    router = owner.node.router
    await router.execute(P, KEYSPACE, [[b"SET", b"a", b"1"]])
    cleared = asyncio.ensure_future(router.clear(P, KEYSPACE))
    await asyncio.sleep(0)
    replies = await router.execute(P, KEYSPACE, [[b"GET", b"a"], [b"INCR", b"a"]])
    assert cleared.done()
    assert replies == [None, 1]
    assert owner.replica.clearing == 0


async def test_what_was_logged_before_a_clear_and_is_not_applied_goes_too(owner: Owner) -> None:
    router = owner.node.router
    written = asyncio.ensure_future(router.execute(P, KEYSPACE, [[b"SET", b"a", b"1"]]))
    cleared = asyncio.ensure_future(router.clear(P, KEYSPACE))
    after = asyncio.ensure_future(router.execute(P, KEYSPACE, [[b"GET", b"a"], [b"SET", b"b", b"2"]]))
    assert (await written, await cleared, await after) == ([OK], None, [None, OK])
    assert await router.count(P, KEYSPACE) == 1


async def test_services_write_what_is_about_to_go(owner: Owner) -> None:
    """A value that is stored and equal does not count while a clear is under way."""
    await owner.node.router.execute(P, KEYSPACE, [[b"SET", b"a", b"1"]])
    cleared = asyncio.ensure_future(owner.node.router.clear(P, KEYSPACE))
    await asyncio.sleep(0)
    executor = owner.node.command_executor
    assert executor.log_changes(owner.replica, [Change(KEYSPACE, b"a", b"1")]) is None
    await cleared
    await owner.until_quiet()
    assert owner.get(b"a") == b"1"


async def test_a_clear_for_an_older_catalog_is_refused(owner: Owner) -> None:
    router = owner.node.router
    owner.node.table.keyspaces.use(Catalog(4, {"default": Settings()}))
    await router.execute(P, KEYSPACE, [[b"SET", b"a", b"1"]])
    with pytest.raises(Refused, match="STALE_CATALOG: catalog 4"):
        await router.clear(P, KEYSPACE, 3)
    assert owner.get(b"a") == b"1"
    await router.clear(P, KEYSPACE, 4)
    assert owner.get(b"a") is None


async def test_before_all_members_know_how_nothing_is_cleared(tmp_path: Path) -> None:
    made = Owner(tmp_path)
    made.format = 1
    await made.start()
    with pytest.raises(Refused, match="upgrade the cluster first"):
        await made.node.router.clear(P, KEYSPACE)
    await made.stop()


async def test_a_passive_cluster_clears_nothing(owner: Owner) -> None:
    owner.node.table.state = "Passive"
    owner.node.gate.update()
    with pytest.raises(Refused, match="CLUSTER_PASSIVE"):
        await owner.node.router.clear(P, KEYSPACE)


async def test_a_clear_whose_answer_is_lost_is_not_sent_again(owner: Owner) -> None:
    """A second one could delete what was written in between."""
    request = Request(RequestKind.CLEAR, P, KEYSPACE, asyncio.get_running_loop().create_future())
    owner.node.router.lost([request])
    assert isinstance(request.future.exception(), Uncertain)
