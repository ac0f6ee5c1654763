"""Who is let in at port 7001: certificates by routes by levels, and what the audit says of it."""

import asyncio
import io
import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from stele.adapters import http, pod_token
from stele.adapters.tls.acceptor import TlsLimits
from stele.adapters.tls.http_site import HttpAcceptor, HttpSite
from stele.adapters.tls.identity import read_dialling
from stele.core.control.member_settings import MemberSettings
from stele.core.security.identity import Role
from stele.core.security.level import InternalTls
from stele.member import limits
from stele.member.admin.audit import READS_OF_DATA, Asked, Audit
from stele.member.admin.callers import Callers
from stele.member.admin.http import Admin
from stele.member.bulk.routes import BulkRoutes
from stele.member.storage.volume import MEMBER_SECURITY
from tests.adapters.tls.conftest import until
from tests.fakes.pki import FakeCa, Leaf, identity, shared_ca
from tests.member.harness.single_member import CLUSTER, SingleMember

EXCHANGE, STOPPING, STATUS = "/v1/exchange", "/v1/stopping", "/v1/status"
CANCEL = "/v1/sessions/copy-1"
LET_IN, FORBIDDEN, NEEDS_TLS, CLOSED = "let in", "403", "426", "closed"
SHORT = TlsLimits(waiting_max=3, handshakes_max=3, handshake_seconds_max=0.3)

MASTER, ADMIN = (identity(role, "one", CLUSTER) for role in (Role.MASTER, Role.ADMIN))
SHOWN: dict[str, Callable[[], Leaf | None]] = {
    "plain": lambda: None,
    "none": lambda: None,
    "master": lambda: MASTER,
    "admin": lambda: ADMIN,
    "member": lambda: identity(Role.MEMBER, "m0", CLUSTER),
    "copier": lambda: identity(Role.COPIER, "one", CLUSTER),
    "master of another cluster": lambda: identity(Role.MASTER, "one", "other"),
    "admin of another cluster": lambda: identity(Role.ADMIN, "one", "other"),
    "master of another CA": lambda: identity(Role.MASTER, "one", CLUSTER, ca=FakeCa("other")),
    "master that has ended": lambda: identity(Role.MASTER, "one", CLUSTER, days=-1),
    "admin that has ended": lambda: identity(Role.ADMIN, "one", CLUSTER, days=-1),
    "no part of a cluster": lambda: shared_ca().leaf(uris=["https://example.org"]),
}
AT_HANDSHAKE = {"none", "master of another CA"}


def context_of(shown: str | Leaf) -> ssl.SSLContext | None:
    """What a client with this certificate dials with; None for a plain one."""
    leaf = shown if isinstance(shown, Leaf) else SHOWN[shown]()
    if leaf is not None:
        return read_dialling(leaf.certificate, leaf.key, leaf.trusted)
    if shown == "plain":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Site:
    """A member with a certificate, and its port."""

    def __init__(self, member: SingleMember, app: web.Application, port: int) -> None:
        self.member, self.port = member, port
        routes = ((route.method, route.resource) for route in app.router.routes())
        self.routes = [(method, each.canonical) for method, each in routes if each and method != "HEAD"]

    async def ask(self, shown: str | Leaf, method: str, path: str, **more: Any) -> tuple[str, str]:
        """Whether a request was let in, and what the answer says."""
        context = context_of(shown)
        url = f"{'http' if context is None else 'https'}://127.0.0.1:{self.port}{path}"
        given = {} if context is None else {"ssl": context}
        try:
            async with aiohttp.ClientSession() as http, http.request(method, url, **given, **more) as answer:
                text = await answer.text()
                return str(answer.status) if answer.status in (403, 426) else LET_IN, text
        except aiohttp.ClientError as error:
            return CLOSED, str(error)

    async def reach(self, level: InternalTls) -> None:
        await self.member.node.member_tls.adopt(MemberSettings(member_tls=level))


