"""The CA of one cluster as its Secret has it, and the names of its members' certificates. Pure."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from stele.adapters.kubernetes.secret_store import TLS, Content, StoredSecret
from stele.adapters.pki.certificates import (
    Facts,
    Names,
    Pair,
    canonical_host,
    check_pair,
    issuer_of,
    read_certificate,
)
from stele.core.security.identity import Holder, Role
from stele.core.security.rotation import Brought, CaState, Step, Validity, promote_at
from stele.errors import Corrupt
from stele.master.manifests import copier_name, headless_name
from stele.model import TabletCluster

CERTIFICATE, KEY, TRUSTED = "tls.crt", "tls.key", "ca.crt"
"""Keys of a Secret with a certificate."""

NEXT_CERTIFICATE, NEXT_KEY, OLD_CERTIFICATE = "next.crt", "next.key", "old.crt"
"""Further keys of a CA's Secret while the CA changes."""

PROMOTE_AT, HANDLED = "stele.dev/next-ca-from", "stele.dev/renewed-ca"
"""Annotations of a CA's Secret: Unix seconds from which the next one may sign, and the last request begun."""


def ca_name(cluster: str) -> str:
    return f"{cluster}-ca"


def bundle_name(cluster: str) -> str:
    """Return the name of the Secret with the certificates that clients trust."""
    return f"{cluster}-ca-cert"


@dataclass(frozen=True)
class Authority:
    """The CA that signs, the next one, and the former one that is still trusted."""

    current: Pair
    next: Pair | None = None
    old: bytes = b""
    promote_at: float = 0.0
    handled: str = ""

    @cached_property
    def trusted(self) -> bytes:
        """Return the certificates of all CAs whose leaves are valid: none above them, which may have signed
        other CAs."""
        return self.issuer + (issuer_of(self.next) if self.next else b"") + self.old

    @cached_property
    def issuer(self) -> bytes:
        """Return the certificate of the CA that signs."""
        return issuer_of(self.current)

    @property
    def bundle(self) -> bytes:
        """Return what clients trust: also those above, since many verify only up to a root."""
        return self.current.certificate + (self.next.certificate if self.next else b"") + self.old

    @property
    def validity(self) -> Validity:
        return validity_of(read_certificate(self.current.certificate))

    def state(self, brought: Pair | None) -> CaState:
        """Return what decides on its next step; `brought` is the CA of a user."""
        has_next, has_old = self.next is not None, bool(self.old)
        which = self._which(brought)
        return CaState(self.validity, self.promote_at, has_next, has_old, self.handled, which)

    def _which(self, brought: Pair | None) -> Brought:
        if brought is None:
            return Brought.NONE
        issuer = issuer_of(brought)
        if issuer == self.issuer:
            return Brought.CURRENT
        return Brought.NEXT if self.next is not None and issuer_of(self.next) == issuer else Brought.OTHER

    def refreshed(self, brought: Pair | None) -> "Authority":
        """Return the CA with what a user changed about it: those above it, or the form of its key."""
        which = self._which(brought)
        if brought is not None and which is Brought.CURRENT:
            return replace(self, current=brought)
        return replace(self, next=brought) if which is Brought.NEXT else self

    def after(self, step: Step, asked: str, now: float, fresh: Pair) -> "Authority":
        """Return the CA after a step; `fresh` becomes the next one where one is added."""
        match step:
            case Step.ADD_NEXT:
                at = promote_at(self.handled, asked, now)
                return replace(self, next=fresh, promote_at=at, handled=asked or self.handled)
            case Step.DROP_NEXT:
                return replace(self, next=None, promote_at=0.0)
            case Step.HURRY:
                return replace(self, promote_at=now, handled=asked)
            case Step.PROMOTE if self.next is not None:
                return Authority(self.next, old=self.issuer, handled=self.handled)
            case Step.RETIRE:
                return replace(self, old=b"")
        return self

    @property
    def content(self) -> Content:
        """Return what its Secret is to say."""
        data = {CERTIFICATE: self.current.certificate, KEY: self.current.key}
        if self.next is not None:
            data |= {NEXT_CERTIFICATE: self.next.certificate, NEXT_KEY: self.next.key}
        if self.old:
            data[OLD_CERTIFICATE] = self.old
        return Content(data, {PROMOTE_AT: f"{self.promote_at:.0f}", HANDLED: self.handled}, TLS)

    @classmethod
    def read(cls, secret: StoredSecret, now: float) -> "Authority":
        """Return what a Secret has. Raises Corrupt with what to do, also for a CA that has ended."""
        data = secret.data
        try:
            found = cls(
                Pair(data[CERTIFICATE], data[KEY]),
                Pair(data[NEXT_CERTIFICATE], data[NEXT_KEY]) if NEXT_CERTIFICATE in data else None,
                data.get(OLD_CERTIFICATE, b""),
                float(secret.annotations.get(PROMOTE_AT) or 0),
                secret.annotations.get(HANDLED, ""),
            )
            for pair in filter(None, (found.current, found.next)):
                check_pair(pair)
                read_certificate(pair.certificate)
            if found.old:
                read_certificate(found.old)
            if (ends := found.validity.ends) <= now:
                raise Corrupt(
                    f"its certificate ended at {datetime.fromtimestamp(ends, UTC):%Y-%m-%d %H:%M} UTC"
                )
        except (KeyError, ValueError, Corrupt) as error:
            text = str(error.args[0]) if isinstance(error, Corrupt) else repr(error)
            raise Corrupt(
                f"Secret {secret.name} is not a CA that the operator made ({text}): restore it; or "
                "delete it, and the operator makes a new CA that clients have to be given"
            ) from None
        return found


def validity_of(facts: Facts) -> Validity:
    return Validity(facts.begins, facts.ends)


def member_names(cluster: TabletCluster, member: str) -> Names:
    """Return what a member's certificate says: its identity, and the hosts that clients connect to."""
    name, namespace = cluster.metadata.name, cluster.metadata.namespace
    uid, headless = cluster.volumes_uid, headless_name(name)
    ends = "", f".{namespace}", f".{namespace}.svc"
    services = [f"{host}{end}" for host in (name, f"{member}.{headless}") for end in ends]
    announced, _, _ = cluster.spec.resp.cluster.announced.of(member, "")
    asked = (announced, *(host.lower() for host in cluster.spec.security.clients.hosts))
    own = "localhost", f"{member}.{Role.MEMBER}.{uid}.stele.invalid"
    hosts = [*services, *own, *map(canonical_host, asked)]
    return Names(member, (Holder(uid, Role.MEMBER, member).uri,), tuple(filter(None, dict.fromkeys(hosts))))


def admin_names(cluster: TabletCluster) -> Names:
    """Return what the certificate of administrators says."""
    return _names(cluster, Role.ADMIN, str(Role.ADMIN))


def copier_names(cluster: TabletCluster) -> Names:
    """Return what the copier's certificate says."""
    return _names(cluster, Role.COPIER, copier_name(cluster.metadata.name))


def _names(cluster: TabletCluster, role: Role, name: str) -> Names:
    uid = cluster.volumes_uid
    return Names(name, (Holder(uid, role, name).uri,), (f"{name}.{role}.{uid}.stele.invalid",))
