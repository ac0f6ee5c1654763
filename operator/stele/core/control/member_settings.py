"""Settings that a member changes while it runs, as the master sends them with every exchange."""

from enum import StrEnum
from typing import Annotated

import msgspec

from stele.core.kv.announce import Announce
from stele.core.security.level import InternalTls

Amount = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class LogLevel(StrEnum):
    """The least severity that is logged."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class ClientTls(StrEnum):
    """TLS on the ports of Redis clients.

    Off: none. Optional: a client that begins with TLS gets it, others stay plain. Required: TLS only.
    """

    OFF = "Off"
    OPTIONAL = "Optional"
    REQUIRED = "Required"


class ClientCertificates(StrEnum):
    """What clients show with TLS.

    Ignore: no certificate is asked for. Allow: one that is shown must be valid. Require: each client must
    show one.
    """

    IGNORE = "Ignore"
    ALLOW = "Allow"
    REQUIRE = "Require"


class ClientAuth(StrEnum):
    """Whether clients must say who they are before anything else is answered."""

    OFF = "Off"
    REQUIRED = "Required"


class MemberSettings(msgspec.Struct, frozen=True):
    """Settings of one member; None: it keeps what it has.

    `log_space_bytes` is the most that it keeps of its logs for copies alone, `snapshot_space_bytes` the most
    that one copy session's snapshot may hold beyond the database. What is quarantined from now on stays for
    `quarantine_retention_seconds`. `lease_ms` is the duration of the leases that it grants, `log_level` that
    of its log. `announce` is what cluster clients are given as the members' addresses. `client_tls`,
    `client_certificates` and `auth` are what it asks of clients, `member_tls` is TLS among members, and
    `grace_expired` whether members whose certificate ended lately are taken; an older master does not send
    them.
    """

    log_space_bytes: Amount | None = None
    snapshot_space_bytes: Amount | None = None
    quarantine_retention_seconds: Amount | None = None
    heartbeat_ms: Annotated[int, msgspec.Meta(ge=10, le=60_000)] | None = None
    lease_ms: Annotated[int, msgspec.Meta(ge=20, le=600_000)] | None = None
    log_level: LogLevel | None = None
    announce: Announce | None = None
    client_tls: ClientTls | None = None
    client_certificates: ClientCertificates | None = None
    auth: ClientAuth | None = None
    member_tls: InternalTls | None = None
    grace_expired: bool | None = None

    def at(self, level: InternalTls) -> "MemberSettings":
        """Return the same with this level of TLS among members."""
        return msgspec.structs.replace(self, member_tls=level)
