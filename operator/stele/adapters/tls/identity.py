"""A process' certificate, its key and the CAs that it trusts, from files that others replace meanwhile.

Code that opens or accepts a connection asks for the context at that moment: new connections use the newest
certificate and the newest trusted CAs, existing ones go on.
"""

import asyncio
import hmac
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from stele.core.security.rotation import GRACE_SECONDS
from stele.errors import BadInput
from stele.wire.identity import identity_digest

log = logging.getLogger("stele.tls")

FILES = CERTIFICATE, KEY, TRUSTED = "tls.crt", "tls.key", "ca.crt"
FILE_BYTES_MAX = 1024 * 1024
"""Size of each of the files: what Kubernetes allows for a Secret."""
DAY_SECONDS = 86_400
HANDSHAKE_STEPS_MAX = 10
FIRST_LOOK_SECONDS = 1.0
"""Interval of looks at a folder that has had nothing usable: who needs it can be reached only then."""
NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python does not name."""
IN_MEMORY = "/dev/shm"
"""Where files are in memory, in Linux."""
_ENCODING_DER = 2
"""X509_FILETYPE_ASN1 of OpenSSL."""

_BEGIN = "-----BEGIN CERTIFICATE-----"
_END = b"-----END CERTIFICATE-----"

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Contexts:
    """What connections are made with: for servers by whether clients have to show a certificate.

    `dialling` and `dialled` are for connections between parts of a cluster. Both sides show a certificate,
    whose dates and holder are for `adapters.tls.peer` to check; with `asking` who dials may show none. They
    trust the CAs of `trusted`. `certificate` is the own one; `chain` is how that is verified, see
    `verified_chain`.
    """

    servers: dict[ssl.VerifyMode, ssl.SSLContext]
    dialling: ssl.SSLContext
    dialled: ssl.SSLContext
    asking: ssl.SSLContext
    certificate: Mapping[str, Any]
    ends_s: float
    trusted: frozenset[bytes]
    chain: frozenset[bytes]


class TlsIdentity:
    """The newest usable content of a folder. `problem` is why the files there are not in use, or empty.

    Without a folder there are no contexts. What cannot be used is reported, and what was in use before stays.
    A process that has none yet takes one that ended at most `grace_seconds` ago.
    """

    def __init__(self, folder: Path | None, grace_seconds: float = 0.0) -> None:
        self._folder, self._grace_seconds = folder, grace_seconds
        self._stamp: _Stamp = ()
        self._contexts: Contexts | None = None
        self.problem = "STELE_TLS_DIR is not set" if folder is None else ""
        self.loads = 0
        self._key = b""
        self.digest = ""
        """Says which certificate and CAs are in use, see `wire.identity`; empty without any."""

    def look(self) -> None:
        """Use the files if they have changed since they were last used. This blocks for milliseconds."""
        if self._folder is None:
            return
        try:
            stamp = _stamp(self._folder)
            if stamp == self._stamp:
                return
            contexts = read_contexts(self._folder, 0.0 if self._contexts else self._grace_seconds)
            certificate, key, trusted = ((self._folder / name).read_bytes() for name in FILES)
            if _stamp(self._folder) != stamp:
                return  # Replaced meanwhile: the next look sees all of it.
        except (OSError, BadInput) as error:
            self._report(f"{self._folder}: {error}")
            return
        self._contexts, self._stamp, self.problem = contexts, stamp, ""
        self.digest, self._key = identity_digest(certificate, trusted), key
        self.loads += 1
        log.info("certificate in use until %s", time.strftime("%Y-%m-%d", time.gmtime(contexts.ends_s)))

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            kept = "; the certificate before stays in use" if self._contexts else ""
            log.error("the certificate cannot be used: %s%s", problem, kept)
        self.problem = problem

    async def watch(self, seconds: float) -> None:
        """Look again and again, at this interval; more often while there is nothing to begin with."""
        while self._folder is not None:
            await asyncio.sleep(seconds if self._contexts else min(seconds, FIRST_LOOK_SECONDS))
            await asyncio.to_thread(self.look)

    @property
    def contexts(self) -> Contexts | None:
        """What new connections are made with; None while there has been no usable certificate."""
        return self._contexts

    def load_token(self, load: str) -> str:
        """Return what proves that a member let someone send a bulk load to its pod; another one with the next
        certificate.

        Both processes of a pod have the key, so they agree without a word.
        """
        return hmac.digest(self._key, b"stele bulk load " + load.encode(), "sha256").hex()

    def days_left(self, now_s: float) -> float | None:
        """Return after how many days the certificate in use ends; negative after that."""
        return None if self._contexts is None else (self._contexts.ends_s - now_s) / DAY_SECONDS


def read_contexts(folder: Path, grace_seconds: float = 0.0) -> Contexts:
    """Read a certificate, its key and its CAs, and try them in a handshake with themselves.

    Raises OSError when a file cannot be read, and BadInput when they do not belong together, are not valid
    yet, or ended more than `grace_seconds` ago.
    """
    for name in FILES:
        if (size := (folder / name).stat().st_size) > FILE_BYTES_MAX:
            raise BadInput(f"{name} has {size} bytes; expected a PEM file of at most {FILE_BYTES_MAX}")
    try:
        servers = {verify: _server_context(folder, verify) for verify in ssl.VerifyMode}
        dialling = _dialling_context(folder)
        dialled = _server_context(folder, ssl.CERT_REQUIRED, dated=False)
        asking = _server_context(folder, ssl.CERT_OPTIONAL, dated=False)
        tried = _try(dialling, servers[ssl.CERT_NONE])
        trusted = frozenset(map(_der, _lasting((folder / TRUSTED).read_bytes())))
    except ssl.SSLError as error:
        raise BadInput(_explained(error)) from error
    certificate = tried.getpeercert() or {}
    if fault := date_fault(certificate, time.time(), grace_seconds):
        raise BadInput(f"{CERTIFICATE} is not valid by {TRUSTED}: {fault}")
    ends_s = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
    chain = verified_chain(tried)
    return Contexts(servers, dialling, dialled, asking, certificate, ends_s, trusted, chain)


def trusting(bundle: bytes) -> ssl.SSLContext:
    """Return what a process dials with that has no certificate: it trusts these CAs, PEM.

    Dates and holder of the other side are for `adapters.tls.peer` to check. Raises BadInput.
    """
    context = _bare(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= NO_CHECK_TIME
    try:
        lasting = _lasting(bundle)
        for certificate in lasting:
            context.load_verify_locations(cadata=certificate)
    except ssl.SSLError as error:
        raise BadInput(f"the CA is not usable PEM: {error.reason or error}") from error
    if not lasting:
        raise BadInput("the CA has no certificate that is valid now; expected a PEM file with some")
    return context


def read_dialling(certificate: bytes, key: bytes, trusted: bytes) -> ssl.SSLContext:
    """Return what connections are opened with that show this certificate, as `Contexts.dialling`; all PEM.

    Raises BadInput when they are not usable together.
    """
    # A key is read from a file alone: one in memory, where there is such a folder, and at once removed.
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None) as name:
        folder = Path(name)
        for file, content in ((CERTIFICATE, certificate), (KEY, key), (TRUSTED, trusted)):
            (folder / file).write_bytes(content)
        try:
            return _dialling_context(folder)
        except ssl.SSLError as error:
            raise BadInput(_explained(error)) from error


def date_fault(certificate: Mapping[str, object], now_s: float, grace_seconds: float) -> str:
    """Return why a certificate, as `getpeercert` has it, is not valid now, or nothing."""
    if now_s < ssl.cert_time_to_seconds(str(certificate["notBefore"])):
        return f"certificate is not yet valid: it begins at {certificate['notBefore']}"
    if now_s > ssl.cert_time_to_seconds(str(certificate["notAfter"])) + grace_seconds:
        return f"certificate has expired: it ended at {certificate['notAfter']}"
    return ""


def verified_chain(tls: ssl.SSLObject) -> frozenset[bytes]:
    """Return the certificates, DER, by which that of the other side was verified: itself, up to a trusted CA.

    Nothing where none was verified: it showed none, or the session was resumed.
    """
    # `ssl.SSLObject` has the method itself from Python 3.13 on.
    found = cast(Any, tls)._sslobj.get_verified_chain() or ()
    return frozenset(bytes(each.public_bytes(_ENCODING_DER)) for each in found)


def _try(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """Return the client's side, which has verified the server's certificate. Raises ssl.SSLError."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there, server_side=False)
    answering = server.wrap_bio(there, back, server_side=True)
    for _ in range(HANDSHAKE_STEPS_MAX):
        for side in (answering, asking):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is asking and asking.getpeercert():
                return asking
    raise BadInput(f"a handshake did not end after {HANDSHAKE_STEPS_MAX} steps")


