"""Pods and volume claims of one cluster that its spec no longer describes, in words for its status."""

from collections.abc import Iterable, Sequence
from typing import Any

from stele.adapters.kubernetes.api import CLAIMS, PODS, Kind
from stele.core.security.level import InternalTls
from stele.master import manifests
from stele.master.children import Children
from stele.master.once_per_version import OncePerVersion
from stele.master.revision import has_revision, outdated_claim, outdated_pod
from stele.master.settings import Settings
from stele.model import TabletCluster, TabletMember

Object = dict[str, Any]


class OutdatedObjects:
    """Compares the cached children of a cluster with those that its present spec would give."""

    def __init__(self, children: Children, settings: Settings) -> None:
        self._children, self._settings = children, settings
        self._revision_of = OncePerVersion[TabletCluster, str](
            lambda cluster: manifests.member_revision(cluster, settings.members)
        )

    def of_pod(self, cluster: TabletCluster, member: TabletMember, pod: Object | None) -> list[str]:
        """Return what differs in the member's pod; empty when nothing does or there is none."""
        if pod is None or has_revision(pod, self._revision_of(cluster)):
            return []
        wanted = manifests.member_pod(cluster, member, self._settings.members)
        return _shown(PODS, pod, outdated_pod(pod, wanted))

    def of_all(
        self,
        cluster: TabletCluster,
        members: Iterable[tuple[TabletMember, Object | None]],
        level: InternalTls,
    ) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """Return how many members' pods and volumes match the spec, and the pods and claims that do not.

        Each member comes with its pod; `level` is that of TLS among members.
        """
        old, growing, updated = list[str](), list[str](), 0
        for member, pod in members:
            differences, resizes = self.of_pod(cluster, member, pod), self._of_claim(cluster, member)
            old += differences
            growing += resizes
            updated += not differences and not resizes and pod is not None
        return updated, (*old, *self._of_copier(cluster, level)), tuple(growing)

    def _of_claim(self, cluster: TabletCluster, member: TabletMember) -> list[str]:
        claim = self._children.find(CLAIMS, member.metadata.name, cluster.volumes_uid)
        if claim is None:
            return []
        return _shown(CLAIMS, claim, outdated_claim(claim, manifests.claim(cluster, member.spec.index)))

    def _of_copier(self, cluster: TabletCluster, level: InternalTls) -> list[str]:
        name = manifests.copier_name(cluster.metadata.name)
        copier = self._children.find(PODS, name, cluster.metadata.uid)
        if copier is None or not manifests.wants_copier(cluster):
            return []
        with_tls = level.listens_tls
        wanted = manifests.copier_pod(cluster, self._settings.copier, with_tls=with_tls)
        return _shown(PODS, copier, outdated_pod(copier, wanted))


def _shown(kind: Kind, stored: Object, what: Sequence[str]) -> list[str]:
    return [f"{kind.kind} {stored['metadata']['name']} ({', '.join(what)})"] if what else []
