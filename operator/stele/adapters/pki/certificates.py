"""Makes certificate authorities and leaves (ECDSA P-256, PEM), and reads what of them decides.

Making a key and signing takes less than a millisecond on most machines, but tens of them on a busy one: call
it outside of the event loop.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stele.errors import Corrupt

SKEW = timedelta(hours=1)
"""How long before its making a certificate is valid, for clocks that are behind."""
NAME_CHARACTERS_MAX = 64
"""Longest common name that X.509 allows."""
AUTHORITY_CERTIFICATES_MAX = 10
"""Certificates of a CA that a user brings: its own, and those above it."""
RSA_BITS_MIN = 2048
"""Shortest RSA key of a CA that a user brings."""

Extension = TypeVar("Extension", bound=x509.ExtensionType)
AnyKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

UNREADABLE = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises for certificates that people edited, or that other programs made."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both PEM. The key is never shown.

    A certificate may be followed by those above it, up to a root.
    """

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"Pair({self.certificate!r})"


@dataclass(frozen=True, slots=True)
class Names:
    """What a leaf says of its holder: names for people, for programs, and hosts (names or addresses)."""

    common: str
    uris: tuple[str, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a certificate says. Times are in Unix seconds; `key_id` and `issuer_key_id` are of public keys,
    empty where it says none."""

    begins: float
    ends: float
    key_id: bytes
    issuer_key_id: bytes
    uris: tuple[str, ...]
    hosts: tuple[str, ...]


@contextmanager
def _read() -> Iterator[None]:
    """Raise Corrupt for all that can be wrong with what a Secret has: nothing else ends a caller."""
    try:
        yield
    except UNREADABLE as error:
        raise Corrupt(f"certificate: {error}") from None


def canonical_host(host: str) -> str:
    """Return a host as a certificate has it: an address in its short form, without a zone."""
    try:
        return str(ip_address(ip_address(host).packed))
    except ValueError:
        return host


def make_authority(name: str, now: float, days: int) -> Pair:
    """Make a CA that signs leaves only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    builder = _builder(subject, subject, key.public_key(), now, now + timedelta(days=days).total_seconds())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=False, issues=True), critical=True)
    return _signed(builder.add_extension(_issued_by(key.public_key()), critical=False), key, key)


