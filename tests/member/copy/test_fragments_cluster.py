"""Fragments between real members: every keyspace arrives, with what the partition keeps for itself."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from stele.core.control import commands as m
from stele.wire.copy.jobs import SessionFile
from tests.member.harness.cluster import Client, cluster, key_in

SPACES = (b"default", b"map1", b"map2")


@pytest.mark.parametrize("fragments", [True, False])
async def test_all_keyspaces_arrive(tmp_path: Path, fragments: bool) -> None:
    async with cluster(tmp_path, 3, partitions=2) as made:
        client = Client(made)
        key = key_in(0, 2)
        tag = b"{" + key + b"}"
        for space in SPACES:
            await client.call(0, b"SELECT", space)
            for number in range(30):
                await client.call(0, b"SET", tag + b"%d" % number, space + bytes(50_000))
        await client.call(0, b"STELE.ONCE", b"client", b"1", b"SET", tag + b"once", b"x")
        await asyncio.gather(*(member.start_transfer() for member in made.members.values()))
        id = made.id()
        await made.start_learner(id, 0, 2)
        await made.until_learner(0, id, "NEEDS_COPY")
        session = await made.fetch(0, 0, 2, fragments=fragments)
        file = tmp_path / "m0" / "checkpoints" / session / "session.json"
        stored = msgspec.json.decode(file.read_bytes(), type=SessionFile)
        assert stored.fragments is fragments
        (tablet,) = stored.tablets
        assert tablet.versions == (tablet.applied.index,) * 2
        await made.order(2, m.Ingest(session, (0,)))
        await made.until_learner(0, id, "IN_SYNC")
        await made.finish_move(id, 0, 2)
        for space in (*SPACES, b""):
            _, entries = await made.digest(2, 0, space.decode())
            assert entries
            await made.same(0, 1, 2, keyspace=space.decode())
        assert f"ingested {4 if fragments else 1} fragments" in made.members[2].log()
