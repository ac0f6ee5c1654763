"""Keeps the CA of one cluster and the certificates of its members in Secrets.

Each round reads what may have changed, writes what is missing or due, and takes at most one step of a change
of the CA. Every write is a compare-and-set of one Secret, and what it wrote decides what the next one is: a
round may end anywhere, and the next one goes on.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stele.adapters.kubernetes.secret_store import TLS, Content, Mark, StoredSecret
from stele.adapters.pki.certificates import (
    Names,
    Pair,
    chain_of,
    check_pair,
    is_signed_by,
    make_authority,
    read_certificate,
    sign_leaf,
    still_valid,
)
from stele.core.security.rotation import CA_DAYS, LEAF_DAYS, Step, Validity, next_step
from stele.errors import Conflict, Corrupt
from stele.master.attempts import errors_of
from stele.master.authority import (
    CERTIFICATE,
    KEY,
    TRUSTED,
    Authority,
    bundle_name,
    ca_name,
    member_names,
    validity_of,
)
from stele.master.brought_authority import BroughtAuthority
from stele.master.kept_secrets import KeptSecrets
from stele.master.manifests import labels, owned_by_cluster, owner_reference
from stele.master.master_certificate import MasterCertificate
from stele.master.pod_refresh import Lacking
from stele.master.secret_volumes import tls_name
from stele.model import TabletCluster, TabletMember
from stele.model.ownership import NameLeaves, NameTaken
from stele.wire.identity import identity_digest

RENEW_CA = "stele.dev/renew-ca"
"""Annotation of a TabletCluster: any new value changes the CA at once."""

NAME_ERRORS = (NameTaken, NameLeaves)
"""Errors of one Secret, for which the rest does not wait."""

NAMES_SHOWN = 5
"""Members that a message lists."""


@dataclass(frozen=True)
class _Checked:
    """A Secret with a certificate that was found right for this CA and these names until `renew_at`."""

    secret: StoredSecret
    authority: Authority
    names: Names
    ends: float
    renew_at: float

    @property
    def digest(self) -> str:
        return identity_digest(self.secret.data[CERTIFICATE], self.secret.data[TRUSTED])

    def fits(self, authority: Authority, names: Names, now: float) -> bool:
        return (self.authority, self.names) == (authority, names) and now < self.renew_at


class Certificates:
    """`days_left` is of the certificate that ends first, CA included; None while there is none.

    `waits` is why not every member uses what was written last, as of the last round that came to its end;
    `lacking` are those that run and do not.
    `trusted` are the CAs, PEM, that are valid; empty before the first round.
    """

    def __init__(self, secrets: KeptSecrets, master: MasterCertificate) -> None:
        self._secrets, self._master = secrets, master
        self._brought = BroughtAuthority(secrets)
        self._checked: dict[str, _Checked] = {}
        self.days_left: int | None = None
        self.waits = "certificates are made"
        self.lacking: Lacking = {}
        self.trusted = b""
        self.changes_ca = False

    async def ensure(
        self,
        cluster: TabletCluster,
        members: Sequence[TabletMember],
        reported: Mapping[str, str],
        now: float,
        *,
        others: Mapping[str, Names],
    ) -> None:
        """Make and renew what is due, also for `others` than members, by the names of their Secrets.

        `reported` has the digest of the certificate that each running member uses, empty for none. Raises
        Refused without rights on Secrets, NameTaken and NameLeaves for Secrets of others, Corrupt for a CA
        that cannot be used, and what the API server raises.
        """
        mark = _mark(cluster)
        brought = await self._brought.read(cluster, now)
        authority = await self._authority(cluster, mark, now)
        await self._master.renew(cluster, authority, now, everybody_uses_it=not self.waits)
        self.trusted = authority.trusted
        bundle = Content({TRUSTED: authority.bundle})
        await self._secrets.keep(bundle_name(cluster.metadata.name), bundle, mark, now)
        await self._all_members(cluster, members, authority, now)
        leaves = (self._leaf(name, names, mark, authority, now) for name, names in others.items())
        taken = await errors_of(leaves, NAME_ERRORS)
        kept = {*(tls_name(member.metadata.name) for member in members), *others}
        self._checked = {name: each for name, each in self._checked.items() if name in kept}
        self._look_at(cluster, members, authority, reported, now)
        if self._brought.problem is not None:
            raise self._brought.problem
        asked, used = cluster.metadata.annotations.get(RENEW_CA, ""), not self.waits
        step = next_step(authority.state(brought), asked, everybody_uses_it=used, now=now)
        fresh = authority.current
        if step is Step.ADD_NEXT:
            fresh = brought or await _new_authority(cluster, now)
        after = authority.refreshed(brought).after(step, asked, now, fresh)
        if after != authority:
            await self._secrets.keep(ca_name(cluster.metadata.name), after.content, mark, now)
        if taken:
            raise taken[0]

    async def ensure_member(self, cluster: TabletCluster, member: TabletMember, now: float) -> None:
        """Make the certificate of one member, so that its pod starts with it. Raises as `ensure` does."""
        await self._member(cluster, member, await self._authority(cluster, _mark(cluster), now), now)

    async def _all_members(
        self, cluster: TabletCluster, members: Sequence[TabletMember], authority: Authority, now: float
    ) -> None:
        """Make what is due for all of them, also when one cannot have its Secret."""
        steps = (self._member(cluster, member, authority, now) for member in members)
        if failed := await errors_of(steps, (*NAME_ERRORS, Conflict)):
            raise failed[-1]

    def _look_at(
        self,
        cluster: TabletCluster,
        members: Sequence[TabletMember],
        authority: Authority,
        reported: Mapping[str, str],
        now: float,
    ) -> None:
        names, wanted = [member.metadata.name for member in members], cluster.spec.members
        checked = {name: self._checked.get(tls_name(name)) for name in names}
        right = {name: each for name, each in checked.items() if each and each.authority == authority}
        behind = [name for name in names if name in right and reported.get(name) != right[name].digest]
        self.lacking = {name: right[name].digest for name in behind if name in reported}
        if unmade := [name for name in names if name not in right]:
            self.waits = f"certificates are made for {listed(unmade)}"
        elif behind:
            self.waits = f"{listed(behind)} do not use their newest certificate yet"
        else:
            self.waits = "" if len(names) >= wanted else f"{len(names)} of {wanted} members exist"
        validity = authority.validity
        ends = min([validity.ends, *(each.ends for each in self._checked.values())])
        self.days_left = Validity(validity.begins, ends).days_left(now)
        self.changes_ca = authority.next is not None or bool(authority.old)

    async def _authority(self, cluster: TabletCluster, mark: Mark, now: float) -> Authority:
        name = ca_name(cluster.metadata.name)
        found = await self._secrets.read(name, mark, now)
        if found is None:
            # Of a CA whose Secret was deleted: what it has signed stays valid until all have the new one.
            brought = await self._brought.read(cluster, now)
            if self._brought.problem is not None:
                raise self._brought.problem
            bundle = await self._secrets.read(bundle_name(cluster.metadata.name), mark, now)
            old = still_valid(bundle.data.get(TRUSTED, b""), now) if bundle is not None else b""
            content = Authority(brought or await _new_authority(cluster, now), old=old).content
            found = await self._secrets.keep(name, content, mark, now)
        return Authority.read(found, now)

    async def _member(
        self, cluster: TabletCluster, member: TabletMember, authority: Authority, now: float
    ) -> None:
        own = member.metadata.name
        names, mark = member_names(cluster, own), _mark(cluster, member)
        await self._leaf(tls_name(own), names, mark, authority, now)

    async def _leaf(self, name: str, names: Names, mark: Mark, authority: Authority, now: float) -> None:
        """Have a Secret of this name with a certificate for these names, unless the round is used up."""
        if not self._secrets.knows(name) and not self._secrets.may_ask():
            return
        found = await self._secrets.read(name, mark, now)
        if found is not None and self._is_right(found, authority, names, now):
            return
        if found is not None and not self._secrets.may_ask():
            return
        leaf = await asyncio.to_thread(sign_leaf, authority.current, names, now, LEAF_DAYS)
        shown = leaf.certificate + chain_of(authority.current)
        content = Content({CERTIFICATE: shown, KEY: leaf.key, TRUSTED: authority.trusted}, type=TLS)
        written = await self._secrets.keep(name, content, mark, now)
        self._is_right(written, authority, names, now)

    def _is_right(self, secret: StoredSecret, authority: Authority, names: Names, now: float) -> bool:
        """Return whether a certificate needs no renewal; each version of it is parsed once."""
        before = self._checked.get(secret.name)
        if before is not None and before.secret is secret and before.fits(authority, names, now):
            return True
        good = _check(secret, authority, names, now)
        if good is not None:
            self._checked[secret.name] = good
        return good is not None


def mark_of(cluster: TabletCluster, component: str) -> Mark:
    """Return what marks a Secret as one of the cluster's."""
    marks = labels(cluster.metadata.name, component)
    return Mark(cluster.volumes_uid, owned_by_cluster(cluster), marks)


