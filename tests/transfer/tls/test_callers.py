"""Who is taken at the transfer port, by certificate, token and level of TLS; and whom its clients take."""

import asyncio
import http.client
import itertools
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from stele.adapters import pod_token
from stele.adapters.tls import role_callers
from stele.adapters.tls.acceptor import TlsLimits
from stele.adapters.tls.dialled import Secured
from stele.adapters.tls.identity import TlsIdentity, trusting
from stele.adapters.tls.peer import Expected
from stele.core.control.commands import MemberInfo
from stele.core.security.identity import Role
from stele.core.security.level import STEPS, InternalTls, can_dial
from stele.core.security.rotation import GRACE_SECONDS
from stele.errors import BadInput, SteleError, Unavailable
from stele.transfer import __main__ as program
from stele.transfer.bulk.files import LoadFiles
from stele.transfer.client.copy import copy_tablets
from stele.transfer.client.stream_client import StreamClient
from stele.transfer.server import callers, stream_server
from stele.transfer.tls import VolumeTls
from stele.wire.copy.fragments import FIRST
from stele.wire.copy.jobs import CopyJob
from stele.wire.storage.volume import MEMBER_SECURITY, TABLE_FILE, TableFile, encode_file
from tests.fakes.pki import FakeCa, shared_ca
from tests.transfer.checkpoints import (
    CLUSTER,
    ENTRIES,
    ITEM,
    TOKEN,
    certify,
    make_checkpoint,
    own_headers,
    set_level,
    transfer,
)
from tests.transfer.server.test_rate import LARGE, set_rate

ELSEWHERE = "127.0.0.2"
"""An address that is not of the pod's own processes."""
STREAM = f"/v1/sessions/s-1/partitions/{ITEM.partition}?generation={ITEM.source_generation}&at={FIRST}"
RUN = "/v1/bulk/loads/l-1/partitions/3?crc32c=5"
BROKEN = 0
"""The connection, instead of a status."""


@pytest.fixture
def tls(tmp_path: Path) -> Path:
    """The certificate of the source, m-0."""
    return certify(tmp_path / "tls", "m-0")


@pytest.fixture
def own(staging: Path, tmp_path: Path) -> VolumeTls:
    """TLS of the destination, m-1."""
    return VolumeTls(staging.parent, str(certify(tmp_path / "own", "m-1")))


@pytest.fixture(autouse=True)
def session(volume: Path) -> None:
    make_checkpoint(volume, "s-1", {7: (3, ENTRIES)})


def client(certificate: Path | None = None) -> ssl.SSLContext:
    """What dials without a certificate, or with this one, and does not look who answers."""
    context = trusting(shared_ca().certificate)
    if certificate is not None:
        context.load_cert_chain(certificate / "tls.crt", certificate / "tls.key")
    return context


def place_of(url: str) -> tuple[str, int]:
    return "127.0.0.1", int(url.rpartition(":")[2])


def ask_now(url: str, path: str, context: ssl.SSLContext | None, token: str, source: str) -> int:
    kind: Any = http.client.HTTPConnection
    more: dict[str, Any] = {}
    if context is not None:
        kind, more = http.client.HTTPSConnection, {"context": context}
    connection = kind(*place_of(url), timeout=10, source_address=(source, 0), **more)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        answer.read()
        return int(answer.status)
    except (OSError, http.client.HTTPException):
        return BROKEN
    finally:
        connection.close()


def ask_raw(url: str, request: bytes) -> bytes:
    with socket.create_connection(place_of(url), timeout=10) as connection:
        connection.sendall(request)
        return connection.recv(65_536)


async def ask(
    url: str, path: str, context: ssl.SSLContext | None = None, token: str = "", source: str = ELSEWHERE
) -> int:
    """The status of the answer."""
    return await asyncio.to_thread(ask_now, url, path, context, token, source)


async def statuses(url: str, context: ssl.SSLContext | None, load_token: str) -> list[int]:
    """Of a stream without its token and with, a load without and with, copies, and a path without a route."""
    stream = [await ask(url, STREAM, context, token) for token in ("", "wrong", TOKEN)]
    load = [await ask(url, RUN, context, token) for token in ("", TOKEN, load_token)]
    return [*stream, *load, await ask(url, "/v1/copies/s-1", context), await ask(url, "/v1/x", context)]


