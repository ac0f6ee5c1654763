"""spec.security of a TabletCluster: what clients must bring, TLS among members, and who reaches its pods."""

from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, NamedTuple, TypeVar

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from stele.core.control.member_settings import ClientAuth, ClientCertificates, ClientTls
from stele.core.kv.announce import HOST_CHARACTERS_MAX
from stele.model.cluster_status import SecurityDefaults, SecurityStatus
from stele.model.common import Model, cel, matching
from stele.model.network_policy import OCTET, NetworkPolicy

M = TypeVar("M", bound=Model)

HOSTS_MAX = 32
"""Most hosts in spec.security.clients.hosts."""

_LABEL = "[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_HOST = (
    f"^([*][.])?({_LABEL}[.])*[A-Za-z]([-A-Za-z0-9]{{0,61}}[A-Za-z0-9])?$"
    f"|^({OCTET}[.]){{3}}{OCTET}$"
    "|^[0-9a-fA-F:.]*:[0-9a-fA-F:.]*$"
)
_HOSTS = "spec.security.clients.hosts"
Host = Annotated[
    str,
    matching(
        _HOST,
        HOST_CHARACTERS_MAX,
        f"{_HOSTS}: each must be a host name or an address, such as redis.example.com, "
        "*.redis.example.com or 203.0.113.7",
        (
            "!self.lowerAscii().endsWith('.invalid')",
            f"{_HOSTS}: names that end with .invalid are those of members among themselves; leave them out",
        ),
    ),
]


class ClientSecurity(Model):
    """What Redis clients must bring. What is omitted is as `status.security.defaults` says."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.clientCertificates) || self.clientCertificates == 'Ignore' || "
                "(has(self.tls) && self.tls != 'Off')",
                "spec.security.clients.clientCertificates needs spec.security.clients.tls Optional or "
                "Required: without TLS a client cannot show a certificate",
            ),
        )
    )

    tls: ClientTls | None = None
    """TLS on the ports of clients; when omitted, Required in a cluster that began closed, Off otherwise."""
    client_certificates: ClientCertificates | None = None
    """Certificates of clients; Ignore when omitted."""
    auth: ClientAuth | None = None
    """Whether clients must authenticate; when omitted, Required in a cluster that began closed, Off
    otherwise."""
    hosts: tuple[Host, ...] = Field(default_factory=tuple, max_length=HOSTS_MAX)
    """Further host names and addresses that clients verify, such as a load balancer's.

    Certificates of members are valid for them, too.
    """

    @property
    def asked_tls(self) -> ClientTls:
        return self.tls or ClientTls.OFF

    @property
    def asked_certificates(self) -> ClientCertificates:
        return self.client_certificates or ClientCertificates.IGNORE

    @property
    def asked_auth(self) -> ClientAuth:
        return self.auth or ClientAuth.OFF

    @property
    def proves_who_asks(self) -> bool:
        """Whether every client needs a password or a certificate."""
        certified = (self.asked_tls, self.asked_certificates) == (
            ClientTls.REQUIRED,
            ClientCertificates.REQUIRE,
        )
        return certified or self.asked_auth is ClientAuth.REQUIRED

    def problems(self) -> list[str]:
        """Describe addresses of which no certificate can be made."""
        return [
            f"{_HOSTS}[{number}] is {host}, which is no address; write one such as 2001:db8::7"
            for number, host in enumerate(self.hosts)
            if ":" in host and not _is_address(host)
        ]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class TlsAmongMembers(StrEnum):
    """TLS on the connections between members.

    Off: none. Required: no other, and each side shows the certificate of its member.
    """

    OFF = "Off"
    REQUIRED = "Required"


class MembersSecurity(Model):
    """What members demand of each other. What is omitted is as `status.security.defaults` says."""

    tls: TlsAmongMembers | None = None
    """TLS between members; when omitted, Required in a cluster that began closed, Off otherwise. It falls
    only with the annotation stele.dev/lower-member-tls."""
    grace_expired: bool | None = None
    """Whether members take each other's certificates for 7 days after their end; true when omitted."""

    @property
    def asks_tls(self) -> bool:
        return self.tls is TlsAmongMembers.REQUIRED

    @property
    def takes_expired(self) -> bool:
        return self.grace_expired is not False


