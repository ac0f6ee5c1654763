"""Who is taken at the copier's port where it has a certificate, and whom its master and tasks take for it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from e2e.bench.member_stage import free_ports
from stele.adapters.spark.client import CopierClient
from stele.adapters.tls.identity import TlsIdentity, trusting
from stele.copyjob import task
from stele.copyjob.__main__ import make_app
from stele.copyjob.messages import decode_result, encode
from stele.copyjob.runner import SparkRunner
from stele.copyjob.settings import read_settings
from stele.core.security.identity import Role
from stele.errors import Unavailable
from stele.master.master_certificate import CopierDialling
from stele.model import TabletCluster
from stele.wire.copy.jobs import SourceTls
from tests.copyjob.test_copier import fake_driver_command, job_of, over, source
from tests.fakes.http import serving
from tests.fakes.pki import FakeCa, shared_ca
from tests.transfer.checkpoints import CLUSTER, TOKEN, certify

OTHER = FakeCa("other")
BROKEN = 0
"""The connection, instead of a status."""
TLS = SourceTls(CLUSTER, shared_ca().certificate.decode())
ROUTES = (
    ("GET", "/v1/jobs/s-1"),
    ("DELETE", "/v1/jobs/s-1"),
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs/s-1/progress"),
    ("GET", "/healthz"),
    ("GET", "/v1/x"),
    ("PUT", "/v1/log-level"),
)


def cluster() -> TabletCluster:
    spec = {"members": 1, "storage": {"size": "1Gi"}}
    found = TabletCluster.read({"metadata": {"name": "demo", "uid": CLUSTER}, "spec": spec})
    assert isinstance(found, TabletCluster)
    return found


@asynccontextmanager
async def copier(tmp_path: Path, tls_dir: Path, **shown: Any) -> AsyncIterator[tuple[str, SparkRunner]]:
    """A copier that has a certificate, and its URL."""
    (port,) = free_ports(1)
    staging = tmp_path / "destination" / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    certify(tls_dir, "demo-copier", **({"role": Role.COPIER} | shown))
    given = {
        "STELE_SPARK_MASTER": "local[2]",
        "STELE_COPIER_PORT": str(port),
        "STELE_STAGING": str(staging),
        "STELE_SCRATCH": str(tmp_path),
        "STELE_TLS_DIR": str(tls_dir),
    }
    settings = read_settings(given)
    runner = SparkRunner(settings, fake_driver_command)
    app, acceptor = make_app(settings, runner)
    async with serving(app, port, acceptor) as url:
        yield url.replace("http:", "https:"), runner


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with copier(tmp_path, tmp_path / "tls") as (url, _):
        yield url


def context_of(folder: Path | None) -> ssl.SSLContext:
    """What dials without a certificate, or with this one, and does not look who answers."""
    context = trusting(shared_ca().certificate)
    if folder is not None:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


async def statuses(url: str, context: ssl.SSLContext | None) -> list[int]:
    """Of each route."""
    found = []
    for method, path in ROUTES:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.request(method, url + path, ssl=context or False) as answer,
            ):
                found.append(answer.status)
        except (aiohttp.ClientError, OSError):
            found.append(BROKEN)
    return found


SENDERS: dict[str, tuple[dict[str, Any] | None, list[int]]] = {
    "no certificate": (None, [403, 403, 403, 404, 200, 403, 403]),
    "the master": ({}, [404, 404, 400, 404, 200, 404, 400]),
    "a member": ({"role": Role.MEMBER}, [403] * 7),
    "an administrator": ({"role": Role.ADMIN}, [403] * 7),
    "another copier": ({"role": Role.COPIER}, [403] * 7),
    "another cluster": ({"cluster": "33333333-4444"}, [403] * 7),
    "ended": ({"days": -1}, [403] * 7),
    "another CA": ({"ca": OTHER}, [BROKEN] * 7),
}


@pytest.mark.parametrize("sender", SENDERS)
async def test_jobs_are_the_master_s_alone(url: str, tmp_path: Path, sender: str) -> None:
    shown, expected = SENDERS[sender]
    folder = None
    if shown is not None:
        folder = certify(tmp_path / "shown", "master", **({"role": Role.MASTER} | shown))
    assert await statuses(url, context_of(folder)) == expected


async def test_plain_requests_are_answered_with_what_to_do(url: str) -> None:
    plain = url.replace("https:", "http:")
    assert await statuses(plain, None) == [426] * 7
    async with aiohttp.ClientSession() as session, session.get(f"{plain}/v1/jobs/s-1") as answer:
        assert "use https and show a certificate of role master" in await answer.text()


async def test_without_a_usable_certificate_nobody_is_let_in(tmp_path: Path) -> None:
    async with copier(tmp_path, tmp_path / "tls") as (url, _):
        (tmp_path / "tls" / "tls.key").write_text("nonsense")
        assert (await statuses(url, context_of(None)))[4] == 200, "it keeps the one that it has"
    async with copier(tmp_path, tmp_path / "other", ca=OTHER) as (url, _):
        assert await statuses(url, context_of(None)) == [BROKEN] * 7


class Dialling:
    """What a master has."""

    def __init__(self, folder: Path) -> None:
        identity = TlsIdentity(folder)
        identity.look()
        assert identity.contexts is not None
        self.context: ssl.SSLContext | None = identity.contexts.dialling


def dialling(tmp_path: Path) -> CopierDialling:
    return CopierDialling(Dialling(certify(tmp_path / "master", "master", role=Role.MASTER)), cluster)


COPIERS: dict[str, tuple[dict[str, Any], str]] = {
    "another CA": ({"ca": OTHER, "trusted": (OTHER,)}, "CERTIFICATE_VERIFY_FAILED"),
    "another cluster": ({"cluster": "33333333-4444"}, "it is of cluster 33333333-4444"),
    "a member": ({"role": Role.MEMBER}, "it is a member; expected copier"),
}


@pytest.mark.parametrize("other", COPIERS)
async def test_a_master_asks_nobody_else(tmp_path: Path, other: str) -> None:
    shown, why = COPIERS[other]
    async with (
        copier(tmp_path, tmp_path / "tls", **shown) as (url, _),
        CopierClient(url, dialling(tmp_path)) as client,
    ):
        with pytest.raises(Unavailable, match=why):
            await client.status("s-1")


async def test_a_master_without_a_certificate_does_not_ask(tmp_path: Path, url: str) -> None:
    how = dialling(tmp_path)
    how._certificate.context = None
    async with CopierClient(url, how) as client:
        with pytest.raises(Unavailable, match="the operator has no certificate for this cluster"):
            await client.status("s-1")


async def test_a_job_is_copied_and_its_tasks_report_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    async with (
        source(tmp_path, certify(tmp_path / "m-0", "m-0")) as from_url,
        copier(tmp_path, tmp_path / "tls") as (url, runner),
        CopierClient(url, dialling(tmp_path)) as client,
    ):
        taken = runner.progress
        monkeypatch.setattr(
            runner, "progress", lambda session, told: reported.append(session) or taken(session, told)
        )
        await client.submit(job_of(from_url, source="m-0", tls=TLS))
        status = await over(client)
        assert status.state == "DONE", status
    assert set(reported) == {"s-1"}


async def test_a_task_reports_to_nobody_but_the_copier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []
    monkeypatch.setattr(SparkRunner, "token_of", lambda self, session: reported.append(session) or TOKEN)
    monkeypatch.setattr(SparkRunner, "progress", lambda self, session, told: True)
    async with source(tmp_path, certify(tmp_path / "m-0", "m-0")) as from_url:
        job = job_of(from_url, source="m-0", tls=TLS)
        for shown, to_it in (({}, 1), ({"role": Role.MEMBER}, 0), ({"cluster": "33333333-4444"}, 0)):
            async with copier(tmp_path, tmp_path / "tls", **shown) as (url, _):
                staging = str(tmp_path / "destination" / "staging")
                slice_ = (0, 1, encode(job), staging, url)
                await asyncio.to_thread(task.run_slice, slice_)
            assert len(reported) == to_it, shown
            reported.clear()


def test_a_task_whose_job_lacks_the_ca_is_refused(tmp_path: Path) -> None:
    job = job_of("http://127.0.0.1:1")
    done = decode_result(task.run_slice((0, 1, encode(job), str(tmp_path), "https://127.0.0.1:1")))
    assert (done.code, done.text) == (
        "BAD_INPUT",
        "tls is missing; expected the cluster's CA, by which tasks know the copier",
    )