def _mark(cluster: TabletCluster, member: TabletMember | None = None) -> Mark:
    if member is None:
        return mark_of(cluster, "certificates")
    name, own = cluster.metadata.name, member.metadata.name
    owner = owner_reference("TabletMember", own, member.metadata.uid)
    return Mark(cluster.volumes_uid, owner, labels(name, "certificates", own))


async def _new_authority(cluster: TabletCluster, now: float) -> Pair:
    name = f"stele {cluster.metadata.namespace}/{cluster.metadata.name}"
    return await asyncio.to_thread(make_authority, name, now, CA_DAYS)


def _check(secret: StoredSecret, authority: Authority, names: Names, now: float) -> _Checked | None:
    """Return None for a certificate that is to be made again: broken, of another CA or name, or due."""
    if secret.data.get(TRUSTED) != authority.trusted:
        return None
    certificate = secret.data.get(CERTIFICATE, b"")
    try:
        check_pair(Pair(certificate, secret.data.get(KEY, b"")))
        facts = read_certificate(certificate)
        signed = is_signed_by(certificate, authority.current.certificate)
    except Corrupt:
        return None
    validity = validity_of(facts)
    right = signed and (facts.uris, facts.hosts) == (names.uris, names.hosts)
    # Another one would not last longer than the CA either.
    renew_at = validity.renew_at if validity.ends < authority.validity.ends else float("inf")
    if not right or now >= renew_at:
        return None
    return _Checked(secret, authority, names, validity.ends, renew_at)


def listed(names: Sequence[str]) -> str:
    """Return the first of these names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
