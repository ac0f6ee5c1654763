"""Leaves of a CA that a user brings, in handshakes of OpenSSL with what members and clients trust."""

import ssl
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from stele.adapters.pki.certificates import (
    AUTHORITY_CERTIFICATES_MAX,
    Names,
    Pair,
    chain_of,
    issuer_of,
    read_authority,
    sign_leaf,
)
from stele.errors import Corrupt
from tests.fakes.brought_ca import BroughtCa, Key, brought_ca
from tests.fakes.pki import shake_hands

NAMES = Names("demo-0", ("stele://u/member/demo-0",), ("demo",))


def read(made: BroughtCa, now: float) -> Pair:
    return read_authority(made.certificate, made.key, made.root, now)


def shakes_hands(folder: Path, shown: bytes, key: bytes, trusted: bytes, flags: int = 0) -> None:
    """Raise SSLError unless a client that trusts this takes a server that shows that."""
    (folder / "shown").write_bytes(shown + key)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / "shown")
    client_context = ssl.create_default_context(cadata=trusted.decode())
    client_context.verify_flags |= ssl.VerifyFlags(flags)
    client, _ = shake_hands(client_context, server_context, "demo")
    assert client.getpeercert()


@pytest.mark.parametrize("key", [None, rsa.generate_private_key(65537, 2048)])
@pytest.mark.parametrize("key_id", [b"", b"of another program"])
def test_its_leaves_are_taken_by_who_trusts_the_root_or_the_ca_alone(
    tmp_path: Path, key: Key | None, key_id: bytes
) -> None:
    now = time.time()
    made = brought_ca(now, key=key, key_id=key_id)
    authority = read(made, now)
    leaf = sign_leaf(authority, NAMES, now, 30)
    shown = leaf.certificate + chain_of(authority)
    shakes_hands(tmp_path, shown, leaf.key, made.root)
    shakes_hands(tmp_path, shown, leaf.key, issuer_of(authority), ssl.VERIFY_X509_PARTIAL_CHAIN)
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(tmp_path, shown, leaf.key, brought_ca(now).root)
    with pytest.raises(ssl.SSLCertVerificationError):
        shakes_hands(tmp_path, leaf.certificate, leaf.key, made.root)


def test_what_is_above_it_is_kept_once_in_any_form() -> None:
    now = time.time()
    made = brought_ca(now)
    alone = read_authority(made.certificate, made.key, b"", now)
    assert alone.certificate == issuer_of(alone) == made.certificate
    whole = read_authority(
        b"# Gr\xc3\xb6\xc3\x9fe\n" + made.certificate + made.root, made.key, made.root, now
    )
    assert whole.certificate == made.certificate + made.root
    assert chain_of(whole) == made.certificate


def test_what_cannot_sign_is_refused_with_the_reason() -> None:
    now = time.time()
    good = brought_ca(now)
    small = rsa.generate_private_key(65537, 1024)
    other = brought_ca(now)
    many = b"".join(brought_ca(now).root for _ in range(AUTHORITY_CERTIFICATES_MAX))
    for certificate, key, above, text in (
        (good.certificate, other.key, b"", "not that of the first certificate"),
        (good.root + good.certificate, good.key, b"", "not that of the first certificate"),
        (good.certificate, good.key, many, f"at most {AUTHORITY_CERTIFICATES_MAX}"),
        (brought_ca(now, key=small).certificate, brought_ca(now, key=small).key, b"", "1024 bits"),
        (b"", good.key, b"", "certificate"),
        (b"nothing", good.key, b"", "certificate"),
        (good.certificate, b"nothing", b"", "unencrypted PEM"),
        (good.certificate, good.key, b"nothing", "certificate"),
    ):
        with pytest.raises(Corrupt, match=text):
            read_authority(certificate, key, above, now)
    leaf = brought_ca(now, is_ca=False)
    with pytest.raises(Corrupt, match="not one of a CA"):
        read(leaf, now)
    with pytest.raises(Corrupt, match="ended at"):
        read(brought_ca(now, days=-1), now)


def test_a_key_of_another_kind_is_refused() -> None:
    key = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    now = time.time()
    with pytest.raises(Corrupt, match="neither of an elliptic curve nor RSA"):
        read_authority(brought_ca(now).certificate, key, b"", now)
