"""Kubernetes as seen by one cluster's loop: cached objects, children created when missing, and status."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from stele.adapters.kubernetes.api import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    MEMBERS,
    PODS,
    SERVICES,
    Api,
    Kind,
)
from stele.core.control.failure_detector import MemberObject, PodFacts, Timing
from stele.core.control.requests import RebalanceRequest
from stele.core.control.state import ClusterEvent, DesiredSpec, State, UpdatePolicy
from stele.core.control.volumes import Recovery
from stele.core.copy.waves import LOG_SPACE_PERCENT, SNAPSHOT_SPACE_PERCENT
from stele.core.table.ids import MemberIndex
from stele.core.table.steps import is_above
from stele.errors import Stale
from stele.master import manifests
from stele.master import status as facts
from stele.master.cache import Cache
from stele.master.children import Children
from stele.master.events import post
from stele.master.member_status import member_status
from stele.master.merge_patch import patch_of
from stele.master.namespace import NamespaceSetup
from stele.master.nodes import DOUBT_SECONDS, Nodes
from stele.master.plans import RebalanceRequests, show_plans
from stele.master.restarts import RESTARTING_UNTIL, Restarts, problem_of
from stele.master.revision import has_revision, outdated_claim, outdated_pod
from stele.master.revision_history import RevisionHistory
from stele.master.settings import Settings
from stele.master.status_writer import patch_status
from stele.master.view import View, partition_counts
from stele.master.volumes import Volumes
from stele.model import TabletCluster, TabletMember, Unreadable
from stele.model.cluster import ROLLBACK_COPIES, Storage, TabletClusterStatus
from stele.model.common import Quantity, quantity_bytes
from stele.model.member import accepted_copies
from stele.model.ownership import CLUSTER_UID_LABEL, NameLeaves, NameTaken, belongs_to

log = logging.getLogger(__name__)

PAUSE_ANNOTATION = "stele.dev/paused"

Object = dict[str, Any]


class KubernetesClusterObjects:
    """One TabletCluster. A stored object that cannot be parsed leaves the desired spec unchanged."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        settings: Settings,
        cluster: TabletCluster,
        clock_at: Callable[[float], datetime],
    ) -> None:
        self._api, self._cache, self._settings = api, cache, settings
        self._cluster, self._clock_at = cluster, clock_at
        self._state: State | None = None
        self._children = Children(api, cache, cluster.metadata.namespace)
        self._requests = RebalanceRequests()
        self._nodes = Nodes(api)
        self._revisions = RevisionHistory(api)
        self._volumes = Volumes(api, cache)
        self._restarts = Restarts(api, cache, clock_at)
        self._namespace_setup = NamespaceSetup(api, settings, cluster.metadata.namespace)
        self._zones: dict[str, tuple[str, ...]] = {}
        self._last_nodes: dict[str, str] = {}
        self._read: Object | None = None
        self._listed: dict[str, tuple[Object, TabletMember]] = {}
        self._read_members: dict[str, tuple[Object, TabletMember | Unreadable]] = {}
        self.unreadable: Unreadable | None = None
        self.shown: TabletClusterStatus | None = None

    @property
    def namespace(self) -> str:
        return self._cluster.metadata.namespace

    @property
    def name(self) -> str:
        return self._cluster.metadata.name

    @property
    def cluster_uid(self) -> str:
        return self._cluster.metadata.uid

    @property
    def volumes_uid(self) -> str:
        return self._cluster.volumes_uid

    def cluster(self) -> TabletCluster:
        """Return the version of the last `refresh`, on which everything in one round is based."""
        return self._cluster

    def refresh(self) -> None:
        """Take the newest version that can be parsed."""
        stored = self._cache.get(CLUSTERS, self.namespace, self.name)
        if stored is None or stored is self._read or stored["metadata"].get("uid") != self.cluster_uid:
            return
        self._read = stored
        cluster = TabletCluster.read(stored)
        if isinstance(cluster, Unreadable):
            if self.unreadable is None:
                log.warning("%s", cluster)
            self.unreadable = cluster
        else:
            self._cluster, self.unreadable = cluster, None

    def partitions(self) -> int:
        return self._cluster.spec.partitions

    def desired(self) -> DesiredSpec:
        return desired_spec_of(self.cluster())

    def member_objects(self) -> tuple[MemberObject, ...]:
        """Return the cluster's members with their pods, without objects that cannot be parsed."""
        members = []
        cluster = self.cluster()
        self._listed = {}
        for stored in self._members():
            member = self._member(stored)
            if isinstance(member, Unreadable):
                continue
            self._listed[member.metadata.name] = stored, member
            pod = self._pod(stored)
            former = self._cache.removed(PODS, self.namespace, member.metadata.name)
            annotations = member.metadata.annotations
            members.append(
                MemberObject(
                    member.spec.index,
                    member.metadata.name,
                    member.spec.drain,
                    member.spec.lite,
                    member.metadata.deletion_timestamp is not None,
                    None if pod is None else pod_facts(pod),
                    member.spec.weight,
                    self._zone(member, pod),
                    None if former is None else pod_facts(former),
                    bool(self._outdated_pod(cluster, stored, member)),
                    self._restarts.kept_until_seconds(annotations),
                    self._restarts.seconds_of(annotations, RESTARTING_UNTIL),
                    accepted_copies(annotations),
                    member.spec.replacement,
                    node := self._node(member, pod),
                    self._nodes.state(node),
                )
            )
        return tuple(members)

    def _zone(self, member: TabletMember, pod: Object | None) -> tuple[str, ...] | None:
        """Return the zone of its pod's node; without a pod, the last known zone."""
        keys, name = self._cluster.spec.placement.topology_keys, member.metadata.name
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

    def _node_names(self) -> list[str]:
        return [node for each in self._members() if (node := node_of(self._pod(each)))]

    def _node(self, member: TabletMember, pod: Object | None) -> str:
        """Return the node of its pod; of the pod before while no node was chosen."""
        node = node_of(pod) or self._last_nodes.get(member.metadata.name, member.status.node)
        self._last_nodes[member.metadata.name] = node
        return node

    def _doubtful_nodes(self) -> set[str]:
        """Return the nodes of silent members, which may be lost."""
        if self._state is None:
            return set()
        now, timing = time.monotonic(), self.desired().timing
        silent = (each for each in self._state.membership.liveness.values() if each.gone(now, timing))
        return {each.member_object.node for each in silent if each.member_object is not None} - {""}

    def claims(self) -> dict[MemberIndex, str]:
        """Return the names of the cluster's volume claims that are not being deleted, by member index."""
        claims = self._cache.labelled(CLAIMS, self.namespace, CLUSTER_UID_LABEL, self.volumes_uid)
        names = [each["metadata"]["name"] for each in claims if not each["metadata"].get("deletionTimestamp")]
        by_index = {manifests.index_of(self.name, name): name for name in names}
        return {index: name for index, name in by_index.items() if index is not None}

    async def read_nodes(self) -> None:
        """Read the nodes of silent members, and of all members when topology keys are set."""
        now = time.monotonic()
        await self._nodes.refresh(self._doubtful_nodes(), now, DOUBT_SECONDS)
        if self.cluster().spec.placement.topology_keys:
            await self._nodes.refresh(self._node_names(), now)

    def _member(self, stored: Object) -> TabletMember | Unreadable:
        """Parse each stored version once; objects in the cache are never changed in place."""
        name = stored["metadata"]["name"]
        before = self._read_members.get(name)
        if before is not None and before[0] is stored:
            return before[1]
        member = TabletMember.read(stored)
        if isinstance(member, Unreadable):
            log.warning("%s", member)
        self._read_members[name] = (stored, member)
        return member

    def _members(self) -> list[Object]:
        listed = self._cache.labelled(MEMBERS, self.namespace, manifests.CLUSTER_LABEL, self.name)
        return [each for each in listed if belongs_to(each, self.cluster_uid)]

    def _pod(self, member: Object) -> Object | None:
        return self._children.find(PODS, member["metadata"]["name"], member["metadata"]["uid"])

    def _foreign_claims(self) -> tuple[str, ...]:
        """Return claims that hold another cluster's data under a member's name; they are never used or
        deleted."""
        cluster = self.cluster()
        names = (each["metadata"]["name"] for each in self._members())
        claims = (self._cache.get(CLAIMS, self.namespace, name) for name in names)
        return tuple(
            each["metadata"]["name"] for each in claims if each and manifests.is_foreign(each, cluster)
        )

    def _but_foreign(self, names: Sequence[str]) -> tuple[str, ...]:
        """Leave out foreign claims, which are reported separately."""
        foreign = {f"{CLAIMS.kind} {name}" for name in self._foreign_claims()}
        return tuple(each for each in names if each not in foreign)

    def _outdated(self, cluster: TabletCluster) -> tuple[int, tuple[str, ...]]:
        """Return how many members' pods and volumes match the spec, and the objects that do not."""
        old, updated = [], 0
        for stored, member in self._listed.values():
            pod = self._outdated_pod(cluster, stored, member)
            claim = self._outdated_claim(cluster, member)
            old += [*pod, *claim]
            updated += not pod and not claim and self._pod(stored) is not None
        copier = self._children.find(PODS, manifests.copier_name(self.name), self.cluster_uid)
        if copier is not None and manifests.wants_copier(cluster):
            old += _shown(
                PODS, copier, outdated_pod(copier, manifests.copier_pod(cluster, self._settings.copier))
            )
        return updated, tuple(old)

    def _outdated_pod(self, cluster: TabletCluster, stored: Object, member: TabletMember) -> list[str]:
        pod, setup = self._pod(stored), self._settings.members
        if pod is None or has_revision(pod, manifests.member_revision(cluster, setup)):
            return []
        return _shown(PODS, pod, outdated_pod(pod, manifests.member_pod(cluster, member, setup)))

    def _outdated_claim(self, cluster: TabletCluster, member: TabletMember) -> list[str]:
        claim = self._children.find(CLAIMS, member.metadata.name, self.volumes_uid)
        if claim is None:
            return []
        return _shown(CLAIMS, claim, outdated_claim(claim, manifests.claim(cluster, member.spec.index)))

    def epoch_shown(self) -> int:
        """Return the epoch of the master that last wrote the cluster's status; 0 when none did."""
        stored = self._cache.get(CLUSTERS, self.namespace, self.name)
        if stored is None or stored["metadata"].get("uid") != self.cluster_uid:
            return 0
        return int((stored.get("status") or {}).get("epoch") or 0)

    def requests(self) -> tuple[RebalanceRequest, ...]:
        """Return the TabletRebalances to carry out, with the users' latest changes to them."""
        return self._requests.read(self._cache, self.namespace, self.name, self.cluster_uid)

    async def ensure_member(self, index: MemberIndex) -> None:
        """Create the object, volume and pod that are missing; a pod that has ended is deleted, to be
        recreated."""
        cluster, uid, children = self.cluster(), self.cluster_uid, self._children
        member = await children.ensure(MEMBERS, manifests.member_object(cluster, index), uid)
        if member is None:
            return
        pod = self._pod(member)
        if pod is None:
            await self._make_pod(cluster, member, index)
            return
        claim = await children.ensure(CLAIMS, manifests.claim(cluster, index), self.volumes_uid)
        if claim is not None:
            await children.replace(CLAIMS, claim, manifests.kept_claim(claim, cluster))
            await self._volumes.grow(
                children.find(CLAIMS, claim["metadata"]["name"], self.volumes_uid), cluster
            )
        if has_ended(pod):
            await children.delete(PODS, pod["metadata"]["name"], member["metadata"]["uid"])

    async def _make_pod(self, cluster: TabletCluster, member: Object, index: MemberIndex) -> None:
        """Create the pod.

        It mounts a claim by name, so the claim's owner is checked now rather than in the cache.
        """
        model, children = self._member(member), self._children
        if isinstance(model, Unreadable) or model.metadata.deletion_timestamp is not None:
            return
        if await children.create(CLAIMS, manifests.claim(cluster, index), self.volumes_uid) is None:
            return
        body = manifests.member_pod(cluster, model, self._settings.members)
        await children.ensure(PODS, body, model.metadata.uid)

    async def remove_member(self, index: MemberIndex, *, keep_volume: bool) -> None:
        """Delete the volume (if the spec says so), the pod, and last the object, so that a crash in
        between resumes."""
        name, uid, children = manifests.name_of(self.name, index), self.cluster_uid, self._children
        if self.cluster().spec.storage.keep_volumes.value == "Delete" and not keep_volume:
            await children.delete(CLAIMS, name, self.volumes_uid)
        member = children.find(MEMBERS, name, uid)
        if member is not None:
            await children.delete(PODS, name, member["metadata"]["uid"])
            await children.delete(MEMBERS, name, uid)

    async def force_delete_pod(self, index: MemberIndex, pod_uid: str) -> None:
        """Delete the pod with this UID at once; `ensure_member` makes the next one."""
        name = manifests.name_of(self.name, index)
        await self._api.delete(PODS, self.namespace, name, pod_uid, grace_seconds=0)

    async def restart_member(self, index: MemberIndex, pod_uid: str) -> None:
        """Note that the member restarts, then delete its pod; `ensure_member` makes the next one."""
        member = self._children.find(MEMBERS, manifests.name_of(self.name, index), self.cluster_uid)
        if member is not None:
            await self._restarts.begin(member, pod_uid)

    async def finish_restart(self, index: MemberIndex) -> None:
        member = self._children.find(MEMBERS, manifests.name_of(self.name, index), self.cluster_uid)
        if member is not None:
            await self._restarts.finish(member)

    async def ensure_shared(self) -> None:
        """Create or update the services, the budget and the copier."""
        cluster, uid, children = self.cluster(), self.cluster_uid, self._children
        children.begin_round()
        await self.read_nodes()
        await children.apply(SERVICES, manifests.headless_service(cluster), uid)
        await children.apply(SERVICES, manifests.client_service(cluster), uid)
        if self._state is not None:
            parts = partition_counts(self._state, cluster.spec.replicas)
            members = len(self._state.table.members)
            budget = manifests.budget(cluster, members, parts.safe == parts.total)
            await children.apply(BUDGETS, budget, uid)
        await self._ensure_copier(cluster)
        await self._revisions.note(cluster)

    async def _ensure_copier(self, cluster: TabletCluster) -> None:
        """Keep a pod as specified. An outdated one is deleted once no Spark job is running."""
        name, uid, children = manifests.copier_name(self.name), self.cluster_uid, self._children
        if not manifests.wants_copier(cluster):
            await children.delete(PODS, name, uid)
            return
        if not await self._namespace_setup.ensure():
            return
        body = manifests.copier_pod(cluster, self._settings.copier)
        pod = await children.ensure(PODS, body, uid)
        outdated = pod is not None and outdated_pod(pod, body) and not self._has_spark_jobs()
        if pod is not None and (outdated or has_ended(pod)):
            await children.delete(PODS, name, uid)

    def _spark_problem(self, cluster: TabletCluster) -> str | None:
        asked = self._settings.all_namespaces and manifests.wants_copier(cluster)
        return self._namespace_setup.problem if asked else None

    def _has_spark_jobs(self) -> bool:
        """Return whether Spark jobs may be running; true until the master has taken over."""
        if self._state is None or not self._state.recovered:
            return True
        return any(session.copied_by_spark for session in self._state.operations.sessions.values())

    def copier_address(self) -> str:
        """Return the copier's address; empty while it is not ready."""
        pod = self._children.find(PODS, manifests.copier_name(self.name), self.cluster_uid)
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return ""
        conditions = pod.get("status", {}).get("conditions") or []
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return str(pod["status"].get("podIP", "")) if ready else ""

    async def post_events(self, events: Sequence[ClusterEvent]) -> None:
        await post(self._api, self._cluster, events)

    async def write_status(self, state: State, now: float) -> None:
        """Write the changed statuses of the cluster, its members and plans.

        Until members have reported, only the epoch is written.

        Raises Stale once a newer master has written the status.
        """
        self._state = state
        cluster, desired, clock = self.cluster(), self.desired(), self._clock_at(now)
        keys = cluster.spec.placement.topology_keys
        unknown = self._nodes.problem(keys, self._node_names()) if keys else ""
        updated, outdated = self._outdated(cluster)
        view = View(
            state,
            desired,
            now,
            clock,
            self._foreign_claims(),
            self.name,
            self.requests(),
            unknown,
            self._but_foreign(self._children.taken()),
            updated,
            outdated,
            self._but_foreign(self._children.leaving()),
            self._children.refused(),
            self._volumes.cannot_grow(self.cluster()),
            self._spark_problem(cluster),
            self._nodes.unreadable(),
        )
        wanted = facts.cluster_status(cluster, view, f"{self.name}-{state.plan_id}")
        early = facts.too_early(view, cluster.status, wanted)
        if early:
            wanted = cluster.status.model_copy(update={"epoch": state.epoch})
        if self.unreadable is not None:
            wanted = facts.invalid(wanted, self.unreadable, clock)
        await self._patch(CLUSTERS, self.name, wanted.to_dict())
        self.shown = wanted
        if early:
            return
        for stored, member in self._listed.values():
            claim = self._children.find(CLAIMS, member.metadata.name, self.volumes_uid)
            status = member_status(member, view, restarts_of(self._pod(stored)), claim)
            await self._patch(MEMBERS, member.metadata.name, status.to_dict())
        self._check_leads(state)
        await show_plans(self._api, self._cache, self._children, cluster, view)

    async def write_blocked(self, why: NameTaken | NameLeaves, now: float) -> None:
        """Report that nothing is done for this cluster, because other owners' objects have its table's
        names."""
        cluster = self.cluster()
        wanted = facts.blocked(cluster.status, why, cluster.metadata.generation, self._clock_at(now))
        await self._patch(CLUSTERS, self.name, wanted.to_dict())
        self.shown = wanted

    def _check_leads(self, state: State) -> None:
        if is_above(state.epoch, self.epoch_shown()):
            raise Stale(f"the status has epoch {self.epoch_shown()}, ours is {state.epoch}", "STALE_EPOCH")

    async def _patch(self, kind: Kind, name: str, wanted: Object) -> None:
        stored = self._cache.get(kind, self.namespace, name)
        if stored is None:
            return
        patch = patch_of(stored.get("status") or {}, wanted)
        if patch:
            if self._state is not None:
                self._check_leads(self._state)
            await patch_status(self._api, self._cache, kind, stored, patch)


