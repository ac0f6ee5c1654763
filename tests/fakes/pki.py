"""Certificate authorities and leaves for tests, as folders like those that the kubelet mounts."""

import base64
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from stele.adapters.pki.certificates import Names, make_authority, sign_leaf
from stele.core.security.identity import Holder, Role

EDITS = {
    "version": ("a003020102", "a003020104"),
    "curve": ("2a8648ce3d030107", "2a8648ce3d030177"),
    "signature": ("2a8648ce3d040302", "2a8648ce3d040377"),
    "extension": ("0603551d0e", "0603551d77"),
}
"""What is changed in a certificate so that it still has the form of one, in hex digits."""


def edited(certificate: bytes, what: str) -> bytes:
    """Return a certificate with something in it that no library knows."""
    before, after = map(bytes.fromhex, EDITS[what])
    _, *lines, _ = certificate.splitlines()
    found = base64.b64decode(b"".join(lines))
    assert before in found
    body = base64.encodebytes(found.replace(before, after))
    return b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"


LEAF_DAYS = 30
CA_DAYS = 5 * 365
DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Leaf:
    """A certificate with its key, both PEM, and the trusted CAs that are mounted with it."""

    certificate: bytes
    key: bytes
    trusted: bytes

    def write(self, folder: Path) -> Path:
        """Write the files of a Secret of type kubernetes.io/tls."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (("tls.crt", self.certificate), ("tls.key", self.key), ("ca.crt", self.trusted)):
            (folder / name).write_bytes(content)
        return folder


def shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, host: str
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Return both ends of a connection in memory. Raises SSLError where one does not take the other."""
    left, right = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(left, right, server_hostname=host),
        server.wrap_bio(right, left, server_side=True),
    )
    for _ in range(4):
        for side in ends:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return ends


class FakeCa:
    """A CA, which ends in so many days."""

    def __init__(self, name: str = "stele test CA", days_left: int = CA_DAYS - 365) -> None:
        self._pair = make_authority(name, time.time() + (days_left - CA_DAYS) * DAY_SECONDS, CA_DAYS)
        self.certificate = self._pair.certificate

    def leaf(self, name: str = "demo-0", *, uris: Iterable[str] = (), days: int = LEAF_DAYS) -> Leaf:
        """Sign a leaf that ends in so many days, negative ones for one that has ended."""
        names = Names(name, tuple(uris), ("localhost", "127.0.0.1"))
        begin = time.time() + (days - LEAF_DAYS) * DAY_SECONDS
        pair = sign_leaf(self._pair, names, begin, LEAF_DAYS)
        return Leaf(pair.certificate, pair.key, self.certificate)

    def signed_again(self, leaf: Leaf, before: bytes, after: bytes) -> Leaf:
        """Sign a leaf of this CA with other bytes in it, as many as before, which no library would write."""
        (found,) = x509.load_pem_x509_certificates(leaf.certificate)
        assert before in found.tbs_certificate_bytes
        assert len(before) == len(after)
        body = found.tbs_certificate_bytes.replace(before, after)
        key = serialization.load_pem_private_key(self._pair.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        signature = key.sign(body, ec.ECDSA(hashes.SHA256()))
        whole = _der(0x30, body + ECDSA_SHA256 + _der(0x03, b"\0" + signature))
        return Leaf(ssl.DER_cert_to_PEM_cert(whole).encode(), leaf.key, leaf.trusted)


ECDSA_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes((size,)) if size < 128 else b"\x82" + size.to_bytes(2, "big")
    return bytes((tag,)) + length + content


def identity(role: Role, name: str, cluster: str, *, ca: FakeCa | None = None, days: int = LEAF_DAYS) -> Leaf:
    """A certificate of a part of a cluster. Of another CA, too, its holder trusts the shared one."""
    made = (ca or shared_ca()).leaf(name, uris=[Holder(cluster, role, name).uri], days=days)
    return Leaf(made.certificate, made.key, made.trusted + shared_ca().certificate)


@cache
def shared_ca() -> FakeCa:
    """The CA that tests share unless they need two."""
    return FakeCa()
