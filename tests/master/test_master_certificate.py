"""How the operator dials members: by the level in the head, with its own certificate, and whom it takes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from stele.adapters import http
from stele.adapters.members.client import MemberClient
from stele.adapters.pki.certificates import is_signed_by, make_authority
from stele.adapters.tls import identity as tested
from stele.adapters.tls.acceptor import TlsLimits
from stele.adapters.tls.http_site import HttpAcceptor, HttpSite, caller, tls_required
from stele.adapters.tls.identity import TlsIdentity
from stele.core.control import commands as m
from stele.core.security.identity import Role
from stele.core.security.level import InternalTls
from stele.core.security.rotation import CA_DAYS, DAY
from stele.errors import Unavailable
from stele.master.authority import Authority
from stele.master.master_certificate import MasterCertificate, MemberDialling
from stele.model import TabletCluster
from tests.adapters.tls.conftest import until
from tests.fakes.pki import FakeCa, Leaf, identity, shared_ca

UID = "11111111-2222-3333-4444-555555555555"
REQUEST = m.ExchangeRequest(format=1, cluster=UID, epoch=1, recipient="", self_index=1)
REPLY = m.ExchangeReply("OK", "", "uuid-1", UID, 1, 1, 0, 1)
DIALS_PLAIN = (InternalTls.OFF, InternalTls.ACCEPT)
DIALS_TLS = (InternalTls.DIAL, InternalTls.REQUIRED)


def authority_of(ca: FakeCa, *, old: bytes = b"") -> Authority:
    return Authority(ca._pair, old=old)


class Member:
    """The port of demo-1, with a certificate that may not be its own."""

    def __init__(self, folder: Path, *, plain: bool) -> None:
        self.folder, self.plain = folder, plain
        self.identity = TlsIdentity(folder, grace_seconds=1e9)
        self.acceptor = HttpAcceptor(self.identity, lambda _address, _why: None, TlsLimits())
        self.plain_requests = self.tls_requests = 0
        self.seen: set[bytes] = set()

    def show(self, leaf: Leaf) -> None:
        leaf.write(self.folder)
        self.identity.look()

    async def answer(self, request: web.Request) -> web.Response:
        found = caller(request)
        if found is None:
            self.plain_requests += 1
            if not self.plain:
                raise tls_required("use https")
        else:
            self.tls_requests += 1
            self.seen |= found.chain
        return web.Response(body=msgspec.json.encode(REPLY))


class Master:
    """The operator's side of a cluster whose head has this level."""

    def __init__(self, level: InternalTls, port: int, *, grace: bool = True) -> None:
        self.level, self.certificate = level, MasterCertificate()
        spec = {
            "members": 2,
            "storage": {"size": "1Gi"},
            "security": {"members": {"graceExpired": grace}},
        }
        self.cluster = TabletCluster.model_validate({"metadata": {"name": "demo", "uid": UID}, "spec": spec})
        dialling = MemberDialling(self.certificate, lambda: self.cluster, lambda: self.level)
        self.client = MemberClient(dialling, port)

    async def certify(self, authority: Authority, *, used: bool = False, now: float | None = None) -> None:
        at = time.time() if now is None else now
        await self.certificate.renew(self.cluster, authority, at, everybody_uses_it=used)

    async def exchange(self) -> m.ExchangeReply:
        return await self.client.exchange("127.0.0.1", REQUEST, 10.0)


