"""Clients of real members while TLS comes and goes: none of them sees an error that follows the order."""

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from stele.core.control.member_settings import ClientTls, MemberSettings
from stele.wire.resp import encode_request
from tests.fakes.pki import shared_ca
from tests.member.harness.cluster import Cluster, MemberProcess, cluster, eventually
from tests.member.harness.load import Load, Service
from tests.member.test_client_tls import metric

RENEW_EACH = 3
"""Requests of one key between two connections of a client: both kinds are under way at each level."""
REFUSED = b"-ERR this port takes only TLS connections: "
TURNED_AWAY = b"-ERR this port takes only TLS connections now: connect again, with TLS\r\n"


def context_of(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.check_hostname = False
    return context


async def refused(member: MemberProcess) -> bytes:
    """What a new connection without TLS gets until it ends."""
    reader, writer = await asyncio.open_connection(member.host, member.ports[0])
    writer.write(encode_request([b"PING"]))
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


class Kept:
    """A connection to each member that stays open, and counts up a key of its own."""

    def __init__(self, members: Cluster, folder: Path | None = None) -> None:
        self._members = members.members.values()
        self._context = None if folder is None else context_of(folder)
        self._key = b"kept-plain" if folder is None else b"kept-tls"
        self._count = 0
        self.ends: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self) -> None:
        for member in self._members:
            made = asyncio.open_connection(member.host, member.ports[0], ssl=self._context)
            self.ends.append(await asyncio.wait_for(made, 10))
        await self.go_on()

    async def go_on(self) -> None:
        for reader, writer in self.ends:
            self._count += 1
            writer.write(encode_request([b"INCR", self._key]))
            assert await asyncio.wait_for(reader.readline(), 10) == b":%d\r\n" % self._count

    async def last_words(self) -> set[bytes]:
        """What each gets until its member closes it."""
        return {await asyncio.wait_for(reader.read(), 10) for reader, _ in self.ends}

    async def close(self) -> None:
        for _, writer in self.ends:
            writer.transport.abort()


class Walk:
    """Clients of three members that come and go, while the members go from one level to another."""

    def __init__(self, members: Cluster, folder: Path, stack: AsyncExitStack) -> None:
        self._members, self._folder, self._stack = members, folder, stack
        self.loads: list[Load] = []
        self.kept: list[Kept] = []

    async def come(self, name: str, *, tls: bool) -> Load:
        """Clients that connect now and then, and connections that stay."""
        hosts = [member.host for member in self._members.members.values()]
        trusted = self._folder / "ca.crt" if tls else None
        service = Service(hosts, self._members.ports[0], trusted, once=True)
        load = Load(service, [f"{name}-{n}".encode() for n in range(4)], RENEW_EACH)
        self._stack.push_async_callback(load.end)
        self.loads.append(load)
        await self.go_on()
        return load

    async def keep(self, *, tls: bool) -> Kept:
        kept = Kept(self._members, self._folder if tls else None)
        self._stack.push_async_callback(kept.close)
        await kept.open()
        self.kept.append(kept)
        return kept

    async def to(self, level: ClientTls) -> None:
        """Tell one member after the other; all go on between."""
        self._members.settings = MemberSettings(client_tls=level)
        for index in self._members.members:
            await self._members.publish([index])
            await self.go_on()

    async def go_on(self) -> None:
        """Wait until each client has connected again, at least once."""
        for load in self.loads:
            least = {key: count + RENEW_EACH for key, count in load.counts.items()}
            await eventually(lambda one=load, least=least: _grown(one, least), bool)
            assert load.failures == []
        for kept in self.kept:
            await kept.go_on()

    async def leave(self, load: Load) -> None:
        """These clients end; all that they were told is there."""
        await load.end()
        assert load.failures == []
        assert await load.lost() == {}
        self.loads.remove(load)


async def _grown(load: Load, least: dict[bytes, int]) -> bool:
    return bool(load.failures) or all(load.counts[key] >= count for key, count in least.items())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shared_ca().leaf(days=20).write(tmp_path / "tls")


async def test_clients_change_to_tls_and_back_under_load_without_an_error(
    tmp_path: Path, folder: Path
) -> None:
    async with (
        cluster(tmp_path, 3, 12, 2, STELE_TLS_DIR=str(folder)) as members,
        AsyncExitStack() as stack,
    ):
        walk = Walk(members, folder, stack)
        plain, kept_plain = await walk.come("plain", tls=False), await walk.keep(tls=False)
        await walk.to(ClientTls.OPTIONAL)
        tls, kept_tls = await walk.come("tls", tls=True), await walk.keep(tls=True)
        await walk.go_on()
        await walk.leave(plain)
        walk.kept.remove(kept_plain)
        await walk.to(ClientTls.REQUIRED)
        assert await kept_plain.last_words() == {TURNED_AWAY}
        for member in members.members.values():
            assert (await refused(member)).startswith(REFUSED)
        await walk.to(ClientTls.OPTIONAL)
        plain = await walk.come("plain-again", tls=False)
        await walk.leave(tls)
        await walk.to(ClientTls.OFF)
        await kept_tls.go_on()
        await walk.leave(plain)
        for member in members.members.values():
            assert await metric(member, 'stele_tls_handshakes_total{result="failed"}') == 0
            assert await metric(member, 'stele_tls_handshakes_total{result="plain"}') == 1
            assert "Traceback" not in member.log()


async def test_clients_notice_a_level_that_comes_too_early(tmp_path: Path, folder: Path) -> None:
    """That nothing fails in the other test is not for want of something that could."""
    async with (
        cluster(tmp_path, 1, 2, 1, STELE_TLS_DIR=str(folder)) as members,
        AsyncExitStack() as stack,
    ):
        walk = Walk(members, folder, stack)
        plain = await walk.come("plain", tls=False)
        with pytest.raises(AssertionError):
            await walk.to(ClientTls.REQUIRED)
        assert any("takes only TLS connections" in failure for failure in plain.failures)
