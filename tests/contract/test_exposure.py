"""The Service of clients as spec.resp has it, on either API server: what others set on it stays."""

import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stele.adapters.kubernetes.api import SERVICES
from stele.adapters.pki.certificates import read_certificate
from stele.master import manifests
from stele.master.applied import APPLIED
from stele.model import TabletCluster
from tests.contract.test_certificates import SETTINGS, TLS, Scene
from tests.fakes.spec import MINIMAL

FIELDS: dict[str, Any] = {
    "serviceType": "LoadBalancer",
    "annotations": {"example.com/internal": "true", "example.com/size": "small"},
    "labels": {"team": "shop", "tier": "data"},
    "loadBalancerClass": "example.com/balancer",
    "loadBalancerSourceRanges": ["203.0.113.0/24"],
    "externalTrafficPolicy": "Local",
    "ipFamilyPolicy": "PreferDualStack",
}
OF_SPEC = ("loadBalancerClass", "loadBalancerSourceRanges", "externalTrafficPolicy", "ipFamilyPolicy")


@pytest.fixture
async def scene(place: tuple[Any, str]) -> Scene:
    return Scene(*place)


async def service(scene: Scene) -> dict[str, Any]:
    return dict(await scene.api.get(SERVICES, scene.namespace, "demo"))


async def edited(scene: Scene, spec: dict[str, Any] | None = None, **meta: dict[str, str]) -> None:
    """Somebody else writes annotations, labels or fields."""
    stored = await service(scene)
    metadata = {**stored["metadata"]}
    for part, more in meta.items():
        metadata[part] = metadata.get(part, {}) | more
    changed = {**stored, "metadata": metadata, "spec": stored["spec"] | (spec or {})}
    await scene.api.replace(SERVICES, scene.namespace, changed)


async def test_the_service_that_is_there_gets_what_the_spec_adds(scene: Scene) -> None:
    await scene.begin()
    await scene.round()
    before = await service(scene)
    await scene.change(resp=FIELDS)
    await scene.round()
    after = await service(scene)
    same = ("uid", "ownerReferences", "creationTimestamp")
    assert [after["metadata"].get(each) for each in same] == [before["metadata"].get(each) for each in same]
    assert after["spec"].get("clusterIP") == before["spec"].get("clusterIP")
    assert after["metadata"]["annotations"].items() >= FIELDS["annotations"].items()
    assert after["metadata"]["labels"] == before["metadata"]["labels"] | FIELDS["labels"]
    assert {name: after["spec"][name] for name in OF_SPEC} == {name: FIELDS[name] for name in OF_SPEC}
    await scene.round()
    scene.restart()
    await scene.round()
    assert await service(scene) == after, "nothing is left to write"


async def test_what_is_taken_away_goes_and_what_others_set_stays(scene: Scene) -> None:
    await scene.begin(resp=FIELDS)
    await scene.round()
    others = {"cloud.example.com/id": "lb-7"}
    await edited(scene, {"sessionAffinity": "ClientIP"}, annotations=others, labels=others)
    scene.restart()
    fewer = {"annotations": {"example.com/size": "large"}, "labels": {"tier": "data"}}
    await scene.change(resp={"serviceType": "NodePort"} | fewer)
    await scene.round()
    kept = await service(scene)
    note = kept["metadata"]["annotations"].pop(APPLIED)
    assert note == '{"annotations":["example.com/size"],"labels":["tier"]}'
    assert kept["metadata"]["annotations"] == others | {"example.com/size": "large"}
    assert "team" not in kept["metadata"]["labels"]
    assert kept["metadata"]["labels"].items() >= (others | {"tier": "data"}).items()
    assert (kept["spec"]["type"], kept["spec"]["sessionAffinity"]) == ("NodePort", "ClientIP")
    assert kept["spec"].get("externalTrafficPolicy", "Cluster") == "Cluster"
    assert not {"loadBalancerClass", "loadBalancerSourceRanges"} & kept["spec"].keys()
    assert kept["spec"]["ipFamilyPolicy"] == "SingleStack"

    await scene.change(resp={})
    await scene.round()
    left = await service(scene)
    assert left["metadata"]["annotations"] == others
    assert (left["spec"]["type"], left["spec"]["sessionAffinity"]) == ("ClusterIP", "ClientIP")


