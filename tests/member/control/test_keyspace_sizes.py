"""Entries and bytes of keyspaces in a member's reports, and as its metrics."""

from pathlib import Path
from typing import Any

import pytest

from stele.core.control import commands as m
from stele.core.formats import SPOKEN
from stele.core.kv.keyspaces import Catalog, Settings
from stele.member.admin.metrics import Metrics
from stele.wire.storage.keys import EXPIRY_BYTES
from tests.member.harness.single_member import ME, OTHER, SingleMember

CATALOG = Catalog(1, {"sessions": Settings(), "empty": Settings()})
SET = [b"SET", b"key", b"value"]
BYTES = len(b"key") + EXPIRY_BYTES + len(b"value")


@pytest.fixture
async def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """It owns all partitions alone."""
    monkeypatch.setattr("stele.member.control.report.POSITIONS_SECONDS", -1.0)
    made = SingleMember(tmp_path)
    made.rows = {p: m.Row(p, 1, (ME,)) for p in made.rows}
    made.format = SPOKEN.most
    await made.start()
    yield made
    await made.stop()


async def run(made: SingleMember, keyspace: bytes, command: list[bytes]) -> None:
    for partition in made.rows:
        await made.node.router.execute(partition, keyspace, [command])


async def test_declared_keyspaces_are_counted(owner: SingleMember) -> None:
    for keyspace in (b"sessions", b"other", b"default"):
        await run(owner, keyspace, SET)
    assert (await owner.ask()).keyspaces == ()
    reply = await owner.ask(catalog=CATALOG)
    assert reply.keyspaces == (m.KeyspaceSize("sessions", 2, 2 * BYTES),)
    text = Metrics(owner.node).text(0).decode()
    assert 'stele_keyspace_entries{keyspace="sessions"} 2.0' in text
    assert f'stele_keyspace_bytes{{keyspace="sessions"}} {2 * BYTES}.0' in text
    assert 'keyspace="other"' not in text


async def test_sizes_are_reported_when_they_have_changed(owner: SingleMember) -> None:
    await run(owner, b"sessions", SET)
    first = await owner.ask(catalog=CATALOG)
    assert first.keyspaces == (m.KeyspaceSize("sessions", 2, 2 * BYTES),)
    assert (await owner.ask(known=first.number)).keyspaces is None
    await run(owner, b"sessions", [b"DEL", b"key"])
    second = await owner.ask(known=first.number)
    assert second.keyspaces == ()
    assert (await owner.ask(known=first.number)).keyspaces == (), "the master may not have got the last one"
    assert (await owner.ask(known=second.number)).keyspaces is None
    assert (await owner.ask()).keyspaces == ()


async def test_only_the_owner_counts(owner: SingleMember) -> None:
    await run(owner, b"sessions", SET)
    await owner.ask(catalog=CATALOG)
    reply = await owner.ask(rows=(m.Row(0, 2, (OTHER, ME)),))
    assert reply.keyspaces == (m.KeyspaceSize("sessions", 1, BYTES),)
