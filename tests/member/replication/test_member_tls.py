"""Who is taken on the peer port, and whom a member dials: a matrix of certificates, by real sockets."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stele.adapters.tls.identity import TlsIdentity
from stele.core.control.commands import MemberInfo
from stele.core.control.member_settings import MemberSettings
from stele.core.formats import SPOKEN, FormatRange
from stele.core.security.identity import Holder, Role
from stele.core.security.level import InternalTls
from stele.member import limits
from stele.member.replication import member_tls
from stele.member.replication.links import Inbound, InboundConnections, Link
from stele.member.replication.member_tls import MemberTls, Start, member_security_at_start
from stele.member.serving.peers import Peers
from stele.member.storage.volume import Volume
from stele.wire import peer
from stele.wire.frames import FrameDecoder, encode_frame
from stele.wire.storage.volume import MEMBER_SECURITY, MemberSecurity, encode_file
from tests.adapters.tls.conftest import until
from tests.fakes.pki import FakeCa, Leaf, shared_ca

CLUSTER, OTHER_CLUSTER = "11111111-2222", "33333333-4444"
REQUIRED = MemberSecurity(InternalTls.REQUIRED)
WELCOME_SECONDS = 5.0


def uri(name: str, role: Role = Role.MEMBER, cluster: str = CLUSTER) -> str:
    return Holder(cluster, role, name).uri


def leaf(uris: list[str], *, ca: FakeCa | None = None, days: int = 30) -> Leaf:
    """Of another CA, too, the holder trusts the cluster's."""
    made = (ca or shared_ca()).leaf("m", uris=uris, days=days)
    return Leaf(made.certificate, made.key, made.trusted + shared_ca().certificate)


async def nothing(_: MemberSecurity) -> None:
    return