@asynccontextmanager
async def served(folder: Path, first: InternalTls = InternalTls.OFF) -> AsyncIterator[Site]:
    member = SingleMember(folder / "volume")
    member.first_member_tls = first
    member.tls_dir = str(identity(Role.MEMBER, "m0", CLUSTER).write(folder / "tls"))
    await member.start()
    node = member.node
    node.tls.look()
    app = Admin(node).application()
    bulk = node.settings, node.tablets, node.delayed_replies, node.loads, node.sessions, node.member_tls
    BulkRoutes(*bulk).add_routes(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await HttpSite(runner, node.admin_tls, "127.0.0.1", 0).start()
    try:
        yield Site(member, app, runner.addresses[0][1])
    finally:
        await runner.cleanup()
        await member.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with served(tmp_path) as made:
        yield made


def expected(shown: str, route: str, level: InternalTls) -> str:
    if shown in AT_HANDSHAKE:
        return CLOSED
    if route == STOPPING:
        # It takes the token of the pod, and no certificate instead.
        return FORBIDDEN
    if shown == "plain":
        return NEEDS_TLS if level is InternalTls.REQUIRED else LET_IN
    return LET_IN if shown == ("master" if route == EXCHANGE else "admin") else FORBIDDEN


@pytest.mark.parametrize("level", InternalTls)
@pytest.mark.parametrize("shown", SHOWN)
async def test_each_route_is_for_one_role(site: Site, shown: str, level: InternalTls) -> None:
    await site.reach(level)
    assert len(site.routes) > 15
    for method, route in site.routes:
        path = (
            route.replace("{partition}", "0").replace("{generation}", "1").replace("{", "").replace("}", "")
        )
        found, text = await site.ask(shown, method, path)
        assert found == expected(shown, route, level), (method, route, text)


def own(site: Site) -> dict[str, str]:
    return pod_token.headers(site.member.node.volume.pod_token)


@pytest.mark.parametrize("level", InternalTls)
async def test_a_planned_stop_is_announced_with_the_token_of_the_pod(site: Site, level: InternalTls) -> None:
    """A forwarded port comes from the loopback address, too."""
    await site.reach(level)
    for shown in ("plain", "admin", "master"):
        for wrong in ({}, pod_token.headers(""), pod_token.headers("wrong")):
            assert (await site.ask(shown, "POST", STOPPING, headers=wrong))[0] == FORBIDDEN
    assert (await site.ask("plain", "POST", STOPPING, headers=own(site)))[0] == LET_IN
    assert (await site.ask("plain", "GET", STATUS, headers=own(site)))[0] == (
        NEEDS_TLS if level is InternalTls.REQUIRED else LET_IN
    )


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("admin", "POST /v1/exchange is not for this certificate: it is a admin; expected master"),
        ("master of another cluster", f"it is of cluster other, and this is {CLUSTER}"),
        ("master that has ended", "certificate has expired: it ended at"),
        ("no part of a cluster", "its certificate names 0 parts of clusters"),
        ("plain", "this port takes only TLS connections: use https and show a certificate of role master"),
    ],
)
async def test_a_refusal_says_what_is_expected(site: Site, shown: str, text: str) -> None:
    await site.reach(InternalTls.REQUIRED)
    assert text in (await site.ask(shown, "POST", EXCHANGE))[1]


async def test_a_large_plain_request_gets_its_answer(site: Site) -> None:
    """A connection that is closed while the client sends is reset, and the answer is lost."""
    await site.reach(InternalTls.REQUIRED)
    found, text = await site.ask("plain", "POST", EXCHANGE, data=io.BytesIO(bytes(4 << 20)))
    assert (found, "only TLS" in text) == (NEEDS_TLS, True)


async def test_a_ca_that_is_withdrawn_counts_at_once_on_connections_that_are_open(
    site: Site, tmp_path: Path
) -> None:
    old, new = FakeCa("old"), FakeCa("new")
    tls = site.member.node.tls

    def show(ca: FakeCa, *trusted: FakeCa) -> None:
        made = identity(Role.MEMBER, "m0", CLUSTER, ca=ca)
        bundle = b"".join(each.certificate for each in trusted)
        Leaf(made.certificate, made.key, bundle).write(tmp_path / "tls")
        tls.look()
        assert tls.problem == ""

    show(old, old, new)
    url = f"https://127.0.0.1:{site.port}{EXCHANGE}"
    made = identity(Role.MASTER, "one", CLUSTER, ca=old)
    context = read_dialling(made.certificate, made.key, old.certificate + new.certificate)
    async with aiohttp.ClientSession() as http:
        for trusted, status in (((old, new), 400), ((new,), 403)):
            show(new, *trusted)
            async with http.post(url, ssl=context) as answer:
                assert answer.status == status
                assert (status == 403) == ("no longer trusted" in await answer.text())
    assert site.member.node.admin_tls.done == 1