def _explained(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{CERTIFICATE} is not valid by {TRUSTED}: {error.verify_message}"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{KEY} is not the key of {CERTIFICATE}"
    return f"{CERTIFICATE}, {KEY} or {TRUSTED} is not usable PEM: {error.reason or error}"


class _Context(ssl.SSLContext):
    """A context that can do without tickets of sessions."""

    def forbid_tickets(self) -> None:
        self.options |= ssl.OP_NO_TICKET


def _bare(protocol: int) -> _Context:
    context = _Context(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A CA may be an intermediate one, whose root is not known here.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _context(folder: Path, protocol: int, *, dated: bool = True) -> _Context:
    context = _bare(protocol)
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    if dated:
        context.load_verify_locations(folder / TRUSTED)
    else:
        context.verify_flags |= NO_CHECK_TIME
        for certificate in _lasting((folder / TRUSTED).read_bytes()):
            context.load_verify_locations(cadata=certificate)
    return context


def _lasting(bundle: bytes) -> list[str]:
    """Return the CAs of a bundle, PEM, that have not ended long ago.

    What they sign ends with them, and is looked at for each connection; here, nobody who got hold of the key
    of an old CA signs anything new.
    """
    lasting: list[str] = []
    for text in bundle.split(_END)[:-1]:
        alone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Between certificates there may be anything, such as the names of CAs.
        certificate = (text + _END).decode("ascii", "ignore")
        alone.load_verify_locations(cadata=certificate)
        if all(not date_fault(each, time.time(), GRACE_SECONDS) for each in alone.get_ca_certs()):
            lasting.append(certificate)
    return lasting


def _dialling_context(folder: Path) -> ssl.SSLContext:
    context = _context(folder, ssl.PROTOCOL_TLS_CLIENT, dated=False)
    # Who the other side is stands in its URI, which the caller checks.
    context.check_hostname = False
    return context


def _der(certificate: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate[certificate.index(_BEGIN) :])


def _server_context(folder: Path, verify: ssl.VerifyMode, *, dated: bool = True) -> ssl.SSLContext:
    context = _context(folder, ssl.PROTOCOL_TLS_SERVER, dated=dated)
    context.verify_mode = verify
    if verify != ssl.CERT_NONE:
        # A resumed session verifies no chain.
        context.forbid_tickets()
        context.num_tickets = 0
    return context


def _stamp(folder: Path) -> _Stamp:
    """Return what changes with the files; the kubelet replaces the folder that they are links into."""
    stats = [(folder / name).stat() for name in FILES]
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)
