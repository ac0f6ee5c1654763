"""`bench` against a real member: figures, and no key that is left."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stele.adapters.tls.acceptor import TlsAcceptor
from stele.adapters.tls.identity import TlsIdentity
from stele.cli import bench
from stele.cli.client_port import PASSWORD
from stele.client.resp import Connection
from stele.core.control.member_settings import ClientAuth, ClientTls
from stele.member.resp.access import Access, accounts_of
from stele.member.resp.limits import RespServerLimits
from stele.member.resp.server import RespServer
from stele.wire.users import UserEntry, generated_hash
from tests.cli.conftest import Run
from tests.cli.served_objects import cluster as stored
from tests.cli.served_objects import member
from tests.cli.test_redis_cli import secret
from tests.cli.test_tablets import Shell
from tests.fakes.key_value_service import FakeKeyValueService
from tests.fakes.pki import Leaf, shared_ca
from tests.fakes.pod_proxy import fake_api
from tests.member.harness.cluster import Cluster, cluster


@asynccontextmanager
async def serving(run: Run, folder: Path) -> AsyncIterator[tuple[Cluster, Shell]]:
    async with cluster(folder, 1, partitions=2, replicas=1) as made:
        place = made.members[0]
        pods = {"demo-0:6379": f"http://{place.host}:{place.ports[0]}"}
        known: dict[str, Any] = {
            "tabletclusters": {"items": [stored()], "metadata": {}},
            "tabletmembers": {"items": [member(0)], "metadata": {}},
        }
        async with fake_api(folder, pods, known) as path:
            yield made, Shell(run, path)


async def size(made: Cluster) -> bytes | None:
    place = made.members[0]
    connection = await Connection.open((place.host, place.ports[0]))
    try:
        return await connection.ask(b"DBSIZE")
    finally:
        connection.close()


async def test_it_measures_and_leaves_nothing(run: Run, tmp_path: Path) -> None:
    async with serving(run, tmp_path) as (made, ask):
        found = (await ask("bench", "demo", "--seconds", "1", "--clients", "2", "-o", "json")).json
        assert found["errors"] == 0
        assert found["requests"] > 20
        for kind in ("writes", "reads"):
            figures = found[kind]
            assert figures["per_second"] > 0
            assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["p999_ms"]
        assert await size(made) == b"0"
        lines = (await ask("bench", "demo", "--seconds", "1")).out.splitlines()
        assert lines[0].endswith(" requests in 1 s, 0 errors")
        assert [line.split()[0] for line in lines[1:]] == ["REQUESTS", "writes", "reads"]


async def test_an_interrupt_leaves_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        await real(seconds)
        if seconds == 1.0:
            raise KeyboardInterrupt

    async with serving(run, tmp_path) as (made, ask):
        monkeypatch.setattr(bench.asyncio, "sleep", sleep)
        ran = await ask("bench", "demo", "--seconds", "9")
        monkeypatch.undo()
        assert ran.code == 130
        assert await size(made) == b"0"


async def test_a_member_that_does_not_answer_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(run, tmp_path) as (made, ask):
        await made.members[0].kill()
        ran = await ask("bench", "demo", "--seconds", "1", "--clients", "1")
        assert (ran.code, "no request was answered" in ran.err) == (3, True)


RIGHTS = ("+set", "+get", "+del", "~kubectl-stele-bench:*")
USERS = (
    UserEntry("shop", (generated_hash(b"pw"),), RIGHTS, certificate="cn:shop"),
    UserEntry("till", (), RIGHTS, certificate="cn:till"),
    UserEntry("reader", (generated_hash(b"pw"),), ("+@read", "~*")),
    UserEntry("default", (generated_hash(b"pw"),), RIGHTS, active=False),
)
CLOSED = {"tls": "Required", "auth": "Required"}
REQUIRED = CLOSED | {"clientCertificates": "Require"}


def declared(called: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": called, "namespace": "ns"}, "spec": {"cluster": "demo"} | spec}


@asynccontextmanager
async def closed(run: Run, folder: Path, security: dict[str, str]) -> AsyncIterator[Shell]:
    """A cluster as the checklist has it: TLS, users with rights of their own, and no user default."""
    identity = TlsIdentity(shared_ca().leaf().write(folder / "tls"))
    identity.look()
    acceptor, access = TlsAcceptor(identity, lambda address, why: None), Access()
    asks = ssl.CERT_REQUIRED if security is REQUIRED else ssl.CERT_OPTIONAL
    acceptor.require(ClientTls.REQUIRED, asks)
    access.adopt(accounts_of(USERS, access.users), ClientAuth.REQUIRED, access.file)
    server = RespServer(
        FakeKeyValueService(), RespServerLimits(linger_seconds=0.1), access=access, tls=acceptor
    )
    await server.listen("127.0.0.1", 0)
    generated: dict[str, Any] = {"password": {"generated": True}}
    users = [
        declared("of-shop", name="shop", **generated),
        declared("till", certificate={"commonName": "till"}),
        declared("reader", password={"secretRef": {"name": "mine"}}),
        declared("other", cluster="another", **generated),
    ]
    known: dict[str, Any] = {
        "tabletclusters": {"items": [stored(security=security)], "metadata": {}},
        "tabletmembers": {"items": [member(0)], "metadata": {}},
        "tabletusers": {"items": users, "metadata": {}},
        "secrets/demo-ca-cert": secret(ca_crt=shared_ca().certificate.decode()),
        "secrets/demo-default-user": secret(password="pw"),
        "secrets/of-shop-password": secret(password="pw"),
        "secrets/mine": secret(password="pw"),
    }
    try:
        async with fake_api(folder, {"demo-0:6379": f"http://127.0.0.1:{server.port}"}, known) as path:
            yield Shell(run, path)
    finally:
        await server.close()
        access.checker.close()


def shown(folder: Path, name: str) -> list[str]:
    """Options with a certificate of this name."""
    made: Leaf = shared_ca().leaf(name)
    made.write(folder / name)
    return ["--cert", str(folder / name / "tls.crt"), "--key", str(folder / name / "tls.key")]


@pytest.mark.parametrize(
    ("security", "user", "cert", "password"),
    [
        (CLOSED, "shop", "", ""),
        (CLOSED, "shop", "", "pw"),
        (CLOSED, "", "till", ""),
        (REQUIRED, "", "till", ""),
        (REQUIRED, "shop", "nobody", ""),
        (REQUIRED, "shop", "till", "pw"),
    ],
)
async def test_it_runs_as_a_user_by_password_or_certificate(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    security: dict[str, str],
    user: str,
    cert: str,
    password: str,
) -> None:
    if password:
        monkeypatch.setenv(PASSWORD, password)
    else:
        monkeypatch.delenv(PASSWORD, raising=False)
    async with closed(run, tmp_path, security) as ask:
        words = ["--seconds", "1", "--clients", "1", *(["--user", user] if user else [])]
        words += shown(tmp_path, cert) if cert else []
        found = (await ask("bench", "demo", *words, "-o", "json")).json
    assert found["errors"] == 0
    assert found["requests"] > 5


@pytest.mark.parametrize(
    ("security", "words", "code", "said"),
    [
        (CLOSED, [], 1, "default may not run it: WRONGPASS"),
        (CLOSED, ["--user", "reader"], 1, "reader may not run it: NOPERM"),
        (CLOSED, ["--user", "nobody"], 2, "--user is nobody; the TabletUsers of demo declare: reader, shop"),
        (CLOSED, ["--user", "till"], 2, "--user is till, who has no password"),
        (CLOSED, ["nobody"], 1, "this client may not run it: NOAUTH"),
        (REQUIRED, [], 2, "clients of demo have to show a certificate: give --cert and --key"),
        (CLOSED, ["--cert", "x"], 2, "--cert is given and --key is not"),
        (CLOSED, ["--key", "x"], 2, "--key is given and --cert is not"),
        (CLOSED, ["--cert", "x", "--key", "x"], 2, "--cert x and --key x cannot be used: No such file"),
        ({}, ["till"], 2, "--cert is given, and demo has no TLS for clients"),
    ],
)
async def test_a_user_who_may_not_is_told_at_once(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    security: dict[str, str],
    words: list[str],
    code: int,
    said: str,
) -> None:
    """A single word is the name in a certificate that is shown."""
    monkeypatch.delenv(PASSWORD, raising=False)
    async with closed(run, tmp_path, security) as ask:
        options = shown(tmp_path, words[0]) if len(words) == 1 else words
        ran = await ask("bench", "demo", "--seconds", "9", *options)
    assert (ran.code, said in ran.err) == (code, True), ran.err
