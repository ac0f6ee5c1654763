"""Blocking HTTP connections to other parts of a cluster: nothing is sent before who answers is known."""

import http.client
import ssl
import time
from dataclasses import dataclass

from stele.adapters.tls.peer import Certificate, Expected, peer_refusal


@dataclass(frozen=True, slots=True)
class Secured:
    """What a connection is made with, and who may answer; `context` is for one without checked dates
    (`Contexts.dialling`, `trusting`)."""

    context: ssl.SSLContext
    expected: Expected
    grace_seconds: float

    def check(self, certificate: Certificate | None) -> None:
        """Raise ssl.SSLError unless the certificate is that of the expected part."""
        refused = peer_refusal(certificate or {}, self.expected, time.time(), self.grace_seconds)
        if refused:
            raise ssl.SSLError(1, f"certificate refused: {refused}")


def connect(
    place: tuple[str, int], secured: Secured | None, silence_seconds: float
) -> http.client.HTTPConnection:
    """Return an open connection; a plain one where nothing is `secured`. Raises OSError.

    `silence_seconds` limits each step of the handshake, and later each wait for data.
    """
    if secured is None:
        made = http.client.HTTPConnection(*place, timeout=silence_seconds)
        made.connect()
        return made
    encrypted = http.client.HTTPSConnection(*place, timeout=silence_seconds, context=secured.context)
    # One that the other side has closed would be opened again, by itself and without the check.
    encrypted.auto_open = 0
    try:
        encrypted.connect()
        assert isinstance(encrypted.sock, ssl.SSLSocket)
        secured.check(encrypted.sock.getpeercert())
    except BaseException:
        encrypted.close()
        raise
    return encrypted
