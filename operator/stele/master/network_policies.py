"""Writes the NetworkPolicies of one cluster, where spec.security.networkPolicy asks for them."""

from typing import Any

from stele.adapters.kubernetes.api import CLUSTERS, NETWORK_POLICIES, Api
from stele.master.attempts import errors_of
from stele.master.cache import Cache
from stele.master.children import Children
from stele.master.network_rules import names_of, network_policies
from stele.master.status_writer import patch_status
from stele.model import TabletCluster
from stele.model.cluster_status import SecurityStatus

LOOK_SECONDS = 300.0
"""Seconds until the policies are written again, in case others changed or deleted them."""

Object = dict[str, Any]


class NetworkPolicies:
    """Makes one cluster's policies, and deletes them once they are not asked for.

    The status notes that policies may exist before the first one is made, and until all are gone: so a
    cluster that never asked for any costs no request, and no crash leaves one behind.
    """

    def __init__(self, api: Api, cache: Cache, children: Children, operator_namespace: str) -> None:
        self._api, self._cache, self._children = api, cache, children
        self._operator_namespace = operator_namespace
        self._looked_seconds = float("-inf")
        self._deleted = False

    async def ensure(self, cluster: TabletCluster, now: float) -> None:
        """Take one round. Raises what the API server raises, after all policies were tried."""
        if cluster.security.network_policy.enabled:
            self._deleted = False
            if await self._note(cluster):
                await self._make(cluster, now)
        elif self.may_exist(cluster):
            for name in names_of(cluster.metadata.name):
                await self._children.withdraw(NETWORK_POLICIES, name, cluster.metadata.uid)
            self._deleted = True

    def may_exist(self, cluster: TabletCluster) -> bool:
        """Return whether the cluster may have policies, by its newest status."""
        status = (self._stored(cluster) or {}).get("status") or {}
        return not self._deleted and bool((status.get("security") or {}).get("networkPolicies"))

    def noted(self, status: SecurityStatus, cluster: TabletCluster) -> SecurityStatus:
        """Return the status with what is to be known of policies after this round."""
        return status.model_copy(update={"network_policies": self.may_exist(cluster) or None})

    async def _note(self, cluster: TabletCluster) -> bool:
        """Note that policies may exist; return whether the status says so."""
        stored = self._stored(cluster)
        if stored is not None and not self.may_exist(cluster):
            noted = {"security": {"networkPolicies": True}}
            await patch_status(self._api, self._cache, CLUSTERS, stored, noted)
        return self.may_exist(cluster)

    async def _make(self, cluster: TabletCluster, now: float) -> None:
        if now - self._looked_seconds >= LOOK_SECONDS:
            self._looked_seconds = now
            self._children.look_again(NETWORK_POLICIES)
        made = network_policies(cluster, self._operator_namespace)
        uid = cluster.metadata.uid
        if failed := await errors_of(self._children.apply(NETWORK_POLICIES, each, uid) for each in made):
            raise failed[0]

    def _stored(self, cluster: TabletCluster) -> Object | None:
        stored = self._cache.get(CLUSTERS, *cluster.key)
        return stored if stored and stored["metadata"].get("uid") == cluster.metadata.uid else None
