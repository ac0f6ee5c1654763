"""The example service, installed by pip, in real members: its counts move with their partition."""

from pathlib import Path

import pytest

from stele.core.control import commands as m
from tests.member.harness.cluster import Cluster, cluster, eventually, free_ports, key_in
from tests.member.services import quota

P = 0


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a member that has the package, and its port."""
    return quota.install(tmp_path, free_ports(1)[0])


async def ask(made: Cluster, member: int, line: bytes) -> str:
    return await quota.ask(made.members[member].host, int(made.env["QUOTA_PORT"]), line)


async def answered(made: Cluster, member: int, line: bytes) -> str:
    """The answer once this member counts: it first hears how the migration ended."""
    return await eventually(lambda: ask(made, member, line), lambda answer: answer[:3] != "ASK")


async def test_limits_move_with_their_partition(tmp_path: Path, installed: dict[str, str]) -> None:
    async with cluster(tmp_path, 3, partitions=4, **installed) as made:
        name = key_in(P, made.partitions)
        take = b"TAKE %s 5 600" % name
        assert [await ask(made, 0, take) for _ in range(2)] == ["OK 4", "OK 3"]
        assert await ask(made, 1, take) == "ASK m0"
        assert (await ask(made, 0, b"TAKE")).startswith("ERR expected TAKE name limit seconds")

        id = await made.learn(P, 2)
        assert await ask(made, 0, take) == "OK 2"
        await made.finish_move(id, P, 2)
        assert await ask(made, 0, take) == "ASK m2"
        assert await answered(made, 2, take) == "OK 1"

        id = await made.learn(P, 0)
        await made.order(2, m.HandOver(id, P))
        assert (await ask(made, 2, take)).startswith("ASK")
        for member in (2, 0):
            await made.order(member, m.Abort(id, P))
        assert await answered(made, 2, take) == "OK 0"
        assert (await ask(made, 2, take)).startswith("WAIT 5")

        await made.move_owner(P, 0)
        assert (await answered(made, 0, take)).startswith("WAIT 5")
        await made.same(P, 0, 1, keyspace="@quota")
