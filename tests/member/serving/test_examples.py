"""examples/transfer.py through real members, with keys in several partitions."""

import asyncio
import sys
from pathlib import Path

from stele.core.formats import SPOKEN
from stele.core.kv.keyspaces import Catalog, Settings
from tests.guard.pages import ROOT
from tests.member.harness.cluster import Cluster, cluster, key_in
from tests.member.harness.load import Service


async def transfer(made: Cluster, member: int, source: bytes, target: bytes, amount: int) -> tuple[int, str]:
    """The exit status of the example, and what it prints."""
    address = f"{made.members[member].host}:{made.ports[0]}"
    arguments = (address, source.decode(), target.decode(), str(amount))
    program = await asyncio.create_subprocess_exec(
        sys.executable, str(ROOT / "examples/transfer.py"), *arguments, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await program.communicate()
    assert program.returncode is not None
    return program.returncode, told.decode().strip()


async def test_an_amount_is_moved_between_partitions_once_or_not_at_all(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2) as made:
        made.catalog, made.features = Catalog(1, {"accounts": Settings()}), SPOKEN.most
        await made.publish()
        alice, bob = (key_in(partition, made.partitions) for partition in (0, 1))
        client = Service([made.members[0].host], made.ports[0]).client()
        client.execute_command("SELECT", "accounts")
        client.set(alice, 50)
        assert await transfer(made, 1, alice, bob, 20) == (0, "moved 30 20")
        assert await transfer(made, 0, alice, bob, 31) == (1, "not enough 30 20")
        done = await asyncio.gather(*(transfer(made, each % 2, alice, bob, 8) for each in range(4)))
        assert sorted(code for code, _ in done) == [0, 0, 0, 1]
        assert client.mget(alice, bob) == [b"6", b"44"]