def load_token(tls: Path) -> str:
    identity = TlsIdentity(tls)
    identity.look()
    return identity.load_token("l-1")


MEMBER = [401, 401, 200, 404, 404, 404, 403, 404]
ANONYMOUS = [401, 401, 200, 401, 401, 404, 403, 404]
SENDERS: dict[str, tuple[dict[str, Any] | None, list[int]]] = {
    "no certificate": (None, ANONYMOUS),
    "a member": ({}, MEMBER),
    "ended lately": ({"days": -6}, MEMBER),
    "ended long ago": ({"days": -8}, [403] * 8),
    "another cluster": ({"cluster": "33333333-4444"}, [403] * 8),
    "another role": ({"role": Role.COPIER}, [403] * 8),
    "another CA": ({"ca": FakeCa("other")}, [BROKEN] * 8),
}


@pytest.mark.parametrize("level", [InternalTls.ACCEPT, InternalTls.REQUIRED])
@pytest.mark.parametrize("sender", SENDERS)
async def test_with_tls_members_and_who_has_a_token_are_taken(
    volume: Path, tls: Path, tmp_path: Path, sender: str, level: InternalTls
) -> None:
    shown, expected = SENDERS[sender]
    certificate = None if shown is None else certify(tmp_path / "shown", "m-1", **shown)
    set_level(volume, level)
    async with transfer(volume, tls) as url:
        assert await statuses(url, client(certificate), load_token(tls)) == expected


async def test_without_the_grace_a_certificate_is_refused_at_its_end(
    volume: Path, tls: Path, tmp_path: Path
) -> None:
    set_level(volume, InternalTls.REQUIRED, grace_expired=False)
    async with transfer(volume, tls) as url:
        context = client(certify(tmp_path / "shown", "m-1", days=-1))
        assert await statuses(url, context, "") == [403] * 8


@pytest.mark.parametrize("level", STEPS)
async def test_plain_requests_are_taken_below_required(volume: Path, tls: Path, level: InternalTls) -> None:
    set_level(volume, level)
    required = level is InternalTls.REQUIRED
    async with transfer(volume, tls) as url:
        assert await statuses(url, None, "") == ([426] * 8 if required else MEMBER)


@pytest.mark.parametrize("level", STEPS)
async def test_copies_and_sessions_are_for_who_has_the_token_of_the_pod(
    volume: Path, tls: Path, level: InternalTls
) -> None:
    """A forwarded port comes from the loopback address, too."""
    set_level(volume, level)
    async with transfer(volume, tls) as url:
        assert await ask(url, "/healthz", source="127.0.0.1") == 200
        for path, status in (("/v1/copies/s-1", 404), ("/v1/sessions", 200)):
            (volume / pod_token.FILE).unlink(missing_ok=True)
            for token in ("", "wrong", TOKEN):
                assert await ask(url, path, token=token, source="127.0.0.1") == 403, "no member has started"
            for secret in ("first", "second"):
                pod_token.write(volume, secret)
                assert await ask(url, path, token=secret, source="127.0.0.1") == status
                assert await ask(url, path, token="wrong", source="127.0.0.1") == 403
            assert await ask(url, path, token="first", source="127.0.0.1") == 403, "the member has another"
            elsewhere = 426 if level is InternalTls.REQUIRED else 403
            assert await ask(url, path, token="second", source=ELSEWHERE) == elsewhere
            (volume / pod_token.FILE).write_bytes(b"")
            request = f"GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \r\n\r\n"
            assert b" 403 " in await asyncio.to_thread(ask_raw, url, request.encode())


async def test_who_is_in_the_pod_without_tls_gets_nothing_else(volume: Path, tls: Path) -> None:
    set_level(volume, InternalTls.REQUIRED)
    token = own_headers(volume)["Authorization"].removeprefix("Bearer ")
    async with transfer(volume, tls) as url:
        for each in (TOKEN, token):
            for path in (STREAM, RUN, "/v1/bulk/sessions/s-1/partitions/7?keyspace=default"):
                assert await ask(url, path, token=each, source="127.0.0.1") == 426, path


