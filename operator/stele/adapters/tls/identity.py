"""A process' certificate, its key and the CAs that it trusts, from files that others replace meanwhile.

Code that opens or accepts a connection asks for the context at that moment: new connections use the newest
certificate and the newest trusted CAs, existing ones go on.
"""

import asyncio
import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from stele.errors import BadInput
from stele.wire.identity import identity_digest

log = logging.getLogger("stele.tls")

CERTIFICATE, KEY, TRUSTED = "tls.crt", "tls.key", "ca.crt"
LOOK_SECONDS = 10.0
"""Interval of checks whether the files have changed."""
FILE_BYTES_MAX = 1024 * 1024
"""Size of each of the files: what Kubernetes allows for a Secret."""
DAY_SECONDS = 86_400
HANDSHAKE_STEPS_MAX = 10

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Contexts:
    """What connections are made with: for servers by whether clients have to show a certificate."""

    servers: dict[ssl.VerifyMode, ssl.SSLContext]
    client: ssl.SSLContext
    ends_s: float


class TlsIdentity:
    """The newest usable content of a folder. `problem` is why the files there are not in use, or empty.

    Without a folder there are no contexts. What cannot be used is reported, and what was in use before stays.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._stamp: _Stamp = ()
        self._contexts: Contexts | None = None
        self.problem = "STELE_TLS_DIR is not set" if folder is None else ""
        self.loads = 0
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
            contexts = read_contexts(self._folder)
            certificate, trusted = ((self._folder / name).read_bytes() for name in (CERTIFICATE, TRUSTED))
            if _stamp(self._folder) != stamp:
                return  # Replaced meanwhile: the next look sees all of it.
        except (OSError, BadInput) as error:
            self._report(f"{self._folder}: {error}")
            return
        self._contexts, self._stamp, self.problem = contexts, stamp, ""
        self.digest = identity_digest(certificate, trusted)
        self.loads += 1
        log.info("certificate in use until %s", time.strftime("%Y-%m-%d", time.gmtime(contexts.ends_s)))

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            kept = "; the certificate before stays in use" if self._contexts else ""
            log.error("the certificate cannot be used: %s%s", problem, kept)
        self.problem = problem

    async def watch(self) -> None:
        """Look again and again."""
        while self._folder is not None:
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self.look)

    @property
    def contexts(self) -> Contexts | None:
        """What new connections are made with; None while there has been no usable certificate."""
        return self._contexts

    def days_left(self, now_s: float) -> float | None:
        """Return after how many days the certificate in use ends; negative after that."""
        return None if self._contexts is None else (self._contexts.ends_s - now_s) / DAY_SECONDS


def read_contexts(folder: Path) -> Contexts:
    """Read a certificate, its key and its CAs, and try them in a handshake with themselves.

    Raises OSError when a file cannot be read, and BadInput when they do not belong together or are not valid
    now.
    """
    for name in (CERTIFICATE, KEY, TRUSTED):
        if (size := (folder / name).stat().st_size) > FILE_BYTES_MAX:
            raise BadInput(f"{name} has {size} bytes; expected a PEM file of at most {FILE_BYTES_MAX}")
    try:
        servers = {verify: _server_context(folder, verify) for verify in ssl.VerifyMode}
        client = _context(folder, ssl.PROTOCOL_TLS_CLIENT)
        # Who the other side is stands in its URI, which the caller checks.
        client.check_hostname = False
        certificate = _try(client, servers[ssl.CERT_NONE])
    except ssl.SSLError as error:
        raise BadInput(_explained(error)) from error
    return Contexts(servers, client, ssl.cert_time_to_seconds(str(certificate["notAfter"])))


def _try(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, object]:
    """Return the server's certificate as the client verified it. Raises ssl.SSLError."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there, server_side=False)
    answering = server.wrap_bio(there, back, server_side=True)
    for _ in range(HANDSHAKE_STEPS_MAX):
        for side in (answering, asking):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            if side is asking and (certificate := asking.getpeercert()):
                return dict(certificate)
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


def _context(folder: Path, protocol: int) -> _Context:
    context = _Context(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A CA may be an intermediate one, whose root is not known here.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    context.load_verify_locations(folder / TRUSTED)
    return context


def _server_context(folder: Path, verify: ssl.VerifyMode) -> ssl.SSLContext:
    context = _context(folder, ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = verify
    if verify != ssl.CERT_NONE:
        # A resumed session verifies no chain.
        context.forbid_tickets()
        context.num_tickets = 0
    return context


def _stamp(folder: Path) -> _Stamp:
    """Return what changes with the files; the kubelet replaces the folder that they are links into."""
    stats = [(folder / name).stat() for name in (CERTIFICATE, KEY, TRUSTED)]
    return tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats)