async def test_a_member_that_does_not_know_its_level_takes_both(tmp_path: Path) -> None:
    """Only the master can tell, which has no certificate where TLS is off."""
    async with served(tmp_path) as first:
        await first.reach(InternalTls.REQUIRED)
        path = first.member.node.volume.path(MEMBER_SECURITY)
    path.write_bytes(b"damaged")
    async with served(tmp_path) as again:
        assert again.member.node.member_tls.level is InternalTls.REQUIRED
        for shown in ("plain", "master"):
            assert (await again.ask(shown, "POST", EXCHANGE))[0] == LET_IN
        assert (await again.ask("plain", "GET", STATUS))[0] == NEEDS_TLS
        await again.reach(InternalTls.REQUIRED)
        assert (await again.ask("plain", "POST", EXCHANGE))[0] == NEEDS_TLS


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("first", [InternalTls.DIAL, InternalTls.REQUIRED])
async def test_an_empty_or_damaged_volume_takes_no_plain_exchange(
    tmp_path: Path, first: InternalTls, *, damaged: bool
) -> None:
    """Who comes first could give it an epoch that no master has."""
    if damaged:
        (tmp_path / "volume").mkdir()
        (tmp_path / "volume" / MEMBER_SECURITY).write_bytes(b"damaged")
    async with served(tmp_path, first) as site:
        assert (await site.ask("plain", "POST", EXCHANGE))[0] == NEEDS_TLS
        assert (await site.ask("master", "POST", EXCHANGE))[0] == LET_IN
        await site.reach(InternalTls.DIAL)
        assert (await site.ask("plain", "POST", EXCHANGE))[0] == LET_IN


# -- enemies


async def test_handshakes_are_limited_in_number_and_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    acceptor = site.member.node.admin_tls
    monkeypatch.setattr(acceptor, "limits", SHORT)
    hello = b"\x16\x03\x01\x02\x00\x01"
    opened = []
    for begin in (b"", hello):
        failed = acceptor.failed
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
            writer.write(begin)
            opened.append((reader, writer))
        await until(lambda: acceptor.failed >= failed + 17)  # noqa: B023
        assert (await site.ask("master", "POST", EXCHANGE))[0] == LET_IN
    await until(lambda: acceptor.pending == 0)
    for reader, writer in opened:
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    assert (await site.ask("plain", "GET", STATUS))[0] == LET_IN


async def test_no_tickets_are_given(site: Site) -> None:
    context = site.member.node.admin_tls.context
    assert context is not None
    assert (context.num_tickets, context.verify_mode) == (0, ssl.CERT_REQUIRED)
    assert isinstance(site.member.node.admin_tls, HttpAcceptor)


# -- the audit


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(each.getMessage()) for each in caplog.records if each.name == "stele.audit"]


