"""A member's volume: a damaged part stays offline or is put aside, the rest starts."""

from pathlib import Path

from tests.member.harness.cluster import Client, cluster, eventually


async def test_one_damaged_superblock_does_not_stop_the_others(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        client = Client(made)
        for n in range(30):
            assert await client.set(0, b"k%d" % n, b"%d" % n)
        await made.members[1].stop()
        backed_up = next(p for p, row in made.rows.items() if row.replicas == (0, 1))
        path = tmp_path / "m1" / "tablet-meta" / str(backed_up)
        path.write_bytes(path.read_bytes()[:-3] + b"xyz")
        await made.members[1].start()
        reply = await eventually(lambda: made.exchange(1, rows=()), lambda r: not r.unserved)
        assert backed_up not in [tablet.partition for tablet in reply.tablets]
        assert f"partition {backed_up} stays offline" in made.members[1].log()


async def test_a_damaged_database_is_put_aside_and_the_member_is_another(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, replicas=1) as made:
        client = Client(made)
        for n in range(200):
            assert await client.set(0, b"k%d" % n, b"x" * 200)
        await made.members[0].kill()
        wal = max((tmp_path / "m0" / "wals").iterdir(), key=lambda file: file.stat().st_size)
        content = bytearray(wal.read_bytes())
        content[len(content) // 2] ^= 1
        wal.write_bytes(content)
        before = made.members[0].uuid
        await made.members[0].start()
        reply = await made.hello(made.members[0])
        assert reply.uuid != before
        assert (reply.tablets, reply.stats.entries) == ((), 0)
        aside = list((tmp_path / "m0" / "quarantine").iterdir())
        assert len(aside) == 1
        assert {"data", "wals", "reason", "instance"} <= {path.name for path in aside[0].iterdir()}


async def test_a_lost_table_file_is_learned_again(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        client = Client(made)
        assert await client.set(0, b"k", b"v")
        await made.members[1].stop()
        (tmp_path / "m1" / "table" / "current").write_bytes(b"garbage")
        await made.members[1].start()
        await made.hello(made.members[1])
        await made.publish()
        await made.served()
        assert await Client(made).call(1, b"GET", b"k") == b"v"


async def test_a_tablet_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, partitions=2, replicas=1) as made:
        client = Client(made)
        for n in range(20):
            assert await client.set(0, b"k%d" % n, b"v")
        await made.members[0].stop()
        (tmp_path / "m0" / "tablet-meta" / "0").unlink()
        await made.members[0].start()
        await made.hello(made.members[0])
        made.store(0, (0,))
        reply = await made.exchange(0)
        assert reply.unserved == (0,)
        assert "names a tablet that is not on this volume" in made.members[0].log()
