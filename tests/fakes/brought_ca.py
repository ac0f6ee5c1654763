"""A CA as users bring it, made by other programs than the operator: an intermediate one below a root."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


PKCS1, PKCS8 = serialization.PrivateFormat.TraditionalOpenSSL, serialization.PrivateFormat.PKCS8


@dataclass(frozen=True)
class BroughtCa:
    """The files of its Secret."""

    certificate: bytes
    key: bytes
    root: bytes

    @property
    def data(self) -> dict[str, bytes]:
        return {"tls.crt": self.certificate, "tls.key": self.key, "ca.crt": self.root}

    def as_cert_manager_writes(self, *, formats: bool) -> dict[str, bytes]:
        """What the Secret of its `Certificate` has: the chain without the root, and the CA that signed it;
        with `formats` also those of `additionalOutputFormats`, DER and CombinedPEM."""
        loaded = serialization.load_pem_private_key(self.key, None)
        der = loaded.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        more = {"key.der": der, "tls-combined.pem": self.key + b"\n" + self.certificate}
        return self.data | (more if formats else {})


def brought_ca(
    now: float,
    *,
    key: Key | None = None,
    is_ca: bool = True,
    days: int = 365,
    key_id: bytes = b"other",
    form: serialization.PrivateFormat = PKCS1,
) -> BroughtCa:
    """Make a CA, whose key may have another identifier than the operator would give it, or none."""
    root_key = ec.generate_private_key(ec.SECP256R1())
    own_key = key or ec.generate_private_key(ec.SECP384R1())
    root = _builder("root", root_key, now, days + 400, b"root", is_ca=True)
    own = _builder("below", own_key, now, days, key_id, is_ca=is_ca)
    private = own_key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    signed = (each.sign(root_key, hashes.SHA256()) for each in (own, root))
    own_pem, root_pem = (each.public_bytes(serialization.Encoding.PEM) for each in signed)
    return BroughtCa(own_pem, private, root_pem)


def _builder(
    subject: str, key: Key, now: float, days: int, key_id: bytes, *, is_ca: bool
) -> x509.CertificateBuilder:
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name("root"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(now, UTC) - timedelta(days=400))
        .not_valid_after(datetime.fromtimestamp(now, UTC) + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    own = x509.SubjectKeyIdentifier(key_id)
    return builder.add_extension(own, critical=False) if key_id else builder


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
