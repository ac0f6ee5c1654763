"""Which connections a port takes: plain and TLS, with and without certificates, and how many at once."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from stele.adapters.tls import layer
from stele.adapters.tls.acceptor import HELLO_BYTES_MAX, TlsAcceptor, TlsLimits
from stele.core.control.member_settings import ClientTls
from tests.adapters.tls.conftest import LIMITS, SHORT, Echo, Site, client_context, until
from tests.fakes.pki import FakeCa, shared_ca

REQUIRED_TEXT = b"-ERR this port takes only TLS connections"


def hello() -> bytes:
    """The first message of a client."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    return out.read()


class Socket(asyncio.Transport):
    """A transport that nobody reads from."""

    def __init__(self, on_write: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._on_write = on_write
        self.written, self.closed, self.protocol = b"", False, cast(asyncio.BaseProtocol, None)

    def write(self, data: Any) -> None:
        self.written += bytes(data)
        self._on_write()

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        """As an event loop does, which lets go of the protocol later on."""
        self.closed, protocol = True, cast(asyncio.Protocol, self.protocol)
        if protocol is not None:
            protocol.connection_lost(None)
        self.protocol = cast(asyncio.BaseProtocol, None)

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


async def test_optional_takes_both_and_required_only_tls(site: Site) -> None:
    context = client_context(site)
    assert [await site.echo(), await site.echo(context)] == [b"word", b"word"]
    site.require(ClientTls.REQUIRED)
    assert (await site.echo()).startswith(REQUIRED_TEXT)
    assert await site.echo(context) == b"word"
    site.require(ClientTls.OFF)
    assert await site.echo() == b"word"
    assert (site.acceptor.done, site.acceptor.failed, site.acceptor.refused) == (2, 0, 1)
    assert site.failures == ["it does not use TLS, which is required"]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
async def test_a_certificate_is_shown_with_and_without_a_servers_name(site: Site, name: str) -> None:
    assert await site.echo(client_context(site), name) == b"word"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_versions_of_tls(site: Site, version: ssl.TLSVersion) -> None:
    assert await site.echo(client_context(site, maximum_version=version)) == b"word"


async def test_tls_below_1_2_is_refused(site: Site) -> None:
    old = client_context(site)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await site.open(old)
    await until(lambda: site.failures)
    assert site.failures == ["unsupported protocol"]


CLIENTS = {
    "none": lambda folder: None,
    "right": lambda folder: shared_ca().leaf("someone").write(folder),
    "other CA": lambda folder: FakeCa("other").leaf("someone").write(folder),
    "expired": lambda folder: shared_ca().leaf("someone", days=-1).write(folder),
}
TAKEN = {
    ssl.CERT_NONE: {"none", "right", "other CA", "expired"},
    ssl.CERT_OPTIONAL: {"none", "right"},
    ssl.CERT_REQUIRED: {"right"},
}
WHY = {
    "none": "peer did not return a certificate",
    "other CA": "certificate refused: unable to get local issuer certificate",
    "expired": "certificate refused: certificate has expired",
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("verify", ssl.VerifyMode)
@pytest.mark.parametrize("shown", CLIENTS)
async def test_which_certificates_of_clients_are_taken(
    site: Site, tmp_path: Path, verify: ssl.VerifyMode, shown: str, version: ssl.TLSVersion
) -> None:
    site.require(ClientTls.REQUIRED, verify)
    context = client_context(site, CLIENTS[shown](tmp_path / "client"), maximum_version=version)
    if shown in TAKEN[verify]:
        assert await site.echo(context) == b"word"
        names = site.sessions[0].transport.get_extra_info("peercert")
        is_known = shown == "right" and verify != ssl.CERT_NONE
        assert (names is not None and ("commonName", "someone") in names["subject"][0]) == is_known
        return
    # In TLS 1.3 a client hears of it with what it reads first.
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await site.echo(context)
    assert (site.failures, site.sessions) == ([WHY[shown]], [])


async def resumed(site: Site, context: ssl.SSLContext) -> bool:
    """Return whether a second connection resumes the session of a first one."""

    def talk(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
        with (
            socket.create_connection(("127.0.0.1", site.port), 5) as raw,
            context.wrap_socket(raw, server_hostname="localhost", session=session) as made,
        ):
            made.sendall(b"word")
            if made.recv(10) != b"word":
                raise ConnectionError("it ends")
            return made.session, bool(made.session_reused)

    first, _ = await asyncio.to_thread(talk, None)
    return (await asyncio.to_thread(talk, first))[1]


async def test_sessions_are_resumed_only_where_no_certificate_is_asked_for(
    site: Site, tmp_path: Path
) -> None:
    context = client_context(site, shared_ca().leaf().write(tmp_path / "client"))
    assert await resumed(site, context)
    for verify in (ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED):
        site.require(ClientTls.REQUIRED, verify)
        assert not await resumed(site, context)


async def test_a_session_of_tls_1_2_ends_with_its_certificate(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a server resumes sessions without tickets, too, and does not verify again."""
    leaf = shared_ca().leaf(days=10).write(tmp_path / "client")
    site.require(ClientTls.REQUIRED, ssl.CERT_REQUIRED)
    context = client_context(site, leaf, maximum_version=ssl.TLSVersion.TLSv1_2)
    assert await resumed(site, context)
    now = layer.time.time()
    monkeypatch.setattr(layer.time, "time", lambda: now + 11 * 86_400)
    with pytest.raises(ConnectionError):
        await resumed(site, context)
    assert site.failures == ["the certificate of the resumed session has expired"]


async def test_new_connections_get_the_new_certificate_and_cas_and_existing_ones_go_on(
    site: Site, tmp_path: Path
) -> None:
    site.require(ClientTls.REQUIRED, ssl.CERT_REQUIRED)
    old = client_context(site, shared_ca().leaf("old").write(tmp_path / "old"))
    reader, writer = await site.open(old, "localhost")
    new_ca = FakeCa("new")
    new_ca.leaf().write(site.folder)
    site.identity.look()
    new = client_context(site, new_ca.leaf("new").write(tmp_path / "new"))
    assert await site.echo(new, "localhost") == b"word"
    assert await site.echo(new) == b"word", "without a server's name"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await site.open(old)
    writer.write(b"still here")
    assert await reader.readexactly(10) == b"still here"
    writer.close()


async def test_without_a_certificate_plain_goes_on_or_is_told_why(site: Site, tmp_path: Path) -> None:
    context = client_context(site)
    bare = TlsAcceptor(type(site.identity)(None), lambda address, why: site.failures.append(why), LIMITS)
    site.acceptor = bare
    site.require(ClientTls.OPTIONAL)
    assert await site.echo() == b"word"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await site.open(context)
    assert site.failures == ["this member has no usable certificate"]
    site.require(ClientTls.REQUIRED)
    assert b"no usable certificate" in await site.echo()
    assert bare.pending == 0


async def test_who_says_nothing_is_plain_where_that_is_allowed(site: Site) -> None:
    site.acceptor.limits = SHORT
    _reader, writer = await site.open()
    await until(lambda: site.sessions)
    assert site.sessions[0].received == b""
    site.require(ClientTls.REQUIRED)
    reader, silent = await site.open()
    assert (await reader.read()).startswith(REQUIRED_TEXT)
    assert (len(site.sessions), site.acceptor.pending) == (1, 0)
    writer.close()
    silent.close()


async def test_a_handshake_that_does_not_end_is_ended(site: Site) -> None:
    site.acceptor.limits = SHORT
    reader, writer = await site.open()
    writer.write(hello())
    with suppress(ConnectionError):
        await reader.read()
    assert site.failures == ["the handshake is not done after 0.3 s"]
    assert (site.acceptor.failed, site.acceptor.pending, site.sessions) == (1, 0, [])
    writer.close()


@pytest.mark.parametrize("sent_bytes", [0, 50])
async def test_who_leaves_is_forgotten(site: Site, sent_bytes: int) -> None:
    _reader, writer = await site.open()
    writer.write(hello()[:sent_bytes])
    await until(lambda: site.acceptor.pending)
    writer.transport.abort()
    await until(lambda: not site.acceptor.pending)


async def test_a_first_message_that_is_too_long_is_refused(site: Site) -> None:
    transport = Socket()
    arrival = site.acceptor.accept(site.make)
    arrival.connection_made(transport)
    arrival.data_received(b"\x16" + bytes(HELLO_BYTES_MAX))
    assert transport.closed
    assert f"at most {HELLO_BYTES_MAX}" in site.failures[0]


async def test_beyond_its_limits_the_oldest_gives_way(site: Site) -> None:
    site.require(ClientTls.REQUIRED)
    silent = [Socket() for _ in range(LIMITS.waiting_max + 3)]
    for transport in silent:
        site.acceptor.accept(site.make).connection_made(transport)
    assert [transport.closed for transport in silent] == [True] * 3 + [False] * LIMITS.waiting_max
    site.acceptor.close()
    begun = [Socket() for _ in range(LIMITS.handshakes_max + 3)]
    for transport in begun:
        arrival = site.acceptor.accept(site.make)
        arrival.connection_made(transport)
        arrival.data_received(hello())
    assert not any(transport.written for transport in begun), "none in the turn in which it came"
    await asyncio.sleep(0)
    assert sum(bool(transport.written) for transport in begun) == LIMITS.handshakes_per_turn_max
    await until(lambda: all(transport.written for transport in begun))
    assert [transport.closed for transport in begun] == [True] * 3 + [False] * LIMITS.handshakes_max
    assert site.acceptor.pending == LIMITS.handshakes_max


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_ten_thousand_half_open_handshakes_take_bounded_memory(site: Site) -> None:
    # On a busy machine the first ones would end by their time before the last ones have begun.
    limits = TlsLimits(handshake_seconds_max=600.0)
    acceptor = TlsAcceptor(site.identity, lambda address, why: None, limits)
    acceptor.require(ClientTls.REQUIRED, ssl.CERT_REQUIRED)
    first, before = hello(), resident_bytes()
    answered: list[int] = []
    for _ in range(10_000):
        arrival = acceptor.accept(Echo)
        arrival.connection_made(Socket(lambda: answered.append(1)))
        arrival.data_received(first)
    await until(lambda: len(answered) == 10_000)
    assert acceptor.pending == acceptor.limits.handshakes_max
    # 48 KiB for each that is begun, and 10,000 first messages; all of them at once would be 480 MiB.
    assert resident_bytes() - before < 150 * 1024 * 1024
    acceptor.close()
    assert acceptor.pending == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