LOWER_CLIENTS = {
    "tls": "stele.dev/lower-client-tls",
    "client_certificates": "stele.dev/lower-client-certificates",
    "auth": "stele.dev/lower-client-auth",
}
"""Annotations of a TabletCluster, by field: it may fall to the level that both the spec and this have."""


class Kept(NamedTuple):
    """A field that does not fall as the spec asks, what stays, and which annotation it needs."""

    field: str
    level: str
    annotation: str
    asked: str


def clients_of(
    asked: ClientSecurity, before: SecurityStatus, annotations: Mapping[str, str]
) -> tuple[ClientSecurity, tuple[Kept, ...]]:
    """Return what clients must bring, and what of it is kept from `before` as its annotation is missing."""
    kept: dict[str, Kept] = {}
    levels: dict[str, StrEnum] = {}
    for name, now, wanted in (
        ("tls", before.tls, asked.asked_tls),
        ("client_certificates", before.client_certificates, asked.asked_certificates),
        ("auth", before.auth, asked.asked_auth),
    ):
        falls = now is not None and _rank(wanted) < _rank(now)
        if name == "client_certificates" and levels.get("tls", asked.asked_tls) is ClientTls.OFF:
            falls = False
        if now is not None and falls and annotations.get(LOWER_CLIENTS[name]) != wanted:
            levels[name], kept[name] = now, Kept(to_camel(name), now, LOWER_CLIENTS[name], wanted)
    return asked.model_copy(update=levels), tuple(kept.values())


def _rank(level: StrEnum) -> int:
    return list(type(level)).index(level)


SECRET_NAME_LENGTH = 253


class CertificateAuthority(Model):
    """Who signs the certificates of members, operator and administrators. The operator, when empty."""

    secret_name: str | None = Field(default=None, min_length=1, max_length=SECRET_NAME_LENGTH)
    """Name of a Secret of the same namespace with a CA: `tls.crt` has its certificate, which those above it
    may follow, `tls.key` its key, and `ca.crt`, if there is one, the root. When omitted, the operator makes
    the CA."""


class Security(Model):
    """Encryption, identity, and who may open connections."""

    clients: ClientSecurity = Field(default_factory=ClientSecurity)
    members: MembersSecurity = Field(default_factory=MembersSecurity)
    ca: CertificateAuthority = Field(default_factory=CertificateAuthority)
    network_policy: NetworkPolicy = Field(default_factory=NetworkPolicy)

    def filled(self, defaults: SecurityDefaults) -> "Security":
        """Return the same with what is omitted, but for what is omitted in either case."""
        closed = defaults is SecurityDefaults.CLOSED
        clients = {
            "tls": ClientTls.REQUIRED if closed else ClientTls.OFF,
            "auth": ClientAuth.REQUIRED if closed else ClientAuth.OFF,
        }
        members = {"tls": TlsAmongMembers.REQUIRED if closed else TlsAmongMembers.OFF}
        return self.model_copy(
            update={
                "clients": _filled(self.clients, clients),
                "members": _filled(self.members, members),
                "network_policy": _filled(self.network_policy, {"enabled": closed}),
            }
        )

    @property
    def asks_tls(self) -> bool:
        """Whether members need certificates."""
        return self.members.asks_tls or self.clients.asked_tls is not ClientTls.OFF


def _filled(given: M, defaults: Mapping[str, object]) -> M:
    """Return the model with these fields where it has none."""
    missing = {name: value for name, value in defaults.items() if getattr(given, name) is None}
    return given.model_copy(update=missing) if missing else given
