"""Certificates of a cluster, checked by OpenSSL in handshakes as members and clients make them."""

import re
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from stele.adapters.pki.certificates import (
    Names,
    Pair,
    canonical_host,
    check_pair,
    is_signed_by,
    make_authority,
    read_certificate,
    sign_leaf,
)
from stele.errors import Corrupt
from tests.fakes.pki import EDITS, edited, shake_hands

NOW = 1_800_000_000.0
DAY = 86_400
NAMES = Names(
    "demo-0", ("stele://u/member/demo-0",), ("demo", "demo-0.demo-members.shop.svc", "localhost", "127.0.0.1")
)
CA = make_authority("stele demo", NOW, 5 * 365)
LEAF = sign_leaf(CA, NAMES, NOW, 30)


def openssl(*words: str) -> str:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def handshake(folder: Path, leaf: Pair, trusted: bytes, host: str) -> str:
    """Both ends check the other, at the time of the machine; returns the URI that the client sees."""
    (folder / "leaf").write_bytes(leaf.certificate + leaf.key)
    (folder / "ca").write_bytes(trusted)
    ends = []
    for purpose in (ssl.Purpose.SERVER_AUTH, ssl.Purpose.CLIENT_AUTH):
        context = ssl.create_default_context(purpose, cafile=str(folder / "ca"))
        context.load_cert_chain(str(folder / "leaf"))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.verify_mode = ssl.CERT_REQUIRED
        ends.append(context)
    client, server = shake_hands(*ends, host)
    assert server.getpeercert()
    found = client.getpeercert()
    assert found is not None
    (uri,) = [value for kind, value in found["subjectAltName"] if kind == "URI"]  # type: ignore[misc]
    return str(uri)


@pytest.fixture
def now() -> float:
    return time.time()


@pytest.mark.parametrize("host", ["demo", "demo-0.demo-members.shop.svc", "localhost", "127.0.0.1"])
def test_servers_and_clients_take_a_leaf_of_the_ca_for_its_hosts(
    tmp_path: Path, now: float, host: str
) -> None:
    ca = make_authority("stele demo", now, 5 * 365)
    assert handshake(tmp_path, sign_leaf(ca, NAMES, now, 30), ca.certificate, host) == NAMES.uris[0]


@pytest.mark.parametrize("case", ["other CA", "other host", "expired", "not yet"])
def test_openssl_refuses_what_does_not_fit(tmp_path: Path, now: float, case: str) -> None:
    ca, other = make_authority("stele demo", now, 365), make_authority("stele demo", now, 365)
    made = {"expired": now - 31 * DAY, "not yet": now + DAY}.get(case, now)
    trusted = other if case == "other CA" else ca
    host = "shop" if case == "other host" else "demo"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, sign_leaf(ca, NAMES, made, 30), trusted.certificate, host)


def test_extensions_are_those_that_strict_programs_ask_for(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(CA.certificate)
    (tmp_path / "leaf.pem").write_bytes(LEAF.certificate)
    leaf = openssl("x509", "-in", str(tmp_path / "leaf.pem"), "-noout", "-text")
    ca = openssl("x509", "-in", str(tmp_path / "ca.pem"), "-noout", "-text")
    assert "ASN1 OID: prime256v1" in leaf
    assert "TLS Web Server Authentication, TLS Web Client Authentication" in leaf
    assert re.search(r"Basic Constraints: critical\s+CA:FALSE", leaf)
    assert re.search(r"Basic Constraints: critical\s+CA:TRUE, pathlen:0", ca)
    assert re.search(r"Key Usage: critical\s+Certificate Sign, CRL Sign", ca)
    assert "Authority Key Identifier" in leaf
    assert "Subject Key Identifier" in leaf
    strict = ("verify", "-x509_strict", "-attime", str(int(NOW + DAY)), "-CAfile", str(tmp_path / "ca.pem"))
    assert openssl(*strict, str(tmp_path / "leaf.pem")).endswith("leaf.pem: OK\n")


def test_what_was_signed_is_read_again() -> None:
    facts, issuer = read_certificate(LEAF.certificate), read_certificate(CA.certificate)
    assert (facts.uris, facts.hosts) == (NAMES.uris, NAMES.hosts)
    assert (facts.begins, facts.ends) == (NOW - 3600, NOW + 30 * DAY)
    assert issuer.ends == NOW + 5 * 365 * DAY
    assert facts.issuer_key_id == issuer.key_id
    assert issuer.key_id not in (b"", facts.key_id)


def test_a_leaf_ends_with_its_ca() -> None:
    late = NOW + 5 * 365 * DAY - DAY
    assert read_certificate(sign_leaf(CA, NAMES, late, 30).certificate).ends == NOW + 5 * 365 * DAY


def test_who_has_signed_is_told_by_the_signature_and_not_by_the_name() -> None:
    other = make_authority("stele demo", NOW, 5 * 365)
    assert is_signed_by(LEAF.certificate, CA.certificate)
    assert not is_signed_by(LEAF.certificate, other.certificate)
    assert not is_signed_by(CA.certificate, LEAF.certificate)


def test_what_cannot_be_used_is_corrupt() -> None:
    other = make_authority("stele demo", NOW, 365)
    check_pair(LEAF)
    for pair in (Pair(LEAF.certificate, other.key), Pair(b"x", LEAF.key), Pair(LEAF.certificate, b"x")):
        with pytest.raises(Corrupt):
            check_pair(pair)
    with pytest.raises(Corrupt, match="the key of the CA"):
        sign_leaf(Pair(CA.certificate, other.key), NAMES, NOW, 30)
    for text in (b"", b"x", LEAF.key, LEAF.certificate[:300]):
        with pytest.raises(Corrupt):
            read_certificate(text)
    assert b"PRIVATE" not in repr(LEAF).encode()


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_certificate_is_corrupt_or_not_signed_and_raises_nothing_else(what: str) -> None:
    odd, odd_ca = edited(LEAF.certificate, what), edited(CA.certificate, what)
    found = []
    for work in (
        lambda: read_certificate(odd),
        lambda: check_pair(Pair(odd, LEAF.key)),
        lambda: is_signed_by(odd, CA.certificate),
        lambda: is_signed_by(LEAF.certificate, odd_ca),
        lambda: sign_leaf(Pair(odd_ca, CA.key), NAMES, NOW, 30),
    ):
        try:
            found.append(work())
        except Corrupt:
            found.append(False)
    assert False in found


@pytest.mark.parametrize("late", [0, 7200, 30 * DAY])
def test_a_ca_that_has_ended_signs_nothing(late: int) -> None:
    with pytest.raises(Corrupt, match="the CA ended at"):
        sign_leaf(CA, NAMES, NOW + 5 * 365 * DAY + late, 30)


@pytest.mark.parametrize("host", ["2001:DB8:0:0::1", "::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.1", "shop"])
def test_a_host_is_read_as_it_was_made_canonical(host: str) -> None:
    leaf = sign_leaf(CA, Names("demo-0", (), (host,)), NOW, 30)
    assert read_certificate(leaf.certificate).hosts == (canonical_host(host),)
    assert canonical_host(canonical_host(host)) == canonical_host(host)