def test_nobody_but_the_user_of_the_pod_can_read_its_token(volume: Path) -> None:
    pod_token.write(volume, "secret")
    assert (volume / pod_token.FILE).stat().st_mode & 0o777 == 0o600
    (volume / f"{pod_token.FILE}.new").write_text("half of one, of a process that died")
    pod_token.write(volume, "another")
    assert pod_token.read(volume) == "another"


async def test_where_the_level_is_damaged_it_is_required(volume: Path, tls: Path) -> None:
    (volume / MEMBER_SECURITY).write_bytes(b"stele MemberSecurity 1\n0000nonsense")
    async with transfer(volume, tls) as url:
        assert await ask(url, STREAM, token=TOKEN) == 426
        assert await ask(url, STREAM, client(), TOKEN) == 200
        set_level(volume, InternalTls.OFF)
        assert await ask(url, STREAM, token=TOKEN) == 200


@pytest.mark.parametrize("first", InternalTls)
def test_without_a_stored_level_that_of_the_pod_counts(volume: Path, first: InternalTls) -> None:
    assert VolumeTls(volume, "", first).level is first
    for stored in STEPS:
        set_level(volume, stored)
        assert VolumeTls(volume, "", first).level is stored


async def test_a_kept_plain_connection_ends_with_the_level(volume: Path, tls: Path) -> None:
    def answers(url: str) -> list[int]:
        connection = http.client.HTTPConnection(*place_of(url), timeout=10, source_address=(ELSEWHERE, 0))
        found = []
        for level in (InternalTls.DIAL, InternalTls.REQUIRED):
            set_level(volume, level)
            connection.request("GET", STREAM, headers={"Authorization": f"Bearer {TOKEN}"})
            with connection.getresponse() as answer:
                answer.read()
                found.append(answer.status)
        closed = answer.getheader("Connection") == "close"
        connection.close()
        return [*found, int(closed)]

    async with transfer(volume, tls) as url:
        assert await asyncio.to_thread(answers, url) == [200, 426, 1]


# -- whom clients take


def secured(grace_seconds: float = GRACE_SECONDS) -> Secured:
    expected = Expected(CLUSTER, (Role.MEMBER,), "m-0")
    return Secured(trusting(shared_ca().certificate), expected, grace_seconds)


def read_stream(url: str, how: Any) -> tuple[bytes, bool]:
    """The first fragment, and whether it came with TLS."""
    source = StreamClient(url, TOKEN, "s-1", how)
    try:
        with source.open(ITEM, FIRST) as stream:
            return stream.read(), isinstance(source._connection, http.client.HTTPSConnection)
    finally:
        source.close()


SOURCES: dict[str, tuple[dict[str, Any], float, str]] = {
    "another CA": ({"ca": FakeCa("other")}, GRACE_SECONDS, "CERTIFICATE_VERIFY_FAILED"),
    "another cluster": ({"cluster": "33333333-4444"}, GRACE_SECONDS, "it is of cluster 33333333-4444"),
    "another role": ({"role": Role.COPIER}, GRACE_SECONDS, "it is a copier; expected member"),
    "another member": ({"name": "m-2"}, GRACE_SECONDS, "it is m-2; expected m-0"),
    "it ended": ({"days": -6}, 0.0, "certificate has expired"),
}