@dataclass
class Place:
    """One member of two, m0 and m1, with a certificate that may not be its own."""

    me: int
    shown: Leaf
    folder: Path
    security: MemberSecurity = REQUIRED
    cluster: str = CLUSTER
    incarnation: int = 1
    formats: FormatRange = SPOKEN
    events: list[str] = field(default_factory=list)
    messages: list[peer.Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Who has no right to it does not stop for its end either.
        identity = TlsIdentity(self.shown.write(self.folder / f"m{self.me}"), grace_seconds=1e9)
        identity.look()
        assert identity.problem == ""
        self.identity = identity
        self.tls = MemberTls(identity, self.cluster, Start(self.security), nothing, time.time)
        self.inbound = InboundConnections(self, self.take)

    def show(self, ca: FakeCa, *trusted: FakeCa) -> None:
        """Replace its certificate by one of this CA, and the CAs that it trusts."""
        made, bundle = leaf([uri(f"m{self.me}")], ca=ca), b"".join(each.certificate for each in trusted)
        Leaf(made.certificate, made.key, bundle).write(self.folder / f"m{self.me}")
        self.identity.look()
        assert self.identity.problem == ""

    def take(self, sender: Inbound, message: peer.Message) -> None:
        if isinstance(message, peer.Heartbeat):
            sender.send(peer.Lease(message.at, 1.0, ()))
        else:
            self.messages.append(message)

    @property
    def uuid(self) -> str:
        return f"u{self.me}"

    def uuid_of(self, member: int) -> str | None:
        return f"u{member}" if member in (0, 1) else None

    def name_of(self, member: int) -> str:
        return f"m{member}" if member in (0, 1) else ""

    def link_ready(self, link: Link) -> None:
        self.events.append("ready")

    def link_message(self, link: Link, message: peer.Message) -> None:
        if not isinstance(message, peer.Lease):
            self.messages.append(message)

    def link_drained(self, link: Link) -> None:
        self.events.append("drained")

    def link_resumed(self, link: Link) -> None:
        self.events.append("resumed")

    def link_lost(self, link: Link, requests: list[Any]) -> None:
        self.events.append("lost")
        assert not requests


@asynccontextmanager
async def listening(place: Place) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    acceptor = place.tls.acceptor
    server = await loop.create_server(lambda: acceptor.accept(place.inbound.accept), "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        acceptor.close()
        place.inbound.close_all("over")


@asynccontextmanager
async def dialled(here: Place, there: Place) -> AsyncIterator[Link]:
    async with listening(there) as port:
        link = Link(MemberInfo(there.me, f"m{there.me}", there.uuid, "127.0.0.1"), port, here, here)
        try:
            yield link
        finally:
            await link.stop()


RIGHT = {0: lambda: leaf([uri("m0")]), 1: lambda: leaf([uri("m1")])}
WRONG: dict[str, tuple[Callable[[str], Leaf], str]] = {
    "other CA": (lambda own: leaf([uri(own)], ca=FakeCa("other")), "certificate refused"),
    "other cluster": (lambda own: leaf([uri(own, cluster=OTHER_CLUSTER)]), f"of cluster {OTHER_CLUSTER}"),
    "wrong role": (lambda own: leaf([uri(own, Role.ADMIN)]), "it is a admin; expected member"),
    "wrong member": (lambda own: leaf([uri("m7")]), "it is m7; expected"),
    "no name": (lambda own: leaf([]), "names 0 parts of clusters"),
    "two names": (lambda own: leaf([uri(own), uri("m7")]), "names 2 parts of clusters"),
    "expired": (lambda own: leaf([uri(own)], days=-8), "certificate has expired"),
}


async def outcome(here: Place, there: Place, caplog: pytest.LogCaptureFixture) -> str:
    """What becomes of the first attempt: ready, or what both sides have logged."""
    caplog.set_level("INFO")
    async with dialled(here, there) as link:
        await until(lambda: link.ready or link._last_logged or there.tls.acceptor.failed)
        await asyncio.sleep(0.05)
        return "ready" if link.ready else caplog.text


@pytest.mark.parametrize("what", [*WRONG, "right"])
@pytest.mark.parametrize("side", [0, 1], ids=["dialling", "dialled"])
async def test_only_the_right_certificate_is_taken(
    tmp_path: Path, side: int, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = WRONG.get(what, (lambda own: leaf([uri(own)]), ""))
    places = [Place(n, wrong[0](f"m{n}") if n == side else RIGHT[n](), tmp_path) for n in (0, 1)]
    found = await outcome(places[0], places[1], caplog)
    assert (found == "ready") == (what == "right"), found
    if what != "right":
        assert wrong[1] in found
        assert places[0].messages == places[1].messages == []


@pytest.mark.parametrize("side", [0, 1], ids=["dialling", "dialled"])
async def test_one_that_ended_lately_is_taken_and_shouted_about_unless_that_is_forbidden(
    tmp_path: Path, side: int, caplog: pytest.LogCaptureFixture
) -> None:
    strict = MemberSecurity(InternalTls.REQUIRED, grace_expired=False)
    for security, taken in ((REQUIRED, True), (strict, False)):
        shown = [leaf([uri(f"m{n}")], days=-6 if n == side else 30) for n in (0, 1)]
        places = [Place(n, shown[n], tmp_path, security) for n in (0, 1)]
        caplog.clear()
        assert (await outcome(places[0], places[1], caplog) == "ready") == taken
        assert places[1 - side].tls.ended == int(taken)
        assert ("and is taken for 7 days more" in caplog.text) == taken


async def greeting(port: int, context: ssl.SSLContext | None) -> bytes:
    """What is answered to the greeting of one that shows no certificate."""
    hello = peer.Hello(peer.GREETING_FORMAT, CLUSTER, 0, "u0", "u1", SPOKEN, 1)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(encode_frame(peer.encode_message(hello)))
            return await asyncio.wait_for(reader.read(1000), WELCOME_SECONDS)
        finally:
            writer.close()
    except OSError as error:
        return str(error).encode()


def without_certificate(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = version
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("level", [InternalTls.ACCEPT, InternalTls.DIAL, InternalTls.REQUIRED])
async def test_nobody_is_taken_without_a_certificate(
    tmp_path: Path, level: InternalTls, version: ssl.TLSVersion
) -> None:
    place = Place(1, RIGHT[1](), tmp_path, MemberSecurity(level))
    async with listening(place) as port:
        answer = await greeting(port, without_certificate(version))
        assert b"ok" not in answer
        assert (place.tls.acceptor.failed, len(place.inbound)) == (1, 0)


@pytest.mark.parametrize("level", list(InternalTls))
async def test_a_plain_connection_is_taken_until_tls_is_required(tmp_path: Path, level: InternalTls) -> None:
    place = Place(1, RIGHT[1](), tmp_path, MemberSecurity(level))
    async with listening(place) as port:
        (answer,) = FrameDecoder(1000).feed(await greeting(port, None))
        message = peer.decode_greeting(answer)
        if level is InternalTls.REQUIRED:
            assert message == peer.HelloRejected("TLS_REQUIRED", member_tls.REQUIRED)
        else:
            assert message == peer.Welcome("u1", SPOKEN)


async def test_no_tickets_are_given(tmp_path: Path) -> None:
    contexts = Place(1, RIGHT[1](), tmp_path).identity.contexts
    assert contexts is not None
    assert contexts.dialled.num_tickets == 0
    assert contexts.dialled.options & ssl.OP_NO_TICKET
    assert contexts.dialled.minimum_version == contexts.dialling.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_handshakes_are_limited_in_number_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        member_tls, "LIMITS", member_tls.TlsLimits(waiting_max=3, handshakes_max=3, handshake_seconds_max=0.3)
    )
    here, there = (Place(n, RIGHT[n](), tmp_path) for n in (0, 1))
    async with listening(there) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        await until(lambda: there.tls.acceptor.failed >= 17)
        link = Link(MemberInfo(1, "m1", "u1", "127.0.0.1"), port, here, here)
        await until(lambda: link.ready)
        await until(lambda: there.tls.acceptor.pending == 0)
        await link.stop()
        for _, writer in silent:
            writer.close()


async def test_a_link_is_renewed_when_nothing_is_under_way_and_stays_when_that_fails(tmp_path: Path) -> None:
    accept, dial = MemberSecurity(InternalTls.ACCEPT), MemberSettings(member_tls=InternalTls.DIAL)
    here, there = (Place(n, RIGHT[n](), tmp_path, accept) for n in (0, 1))
    async with dialled(here, there) as link:
        await until(lambda: link.ready)
        assert (link.plain, link.outdated) == (True, False)
        await here.tls.adopt(dial)
        assert link.outdated

        link.requests[1] = object()  # type: ignore[assignment]
        renewing = asyncio.create_task(link.renew())
        await until(lambda: not link.takes_requests)
        assert (link.ready, link.has_room) == (True, True)
        await renewing
        assert (link.sessions, link.plain, link.takes_requests) == (1, True, True)
        assert here.events == ["ready", "resumed"]

        renewing = asyncio.create_task(link.renew())
        await until(lambda: not link.takes_requests)
        link.requests.clear()
        await renewing
        assert (link.sessions, link.plain, link.outdated) == (2, False, False)
        assert here.events == ["ready", "resumed", "lost", "ready", "resumed"]
        await until(lambda: len(there.inbound) == 1)

        # With a certificate that the other side does not trust, it goes on.
        here.show(other := FakeCa("other"), other, shared_ca())
        await link.renew()
        assert (link.sessions, link.ready) == (2, True)
        link.send(peer.KeysDropped(1))
        await until(lambda: there.messages == [peer.KeysDropped(1)])


async def test_a_link_of_which_the_other_side_goes_while_it_is_renewed_dials_again(tmp_path: Path) -> None:
    accept = MemberSecurity(InternalTls.ACCEPT)
    here, there = (Place(n, RIGHT[n](), tmp_path, accept) for n in (0, 1))
    async with dialled(here, there) as link:
        await until(lambda: link.ready)
        await here.tls.adopt(MemberSettings(member_tls=InternalTls.DIAL))
        link.requests[1] = object()  # type: ignore[assignment]
        renewing = asyncio.create_task(link.renew())
        await until(lambda: not link.takes_requests)
        link.requests.clear()
        there.inbound.close_all("it goes")
        await renewing
        await until(lambda: link.ready)
        assert not link.plain


async def test_a_link_that_is_stopped_while_it_is_renewed_begins_no_session(tmp_path: Path) -> None:
    """The other side has not answered yet: it is slow to take the greeting."""
    here, there = (Place(n, RIGHT[n](), tmp_path, MemberSecurity(InternalTls.ACCEPT)) for n in (0, 1))
    async with dialled(here, there) as link:
        await until(lambda: link.ready)
        await here.tls.adopt(MemberSettings(member_tls=InternalTls.DIAL))
        greet, held = Inbound._greet, list[Callable[[], None]]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                Inbound, "_greet", lambda *given: held.append(lambda: given[0].ended or greet(*given))
            )
            renewing = asyncio.create_task(link.renew())
            await until(lambda: held)
        await link.stop()
        held[0]()
        await renewing
        await asyncio.sleep(0.05)
        assert (link.ready, len(there.inbound)) == (False, 0)
        assert here.events == ["ready", "lost", "resumed"]


async def test_where_a_greeting_is_answered_late_no_request_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other side ends the session before when it reads the greeting: nothing is sent on that one."""
    monkeypatch.setattr(limits, "RENEW_ANSWER_SECONDS_MAX", 0.1)
    here, there = (Place(n, RIGHT[n](), tmp_path, MemberSecurity(InternalTls.ACCEPT)) for n in (0, 1))
    async with dialled(here, there) as link:
        await until(lambda: link.ready)
        await here.tls.adopt(MemberSettings(member_tls=InternalTls.DIAL))
        greet, held = Inbound._greet, list[Callable[[], None]]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Inbound, "_greet", lambda *given: held.append(lambda: greet(*given)))
            await link.renew()
            assert held
            assert not link.takes_requests
        held[0]()
        await until(lambda: link.takes_requests)
        assert (link.sessions, link.encrypted) == (2, True)
        await until(lambda: len(there.inbound) == 1)


class Owner(Place):
    """Owns what the other member backs up: it answers a request once an operation of it is held there."""

    link: Link
    paused = True
    asked: tuple[Inbound, int] | None = None

    def take(self, sender: Inbound, message: peer.Message) -> None:
        if isinstance(message, peer.Forward):
            self.asked = sender, message.id
        elif isinstance(message, peer.Append):
            sender.send(peer.Acks([]))
        else:
            super().take(sender, message)

    def go_on(self) -> None:
        if self.asked is not None and not self.paused and self.link.has_room:
            self.link.send_append([], 1)

    def link_resumed(self, link: Link) -> None:
        self.go_on()

    def link_message(self, link: Link, message: peer.Message) -> None:
        if isinstance(message, peer.Acks) and self.asked is not None:
            link.acknowledged()
            sender, number = self.asked
            sender.send(peer.Forwarded(number, "", "", b""))
        elif isinstance(message, peer.Forwarded):
            del link.requests[message.id]


async def test_two_members_that_renew_at_once_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RENEW_HOLD_SECONDS_MIN", 1.0)
    one, other = (Owner(n, RIGHT[n](), tmp_path, MemberSecurity(InternalTls.ACCEPT)) for n in (0, 1))
    async with dialled(one, other) as one.link, dialled(other, one) as other.link:
        links = [one.link, other.link]
        await until(lambda: all(link.ready for link in links))
        for place in (one, other):
            await place.tls.adopt(MemberSettings(member_tls=InternalTls.DIAL))
            place.link.requests[1] = object()  # type: ignore[assignment]
            place.link.send(peer.Forward(1, 0, 0, b"", [], 0))
        await until(lambda: one.asked and other.asked)
        renewing = [asyncio.create_task(link.renew()) for link in links]
        await until(lambda: not any(link.takes_requests for link in links))
        for place in (one, other):
            place.paused = False
            place.go_on()
        await asyncio.gather(*renewing)
        assert [(link.sessions, link.encrypted, link.requests) for link in links] == [(2, True, {})] * 2


def peers_of(place: Place, link: Link) -> Peers:
    """The part of a member that looks after its sessions."""
    peers = object.__new__(Peers)
    peers.tls, peers.inbound, peers.links = place.tls, place.inbound, {link.member: link}
    return peers


async def test_a_link_that_is_never_quiet_stands_still_for_a_small_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("HOLD_SECONDS_MIN", 0.02), ("HOLD_SECONDS_MAX", 0.08), ("LOOK_SECONDS", 0.01)):
        monkeypatch.setattr(limits, f"RENEW_{name}", seconds)
    here, there = (Place(n, RIGHT[n](), tmp_path, MemberSecurity(InternalTls.ACCEPT)) for n in (0, 1))
    async with dialled(here, there) as link:
        await until(lambda: link.ready)
        await here.tls.adopt(MemberSettings(member_tls=InternalTls.DIAL))
        link.requests[1] = object()  # type: ignore[assignment]
        renewing = asyncio.create_task(peers_of(here, link).renew_links())
        loop, stood = asyncio.get_running_loop(), 0.0
        last, end = loop.time(), loop.time() + 2.0
        while last < end:
            await asyncio.sleep(0.005)
            before, last = last, loop.time()
            stood += 0.0 if link.takes_requests else last - before
        assert 0.0 < stood < 0.3
        assert link.sessions == 1
        link.requests.clear()
        await until(lambda: link.encrypted)
        renewing.cancel()


async def test_a_link_that_gets_no_tls_counts_as_plain_also_once_it_is_cut(tmp_path: Path) -> None:
    shown = leaf([uri("m0")]), leaf([uri("m7")])
    here, there = (Place(n, shown[n], tmp_path, MemberSecurity(InternalTls.ACCEPT)) for n in (0, 1))
    async with dialled(here, there) as link:
        await until(lambda: link.ready)
        peers = peers_of(here, link)
        assert peers.plain_links == 0
        await here.tls.adopt(MemberSettings(member_tls=InternalTls.DIAL))
        await link.renew()
        assert (link.ready, peers.plain_links) == (True, 1)
        there.inbound.close_all("it starts again")
        await until(lambda: not link.ready)
        await until(lambda: there.tls.acceptor.done >= 2)
        assert (link.ready, peers.plain_links) == (False, 1)


async def test_nothing_is_lost_of_what_needs_no_answer_while_a_link_is_renewed(tmp_path: Path) -> None:
    here, there = (Place(n, RIGHT[n](), tmp_path, MemberSecurity(InternalTls.ACCEPT)) for n in (0, 1))
    async with dialled(here, there) as link:
        await until(lambda: link.ready)
        await here.tls.adopt(MemberSettings(member_tls=InternalTls.DIAL))
        renewing, number = asyncio.create_task(link.renew()), 0
        while number < 1000 or not renewing.done():
            link.send(peer.Publish(b"channel", b"%d" % number), 10)
            session = there.inbound.session(0)
            assert session is not None
            assert session.push(peer.DropKeys(b"keyspace", number), 0)
            number += 1
            await asyncio.sleep(0)
        assert (link.sessions, link.encrypted) == (2, True)
        await until(lambda: len(there.messages) == len(here.messages) == number)
        assert there.messages == [peer.Publish(b"channel", b"%d" % each) for each in range(number)]
        assert here.messages == [peer.DropKeys(b"keyspace", each) for each in range(number)]


async def test_while_a_link_is_renewed_what_waits_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RENEW_HELD_BYTES_MAX", 5000)
    here, there = (Place(n, RIGHT[n](), tmp_path, MemberSecurity(InternalTls.ACCEPT)) for n in (0, 1))
    async with dialled(here, there) as link:
        await until(lambda: link.ready)
        await here.tls.adopt(MemberSettings(member_tls=InternalTls.DIAL))
        renewing = asyncio.create_task(link.renew())
        link.in_flight.append(1)
        await until(lambda: not link.has_room)
        assert not link.full
        link.send(peer.Publish(b"channel", b""), 5000)
        assert link.full
        await renewing
        assert not link.full
        await until(lambda: there.messages == [peer.Publish(b"channel", b"")])


async def test_a_ca_that_comes_or_goes_ends_no_session_wherever_the_files_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = shared_ca(), FakeCa("new")
    monkeypatch.setattr(limits, "OUTDATED_SECONDS_MAX", 0.1)
    for order in ((0, 1), (1, 0)):
        places = [Place(n, RIGHT[n](), tmp_path) for n in (0, 1)]
        here, there = places
        async with dialled(here, there) as link:
            await until(lambda link=link: link.ready)
            for ca, trusted in ((old, (old, new)), (new, (old, new))):
                for each in order:
                    places[each].show(ca, *trusted)
                    assert not link.outdated
            for each in order:
                places[each].show(new, new)
                if link.outdated:
                    await link.renew()
                assert not link.outdated
            assert link.sessions == 2
            here.events.clear()
            for _ in range(3):
                there.inbound.end_outdated()
                link.end_outdated()
                await asyncio.sleep(0.1)
            assert here.events == []


@pytest.mark.parametrize("side", [0, 1], ids=["dialling", "dialled"])
async def test_a_session_that_is_not_renewed_long_after_its_ca_was_withdrawn_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int
) -> None:
    places = [Place(n, RIGHT[n](), tmp_path) for n in (0, 1)]
    here, there = places
    monkeypatch.setattr(limits, "OUTDATED_SECONDS_MAX", 0.1)
    async with dialled(here, there) as link:

        async def events_after(seconds: float) -> list[str]:
            there.inbound.end_outdated()
            link.end_outdated()
            await asyncio.sleep(seconds)
            there.inbound.end_outdated()
            link.end_outdated()
            await asyncio.sleep(0.05)
            return here.events[:2]

        await until(lambda: link.ready)
        assert await events_after(0.15) == ["ready"]
        # What a level dialled that has fallen goes on.
        await places[side].tls.adopt(MemberSettings(member_tls=InternalTls.ACCEPT))
        new = FakeCa("new")
        places[side].show(new, new)
        assert await events_after(0.15) == ["ready"]
        await places[side].tls.adopt(MemberSettings(member_tls=InternalTls.DIAL))
        assert await events_after(0.15) == ["ready", "lost"]


async def test_who_shook_hands_before_its_ca_was_withdrawn_is_not_taken_after_it(tmp_path: Path) -> None:
    here, there, new = Place(0, RIGHT[0](), tmp_path), Place(1, RIGHT[1](), tmp_path), FakeCa("new")
    async with listening(there) as port:
        assert here.identity.contexts is not None
        context = here.identity.contexts.dialling
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        await until(lambda: there.tls.acceptor.done == 1)
        there.show(new, new)
        hello = peer.Hello(peer.GREETING_FORMAT, CLUSTER, 0, "u0", "u1", SPOKEN, 1)
        writer.write(encode_frame(peer.encode_message(hello)))
        (answer,) = FrameDecoder(1000).feed(await asyncio.wait_for(reader.read(1000), WELCOME_SECONDS))
        refused = peer.HelloRejected("WRONG_CERTIFICATE", "the CA of its certificate is no longer trusted")
        assert peer.decode_greeting(answer) == refused
        writer.close()


async def test_plain_sessions_end_where_tls_is_required(tmp_path: Path) -> None:
    here, there = (Place(n, RIGHT[n](), tmp_path, MemberSecurity(InternalTls.ACCEPT)) for n in (0, 1))
    async with dialled(here, there) as link:
        await until(lambda: link.ready)
        there.inbound.require_tls()
        await until(lambda: here.events[:2] == ["ready", "lost"])


class Saved:
    """The level of a process on a volume; `full`: nothing can be written."""

    def __init__(self, folder: Path, first: InternalTls = InternalTls.OFF) -> None:
        self.volume, self.full = Volume(folder), False
        start = member_security_at_start(self.volume, first)
        self.tls = MemberTls(TlsIdentity(None), CLUSTER, start, self.save, lambda: 0.0)

    async def save(self, security: MemberSecurity) -> None:
        if self.full:
            raise OSError(28, "no space left")
        assert self.tls.level is not security.tls, "not before it is written"
        self.volume.write({MEMBER_SECURITY: encode_file(security)})


async def test_a_process_starts_with_the_level_that_the_master_sent_last(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    assert saved.tls.level is InternalTls.OFF
    saved.full = True
    await saved.tls.adopt(MemberSettings(member_tls=InternalTls.ACCEPT))
    assert saved.tls.level is InternalTls.OFF
    saved.full = False
    await saved.tls.adopt(MemberSettings(member_tls=InternalTls.DIAL, grace_expired=False))
    for silent in (None, MemberSettings(heartbeat_ms=500)):
        await saved.tls.adopt(silent)
        assert Saved(tmp_path).tls.level is saved.tls.level is InternalTls.DIAL
    assert Volume(tmp_path).load_member_security() == MemberSecurity(InternalTls.DIAL, grace_expired=False)


@pytest.mark.parametrize("level", [InternalTls.OFF, InternalTls.REQUIRED])
async def test_of_a_damaged_level_nothing_but_tls_is_taken_and_nothing_reported(
    tmp_path: Path, level: InternalTls
) -> None:
    (tmp_path / MEMBER_SECURITY).write_bytes(b"stele MemberSecurity 1\n0000nonsense")
    tls, saved = Saved(tmp_path).tls, list[MemberSecurity]()

    async def save(security: MemberSecurity) -> None:
        saved.append(security)

    tls._save = save
    for silent in (None, MemberSettings(grace_expired=False)):
        await tls.adopt(silent)
        assert (tls.level, tls.reported, saved) == (InternalTls.REQUIRED, None, [])
    await tls.adopt(MemberSettings(member_tls=level))
    assert (tls.level, tls.reported, saved) == (level, level, [MemberSecurity(level)])


PLAIN_UNTIL = {level: level in (InternalTls.OFF, InternalTls.ACCEPT) for level in InternalTls}


@pytest.mark.parametrize("first", InternalTls)
async def test_an_empty_volume_has_the_level_of_its_pod_and_reports_none_until_the_master_says_it(
    tmp_path: Path, first: InternalTls
) -> None:
    saved = Saved(tmp_path, first)
    assert (saved.tls.level, saved.tls.takes_plain_exchanges) == (first, PLAIN_UNTIL[first])
    assert saved.tls.reported is (first if first is InternalTls.OFF else None)
    saved.tls._save = lambda file: asyncio.to_thread(saved.volume.write, {MEMBER_SECURITY: encode_file(file)})
    await saved.tls.adopt(MemberSettings(member_tls=first))
    assert saved.tls.reported is first
    assert saved.tls.takes_plain_exchanges is (first is not InternalTls.REQUIRED)
    if first is not InternalTls.OFF:
        assert Volume(tmp_path).load_member_security() == MemberSecurity(first)


@pytest.mark.parametrize("stored", InternalTls)
@pytest.mark.parametrize("first", InternalTls)
def test_the_level_of_a_volume_counts_and_not_that_of_a_pod_that_stayed(
    tmp_path: Path, stored: InternalTls, first: InternalTls
) -> None:
    Volume(tmp_path).write({MEMBER_SECURITY: encode_file(MemberSecurity(stored))})
    tls = Saved(tmp_path, first).tls
    assert (tls.level, tls.reported) == (stored, stored)
    assert tls.takes_plain_exchanges is (stored is not InternalTls.REQUIRED)


@pytest.mark.parametrize("first", InternalTls)
def test_of_a_damaged_level_the_pod_says_whether_the_master_may_come_plain(
    tmp_path: Path, first: InternalTls
) -> None:
    (tmp_path / MEMBER_SECURITY).write_bytes(b"damaged")
    tls = Saved(tmp_path, first).tls
    assert (tls.level, tls.reported) == (InternalTls.REQUIRED, None)
    assert tls.takes_plain_exchanges is PLAIN_UNTIL[first]


def test_a_volume_that_goes_to_quarantine_leaves_its_level(tmp_path: Path) -> None:
    """Its pod may be from before the level rose."""
    volume = Volume(tmp_path)
    volume.create_folders()
    volume.write({MEMBER_SECURITY: encode_file(REQUIRED)})
    volume.load_instance(CLUSTER, "u")
    volume.quarantine_volume("test")
    assert Saved(tmp_path).tls.level is InternalTls.REQUIRED


async def test_without_a_certificate_a_member_that_has_to_dial_with_tls_dials_nobody(tmp_path: Path) -> None:
    tls = MemberTls(TlsIdentity(None), CLUSTER, Start(REQUIRED), nothing, lambda: 0.0)
    with pytest.raises(ConnectionError, match="no usable certificate: STELE_TLS_DIR is not set"):
        tls.dialling()