def desired_spec_of(cluster: TabletCluster) -> DesiredSpec:
    """Return what one decision needs of the cluster's spec and annotations."""
    spec = cluster.spec
    detection = spec.failure_detection
    return DesiredSpec(
        members=spec.members,
        replicas=spec.replicas,
        timing=Timing(
            detection.heartbeat_seconds, detection.lease_seconds, detection.rejoin_grace_period_seconds
        ),
        state=spec.state.value,
        paused=cluster.metadata.annotations.get(PAUSE_ANNOTATION) == "true",
        migration_paused=spec.migration.paused,
        parallel_per_member=spec.migration.max_parallel_per_member,
        approval=spec.migration.approval.value,
        on_partition_loss=spec.on_partition_loss.value,
        engine=spec.migration.engine.value,
        spark_threshold_bytes=quantity_bytes(spec.spark.threshold_bytes),
        spark_idle_seconds=spec.spark.idle_seconds,
        fragments=spec.migration.fragments,
        bandwidth_per_member=quantity_bytes(spec.migration.bandwidth_per_member or 0),
        log_space=_space(spec.migration.log_space_per_member, spec.storage, LOG_SPACE_PERCENT),
        snapshot_space=_space(spec.migration.snapshot_space_per_member, spec.storage, SNAPSHOT_SPACE_PERCENT),
        quarantine_retention_seconds=spec.storage.quarantine_retention_seconds,
        log_level=spec.log_level,
        update=UpdatePolicy(
            spec.update_strategy.type, spec.update_strategy.paused, spec.update_strategy.partition
        ),
        replace_after_seconds=detection.replace_after_seconds,
        rollback_copies=cluster.metadata.annotations.get(ROLLBACK_COPIES) == spec.state.value,
        recovery=_recovery_of(cluster),
    )


