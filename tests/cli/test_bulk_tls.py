"""A Job of `kubectl stele load` and `dump` where members are dialled with TLS: administrators use it."""

import http.client
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from stele.adapters.kubernetes.admin_tls import Admin, admin_of
from stele.adapters.kubernetes.api import Api, Object
from stele.adapters.kubernetes.bulk_job import PORT, TLS_FOLDER, BulkJob, manifest
from stele.adapters.kubernetes.console import connect
from stele.adapters.tls.identity import trusting
from stele.bulkjob.server import Job, application, callers_of
from stele.core.security.identity import Role
from stele.core.security.level import InternalTls
from stele.errors import Refused, Unavailable
from stele.model import TabletCluster
from stele.wire.pods import admin_secret_name
from tests.cli.test_admin_port import objects, secret
from tests.fakes.http import serving
from tests.fakes.pki import FakeCa, Leaf, identity, shared_ca
from tests.fakes.pod_proxy import fake_api
from tests.member.harness.cluster import CLUSTER

ADMIN = identity(Role.ADMIN, "admin", CLUSTER)
CREATED = {"metadata": {"name": "demo-bulk-1", "uid": "u"}}
SECRET = admin_secret_name("demo")
BROKEN = 0
"""The connection, instead of a status."""
PROGRAM = """
import json, sys
data = open(sys.argv[2], "rb").read()
open(sys.argv[2], "ab").write(b"!")
print(json.dumps({"result": {"bytes": len(data), "arguments": sys.argv[3:]}}), flush=True)
"""
ROUTES = (("PUT", "/file"), ("POST", "/job"), ("GET", "/job"), ("GET", "/file"), ("GET", "/healthz"))


@asynccontextmanager
async def pod(folder: Path, leaf: Leaf = ADMIN) -> AsyncIterator[str]:
    """The server of a Job's pod, with this certificate; its URL, which has no scheme for TLS."""
    (folder / "job.py").write_text(PROGRAM)
    job = Job(folder, (sys.executable, str(folder / "job.py")))
    callers = callers_of(leaf.write(folder / "tls"))
    async with serving(application(job, callers), acceptor=callers.acceptor) as url:
        yield url


@asynccontextmanager
async def client(folder: Path, url: str, shown: Leaf = ADMIN) -> AsyncIterator[BulkJob]:
    """Somebody who has this certificate, and asks the pod through an API server."""
    async with asked(folder, url, objects(InternalTls.REQUIRED, secret(shown))) as (api, admin):
        job = BulkJob(api, "ns", CREATED, admin)
        job._pod = "p"
        yield job


@asynccontextmanager
async def asked(folder: Path, url: str, known: dict[str, Any]) -> AsyncIterator[tuple[Api, Admin]]:
    async with (
        fake_api(folder, {f"p:{PORT}": url}, known) as path,
        connect("ns", None, str(path)) as console,
    ):
        cluster = TabletCluster.read(known["tabletclusters/demo"])
        assert isinstance(cluster, TabletCluster)
        admin = await admin_of(console._api, "ns", cluster)
        assert admin is not None
        yield console._api, admin


async def test_a_file_comes_in_a_job_runs_and_the_file_goes_out(tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    (tmp_path / "rows").write_bytes(content)
    async with pod(tmp_path) as url, client(tmp_path, url) as job:
        assert job.tls_folder == TLS_FOLDER
        await job.send(tmp_path / "rows")
        await job.start("load", ["--load", "l-1"])
        done = await job.follow(lambda _: None)
        assert done == {"bytes": len(content), "arguments": ["--load", "l-1"]}
        await job.receive(tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content + b"!"


def shown(leaf: Leaf | None, folder: Path) -> ssl.SSLContext:
    context = trusting(shared_ca().certificate)
    if leaf is not None:
        leaf.write(folder)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


SENDERS: dict[str, tuple[Leaf | None, list[int]]] = {
    "no certificate": (None, [403, 403, 403, 403, 200]),
    "an administrator": (ADMIN, [200, 400, 200, 404, 200]),
    "a member": (identity(Role.MEMBER, "m0", CLUSTER), [403] * 5),
    "another cluster": (identity(Role.ADMIN, "admin", "33333333-4444"), [403] * 5),
    "ended": (identity(Role.ADMIN, "admin", CLUSTER, days=-1), [403] * 5),
    "another CA": (identity(Role.ADMIN, "admin", CLUSTER, ca=FakeCa("other")), [BROKEN] * 5),
}


@pytest.mark.parametrize("sender", SENDERS)
async def test_nobody_else_is_taken(tmp_path: Path, sender: str) -> None:
    leaf, expected = SENDERS[sender]
    context, found = shown(leaf, tmp_path / "shown"), []
    async with pod(tmp_path) as url, aiohttp.ClientSession() as session:
        for method, path in ROUTES:
            try:
                async with session.request(
                    method, url.replace("http:", "https:") + path, ssl=context, data=b"x"
                ) as answer:
                    found.append(answer.status)
            except (aiohttp.ClientError, OSError, http.client.HTTPException):
                found.append(BROKEN)
        async with session.get(f"{url}/file") as plain:
            assert plain.status == 426
    assert found == expected
    assert (tmp_path / "data.parquet").exists() == (leaf is ADMIN)


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        (identity(Role.MEMBER, "m0", CLUSTER), "it is a member; expected admin"),
        (identity(Role.ADMIN, "admin", "33333333-4444"), "it is of cluster 33333333-4444"),
    ],
)
async def test_a_file_is_sent_to_no_other_pod(tmp_path: Path, leaf: Leaf, why: str) -> None:
    (tmp_path / "rows").write_bytes(b"PAR1")
    async with pod(tmp_path, leaf) as url, client(tmp_path, url) as job:
        with pytest.raises(Unavailable, match=why):
            await job.send(tmp_path / "rows")
    assert not (tmp_path / "data.parquet").exists()


async def test_without_the_right_to_administer_no_job_is_made(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"you may not read Secret {SECRET}"):
        async with asked(tmp_path, "http://127.0.0.1:1", objects(InternalTls.DIAL, None)):
            pass


@pytest.mark.parametrize("with_tls", [False, True])
def test_the_pod_waits_for_its_certificate_and_is_probed_with_tls(*, with_tls: bool) -> None:
    cluster: Object = {"apiVersion": "stele.dev/v1alpha1", "metadata": {"name": "demo", "uid": "1-2-3"}}
    spec = manifest(cluster, "2Gi", {"image": "i"}, with_tls=with_tls)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    secrets = [each["secret"] for each in spec["volumes"] if "secret" in each]
    assert [(each["secretName"], each.get("optional", False)) for each in secrets] == [(SECRET, False)][
        : int(with_tls)
    ]
    assert ("--tls-folder" in container["args"]) == with_tls
    probed = container["readinessProbe"]["httpGet"]
    assert (probed["path"], probed.get("scheme")) == ("/healthz", "HTTPS" if with_tls else None)
    assert json.dumps(spec).count(TLS_FOLDER) == 2 * with_tls
