"""The operator as the master of one cluster: its certificate, and whom it takes for a member."""

import asyncio
import ssl
import time
from collections.abc import Callable

from stele.adapters.pki.certificates import Names, Pair, read_certificate, sign_leaf
from stele.adapters.tls.identity import read_dialling
from stele.adapters.tls.peer import Certificate, Expected, peer_refusal
from stele.core.security.identity import Holder, Role
from stele.core.security.level import InternalTls
from stele.core.security.rotation import DAY, LEAF_DAYS, Validity, grace_seconds
from stele.core.table.ids import MemberIndex
from stele.master import manifests
from stele.master.authority import Authority, validity_of
from stele.model import TabletCluster

NAME = "operator"
NOT_MADE = "none was made yet; the condition CertificatesHealthy says why"


class MasterCertificate:
    """Renewed like those of members. `context` is what members are dialled with; None until there is one.

    Where it `is_wanted`, it is made whatever the spec asks for.
    """

    def __init__(self) -> None:
        self.context: ssl.SSLContext | None = None
        self.is_wanted = False
        self._leaf = Pair(b"", b"")
        self._made_of = b"", b""
        self._validity = Validity(0.0, 0.0)

    def want(self, *, is_wanted: bool) -> None:
        """Note whether a member refuses plain requests."""
        self.is_wanted = is_wanted

    async def renew(
        self, cluster: TabletCluster, authority: Authority, now: float, *, everybody_uses_it: bool
    ) -> None:
        """Follow the CA, before members do.

        `everybody_uses_it`: each member uses what was written in the round before. Only when that trusts
        another CA, a certificate of it is shown, except near the end of the one before, or where the CA of
        that is trusted no longer: it was replaced at once. Raises Corrupt as `sign_leaf` does.
        """
        signer, trusted = self._made_of
        if signer == authority.issuer:
            due = now >= self._validity.renew_at
        else:
            is_known = everybody_uses_it and authority.issuer in trusted
            due = is_known or signer not in authority.trusted
        if due or now >= self._validity.ends - DAY:
            uri = Holder(cluster.volumes_uid, Role.MASTER, NAME).uri
            hosts = (f"{NAME}.{Role.MASTER}.{cluster.volumes_uid}.stele.invalid",)
            names = Names(NAME, (uri,), hosts)
            self._leaf = await asyncio.to_thread(sign_leaf, authority.current, names, now, LEAF_DAYS)
            self._validity = validity_of(read_certificate(self._leaf.certificate))
            signer = authority.issuer
        elif trusted == authority.trusted:
            return
        leaf = self._leaf
        self.context = await asyncio.to_thread(read_dialling, leaf.certificate, leaf.key, authority.trusted)
        self._made_of = signer, authority.trusted


class MemberDialling:
    """Implements `adapters.members.client.Dialling` by the level in the head of the table."""

    def __init__(
        self,
        certificate: MasterCertificate,
        cluster: Callable[[], TabletCluster],
        level: Callable[[], InternalTls],
    ) -> None:
        self._certificate, self._cluster, self._level = certificate, cluster, level
        self._demanding: set[MemberIndex] = set()

    @property
    def requires_tls(self) -> bool:
        return self._level().dials_tls

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._certificate.context

    @property
    def problem(self) -> str:
        return NOT_MADE

    def demands_tls(self, member: MemberIndex) -> bool:
        return member in self._demanding

    def note_demand(self, member: MemberIndex, *, demands_tls: bool) -> None:
        (self._demanding.add if demands_tls else self._demanding.discard)(member)
        self._certificate.want(is_wanted=bool(self._demanding))

    def name_of(self, member: MemberIndex) -> str:
        return manifests.name_of(self._cluster().metadata.name, member)

    def refusal(self, name: str, certificate: Certificate) -> str:
        """Take certificates of members that have ended for as long as members take each other's."""
        return _refusal(self._cluster(), Role.MEMBER, name, certificate)


class CopierDialling:
    """Implements `adapters.spark.client.CopierDialling`."""

    def __init__(self, certificate: MasterCertificate, cluster: Callable[[], TabletCluster]) -> None:
        self._certificate, self._cluster = certificate, cluster

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._certificate.context

    @property
    def name(self) -> str:
        return manifests.copier_name(self._cluster().metadata.name)

    def refusal(self, name: str, certificate: Certificate) -> str:
        """Take one that has ended as long as those of members."""
        return _refusal(self._cluster(), Role.COPIER, name, certificate)


def _refusal(cluster: TabletCluster, role: Role, name: str, certificate: Certificate) -> str:
    grace = grace_seconds(takes_expired=cluster.security.members.takes_expired)
    expected = Expected(cluster.volumes_uid, (role,), name)
    return peer_refusal(certificate, expected, time.time(), grace)
