"""What this member demands of clients: what the master sent last, across restarts."""

import logging
import ssl
from collections.abc import Awaitable, Callable

from stele.adapters.rate_limited_log import RateLimitedLog
from stele.adapters.tls.acceptor import TlsAcceptor
from stele.core.control.member_settings import ClientAuth, ClientCertificates, ClientTls, MemberSettings
from stele.errors import Corrupt
from stele.member.storage.disk_full import is_saved
from stele.member.storage.volume import Volume
from stele.wire.storage.volume import ClientSecurity

log = logging.getLogger("stele.tls")

VERIFY = {
    ClientCertificates.IGNORE: ssl.CERT_NONE,
    ClientCertificates.ALLOW: ssl.CERT_OPTIONAL,
    ClientCertificates.REQUIRE: ssl.CERT_REQUIRED,
}

REFUSED_SECONDS = 10.0
"""Connections that are refused are logged once per this interval; the others are counted."""

_refused = RateLimitedLog(REFUSED_SECONDS)


def log_refused(address: str, why: str) -> None:
    """Log that a client's connection was refused."""
    if (suppressed := _refused.admit()) is not None:
        log.warning("connection of %s is closed: %s (%d more were not logged)", address, why, suppressed)


def stored_demands(volume: Volume) -> ClientSecurity:
    """Return what the volume has. When it is damaged, TLS and passwords may have been demanded."""
    try:
        return volume.load_client_security()
    except Corrupt as error:
        log.error("what is demanded of clients is unknown: TLS and AUTH, until the master says it: %s", error)
        return ClientSecurity(ClientTls.REQUIRED, auth=ClientAuth.REQUIRED)


class ClientDemands:
    """Has clients' ports demand what the master sent last.

    It is written before it is in force: a process that starts where no master answers demands the same.
    `on_auth` is told at once whether clients must authenticate.
    """

    def __init__(
        self,
        acceptor: TlsAcceptor,
        stored: ClientSecurity,
        save: Callable[[ClientSecurity], Awaitable[None]],
        on_auth: Callable[[ClientAuth | None], None],
    ) -> None:
        self._on_auth = on_auth
        self._acceptor, self._in_force, self._save = acceptor, stored, save
        self._acceptor.require(stored.tls, VERIFY[stored.certificates])

    @property
    def auth(self) -> ClientAuth | None:
        """Whether clients must authenticate; None until a master has said so."""
        return self._in_force.auth

    @property
    def tls(self) -> ClientTls:
        """What is demanded now."""
        return self._in_force.tls

    async def adopt(self, sent: MemberSettings | None) -> None:
        """Demand what was sent; None, and each field that is None, keeps what is in force.

        On a full volume it stays as it is until the next call.
        """
        before = self._in_force
        settings = sent or MemberSettings()
        wanted = ClientSecurity(
            settings.client_tls or before.tls,
            settings.client_certificates or before.certificates,
            settings.auth or before.auth,
        )
        if wanted == before:
            return
        if not await is_saved(self._save(wanted)):
            return
        self._in_force = wanted
        self._acceptor.require(wanted.tls, VERIFY[wanted.certificates])
        self._on_auth(wanted.auth)
        log.info("clients: TLS %s, certificates %s, AUTH %s", wanted.tls, wanted.certificates, wanted.auth)