def _space(given: Quantity | None, storage: Storage, percent: int) -> int:
    """Return the bytes given, or this share of a volume."""
    return quantity_bytes(storage.size) * percent // 100 if given is None else quantity_bytes(given)


def _recovery_of(cluster: TabletCluster) -> Recovery | None:
    if cluster.spec.bootstrap is None:
        return None
    volumes = cluster.spec.bootstrap.volumes
    return Recovery(
        cluster.metadata.name, volumes.cluster_uid, volumes.policy, frozenset(volumes.accept_loss)
    )


def _shown(kind: Kind, stored: Object, what: Sequence[str]) -> list[str]:
    return [f"{kind.kind} {stored['metadata']['name']} ({', '.join(what)})"] if what else []


def pod_facts(pod: Object) -> PodFacts:
    """Return what the pod reports about the member's process."""
    meta, status = pod["metadata"], pod.get("status") or {}
    container: Object = next((c for c in status.get("containerStatuses") or [] if c["name"] == "member"), {})
    state = container.get("state") or {}
    waiting_after = "waiting" in state and bool((container.get("lastState") or {}).get("terminated"))
    ended = "terminated" in state or waiting_after or has_ended(pod)
    started = container.get("containerID", "")
    process = f"{meta['uid']}/{container.get('restartCount', 0)}/{started}" if started else ""
    address = str(status.get("podIP", ""))
    terminating = bool(meta.get("deletionTimestamp"))
    since, scheduled = _since_seconds(container), bool(node_of(pod))
    return PodFacts(
        meta["uid"], address, process, bool(ended), terminating, since, problem_of(pod), scheduled
    )


def _since_seconds(container: Object) -> float:
    """Return when the container's present state began, see PodFacts.

    The end of the previous process is no evidence about the running one: the clock may have been set back in
    between.
    """
    state = container.get("state") or {}
    ended = (container.get("lastState") or {}) if "waiting" in state else state
    time = (state.get("running") or {}).get("startedAt") or (ended.get("terminated") or {}).get("finishedAt")
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def has_ended(pod: Object) -> bool:
    """Return whether none of the pod's containers runs, or will be started again."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def node_of(pod: Object | None) -> str:
    """Return the node that a pod is scheduled on; empty when it is not scheduled."""
    return "" if pod is None else str(pod.get("spec", {}).get("nodeName") or "")


def restarts_of(pod: Object | None) -> int:
    listed = [] if pod is None else (pod.get("status") or {}).get("containerStatuses") or []
    return sum(int(each.get("restartCount", 0)) for each in listed if each["name"] == "member")


def clock_of(wall: datetime, monotonic: float) -> Callable[[float], datetime]:
    """Convert monotonic to wall clock times, without jitter between calls."""
    return lambda seconds: wall + timedelta(seconds=seconds - monotonic)
