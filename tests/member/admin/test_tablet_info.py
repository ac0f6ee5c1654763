"""What a member says of its tablets one by one."""

from pathlib import Path

import msgspec

from stele.wire.admin import TabletFacts, TabletList
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in


async def get(made: Cluster, member: int, path: str) -> tuple[int, bytes]:
    place = made.members[member]
    async with made.http.get(f"http://{place.host}:{place.ports[2]}{path}") as response:
        return response.status, await response.read()


async def tablet(made: Cluster, member: int, partition: int) -> TabletFacts:
    status, body = await get(made, member, f"/v1/tablets/{partition}")
    if status == 503:  # It starts.
        raise OSError(body)
    assert status == 200, body
    return msgspec.json.decode(body, type=TabletFacts)


async def test_owner_and_backup_tell_the_same_of_one_tablet(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=4) as made:
        client = Client(made)
        assert await client.set(0, key_in(0, 4), b"v" * 100)
        owner = await eventually(lambda: tablet(made, 0, 0), lambda t: t.behind == {"1": 0})
        assert (owner.role, owner.state, owner.serving, owner.lag) == ("OWNER", "READY", True, None)
        backup = await eventually(lambda: tablet(made, 1, 0), lambda t: t.applied == owner.applied)
        assert (backup.role, backup.serving, backup.lag, backup.behind) == ("BACKUP", False, 0, {})
        for each in (owner, backup):
            assert (each.entries, each.offline, each.copy) == (1, "", "")
            assert each.bytes > 100
            assert each.replicas == (0, 1)
            assert (each.log.first, each.log.last) == (1, each.last.index)
            assert each.log.bytes > 100


async def test_the_list_comes_in_pages(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, partitions=5, replicas=1) as made:
        found: list[int] = []
        after: int | None = -1
        while after is not None:
            query = "?limit=2" if after < 0 else f"?after={after}&limit=2"
            page = msgspec.json.decode((await get(made, 0, f"/v1/tablets{query}"))[1], type=TabletList)
            found += [each.partition for each in page.tablets]
            after = page.next
        assert found == [0, 1, 2, 3, 4]
        assert page.uuid == made.members[0].uuid


async def test_what_is_asked_wrong_is_named(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, partitions=2, replicas=1) as made:
        assert await get(made, 0, "/v1/tablets?limit=0") == (400, b"limit is 0; it must be 1 to 1000\n")
        assert await get(made, 0, "/v1/tablets/9") == (404, b"partition 9 does not exist at this member\n")
        wrong = {
            "/v1/tablets/x": "partition is 'x'",
            "/v1/tablets?limit=-1": "limit is '-1'",
            "/v1/tablets/" + "9" * 5000: f"partition is '{'9' * 40}'",
            "/v1/digest": "partition is missing",
            "/v1/digest?partition=x": "partition is 'x'",
            "/v1/digest?partition=-1": "partition is '-1'",
        }
        for path, what in wrong.items():
            told = f"{what}; it must be a whole number below 1,000,000,000\n"
            assert await get(made, 0, path) == (400, told.encode())
        for path in ("/v1/digest?partition=99", "/nothing"):
            assert (await get(made, 0, path))[0] == 404
        told = "keyspace has 64 bytes; expected at most 63\n"
        assert await get(made, 0, "/v1/digest?partition=0&keyspace=" + "k" * 64) == (400, told.encode())
        assert "Traceback" not in made.members[0].log()
