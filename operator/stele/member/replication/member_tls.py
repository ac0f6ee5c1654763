"""TLS between members on the peer port: what this one listens to, dials with, and whom it takes.

Others are known by their certificate alone: the cluster's CA, its UID, the role and the member's name.
"""

import logging
import ssl
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from stele.adapters.rate_limited_log import RateLimitedLog
from stele.adapters.tls.acceptor import TlsAcceptor, TlsLimits
from stele.adapters.tls.identity import Contexts, TlsIdentity
from stele.adapters.tls.peer import UNTRUSTED, Certificate, Expected, has_ended, peer_refusal
from stele.core.control.member_settings import ClientTls, MemberSettings
from stele.core.security.identity import Role
from stele.core.security.level import InternalTls
from stele.core.security.rotation import GRACE_SECONDS, grace_seconds
from stele.errors import Corrupt
from stele.member import limits
from stele.member.storage.disk_full import is_saved
from stele.member.storage.volume import Volume
from stele.wire import peer
from stele.wire.frames import encode_frame
from stele.wire.storage.volume import MemberSecurity

log = logging.getLogger("stele.tls")

LOGGED_SECONDS = 10.0
"""Connections that are refused, or are taken for the grace alone, are logged once per this interval."""

REQUIRED = "members take only TLS connections here"
LIMITS = TlsLimits(
    waiting_max=limits.PEER_WAITING_MAX,
    handshakes_max=limits.PEER_HANDSHAKES_MAX,
    handshake_seconds_max=limits.HELLO_SECONDS_MAX,
)


@dataclass(frozen=True, slots=True)
class Start:
    """What a process begins with.

    `known` is False where the master has not said it: it is the level of the pod, which may be older than
    the cluster's. `takes_plain` says whether the master may then tell it without TLS.
    """

    security: MemberSecurity
    known: bool = True
    takes_plain: bool = False


def member_security_at_start(volume: Volume, first: InternalTls) -> Start:
    """Return what the volume has; without, the pod's `first` level, and Required where it is damaged."""
    # The master of a cluster that dials plain may have no certificate, and nobody else can tell the level.
    takes_plain = not first.dials_tls
    try:
        stored = volume.load_member_security()
    except Corrupt as error:
        log.error("the level of TLS between members is unknown, so it is Required: %s", error)
        return Start(MemberSecurity(InternalTls.REQUIRED), known=False, takes_plain=takes_plain)
    if stored is not None:
        return Start(stored)
    return Start(MemberSecurity(first), known=first is InternalTls.OFF, takes_plain=takes_plain)


def refusal_log(port: str) -> Callable[[str, str], None]:
    """Return what logs connections to this port that are closed: their address, and why."""
    limit = RateLimitedLog(LOGGED_SECONDS)

    def note(address: str, why: str) -> None:
        if (suppressed := limit.admit()) is not None:
            text = "connection of %s to the %s port is closed: %s (%d more were not logged)"
            log.warning(text, address, port, why, suppressed)

    return note


class PeerAcceptor(TlsAcceptor):
    """Takes connections of other members, which have to show a certificate with TLS."""

    def listen(self, level: InternalTls) -> None:
        """Apply the level to connections from now on."""
        both = ClientTls.OPTIONAL if level.listens_tls else ClientTls.OFF
        self.require(both if level.listens_plain else ClientTls.REQUIRED, ssl.CERT_REQUIRED)

    @property
    def context(self) -> ssl.SSLContext | None:
        """Implement TlsAcceptor; dates are checked with the greeting."""
        contexts = self.contexts
        return None if contexts is None else contexts.dialled

    def refuse(self, address: str) -> bytes:
        """Implement TlsAcceptor, in the protocol of members."""
        super().refuse(address)
        return encode_frame(peer.encode_message(peer.HelloRejected("TLS_REQUIRED", REQUIRED)))


