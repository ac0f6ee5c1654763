"""Servers of TLS on loopback, with the event loops of asyncio and of the product."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from stele.adapters.tls.acceptor import TlsAcceptor, TlsLimits
from stele.adapters.tls.identity import TlsIdentity
from stele.adapters.tls.layer import TlsLayer
from stele.core.control.member_settings import ClientTls
from tests.fakes.pki import shared_ca

LIMITS = TlsLimits(waiting_max=20, handshakes_max=5, handshakes_per_turn_max=2, handshake_seconds_max=30.0)
SHORT = replace(LIMITS, handshake_seconds_max=0.3)
"""For handshakes that are to be ended: on a busy machine one that goes on takes as long."""
UNTIL_SECONDS_MAX = 60.0


class Echo(asyncio.Protocol):
    """Sends back what it is sent, and writes down the rest."""

    def __init__(self) -> None:
        self.received = b""
        self.ends: list[str] = []
        self.transport = cast(asyncio.Transport, None)
        self.answers = True
        self.stays = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert "lost" not in self.ends
        self.received += data
        if self.answers:
            self.transport.write(data)

    def eof_received(self) -> bool:
        self.ends.append("eof")
        return self.stays

    def pause_writing(self) -> None:
        self.ends.append("paused")

    def resume_writing(self) -> None:
        self.ends.append("resumed")

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append("lost")


class Site:
    """A server that speaks TLS, plain or both. `sessions` are the connections that it has taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = shared_ca().leaf(uris=["stele://uid/member/demo-0"]).write(folder)
        self.identity = TlsIdentity(folder)
        self.identity.look()
        self.failures: list[str] = []
        self.acceptor = TlsAcceptor(self.identity, lambda address, why: self.failures.append(why), LIMITS)
        self.sessions: list[Echo] = []
        self.layers: list[TlsLayer] = []
        self.server = cast(asyncio.Server, None)

    def make(self) -> Echo:
        self.sessions.append(Echo())
        return self.sessions[-1]

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: self.acceptor.accept(self.make), "127.0.0.1", 0)

    def require(self, demand: ClientTls, verify: ssl.VerifyMode = ssl.CERT_NONE) -> None:
        self.acceptor.require(demand, verify)

    @property
    def port(self) -> int:
        return int(self.server.sockets[0].getsockname()[1])

    async def open(
        self, context: ssl.SSLContext | None = None, name: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        server_hostname = None if context is None else name or "127.0.0.1"
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname=server_hostname
        )

    async def echo(self, context: ssl.SSLContext | None = None, name: str | None = None) -> bytes:
        """Send a word and return what comes back."""
        reader, writer = await self.open(context, name)
        writer.write(b"word")
        answer = await reader.read(1000)
        writer.close()
        return answer


def client_context(site: Site, certificate: Path | None = None, **settings: Any) -> ssl.SSLContext:
    """A client that trusts the site's CA and shows this certificate."""
    context = ssl.create_default_context(cafile=str(site.folder / "ca.crt"))
    if certificate is not None:
        context.load_cert_chain(certificate / "tls.crt", certificate / "tls.key")
    for name, value in settings.items():
        setattr(context, name, value)
    return context


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(UNTIL_SECONDS_MAX):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each test with the loop of asyncio, and with the one that members use."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path / "tls")
    await site.listen()
    site.require(ClientTls.OPTIONAL)
    yield site
    site.server.close()
    site.acceptor.close()
    for session in site.sessions:
        session.transport.abort()
    for layer in site.layers:
        layer.raw.abort()
    await asyncio.sleep(0.02)
