"""The members of one cluster as the cache has them, with their pods, nodes and zones."""

import logging
from typing import Any

from stele.adapters.kubernetes.api import MEMBERS, PODS
from stele.core.control.failure_detector import NEVER, MemberObject
from stele.core.table.ids import MemberIndex
from stele.master.cache import Cache
from stele.master.children import Children
from stele.master.maintenance import Maintenance
from stele.master.nodes import Nodes
from stele.master.once_per_version import OncePerVersion, are_same
from stele.master.outdated import OutdatedObjects
from stele.master.pods import node_of, pod_facts
from stele.master.restarts import Restarts
from stele.model import TabletCluster, TabletMember, Unreadable
from stele.model.member import accepted_copies
from stele.model.ownership import CLUSTER_LABEL, belongs_to

log = logging.getLogger(__name__)

Object = dict[str, Any]


class MemberObjects:
    """Each stored version of a TabletMember is parsed once, and compared with its pod and node once; a member
    without a pod keeps its node and zone.

    `listed` has the stored and the parsed object of each member that the last `read` returned.
    """

    def __init__(
        self,
        cache: Cache,
        children: Children,
        nodes: Nodes,
        restarts: Restarts,
        outdated: OutdatedObjects,
        *,
        maintenance: Maintenance,
        cluster: TabletCluster,
    ) -> None:
        self._cache, self._children, self._nodes = cache, children, nodes
        self._restarts, self._maintenance, self._outdated = restarts, maintenance, outdated
        self._namespace, self._cluster_name = cluster.metadata.namespace, cluster.metadata.name
        self._cluster_uid = cluster.metadata.uid
        self._zones: dict[str, tuple[str, ...]] = {}
        self._last_nodes: dict[str, str] = {}
        self._parsed: dict[str, tuple[Object, TabletMember | Unreadable]] = {}
        self._made: dict[str, tuple[tuple[object, ...], MemberObject]] = {}
        self._own = OncePerVersion(self._belonging)
        self.listed: tuple[tuple[Object, TabletMember], ...] = ()

    def read(self, cluster: TabletCluster) -> tuple[MemberObject, ...]:
        """Return the cluster's members with their pods, without objects that cannot be parsed."""
        parsed = ((stored, self.parse(stored)) for stored in self.stored())
        self.listed = tuple(
            (stored, member) for stored, member in parsed if not isinstance(member, Unreadable)
        )
        return tuple(self._facts(cluster, stored, member) for stored, member in self.listed)

    def _facts(self, cluster: TabletCluster, stored: Object, member: TabletMember) -> MemberObject:
        """Return the member as a decision sees it: the same value until an object that it is made of changes.
        Times of users' annotations are read each time."""
        pod, name = self.pod(stored), member.metadata.name
        former = self._cache.removed(PODS, self._namespace, name)
        node = self._node(member, pod)
        made_of = stored, pod, former, cluster, self._nodes.read(node)
        known = self._made.get(name)
        if known is not None and are_same(known[0], made_of):
            return known[1]
        made = self._make(cluster, stored, member, pod, former)
        if made.kept_until_seconds == NEVER and made.restart_until_seconds is None:
            self._made[name] = made_of, made
        return made

    def _make(
        self,
        cluster: TabletCluster,
        stored: Object,
        member: TabletMember,
        pod: Object | None,
        former: Object | None,
    ) -> MemberObject:
        zone, node = self._zone(cluster, member, pod), self._node(member, pod)
        return MemberObject(
            member.spec.index,
            member.metadata.name,
            member.spec.drain,
            member.spec.lite,
            member.metadata.deletion_timestamp is not None,
            None if pod is None else pod_facts(pod),
            member.spec.weight,
            zone,
            None if former is None else pod_facts(former),
            bool(self._outdated.of_pod(cluster, member, pod)),
            self._maintenance.kept_until_seconds(member, node),
            self._restarts.until_seconds(stored),
            accepted_copies(member.metadata.annotations),
            member.spec.replacement,
            node,
            self._nodes.state(node),
            bool(member.status.uuid),
        )

    def stored(self) -> list[Object]:
        """Return the members' objects in the cache, also those that cannot be parsed."""
        labelled = self._cache.labelled(MEMBERS, self._namespace, CLUSTER_LABEL, self._cluster_name)
        return self._own(labelled)

    def _belonging(self, labelled: tuple[Object, ...]) -> list[Object]:
        """Return those of this cluster, and forget what was made of others."""
        stored = [each for each in labelled if belongs_to(each, self._cluster_uid)]
        names = {each["metadata"]["name"] for each in stored}
        self._made = {name: made for name, made in self._made.items() if name in names}
        return stored

    def parse(self, stored: Object) -> TabletMember | Unreadable:
        """Parse each stored version once; objects in the cache are never changed in place."""
        name = stored["metadata"]["name"]
        before = self._parsed.get(name)
        if before is not None and before[0] is stored:
            return before[1]
        member = TabletMember.read(stored)
        if isinstance(member, Unreadable):
            log.warning("%s", member)
        self._parsed[name] = (stored, member)
        return member

    def pod(self, stored: Object) -> Object | None:
        """Return the pod of a member's object."""
        return self._children.find(PODS, stored["metadata"]["name"], stored["metadata"]["uid"])

    def maintenance_problems(self) -> dict[MemberIndex, str]:
        """Return what is wrong with the users' annotations that keep members' places."""
        found = {
            member.spec.index: self._maintenance.problem(member, self._node(member, self.pod(stored)))
            for stored, member in self.listed
        }
        return {index: text for index, text in found.items() if text}

    def leaving_nodes(self) -> set[str]:
        """Return the nodes of the pods that are being deleted."""
        pods = (self.pod(each) for each in self.stored())
        leaving = (pod for pod in pods if pod is not None and pod["metadata"].get("deletionTimestamp"))
        return {node for pod in leaving if (node := node_of(pod))}

    def node_names(self) -> list[str]:
        """Return the nodes that the members' pods are scheduled on."""
        return [node for each in self.stored() if (node := node_of(self.pod(each)))]

    def _zone(
        self, cluster: TabletCluster, member: TabletMember, pod: Object | None
    ) -> tuple[str, ...] | None:
        """Return the zone of its pod's node; without a pod, the last known zone."""
        keys, name = cluster.spec.placement.topology_keys, member.metadata.name
        if not keys:
            return ()
        node = node_of(pod)
        if node:
            zone = self._nodes.path(node, keys)
            if zone is not None:
                self._zones[name] = zone
            return zone
        last = self._zones.get(name, member.status.zone)
        return last if len(last) == len(keys) else ()

    def _node(self, member: TabletMember, pod: Object | None) -> str:
        """Return the node of its pod; of the pod before while no node was chosen."""
        node = node_of(pod) or self._last_nodes.get(member.metadata.name, member.status.node)
        self._last_nodes[member.metadata.name] = node
        return node
