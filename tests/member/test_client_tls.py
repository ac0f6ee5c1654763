"""TLS for clients of real members: the level comes with exchanges, stays across restarts, and is measured."""

import asyncio
import re
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis.asyncio
from redis.exceptions import RedisError

from stele.core.control.member_settings import ClientTls, MemberSettings
from stele.wire.identity import identity_digest
from tests.fakes.pki import shared_ca
from tests.member.harness.cluster import Cluster, MemberProcess, cluster, eventually


def client_of(member: MemberProcess, folder: Path | None = None, port: int = 0) -> redis.asyncio.Redis:
    """A client, with TLS when there is a folder with CAs."""
    more: dict[str, Any] = {}
    if folder is not None:
        more = {"ssl": True, "ssl_ca_certs": str(folder / "ca.crt"), "ssl_check_hostname": False}
    return redis.asyncio.Redis(host=member.host, port=member.ports[port], **more)


async def demand(members: Cluster, level: ClientTls) -> None:
    members.settings = MemberSettings(client_tls=level)
    await members.publish()


async def speaks(member: MemberProcess, folder: Path | None = None, port: int = 0) -> bool:
    async with client_of(member, folder, port) as client:
        try:
            return bool(await client.ping())
        except RedisError:
            return False


async def metric(member: MemberProcess, name: str) -> float:
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://{member.host}:{member.ports[4]}/metrics") as r,
    ):
        found = re.search(rf"^{re.escape(name)} (\S+)$", await r.text(), re.MULTILINE)
    assert found, name
    return float(found[1])


def in_use(folder: Path) -> str:
    """What a member reports that uses these files."""
    return identity_digest((folder / "tls.crt").read_bytes(), (folder / "ca.crt").read_bytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shared_ca().leaf(days=20).write(tmp_path / "tls")


async def test_the_master_says_which_connections_are_taken_on_all_ports(tmp_path: Path, folder: Path) -> None:
    expected = {
        ClientTls.OFF: (True, False),
        ClientTls.OPTIONAL: (True, True),
        ClientTls.REQUIRED: (False, True),
    }
    async with cluster(tmp_path, 2, 4, 2, STELE_TLS_DIR=str(folder)) as members:
        for level, found in expected.items():
            await demand(members, level)
            for member in members.members.values():
                for port in (0, 5, 6):
                    assert (await speaks(member, port=port), await speaks(member, folder, port)) == found
        first = members.members[0]
        async with client_of(first, folder) as client:
            await client.set("k", "v")
            assert await client.get("k") == b"v"
        assert await metric(first, 'stele_tls_handshakes_total{result="ok"}') >= 7
        assert await metric(first, 'stele_tls_handshakes_total{result="plain"}') >= 3
        assert 19 < await metric(first, "stele_tls_certificate_left_days") <= 20
        assert await metric(first, "stele_tls_certificate_unusable") == 0


async def test_a_member_that_starts_without_a_master_demands_what_it_demanded(
    tmp_path: Path, folder: Path
) -> None:
    async with cluster(tmp_path, 1, 2, 1, STELE_TLS_DIR=str(folder)) as members:
        member = members.members[0]
        await demand(members, ClientTls.REQUIRED)
        await member.kill()
        await member.start()
        await eventually(lambda: speaks(member, folder), bool)
        assert not await speaks(member)


async def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path, folder: Path) -> None:
    async with cluster(tmp_path, 1, 2, 1, STELE_TLS_DIR=str(folder)) as members:
        member = members.members[0]
        await demand(members, ClientTls.REQUIRED)
        assert (await members.exchange(0)).identity == in_use(folder)
        async with client_of(member, folder) as client:
            first = await client.client_id()
            shared_ca().leaf(days=30).write(folder)

            async def left() -> float:
                assert await client.client_id() == first
                return await metric(member, "stele_tls_certificate_left_days")

            await eventually(left, lambda days: days > 25, 25)
            assert (await members.exchange(0)).identity == in_use(folder)
            (folder / "tls.key").write_text("nonsense")

            async def unusable() -> float:
                return await metric(member, "stele_tls_certificate_unusable")

            await eventually(unusable, bool, 25)
            assert await speaks(member, folder)


async def test_without_tls_what_begins_with_it_ends_on_each_port(tmp_path: Path) -> None:
    """Nothing of a client that speaks TLS is waited for."""
    context = ssl.create_default_context()
    async with cluster(tmp_path, 1, 2, 1) as members:
        member = members.members[0]
        await member.start_transfer()
        for port in member.ports:

            async def ends(port: int = port) -> bool:
                try:
                    await asyncio.wait_for(asyncio.open_connection(member.host, port, ssl=context), 5)
                except ConnectionRefusedError:  # The transfer process starts.
                    return False
                except (ssl.SSLError, ConnectionError):
                    return True
                raise AssertionError(f"port {port} took TLS")

            await eventually(ends, bool)
