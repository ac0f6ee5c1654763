"""What was deleted stays for a while: it is listed, read, restored, purged, and never served by itself."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from stele.core.control import commands as m
from stele.core.control.member_settings import MemberSettings
from stele.wire.admin import QuarantinedTablet, QuarantineList
from tests.member.admin.test_tablet_info import get, tablet
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in

PARTITIONS = 2
QUICK_SWEEPS = json.dumps({"GC_INTERVAL_SECONDS": 0.2})


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster(tmp_path, 3, partitions=PARTITIONS) as made:
        yield made


async def ask(made: Cluster, member: int, method: str, path: str) -> tuple[int, dict[str, object]]:
    place = made.members[member]
    url = f"http://{place.host}:{place.ports[2]}/v1/quarantine{path}"
    async with made.http.request(method, url) as response:
        found: dict[str, object] = msgspec.json.decode(await response.read())
        return response.status, found


async def listed(made: Cluster, member: int) -> QuarantineList:
    return msgspec.json.decode((await get(made, member, "/v1/quarantine"))[1], type=QuarantineList)


async def one_deleted(made: Cluster, client: Client) -> QuarantinedTablet:
    """Partition 0 moves from member 0 to member 2, which leaves a tombstone."""
    for seed in range(3):
        assert await client.set(0, key_in(0, PARTITIONS, seed), b"v" * 20)
    await made.same_everywhere()
    await made.move_owner(0, 2)
    (found,) = (await listed(made, 0)).tablets
    return found


async def test_a_deleted_tablet_is_listed_and_its_entries_can_be_read(made: Cluster) -> None:
    client = Client(made)
    found = await one_deleted(made, client)
    assert (found.partition, found.generation, found.entries) == (0, 1, 3)
    assert found.last >= found.applied > m.OpId()
    assert (await listed(made, 0)).retention_seconds == 3600
    lines = (await get(made, 0, "/v1/quarantine/tablets/0/1/entries"))[1].splitlines()
    shown = [msgspec.json.decode(line) for line in lines]
    expected = [
        ["default", base64.b64encode(key).decode(), base64.b64encode(b"v" * 20).decode(), 0]
        for key in sorted(client.acknowledged)
    ]
    assert shown == expected


async def test_a_restored_tablet_serves_nothing_and_rejoins_from_the_log(made: Cluster) -> None:
    client = Client(made)
    found = await one_deleted(made, client)
    made.store(0, (2,), by=2)
    await made.publish()
    for _ in range(2):
        assert await ask(made, 0, "POST", "/tablets/0/1/restore") == (200, {"code": "OK"})
    facts = await tablet(made, 0, 0)
    assert (facts.state, facts.role, facts.generation) == ("READY", "NONE", 1)
    assert (facts.serving, facts.last, facts.entries) == (False, found.last, 3)
    assert (await listed(made, 0)).tablets == ()
    await made.restart(0)
    again = await eventually(lambda: tablet(made, 0, 0), lambda t: t.state == "READY")
    assert (again.last, again.entries, again.serving) == (found.last, 3, False)
    await rejoin_from_the_log(made)
    await client.check(1)


async def rejoin_from_the_log(made: Cluster) -> None:
    await made.publish()
    await made.migrate(0, 0, "COPY", (2, 0))
    await made.same_everywhere()


async def test_what_would_be_deleted_again_is_not_restored(made: Cluster) -> None:
    await one_deleted(made, Client(made))
    status, answer = await ask(made, 0, "POST", "/tablets/0/1/restore")
    assert (status, answer["code"]) == (409, "NOT_NEEDED")
    status, answer = await ask(made, 0, "POST", "/tablets/0/7/restore")
    assert (status, answer["code"]) == (404, "NOT_FOUND")


async def test_a_tombstone_that_a_copy_was_begun_for_is_still_restored_whole(made: Cluster) -> None:
    found = await one_deleted(made, Client(made))
    row = made.store(0, (2,), by=2)
    await made.publish()
    await made.order(0, m.StartTabletCopy("x", 0, row.version, 2))
    status, answer = await ask(made, 0, "POST", "/tablets/0/1/restore")
    assert (status, answer["code"]) == (409, "MIGRATION_ACTIVE")
    await made.restart(0)
    await made.order(0, m.Abort("x", 0))
    assert await ask(made, 0, "POST", "/tablets/0/1/restore") == (200, {"code": "OK"})
    facts = await tablet(made, 0, 0)
    assert (facts.state, facts.last, facts.entries) == ("READY", found.last, 3)


async def test_purged_data_is_gone_at_once_and_stays_gone(made: Cluster) -> None:
    await one_deleted(made, Client(made))
    assert await ask(made, 0, "DELETE", "/tablets/0/1") == (200, {"purged": True})
    assert await ask(made, 0, "DELETE", "/tablets/0/1") == (200, {"purged": False})
    await made.restart(0)
    facts = await eventually(lambda: tablet(made, 0, 0), lambda t: t.state == "DELETED")
    assert (facts.quarantined, facts.last > m.OpId()) == ((), True)


async def test_a_restored_tablet_that_the_master_makes_the_owner_serves_what_it_has(made: Cluster) -> None:
    """What was written to the members that are lost is lost; they put their data aside when they are back."""
    client = Client(made)
    found = await one_deleted(made, client)
    old = dict.fromkeys(client.acknowledged)
    assert await client.set(2, newer := key_in(0, PARTITIONS, 7), b"lost")
    row = made.rows[0]
    for member in row.replicas:
        assert member is not None
        await made.members[member].kill()
    await made.publish()
    await eventually(lambda: ask(made, 0, "POST", "/tablets/0/1/restore"), lambda got: got[0] == 200)
    made.store(0, (0,), by=2)
    await made.publish()
    await made.served([0])
    for key in old:
        assert await client.call(0, b"GET", key) == b"v" * 20
    assert await client.call(0, b"GET", newer) is None
    for member in row.replicas:
        assert member is not None
        await made.members[member].start()
        await made.hello(made.members[member])
    await made.publish()
    for member in row.replicas:
        assert member is not None
        await made.order(member, m.DeleteTablet(0, made.version(0)))
        (aside,) = (await listed(made, member)).tablets
        assert aside.last > found.last


async def test_nothing_is_purged_that_may_be_the_last_copy(tmp_path: Path) -> None:
    """While the master says so, and while it has said nothing for long."""
    async with cluster(tmp_path, 3, partitions=PARTITIONS, LIMITS=QUICK_SWEEPS) as made:
        settings = MemberSettings(quarantine_retention_seconds=0)
        made.settings, made.without_copy = settings, (0,)
        await one_deleted(made, Client(made))
        assert (await listed(made, 0)).retention_seconds == 0
        await asyncio.sleep(1.0)
        await made.publish()
        assert len((await listed(made, 0)).tablets) == 1
        status, answer = await ask(made, 0, "DELETE", "/tablets/0/1")
        assert (status, answer["code"]) == (409, "NO_LIVE_COPY")
        made.without_copy = ()
        await made.publish()
        await eventually(lambda: listed(made, 0), lambda found: not found.tablets)


async def test_a_volume_that_was_put_aside_is_listed_and_purged(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, partitions=PARTITIONS, replicas=1) as made:
        assert await Client(made).set(0, b"k", b"v")
        await made.members[0].kill()
        (tmp_path / "m0" / "instance").write_bytes(b"garbage")
        await made.members[0].start()
        await made.hello(made.members[0])
        (volume,) = (await listed(made, 0)).volumes
        assert "it begins with b'garbage'" in volume.reason
        assert volume.bytes > 0
        assert await ask(made, 0, "DELETE", "/volumes/instance") == (200, {"purged": False})
        assert await ask(made, 0, "DELETE", f"/volumes/{volume.name}") == (200, {"purged": True})
        assert (await listed(made, 0)).volumes == ()