@pytest.mark.parametrize("source", SOURCES)
async def test_who_is_not_the_source_is_asked_for_nothing(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    shown, grace_seconds, why = SOURCES[source]
    asked: list[str] = []
    monkeypatch.setattr(callers.Callers, "_refusal", lambda self, request: asked.append(request.path))
    async with transfer(volume, certify(tmp_path / "tls", **({"name": "m-0"} | shown))) as url:
        with pytest.raises(OSError, match=why):
            await asyncio.to_thread(read_stream, url, lambda: secured(grace_seconds))
    assert asked == []


async def test_a_source_whose_certificate_ended_lately_is_taken(volume: Path, tmp_path: Path) -> None:
    async with transfer(volume, certify(tmp_path / "tls", "m-0", days=-6)) as url:
        _, encrypted = await asyncio.to_thread(read_stream, url, secured)
    assert encrypted


@pytest.mark.parametrize(("dialler", "listener"), list(itertools.product(STEPS, STEPS)))
async def test_members_of_neighbouring_levels_copy_from_each_other(
    volume: Path, tls: Path, own: VolumeTls, *, dialler: InternalTls, listener: InternalTls
) -> None:
    set_level(volume, listener)
    set_level(own._path.parent, dialler)

    def open_from_elsewhere(url: str) -> tuple[bytes, bool]:
        return read_stream(url, lambda: own.dialling("m-0"))

    async with transfer(volume, tls) as url:
        if can_dial(dialler, listener):
            assert (await asyncio.to_thread(open_from_elsewhere, url))[1] is dialler.dials_tls
        elif not dialler.dials_tls:
            with pytest.raises(Unavailable, match="the source answered 426: this port takes only TLS"):
                await asyncio.to_thread(open_from_elsewhere, url)


def test_a_member_without_a_certificate_dials_nobody_with_tls(staging: Path) -> None:
    set_level(staging.parent, InternalTls.REQUIRED)
    with pytest.raises(Unavailable, match="this member has no usable certificate: STELE_TLS_DIR is not set"):
        VolumeTls(staging.parent, "").dialling("m-0")


def test_a_source_without_a_name_is_not_dialled_with_tls(staging: Path, tls: Path) -> None:
    own = VolumeTls(staging.parent, str(tls))
    assert own.dialling("") is None
    set_level(staging.parent, InternalTls.DIAL)
    with pytest.raises(BadInput, match="source is empty; expected the name of the member"):
        own.dialling("")


async def test_runs_of_bulk_loads_are_fetched_with_tls(volume: Path, tls: Path, tmp_path: Path) -> None:
    run = LoadFiles(volume / "loads").run_path("l-1", 3, 5)
    run.parent.mkdir(parents=True)
    run.write_bytes(b"run" * 500_000)
    other = tmp_path / "destination"
    (other / TABLE_FILE).parent.mkdir(parents=True)
    members = (MemberInfo(7, "m-0", "u", "127.0.0.1"), MemberInfo(8, "m-8", "v", "127.0.0.1"))
    (other / TABLE_FILE).write_bytes(encode_file(TableFile(members=members)))
    own = VolumeTls(other, str(certify(tmp_path / "own", "m-1")))

    def fetch(port: int, member: int) -> bytes:
        connection = program.Sources(other, port, own).dial(member)
        connection.request("GET", RUN)
        with connection.getresponse() as answer:
            content = answer.read()
        connection.close()
        return content

    for level in (InternalTls.DIAL, InternalTls.REQUIRED):
        set_level(volume, level)
        set_level(other, level)
        async with transfer(volume, tls) as url:
            port = place_of(url)[1]
            assert await asyncio.to_thread(fetch, port, 7) == run.read_bytes()
            with pytest.raises(OSError, match="it is m-0; expected m-8"):
                await asyncio.to_thread(fetch, port, 8)


# -- changes while a copy runs


async def copied(url: str, staging: Path, own: VolumeTls, change: Any) -> list[bool]:
    """Copy a tablet of several fragments; `change` is called once the first one is on its way. Whether each
    connection had TLS."""
    dialled: list[bool] = []
    begun: list[int] = []

    def how() -> Secured | None:
        found = own.dialling("m-0")
        dialled.append(found is not None)
        return found

    def progress(more: int) -> None:
        if not begun:
            change()
        begun.append(more)

    def work() -> None:
        made: list[Any] = []
        job = CopyJob("s-1", "m-1", "", url, TOKEN, (ITEM,))
        copy_tablets(job, job.items, staging=staging, progress=progress, finished=made.append, secured=how)
        assert made[0].entries == len(LARGE) + 1

    await asyncio.to_thread(work)
    return dialled


@pytest.fixture
def slow(volume: Path, monkeypatch: pytest.MonkeyPatch, session: None) -> None:
    """A session with streams of several fragments, which take a while."""
    (volume / "checkpoints" / "s-1").rename(volume / "checkpoints" / "other")
    (volume / "db-s-1").rename(volume / "db-other")
    make_checkpoint(volume, "s-1", {7: (3, LARGE)})
    set_rate(volume, 4_000_000)
    monkeypatch.setattr(stream_server, "piece_bytes", lambda rate: 300_000)
    monkeypatch.setattr(program, "CERTIFICATE_LOOK_SECONDS", 0.05)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("before", "after", "tls_then"),
    [
        (InternalTls.OFF, InternalTls.REQUIRED, [False, True]),
        (InternalTls.ACCEPT, InternalTls.DIAL, [False]),
        (InternalTls.REQUIRED, InternalTls.OFF, [True]),
    ],
)
async def test_a_copy_goes_on_when_the_level_changes(
    volume: Path,
    staging: Path,
    tls: Path,
    own: VolumeTls,
    *,
    before: InternalTls,
    after: InternalTls,
    tls_then: list[bool],
) -> None:
    def change(level: InternalTls = after) -> None:
        for each in (volume, staging.parent):
            set_level(each, level)

    change(before)
    async with transfer(volume, tls) as url:
        assert await copied(url, staging, own, change) == tls_then


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("lasts", [True, False])
async def test_a_copy_goes_on_when_certificates_and_the_ca_change(
    volume: Path, staging: Path, tls: Path, own: VolumeTls, *, lasts: bool
) -> None:
    """On its connection where the CA of before stays trusted, else on another one."""
    new, folder_of_own = FakeCa("new"), tls.parent / "own"
    for each in (volume, staging.parent):
        set_level(each, InternalTls.REQUIRED)

    def change() -> None:
        for folder, name in ((tls, "m-0"), (folder_of_own, "m-1")):
            certify(folder, name, new, trusted=[new, shared_ca()] if lasts else [new])

    def trusts_the_old() -> int:
        return ask_now(url, STREAM, client(), TOKEN, ELSEWHERE)

    async with transfer(volume, tls) as url:
        dialled = await copied(url, staging, own, change)
        assert dialled == [True] if lasts else len(dialled) >= 2
        assert await asyncio.to_thread(trusts_the_old) == BROKEN, "the next has the new certificate"