@asynccontextmanager
async def made(
    folder: Path, level: InternalTls, *, shown: Leaf | None = None, plain: bool = False, grace: bool = True
) -> AsyncIterator[tuple[Master, Member]]:
    member = Member(folder, plain=plain)
    member.show(shown or identity(Role.MEMBER, "demo-1", UID))
    app = http.application()
    app.router.add_post("/v1/exchange", member.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await HttpSite(runner, member.acceptor, "127.0.0.1", 0).start()
    master = Master(level, runner.addresses[0][1], grace=grace)
    try:
        yield master, member
    finally:
        await master.client.close()
        await runner.cleanup()


@pytest.mark.parametrize("level", InternalTls)
async def test_the_level_of_the_head_says_how_members_are_dialled(tmp_path: Path, level: InternalTls) -> None:
    async with made(tmp_path, level, plain=True) as (master, member):
        await master.certify(authority_of(shared_ca()))
        assert (await master.exchange()).uuid == "uuid-1"
        assert (member.plain_requests, member.tls_requests) == ((1, 0) if level in DIALS_PLAIN else (0, 1))


@pytest.mark.parametrize("level", DIALS_TLS)
async def test_without_a_certificate_nothing_is_sent(tmp_path: Path, level: InternalTls) -> None:
    async with made(tmp_path, level, plain=True) as (master, member):
        with pytest.raises(Unavailable, match="no certificate for this cluster: none was made yet"):
            await master.exchange()
        assert member.plain_requests == 0


@pytest.mark.parametrize("level", DIALS_PLAIN)
async def test_a_member_that_wants_tls_gets_it_also_below_the_level(
    tmp_path: Path, level: InternalTls
) -> None:
    """Such as one whose volume has a level that an older copy of the head does not have."""
    async with made(tmp_path, level) as (master, member):
        for _ in range(2):
            with pytest.raises(Unavailable, match="no certificate"):
                await master.exchange()
        assert member.plain_requests == 1
        assert master.certificate.is_wanted
        await master.certify(authority_of(shared_ca()))
        for _ in range(3):
            await master.exchange()
        assert (member.plain_requests, member.tls_requests) == (1, 3)
        # One that cannot do TLS any more is asked without.
        member.show(identity(Role.MEMBER, "demo-2", UID))
        await master.certify(authority_of(shared_ca(), old=FakeCa("x").certificate))
        with pytest.raises(Unavailable, match="it is demo-2; expected demo-1"):
            await master.exchange()
        assert not master.certificate.is_wanted
        member.plain = True
        await master.exchange()
        assert (member.plain_requests, member.tls_requests) == (2, 3)


WRONG: dict[str, tuple[Leaf, str]] = {
    "other CA": (identity(Role.MEMBER, "demo-1", UID, ca=FakeCa("other")), "certificate verify failed"),
    "other cluster": (identity(Role.MEMBER, "demo-1", "other"), "it is of cluster other"),
    "other role": (identity(Role.ADMIN, "demo-1", UID), "it is a admin; expected member"),
    "other member": (identity(Role.MEMBER, "demo-0", UID), "it is demo-0; expected demo-1"),
    "nobody": (shared_ca().leaf(), "names 0 parts"),
    "long ended": (identity(Role.MEMBER, "demo-1", UID, days=-8), "has expired"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_only_the_member_is_taken(tmp_path: Path, wrong: str) -> None:
    shown, why = WRONG[wrong]
    async with made(tmp_path, InternalTls.REQUIRED, shown=shown) as (master, member):
        await master.certify(authority_of(shared_ca()))
        for _ in range(2):
            with pytest.raises(Unavailable, match=why):
                await master.exchange()
        assert member.plain_requests == member.tls_requests == 0


@pytest.mark.parametrize("grace", [True, False])
async def test_a_member_that_ended_lately_is_taken_as_other_members_do(
    tmp_path: Path, *, grace: bool
) -> None:
    ended = identity(Role.MEMBER, "demo-1", UID, days=-6)
    async with made(tmp_path, InternalTls.REQUIRED, shown=ended, grace=grace) as (master, _):
        await master.certify(authority_of(shared_ca()))
        if grace:
            await master.exchange()
        else:
            with pytest.raises(Unavailable, match="has expired"):
                await master.exchange()


async def test_certificates_and_the_ca_change_while_exchanges_go_on(tmp_path: Path) -> None:
    old, new = FakeCa("old"), FakeCa("new")
    both = new.certificate + old.certificate

    def leaf(ca: FakeCa, trusted: bytes) -> Leaf:
        shown = identity(Role.MEMBER, "demo-1", UID, ca=ca)
        return Leaf(shown.certificate, shown.key, trusted)

    async with made(tmp_path, InternalTls.REQUIRED, shown=leaf(old, old.certificate)) as (master, member):
        await master.certify(authority_of(old))
        over, answered = asyncio.Event(), 0

        async def exchanges() -> None:
            nonlocal answered
            while not over.is_set():
                await master.exchange()
                answered += 1

        running = [asyncio.create_task(exchanges()) for _ in range(4)]

        async def go_on() -> None:
            before = answered
            await until(lambda: answered >= before + 8)

        steps: list[tuple[Authority, Leaf]] = [
            (Authority(old._pair, next=new._pair), leaf(old, old.certificate + new.certificate)),
            (authority_of(new, old=old.certificate), leaf(new, both)),
            (authority_of(new), leaf(new, new.certificate)),
        ]
        for authority, shown in steps:
            await master.certify(authority, used=True)
            await go_on()
            member.show(shown)
            await go_on()
        over.set()
        await asyncio.gather(*running)
        assert master.certificate._made_of == (new.certificate, new.certificate)
        assert len(member.seen) >= 4, "two CAs, and the certificates that they signed"


async def test_it_is_renewed_after_two_thirds_of_its_time() -> None:
    master, now = Master(InternalTls.REQUIRED, 1), time.time()
    authority = Authority(make_authority("one", now, CA_DAYS))
    await master.certify(authority, now=now)
    first, context = master.certificate._leaf, master.certificate.context
    await master.certify(authority, now=now + 19 * DAY)
    assert (master.certificate._leaf, master.certificate.context) == (first, context)
    await master.certify(authority, now=now + 21 * DAY)
    assert master.certificate._leaf != first
    assert master.certificate.context is not context


async def test_a_ca_that_members_do_not_trust_yet_is_waited_for() -> None:
    """Such as one that takes the place of a Secret that was deleted."""
    master, now = Master(InternalTls.REQUIRED, 1), time.time()
    old, new = FakeCa("old"), FakeCa("new")
    after = authority_of(new, old=old.certificate)

    def signed_by(ca: FakeCa) -> bool:
        return is_signed_by(master.certificate._leaf.certificate, ca.certificate)

    await master.certify(authority_of(old), used=True, now=now)
    await master.certify(after, used=True, now=now)
    assert signed_by(old), "what they use does not trust it"
    for used in (False, False, True):
        await master.certify(after, used=used, now=now)
        assert signed_by(new) == used
    again = Master(InternalTls.REQUIRED, 1)
    await again.certify(authority_of(old), used=True, now=now)
    await again.certify(after, used=False, now=now + 29.5 * DAY)
    assert is_signed_by(again.certificate._leaf.certificate, new.certificate), "the one before ends"


async def test_a_ca_that_replaced_the_one_before_at_once_signs_at_once() -> None:
    """Members that trust it alone take nothing else, and can say nothing before they do."""
    master, old, new = Master(InternalTls.REQUIRED, 1), FakeCa("old"), FakeCa("new")
    await master.certify(authority_of(old), used=True)
    await master.certify(authority_of(new), used=False)
    assert is_signed_by(master.certificate._leaf.certificate, new.certificate)


def test_no_key_stays_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "IN_MEMORY", str(tmp_path))
    leaf = identity(Role.MASTER, "operator", UID)
    tested.read_dialling(leaf.certificate, leaf.key, leaf.trusted)
    assert list(tmp_path.iterdir()) == []