async def test_changes_are_in_the_audit_with_who_asked_for_them(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await site.ask("admin", "DELETE", CANCEL + "?why=%0Aforged%22")
    await site.ask("plain", "DELETE", "/v1/quarantine/volumes/none")
    await site.ask("admin", "GET", STATUS)
    await site.ask("master", "POST", EXCHANGE)
    await site.ask("plain", "POST", STOPPING, headers=own(site))
    facts = [
        (each["who"], each["method"], each["route"], each["target"], each["status"]) for each in lines(caplog)
    ]
    assert facts == [
        (
            f"stele://{CLUSTER}/admin/one",
            "DELETE",
            "/v1/sessions/{session}",
            "/v1/sessions/copy-1?why=%0Aforged%22",
            404,
        ),
        (
            "anonymous 127.0.0.1",
            "DELETE",
            "/v1/quarantine/volumes/{name}",
            "/v1/quarantine/volumes/none",
            200,
        ),
    ]


async def test_reads_of_data_are_in_the_audit(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert {("GET", route) for route in READS_OF_DATA} <= set(site.routes)
    for path in (
        "/v1/digest?partition=0",
        "/v1/checksum?partition=0",
        "/v1/quarantine/tablets/0/1/entries",
        "/v1/bulk/loads/l-1",
    ):
        await site.ask("admin", "GET", path)
    await site.ask("admin", "GET", "/v1/bulk/table")
    assert {(each["who"], each["route"]) for each in lines(caplog)} == {
        (f"stele://{CLUSTER}/admin/one", route) for route in READS_OF_DATA
    }


def test_reads_have_lines_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    audit, most = Audit(lambda: 0.0), limits.AUDIT_READS_PER_SECOND_MAX
    for who in ("anonymous ADDRESS", "stele://UID/admin/admin"):
        audited(audit, "GET", 200, most + 5, who=who, route="/v1/digest")
        audited(audit, "DELETE", 200, 1, who=who)
    assert len(lines(caplog)) == 2 * (most + 1)
    assert not any("missing" in each for each in lines(caplog))


@pytest.mark.parametrize(
    ("shown", "who"),
    [
        ("plain", "anonymous 127.0.0.1"),
        ("member", f"stele://{CLUSTER}/member/m0"),
        ("no part of a cluster", "unknown certificate 127.0.0.1"),
    ],
)
async def test_refusals_are_in_the_audit(
    site: Site, caplog: pytest.LogCaptureFixture, shown: str, who: str
) -> None:
    await site.reach(InternalTls.REQUIRED)
    await site.ask(shown, "POST", EXCHANGE)
    (found,) = lines(caplog)
    assert (found["who"], found["route"], found["status"]) == (
        who,
        EXCHANGE,
        426 if shown == "plain" else 403,
    )


async def test_who_asks_is_known_although_the_connection_ends_meanwhile(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    uri = f"stele://{CLUSTER}/admin/one"
    shown = {"peercert": {"subjectAltName": (("URI", uri),)}, "peerchain": frozenset()}
    tls: Any = SimpleNamespace(level=InternalTls.DIAL, caller_refusal=lambda *_: "")
    transport: Any = SimpleNamespace(get_extra_info=lambda name, _default=None: shown.get(name))
    request = make_mocked_request("DELETE", CANCEL, transport=transport)
    monkeypatch.setattr(http, "route_of", lambda _request: "/v1/sessions/{session}")

    async def handler(request: web.Request) -> web.StreamResponse:
        request._protocol.transport = None
        return web.Response()

    await Callers(tls).check(request, handler)
    assert [each["who"] for each in lines(caplog)] == [uri]
    with pytest.raises(web.HTTPForbidden):
        await Callers(tls).check(request, handler)


def audited(
    audit: Audit, method: str, status: int, times: int, *, who: str = "anonymous ADDRESS", route: str = "/x"
) -> None:
    for _ in range(times):
        audit.note(make_mocked_request(method, "/x"), Asked(who, route, by_hand=True), status)


def test_lines_of_the_audit_are_limited_and_those_left_out_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = [0.0]
    audit = Audit(lambda: now[0])
    most = limits.AUDIT_LINES_PER_SECOND_MAX
    audited(audit, "DELETE", 200, most + 7)
    assert len(lines(caplog)) == most
    now[0] = 1.0
    audited(audit, "DELETE", 200, 1)
    assert lines(caplog)[-1]["missing"] == 7
    caplog.clear()
    audited(audit, "GET", 403, 5)
    assert len(lines(caplog)) == 1
    now[0] += limits.AUDIT_REFUSED_SECONDS
    audited(audit, "GET", 403, 1)
    assert lines(caplog)[-1]["missing"] == 4


def test_nobody_without_a_certificate_uses_up_the_lines_of_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    audit = Audit(lambda: 0.0)
    audited(audit, "POST", 200, 2 * limits.AUDIT_LINES_PER_SECOND_MAX)
    audited(audit, "POST", 404, 50, route="")
    caplog.clear()
    audited(audit, "DELETE", 200, 1, who="stele://UID/admin/admin")
    assert [each["who"] for each in lines(caplog)] == ["stele://UID/admin/admin"]