# -- others who connect


def half_a_handshake() -> bytes:
    there = ssl.MemoryBIO()
    side = client().wrap_bio(ssl.MemoryBIO(), there, server_side=False)
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    return there.read()


@pytest.mark.parametrize(
    "sent", [b"", b"\x16", half_a_handshake(), half_a_handshake()[:-1], b"\x16" * 100_000, b"\x00" * 100]
)
async def test_who_does_not_end_a_handshake_is_closed_and_keeps_nobody_out(
    volume: Path, tls: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    limits = TlsLimits(waiting_max=20, handshakes_max=5, handshake_seconds_max=0.5)
    monkeypatch.setattr(role_callers, "LIMITS", limits)
    set_level(volume, InternalTls.REQUIRED)

    def flood(url: str) -> list[socket.socket]:
        made = [socket.create_connection(place_of(url), timeout=10) for _ in range(60)]
        for each in made:
            try:
                each.sendall(sent)
            except OSError:
                assert sent, "it is closed already"
        return made

    def ends(each: socket.socket) -> bool:
        try:
            while each.recv(65_536):
                pass
        except ConnectionError:
            pass
        each.close()
        return True

    async with transfer(volume, tls) as url:
        begun, connections = time.monotonic(), await asyncio.to_thread(flood, url)
        assert await ask(url, STREAM, client(), TOKEN) == 200
        assert all([await asyncio.to_thread(ends, each) for each in connections])
        assert time.monotonic() - begun < 8


async def test_a_copy_whose_source_does_not_end_its_handshake_fails(
    staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stele.transfer.client.stream_client.SILENCE_SECONDS_MAX", 0.1)
    monkeypatch.setattr("stele.transfer.client.copy.BACKOFF_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        job = CopyJob("s-1", "m-1", "", f"http://127.0.0.1:{silent.getsockname()[1]}", TOKEN, (ITEM,))

        def work() -> None:
            copy_tablets(
                job,
                job.items,
                staging=staging,
                progress=lambda more: None,
                finished=lambda manifest: None,
                secured=secured,
            )

        with pytest.raises(SteleError, match="timed out") as failed:
            await asyncio.to_thread(work)
    assert failed.value.code == "SOURCE"