async def test_fields_that_only_others_have_set_stay(scene: Scene) -> None:
    await scene.begin(resp={"serviceType": "NodePort"})
    await scene.round()
    own = {"externalTrafficPolicy": "Local"}
    await edited(scene, own, annotations={"example.com/size": "small"})
    await scene.change(resp={"serviceType": "NodePort", "labels": {"team": "shop"}})
    await scene.round()
    await scene.change(resp={"serviceType": "NodePort"})
    await scene.round()
    found = await service(scene)
    assert found["spec"]["externalTrafficPolicy"] == "Local"
    assert found["metadata"]["annotations"] == {"example.com/size": "small"}
    assert "team" not in found["metadata"]["labels"]


@pytest.mark.parametrize("note", ["", "none", "[]", '{"labels": 7}', '{"spec": null}'])
async def test_a_note_that_others_wrote_over_takes_nothing_away(scene: Scene, note: str) -> None:
    await scene.begin(resp={"annotations": {"example.com/size": "small"}})
    await scene.round()
    await edited(scene, annotations={APPLIED: note})
    await scene.change(resp={})
    await scene.round()
    assert (await service(scene))["metadata"]["annotations"] == {"example.com/size": "small"}


def test_members_are_not_restarted_for_it() -> None:
    def pods(**resp: Any) -> str:
        spec = MINIMAL["spec"] | {"resp": resp}
        cluster = TabletCluster.model_validate(MINIMAL | {"spec": spec})
        return manifests.member_revision(cluster, SETTINGS.members)

    assert pods(**FIELDS) == pods()


async def test_an_open_load_balancer_is_told_until_it_is_guarded(scene: Scene) -> None:
    await scene.begin(resp={"serviceType": "LoadBalancer"})
    await scene.round(2)
    status, reason, text = await scene.condition("Secured")
    assert (status, reason) == ("False", "OpenLoadBalancer")
    assert "spec.security.clients.tls and spec.security.clients.auth are Off: list the blocks of your" in text
    assert (await scene.condition("Stalled"))[0] == "False"
    await scene.change(resp={"serviceType": "LoadBalancer", "loadBalancerSourceRanges": ["10.0.0.0/8"]})
    await scene.round()
    assert (await scene.condition("Secured"))[1] == "NotAsked"
    await scene.change(resp={"serviceType": "LoadBalancer"}, security={"clients": {"tls": "Required"}})
    await scene.round()
    status, reason, text = await scene.condition("Secured")
    assert reason == "OpenLoadBalancer"
    assert "spec.security.clients.auth is Off" in text
    assert "clients.tls" not in text


async def verified(scene: Scene, host: str) -> bool:
    """Whether a client that knows the CA takes the certificate of a member for this host."""
    files = await scene.data("demo-0-tls")
    trusts = ssl.create_default_context(cadata=(await scene.data("demo-ca-cert"))["ca.crt"].decode())
    shows = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("tls.crt", "tls.key"):
            (folder / name).write_bytes(files[name])
        shows.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusts.wrap_bio(to_client, to_server, server_hostname=host)
    server = shows.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return client.version() is not None


HOSTS = ["Redis.Example.com", "*.redis.example.com", "203.0.113.7", "2001:DB8::7"]


async def test_members_have_the_names_that_clients_verify(scene: Scene) -> None:
    scene.now = datetime.now(UTC)
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    assert await verified(scene, f"demo.{scene.namespace}")
    assert not await verified(scene, "redis.example.com")
    before = read_certificate((await scene.data("demo-0-tls"))["tls.crt"]).hosts
    await scene.change(security={"clients": {"tls": "Required", "hosts": HOSTS}})
    await scene.rounds_until_quiet()
    assert scene.told == "Required", "TLS goes on while certificates change"
    for host in ("redis.example.com", "eu.redis.example.com", "203.0.113.7", "2001:db8::7"):
        assert await verified(scene, host), host
    assert not await verified(scene, "other.example.com")
    await scene.change(security={"clients": {"tls": "Required"}})
    await scene.rounds_until_quiet()
    assert read_certificate((await scene.data("demo-0-tls"))["tls.crt"]).hosts == before
