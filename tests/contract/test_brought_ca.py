"""A CA that a user brings in a Secret, on either API server."""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import PrivateFormat

from stele.adapters.kubernetes.api import SECRETS
from stele.adapters.pki.certificates import is_signed_by
from stele.master.certificates import RENEW_CA
from tests.contract.test_certificates import NOON, TLS, Scene, split
from tests.fakes.brought_ca import PKCS1, PKCS8, Key, brought_ca

NOW = NOON.timestamp()
FIELD = "spec.security.ca.secretName"
OWN = {"security": TLS["security"] | {"ca": {"secretName": "mine"}}}


@pytest.fixture
async def scene(place: tuple[Any, str]) -> Scene:
    return Scene(*place)


async def bring(scene: Scene, data: Mapping[str, bytes], name: str = "mine", type: str = "Opaque") -> None:
    """Somebody, such as cert-manager, writes the Secret."""
    coded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    meta = {"name": name, "namespace": scene.namespace}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": type, "data": coded}
    found = await scene.api._api.find(SECRETS, scene.namespace, name)
    if found is None:
        await scene.api._api.create(SECRETS, scene.namespace, body)
    else:
        await scene.api._api.replace(SECRETS, scene.namespace, {**found, "data": coded})
    scene.restart()


async def is_in_use(scene: Scene, certificate: bytes) -> bool:
    leaves = [await scene.data(f"demo-{index}-tls") for index in (0, 1)]
    return all(is_signed_by(each["tls.crt"], certificate) for each in leaves)


async def test_a_new_cluster_begins_with_the_ca_that_is_brought(scene: Scene) -> None:
    mine = brought_ca(NOW)
    await bring_and_begin(scene, mine.data)
    leaf = await scene.data("demo-0-tls")
    assert await is_in_use(scene, mine.certificate)
    assert split(leaf["tls.crt"])[1:] == [mine.certificate]
    assert leaf["ca.crt"] == mine.certificate
    assert (await scene.data("demo-ca-cert"))["ca.crt"] == mine.certificate + mine.root
    assert (await scene.condition("CertificatesHealthy"))[0] == "True"


async def bring_and_begin(scene: Scene, data: Mapping[str, bytes], type: str = "Opaque") -> None:
    await scene.begin()
    await bring(scene, data, type=type)
    await scene.change(**OWN)
    await scene.rounds_until_quiet()


KEYS: dict[str, Callable[[], Key]] = {
    "ECDSA 256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ECDSA 384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ECDSA 521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "RSA 2048": lambda: rsa.generate_private_key(65537, 2048),
    "RSA 4096": lambda: rsa.generate_private_key(65537, 4096),
}


@pytest.mark.parametrize("form", [PKCS1, PKCS8], ids=["PKCS1", "PKCS8"])
@pytest.mark.parametrize("kind", KEYS)
async def test_a_secret_of_cert_manager_is_taken_whatever_its_key(
    scene: Scene, kind: str, form: PrivateFormat
) -> None:
    mine = brought_ca(NOW, key=KEYS[kind](), form=form)
    await bring_and_begin(scene, mine.as_cert_manager_writes(formats=form is PKCS8), type="kubernetes.io/tls")
    assert await is_in_use(scene, mine.certificate)
    assert (await scene.data("demo-ca-cert"))["ca.crt"] == mine.certificate + mine.root
    assert (await scene.condition("CertificatesHealthy"))[0] == "True"


async def test_a_renewal_that_keeps_its_key_is_another_ca_that_is_taken(scene: Scene) -> None:
    """`rotationPolicy: Never`, the default of cert-manager before 1.18."""
    key = KEYS["ECDSA 256"]()
    await bring_and_begin(scene, brought_ca(NOW, key=key).data)
    renewed = brought_ca(NOW, key=key, days=700)
    await bring(scene, renewed.data)
    await scene.change(annotations={RENEW_CA: "now"}, **OWN)
    await scene.rounds_until_quiet()
    scene.check_trust()
    assert split((await scene.data("demo-0-tls"))["ca.crt"]) == [renewed.certificate]


@pytest.mark.parametrize("hurries", [True, False])
async def test_a_running_cluster_changes_to_it_step_by_step(scene: Scene, hurries: bool) -> None:
    await scene.begin(**TLS)
    await scene.rounds_until_quiet()
    mine = brought_ca(NOW)
    await bring(scene, mine.data)
    await scene.change(annotations={RENEW_CA: "now"} if hurries else {}, **OWN)
    for _ in range(12):
        await scene.round()
        await scene.load(0)
        scene.check_trust()
        await scene.load(1)
        scene.check_trust()
    assert await is_in_use(scene, mine.certificate) is hurries
    trusted = split((await scene.data("demo-1-tls"))["ca.crt"])
    assert (mine.certificate in trusted, len(trusted)) == (True, 1 if hurries else 2)
    assert mine.root not in trusted


async def test_a_brought_ca_that_was_renewed_is_taken_and_the_one_before_is_dropped(scene: Scene) -> None:
    await bring_and_begin(scene, brought_ca(NOW).data)
    for wrong in (True, False):
        renewed = brought_ca(NOW)
        await bring(scene, renewed.data)
        await scene.change(annotations={} if wrong else {RENEW_CA: "now"}, **OWN)
        await scene.rounds_until_quiet()
        scene.check_trust()
    await scene.rounds_until_quiet()
    assert await is_in_use(scene, renewed.certificate)
    assert split((await scene.data("demo-0-tls"))["ca.crt"]) == [renewed.certificate]


async def test_a_ca_that_cannot_be_used_is_named_and_the_one_in_use_stays(scene: Scene) -> None:
    await scene.begin()
    await scene.change(**OWN)
    await scene.round(2)
    status, _, text = await scene.condition("CertificatesHealthy")
    assert (status, FIELD in text, "no Secret mine" in text) == ("False", True, True)
    assert not await scene.exists("demo-ca")

    mine = brought_ca(NOW)
    await bring(scene, mine.data)
    await scene.rounds_until_quiet()
    assert await is_in_use(scene, mine.certificate)
    for data, expected in (
        ({"tls.crt": mine.certificate}, "has no tls.key"),
        (mine.data | {"tls.key": brought_ca(NOW).key}, "not that of the first certificate"),
        (brought_ca(NOW, is_ca=False).data, "not one of a CA"),
    ):
        await bring(scene, data)
        await scene.round(2)
        _, _, text = await scene.condition("CertificatesHealthy")
        assert FIELD in text
        assert expected in text
        assert await is_in_use(scene, mine.certificate)


async def test_the_secret_of_the_operator_is_not_brought(scene: Scene) -> None:
    await scene.begin()
    await scene.change(security=TLS["security"] | {"ca": {"secretName": "demo-ca"}})
    await scene.round(2)
    assert "name one of your own" in (await scene.condition("CertificatesHealthy"))[2]
