"""`kubectl stele` where members take TLS: through a forwarded port, with the admin certificate."""

import base64
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stele.adapters.tls.http_site import tls_required
from stele.core.security.identity import Role
from stele.core.security.level import STEPS, InternalTls
from tests.cli.conftest import Run
from tests.cli.test_tablets import Shell
from tests.fakes.http import serving
from tests.fakes.pki import FakeCa, Leaf, identity, shared_ca
from tests.fakes.pod_proxy import fake_api
from tests.member.harness.clients import Client
from tests.member.harness.cluster import CLUSTER, Cluster, eventually, key_in
from tests.member.test_member_tls import secured, tell

ADMIN = identity(Role.ADMIN, "admin", CLUSTER)


def secret(leaf: Leaf) -> dict[str, Any]:
    data = {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": shared_ca().certificate}
    return {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}


def objects(level: InternalTls, shown: dict[str, Any] | None) -> dict[str, Any]:
    """What the API server has; the Secret of nobody's may not be read."""
    cluster = {
        "apiVersion": "stele.dev/v1alpha1",
        "kind": "TabletCluster",
        "metadata": {"name": "demo", "namespace": "ns", "uid": CLUSTER},
        "spec": {"members": 2, "storage": {"size": "1Gi"}},
        "status": {"security": {"members": str(level)}},
    }
    members = {f"tabletmembers/m{index}": {"spec": {"cluster": "demo"}} for index in (0, 1)}
    return {"tabletclusters/demo": cluster, **members, "secrets/demo-admin-tls": shown}


@asynccontextmanager
async def reached(folder: Path, level: InternalTls, number: int = 2) -> AsyncIterator[Cluster]:
    async with secured(folder, number) as members:
        for step in STEPS[1 : STEPS.index(level) + 1]:
            await tell(members, step)
        yield members


@asynccontextmanager
async def shell(
    run: Run,
    folder: Path,
    members: Cluster,
    known: dict[str, Any],
    *,
    swapped: bool = False,
    forbidden: Collection[str] = (),
) -> AsyncIterator[Shell]:
    places = {i: f"http://{each.host}:{each.ports[2]}" for i, each in members.members.items()}
    pods = {f"m{1 - index if swapped else index}:7001": place for index, place in places.items()}
    async with fake_api(folder, pods, known, forbidden=forbidden) as path:
        yield Shell(run, path)


def audit(members: Cluster) -> list[str]:
    return [line for line in members.members[0].log().splitlines() if "stele.audit" in line]


@pytest.mark.parametrize("level", [InternalTls.DIAL, InternalTls.REQUIRED])
async def test_commands_are_sent_with_the_admin_certificate(
    run: Run, tmp_path: Path, level: InternalTls
) -> None:
    async with reached(tmp_path, level) as members:
        async with shell(run, tmp_path, members, objects(level, secret(ADMIN))) as ask:
            assert (await ask("tablet", "m0", "0", "-o", "json")).json["partition"] == 0
            purged = await ask("quarantine", "purge", "m0", "0/7", "--yes")
            assert "already gone" in purged.out
        (line,) = audit(members)
        assert f'"who": "stele://{CLUSTER}/admin/admin", "method": "DELETE"' in line


@pytest.mark.parametrize(
    ("level", "forbidden"), [(InternalTls.REQUIRED, ()), (InternalTls.DIAL, ("portforward",))]
)
async def test_entries_are_dumped_through_a_forwarded_port_or_the_proxy(
    run: Run, tmp_path: Path, level: InternalTls, forbidden: tuple[str, ...]
) -> None:
    async with (
        reached(tmp_path, level, 3) as members,
        shell(run, tmp_path, members, objects(level, secret(ADMIN)), forbidden=forbidden) as ask,
    ):
        for number in range(3):
            assert await Client(members).set(0, key_in(0, 12, number), b"v")
        await members.move_owner(0, 2)

        async def listed() -> list[dict[str, int]]:
            found: list[dict[str, int]] = (await ask("quarantine", "list", "m0", "-o", "json")).json[
                "tablets"
            ]
            return found

        (tablet,) = await eventually(listed, lambda found: bool(found) and found[0]["entries"] == 3)
        dumped = await ask("quarantine", "dump", "m0", f"0/{tablet['generation']}")
        assert (dumped.code, len(dumped.out.splitlines())) == (0, 3)


WITHOUT = {
    "no right": (None, "you may not read Secret demo-admin-tls"),
    "empty": ({"data": {}}, "demo-admin-tls has no usable certificate ('tls.crt')"),
    "no PEM": ({"data": dict.fromkeys(("tls.crt", "tls.key", "ca.crt"), "AAAA")}, "no usable certificate"),
}


@pytest.mark.parametrize("without", WITHOUT)
@pytest.mark.parametrize("level", [InternalTls.ACCEPT, InternalTls.DIAL, InternalTls.REQUIRED])
async def test_without_a_certificate_the_member_says_whether_it_takes_them(
    run: Run, tmp_path: Path, level: InternalTls, without: str
) -> None:
    shown, why = WITHOUT[without]

    async def refuse(request: web.Request) -> web.Response:
        raise tls_required("show a certificate")

    app = web.Application()
    app.router.add_get("/v1/tablets/0", refuse)
    async with serving(app) as url, fake_api(tmp_path, {"m0:7001": url}, objects(level, shown)) as path:
        ran = await Shell(run, path)("tablet", "m0", "0")
        assert (ran.code != 0, "m0 takes only TLS: " in ran.err) == (True, True)
        assert (why if level.dials_tls else "show a certificate") in ran.err


async def test_below_required_they_are_sent_plain(run: Run, tmp_path: Path) -> None:
    level = InternalTls.ACCEPT
    async with (
        reached(tmp_path, level) as members,
        shell(run, tmp_path, members, objects(level, secret(ADMIN))) as ask,
    ):
        assert (await ask("tablet", "m0", "0", "-o", "json")).json["partition"] == 0
        await ask("quarantine", "purge", "m0", "0/7", "--yes")
        assert '"who": "anonymous 127.0.0.1"' in audit(members)[0]


async def test_who_may_not_forward_ports_goes_through_the_proxy_below_required(
    run: Run, tmp_path: Path
) -> None:
    level, known = InternalTls.DIAL, objects(InternalTls.DIAL, secret(ADMIN))
    async with reached(tmp_path, level, 3) as members:
        async with shell(run, tmp_path, members, known, forbidden=["portforward"]) as ask:
            assert (await ask("tablet", "m0", "0", "-o", "json")).json["partition"] == 0
            await ask("quarantine", "purge", "m0", "0/7", "--yes")
        assert '"who": "anonymous 127.0.0.1"' in audit(members)[0]
        async with shell(run, tmp_path, members, known, forbidden=["portforward", "proxy"]) as ask:
            for words in (("tablet", "m0", "0"), ("quarantine", "dump", "m0", "0/7")):
                ran = await ask(*words)
                assert ran.code != 0
                assert "pods/proxy is forbidden" in ran.err
                assert "the right to get and create pods/portforward" in ran.err


async def test_at_required_who_may_not_forward_ports_is_told_so(run: Run, tmp_path: Path) -> None:
    level = InternalTls.REQUIRED
    async with (
        reached(tmp_path, level) as members,
        shell(run, tmp_path, members, objects(level, secret(ADMIN)), forbidden=["portforward"]) as ask,
    ):
        for words in (("tablet", "m0", "0"), ("quarantine", "dump", "m0", "0/7")):
            ran = await ask(*words)
            assert (ran.code != 0, "create pods/portforward" in ran.err, "Traceback" in ran.err) == (
                True,
                True,
                False,
            )


async def test_other_certificates_are_refused(run: Run, tmp_path: Path) -> None:
    level = InternalTls.REQUIRED
    async with reached(tmp_path, level) as members:
        for leaf, text in (
            (identity(Role.ADMIN, "admin", CLUSTER, ca=FakeCa("other")), "pod m0"),
            (identity(Role.ADMIN, "admin", CLUSTER, days=-1), "certificate has expired"),
            (identity(Role.MEMBER, "m1", CLUSTER), "it is a member; expected admin"),
        ):
            async with shell(run, tmp_path, members, objects(level, secret(leaf))) as ask:
                ran = await ask("tablet", "m0", "0")
                assert (ran.code != 0, text in ran.err, "Traceback" in ran.err) == (True, True, False)


async def test_another_member_in_the_place_of_one_is_not_asked(run: Run, tmp_path: Path) -> None:
    level = InternalTls.REQUIRED
    async with (
        reached(tmp_path, level) as members,
        shell(run, tmp_path, members, objects(level, secret(ADMIN)), swapped=True) as ask,
    ):
        ran = await ask("quarantine", "purge", "m1", "0/7", "--yes")
        assert "not m1: it is m0; expected m1" in ran.err
        assert audit(members) == []


async def test_a_pod_that_does_not_answer_is_said(run: Run, tmp_path: Path) -> None:
    level = InternalTls.REQUIRED
    async with (
        reached(tmp_path, level) as members,
        shell(run, tmp_path, members, objects(level, secret(ADMIN))) as ask,
    ):
        await members.members[0].kill()
        ran = await ask("tablet", "m0", "0")
        assert (ran.code != 0, "error forwarding port 7001" in ran.err) == (True, True)