@_read()
def sign_leaf(authority: Pair, names: Names, now: float, days: int) -> Pair:
    """Make a key and its certificate, for servers and clients, that ends with the CA at the latest.

    Raises Corrupt when the CA cannot be read, does not fit its key, or has ended.
    """
    issuer, issuer_key = _certificate(authority.certificate), _key(authority.key)
    if issuer.public_key() != issuer_key.public_key():
        raise Corrupt("the key of the CA is not that of its certificate")
    ends = min(now + timedelta(days=days).total_seconds(), issuer.not_valid_after_utc.timestamp())
    if ends <= now:
        raise Corrupt(f"the CA ended at {issuer.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject(names.common), issuer.subject, key.public_key(), now, ends)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs=True, issues=False), True),
        (x509.ExtendedKeyUsage(usages), False),
        (_alternatives(names), False),
        (_issued_by(issuer_key.public_key(), issuer), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return _signed(builder, key, issuer_key)


@_read()
def read_certificate(pem: bytes) -> Facts:
    """Return what the first certificate says. Raises Corrupt."""
    found = _certificate(pem)
    own = _extension(found, x509.SubjectKeyIdentifier)
    issuer = _extension(found, x509.AuthorityKeyIdentifier)
    uris, hosts = _names_of(found)
    begins, ends = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    key_ids = own.digest if own else b"", (issuer and issuer.key_identifier) or b""
    return Facts(begins, ends, *key_ids, uris, hosts)


@_read()
def read_authority(certificates: bytes, key: bytes, above: bytes, now: float) -> Pair:
    """Return a CA that a user brings: its certificate, those above it, and its key.

    `certificates` begins with its own; `above` are further ones, such as the root. Raises Corrupt for what
    cannot sign leaves.
    """
    found = x509.load_pem_x509_certificates(certificates)
    found += x509.load_pem_x509_certificates(above) if above.strip() else []
    found = list(dict.fromkeys(found))
    own, private = found[0], _key(key)
    if len(found) > AUTHORITY_CERTIFICATES_MAX:
        raise Corrupt(f"{len(found)} certificates; expected at most {AUTHORITY_CERTIFICATES_MAX}")
    if own.public_key() != private.public_key():
        raise Corrupt("the key is not that of the first certificate")
    if isinstance(private, rsa.RSAPrivateKey) and private.key_size < RSA_BITS_MIN:
        raise Corrupt(f"the key is RSA of {private.key_size} bits; expected at least {RSA_BITS_MIN}")
    limits, usage = _extension(own, x509.BasicConstraints), _extension(own, x509.KeyUsage)
    if limits is None or not limits.ca or (usage is not None and not usage.key_cert_sign):
        raise Corrupt("the first certificate is not one of a CA, which may sign others")
    if own.not_valid_after_utc.timestamp() <= now:
        raise Corrupt(f"the certificate ended at {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    return Pair(b"".join(map(_pem, found)), key)


@_read()
def issuer_of(pair: Pair) -> bytes:
    """Return the certificate alone, without those above it."""
    return _pem(_certificate(pair.certificate))


@_read()
def chain_of(pair: Pair) -> bytes:
    """Return what a server sends after a leaf, so that those who trust a root alone can verify it: the
    certificate and those above it, without roots."""
    found = x509.load_pem_x509_certificates(pair.certificate)
    return b"".join(_pem(each) for each in found if each.issuer != each.subject)


def still_valid(bundle: bytes, now: float) -> bytes:
    """Return the certificates of a bundle that have not ended; nothing when it cannot be read."""
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except UNREADABLE:
        return b""
    kept = (each for each in found if each.not_valid_after_utc.timestamp() > now)
    return b"".join(map(_pem, kept))


@_read()
def check_pair(pair: Pair) -> None:
    """Raise Corrupt unless certificate and key can be read and fit."""
    if _certificate(pair.certificate).public_key() != _key(pair.key).public_key():
        raise Corrupt("the key is not that of the certificate")


@_read()
def is_signed_by(leaf: bytes, authority: bytes) -> bool:
    """Return whether the CA has signed the leaf. Raises Corrupt when either cannot be read."""
    signed, issuer = _certificate(leaf), _certificate(authority)
    try:
        signed.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _certificate(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _extension(found: x509.Certificate, kind: type[Extension]) -> Extension | None:
    try:
        return found.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _key(pem: bytes) -> AnyKey:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Corrupt("the key cannot be read: expected an unencrypted PEM") from None
    if not isinstance(key, AnyKey):
        raise Corrupt("the key is neither of an elliptic curve nor RSA")
    return key


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:NAME_CHARACTERS_MAX])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, ends: float
) -> x509.CertificateBuilder:
    own = x509.SubjectKeyIdentifier.from_public_key(key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(now, UTC) - SKEW)
        .not_valid_after(datetime.fromtimestamp(ends, UTC))
        .add_extension(own, critical=False)
    )


def _usage(*, signs: bool, issues: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=issues,
        crl_sign=issues,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, issuer: x509.Certificate | None = None
) -> x509.AuthorityKeyIdentifier:
    """Name the issuer's key as its certificate does, which may have another identifier than ours would be."""
    own = None if issuer is None else _extension(issuer, x509.SubjectKeyIdentifier)
    if own is not None:
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)


def _alternatives(names: Names) -> x509.SubjectAlternativeName:
    uris: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in names.uris]
    return x509.SubjectAlternativeName([*uris, *map(_host, names.hosts)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(canonical_host(host)))
    except ValueError:
        return x509.DNSName(host)


def _names_of(found: x509.Certificate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    alternatives = _extension(found, x509.SubjectAlternativeName)
    names: Sequence[x509.GeneralName] = list(alternatives or ())
    uris = (each.value for each in names if isinstance(each, x509.UniformResourceIdentifier))
    hosts = (str(each.value) for each in names if isinstance(each, x509.DNSName | x509.IPAddress))
    return tuple(uris), tuple(hosts)


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: AnyKey,
) -> Pair:
    certificate = builder.sign(issuer_key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)
