"""Users of real members: switched on under load, forwarded requests, changed files, restarts."""

import asyncio
import time
from pathlib import Path

from stele.core.control.member_settings import ClientAuth, MemberSettings
from stele.wire.users import UserEntry, encode_users, generated_hash
from tests.member.harness.clients import Pipe, RespError
from tests.member.harness.cluster import Cluster, cluster

EVERYTHING = ("+@all", "~*", "&*")
SHOP = UserEntry("shop", (generated_hash(b"pw"),), EVERYTHING)
OTHER = UserEntry("other", (generated_hash(b"pw"),), ("+@read", "~orders:*"))
CUT_SECONDS_MAX = 5.0


def write_users(path: Path, *users: UserEntry) -> None:
    """Replace the file as the kubelet does."""
    path.with_suffix(".next").write_bytes(encode_users(users))
    path.with_suffix(".next").rename(path)


async def ask(pipe: Pipe, line: str) -> object:
    (reply,) = await pipe.ask([word.encode() for word in line.split()])
    return str(reply).split(" ")[0] if isinstance(reply, RespError) else reply


async def require(made: Cluster, level: ClientAuth) -> None:
    made.settings = MemberSettings(auth=level)
    await made.publish()


async def settled(pipe: Pipe, line: str, reply: object) -> None:
    async with asyncio.timeout(30):
        while await ask(pipe, line) != reply:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_clients_with_passwords_see_no_error_while_they_become_required(tmp_path: Path) -> None:
    users = tmp_path / "users"
    write_users(users, SHOP, OTHER)
    async with cluster(tmp_path, 2, STELE_USERS_FILE=str(users)) as made:
        await require(made, ClientAuth.OFF)
        one, anybody = await Pipe.to(made.members[0]), await Pipe.to(made.members[1])
        assert await ask(one, "AUTH shop pw") == b"OK"
        await settled(anybody, "SET orders:0 x", b"OK")
        stop, replies = asyncio.Event(), set[object]()

        async def load() -> None:
            """Keys of both members, so that half of the requests are forwarded."""
            number = 0
            while not stop.is_set():
                number += 1
                replies.add(await ask(one, f"SET orders:{number % 50} {number}"))

        task = asyncio.create_task(load())
        await require(made, ClientAuth.REQUIRED)
        await settled(anybody, "GET orders:0", "NOAUTH")
        await asyncio.sleep(0.5)
        stop.set()
        await task
        assert replies == {b"OK"}
        other = await Pipe.to(made.members[1])
        assert await ask(other, "AUTH other pw") == b"OK"
        for number in range(50):
            assert not isinstance(await ask(other, f"GET orders:{number}"), str)
        assert await ask(other, "SET orders:1 x") == "NOPERM"
        assert await ask(other, "GET secret") == "NOPERM"
        write_users(users, SHOP)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(30):
                while True:
                    await ask(other, "GET orders:1")
                    await asyncio.sleep(0.05)
        except (asyncio.IncompleteReadError, ConnectionError):
            assert time.monotonic() - begun < CUT_SECONDS_MAX
        assert await ask(one, "PING") == b"PONG"
        for pipe in (one, other, anybody):
            await pipe.close()


async def test_a_restarted_member_lets_in_nobody_without_a_password_before_the_master_speaks(
    tmp_path: Path,
) -> None:
    users = tmp_path / "users"
    write_users(users, SHOP)
    async with cluster(tmp_path, 2, STELE_USERS_FILE=str(users)) as made:
        await require(made, ClientAuth.REQUIRED)
        await made.restart(0)
        anybody, shop = await Pipe.to(made.members[0]), await Pipe.to(made.members[0])
        assert await ask(anybody, "GET a") == "NOAUTH"
        assert await ask(shop, "AUTH shop pw") == b"OK"
        await require(made, ClientAuth.OFF)
        await made.served()
        await settled(anybody, "GET a", None)
        for pipe in (anybody, shop):
            await pipe.close()