class MemberTls:
    """Has this member use the level that the master sent last.

    It is written before it is in force, so a process that starts where no master answers begins with it.
    Where the volume has none, or a damaged one, it reports no level until the master says one. `ended`
    counts certificates that were taken although they had ended.
    """

    def __init__(
        self,
        identity: TlsIdentity,
        cluster: str,
        start: Start,
        save: Callable[[MemberSecurity], Awaitable[None]],
        wall: Callable[[], float],
    ) -> None:
        self._identity, self._cluster = identity, cluster
        self._in_force, self._known = start.security, start.known
        self._takes_plain_unknown = start.takes_plain
        self._save, self._wall = save, wall
        self._ending = RateLimitedLog(LOGGED_SECONDS)
        self.acceptor = PeerAcceptor(identity, refusal_log("peer"), LIMITS)
        self.acceptor.listen(self.level)
        self.ended = 0

    @property
    def level(self) -> InternalTls:
        """What is in force for new connections."""
        return self._in_force.tls

    @property
    def reported(self) -> InternalTls | None:
        """The level for the master; None where it is but a guess, by which no other member is to go."""
        return self.level if self._known else None

    async def adopt(self, sent: MemberSettings | None) -> None:
        """Use what was sent; None, and each field that is None, keeps what is in force.

        On a full volume it stays as it is until the next call.
        """
        before, settings = self._in_force, sent or MemberSettings()
        grace = before.grace_expired if settings.grace_expired is None else settings.grace_expired
        wanted = MemberSecurity(settings.member_tls or before.tls, grace)
        if wanted == before if self._known else settings.member_tls is None:
            return
        if not await is_saved(self._save(wanted)):
            return
        self._in_force, self._known = wanted, True
        self.acceptor.listen(wanted.tls)
        log.info("members: TLS %s, expired certificates taken: %s", wanted.tls, wanted.grace_expired)

    def load_token(self, load: str) -> str:
        """Return what lets its bearer send this bulk load to the transfer process; empty without a
        certificate, as it takes no TLS then."""
        return self._identity.load_token(load) if self._identity.contexts else ""

    def dialling(self) -> Contexts | None:
        """Return what to dial with; None without TLS. Raises ConnectionError without a certificate."""
        if not self.level.dials_tls:
            return None
        if self._identity.contexts is None:
            raise ConnectionError(f"this member has no usable certificate: {self._identity.problem}")
        return self._identity.contexts

    @property
    def takes_plain_exchanges(self) -> bool:
        """Whether the master may send without TLS.

        While only the pod says the level, it may where that is Off or Accept. Otherwise whoever comes first
        could give a member an epoch that no master has: it knows none to compare with.
        """
        return self.level.listens_plain if self._known else self._takes_plain_unknown

    def _trusts(self, chain: frozenset[bytes]) -> bool:
        """Return whether a CA by which a certificate was verified is trusted now, too."""
        contexts = self._identity.contexts
        return contexts is None or bool(chain & contexts.trusted)

    def is_outdated(self, chains: Collection[frozenset[bytes]]) -> bool:
        """Return whether a session is to be renewed that has these certificates; without any it is plain."""
        asked = self.level.dials_tls and self._identity.contexts is not None
        return asked and not (chains and all(map(self._trusts, chains)))

    def refusal(self, certificate: Certificate | None, chain: frozenset[bytes], name: str) -> str:
        """Return why a member is not taken that shows this certificate, which was verified by this chain.

        Nothing when it is taken. None: it is plain.
        """
        if certificate is None:
            return "" if self.level.listens_plain else REQUIRED
        if not self._trusts(chain):
            return UNTRUSTED
        expected = Expected(self._cluster, (Role.MEMBER,), name)
        grace = grace_seconds(takes_expired=self._in_force.grace_expired)
        refused = peer_refusal(certificate, expected, self._wall(), grace)
        if not refused and has_ended(certificate, self._wall()):
            self._shout(name, str(certificate["notAfter"]))
        return refused

    def caller_refusal(self, certificate: Certificate, chain: frozenset[bytes], role: Role) -> str:
        """Return why who sends a request with this certificate is not taken, or nothing.

        Master and people have no grace: they can have a new certificate at once.
        """
        if not self._trusts(chain):
            return UNTRUSTED
        return peer_refusal(certificate, Expected(self._cluster, (role,)), self._wall(), 0.0)

    def _shout(self, name: str, end: str) -> None:
        self.ended += 1
        if (suppressed := self._ending.admit()) is not None:
            days = GRACE_SECONDS / 86_400
            text = "the certificate of %s ended at %s and is taken for %g days more (%d more not logged)"
            log.error(text, name, end, days, suppressed)
