"""Kubernetes as seen by one cluster's loop: cached objects, children created when missing, and status."""

import logging
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from stele.adapters import logs
from stele.adapters.kubernetes.api import (
    BUDGETS,
    CLAIMS,
    CLUSTERS,
    KEYSPACES,
    MEMBERS,
    PODS,
    REBALANCES,
    SERVICES,
    USERS,
    Api,
    Kind,
)
from stele.adapters.kubernetes.keyspace_store import KeyspaceStore
from stele.core.control.commands import ClearKeyspaces
from stele.core.control.failure_detector import MemberObject
from stele.core.control.requests import RebalanceRequest
from stele.core.control.state import AboutMember, AboutRequest, ClusterEvent, DesiredSpec, State, Subject
from stele.core.kv.keyspaces import Catalog
from stele.core.table.ids import MemberIndex
from stele.core.table.steps import is_above
from stele.errors import BadInput, Conflict, Corrupt, Refused, Stale
from stele.master import keyspaces, manifests
from stele.master import status as facts
from stele.master.attempts import errors_of
from stele.master.cache import Cache
from stele.master.children import Children
from stele.master.desired import desired_spec_of
from stele.master.events import EventRecorder, Reference, reference_to
from stele.master.maintenance import Maintenance
from stele.master.master_certificate import MasterCertificate
from stele.master.member_objects import MemberObjects
from stele.master.member_status import member_status
from stele.master.merge_patch import patch_of
from stele.master.namespace import NamespaceSetup
from stele.master.network_policies import NetworkPolicies
from stele.master.nodes import DOUBT_SECONDS, Nodes
from stele.master.once_per_version import OncePerVersion, are_same
from stele.master.outdated import OutdatedObjects
from stele.master.placements import waits_until
from stele.master.plans import RebalanceRequests, show_plans
from stele.master.pod_refresh import CERTIFICATE_FILE, USERS_FILE, PodRefresh
from stele.master.pods import has_ended, ready_address, restarts_of
from stele.master.restarts import Restarts
from stele.master.revision import outdated_pod
from stele.master.revision_history import RevisionHistory
from stele.master.security import ClusterSecurity
from stele.master.settings import Settings
from stele.master.status_writer import patch_status, show
from stele.master.view import View, partition_counts
from stele.master.volumes import Volumes
from stele.model import TabletCluster, Unreadable
from stele.model.cluster_status import TabletClusterStatus
from stele.model.ownership import CLUSTER_UID_LABEL, NameLeaves, NameTaken
from stele.wire.urls import root

log = logging.getLogger(__name__)

STEP_ERRORS = (BadInput, Conflict, Corrupt, Refused)
"""Errors of one object, which say nothing about the next one."""

STATUSES_MAX = 100
"""Statuses of members that are written in one round: more would hold up decisions."""

Object = dict[str, Any]

STOPPED_FIELDS = ("observedGeneration", "message", "conditions")
"""What of the status changes when the master fails."""


class KubernetesClusterObjects:
    """One TabletCluster. A stored object that cannot be parsed leaves the desired spec unchanged."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        settings: Settings,
        cluster: TabletCluster,
        clock_at: Callable[[float], datetime],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._api, self._cache, self._settings = api, cache, settings
        self._cluster, self._clock_at = cluster, clock_at
        self._claim_names = OncePerVersion(self._claims_by_index)
        self._ensured: dict[MemberIndex, tuple[object, ...]] = {}
        self._last_shown = ""
        self._spec = OncePerVersion(desired_spec_of)
        self._state: State | None = None
        self._shown_seconds = float("-inf")
        self._children = Children(api, cache, cluster.metadata.namespace)
        self._requests = RebalanceRequests()
        self._nodes = Nodes(api)
        self._revisions = RevisionHistory(api)
        self._volumes = Volumes(api, cache)
        self._restarts = Restarts(api, cache, clock_at)
        self._outdated = OutdatedObjects(self._children, settings)
        self._members = MemberObjects(
            cache,
            self._children,
            self._nodes,
            self._restarts,
            self._outdated,
            maintenance=Maintenance(self._nodes, clock_at),
            cluster=cluster,
        )
        self._keyspaces = keyspaces.KeyspaceObjects(
            api, cache, _keyspace_store(api, cluster), cluster.metadata.namespace, cluster.metadata.name
        )
        self._security = ClusterSecurity(api, cache, settings, cluster.key)
        self._refreshed_users = PodRefresh(self._children, USERS_FILE)
        self._refreshed_certificates = PodRefresh(self._children, CERTIFICATE_FILE)
        self._policies = NetworkPolicies(api, cache, self._children, settings.own_namespace)
        self._namespace_setup = NamespaceSetup(api, settings, cluster.metadata.namespace)
        self._events = EventRecorder(api, self._subject)
        self._may_have_budget = True
        self._read: Object | None = None
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

    @property
    def master_certificate(self) -> MasterCertificate:
        return self._security.master

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
            logs.follow_cluster(self.namespace, self.name, cluster.spec.log_level)

    def partitions(self) -> int:
        return self._cluster.spec.partitions

    def desired(self) -> DesiredSpec:
        desired = replace(self._spec(self.cluster()), groups=self._keyspaces.groups)
        return self._security.told(desired, self.cluster())

    def member_objects(self) -> tuple[MemberObject, ...]:
        """Return the cluster's members with their pods, without objects that cannot be parsed."""
        return self._members.read(self.cluster())

    def _doubtful_nodes(self) -> set[str]:
        """Return the nodes of members that stop or are silent: they may be lost, or under maintenance."""
        if self._state is None:
            return set()
        now, timing = self._now(), self.desired().timing
        silent = (each for each in self._state.membership.liveness.values() if each.gone(now, timing))
        nodes = {each.member_object.node for each in silent if each.member_object is not None}
        return (nodes | self._members.leaving_nodes()) - {""}

    def claims(self) -> dict[MemberIndex, str]:
        """Return the names of the cluster's volume claims that are not being deleted, by member index."""
        claims = self._cache.labelled(CLAIMS, self.namespace, CLUSTER_UID_LABEL, self.volumes_uid)
        return self._claim_names(claims)

    def _claims_by_index(self, claims: tuple[Object, ...]) -> dict[MemberIndex, str]:
        kept = (each["metadata"] for each in claims if not each["metadata"].get("deletionTimestamp"))
        by_index = {manifests.index_of(self.name, meta["name"]): meta["name"] for meta in kept}
        return {index: name for index, name in by_index.items() if index is not None}

    async def read_nodes(self) -> None:
        """Read the nodes of members that stop or are silent, and of all when topology keys are set."""
        now = self._now()
        await self._nodes.refresh(self._doubtful_nodes(), now, DOUBT_SECONDS)
        if self.cluster().spec.placement.topology_keys:
            await self._nodes.refresh(self._members.node_names(), now)

    def _foreign_claims(self) -> tuple[str, ...]:
        """Return claims that hold another cluster's data under a member's name; they are never used or
        deleted."""
        cluster = self.cluster()
        names = (each["metadata"]["name"] for each in self._members.stored())
        claims = (self._cache.get(CLAIMS, self.namespace, name) for name in names)
        return tuple(
            each["metadata"]["name"] for each in claims if each and manifests.is_foreign(each, cluster)
        )

    def _but_foreign(self, names: Sequence[str]) -> tuple[str, ...]:
        """Leave out foreign claims, which are reported separately."""
        foreign = {f"{CLAIMS.kind} {name}" for name in self._foreign_claims()}
        return tuple(each for each in names if each not in foreign)

    def catalog(self) -> Catalog:
        """Return the catalog of keyspaces as it is stored."""
        return self._keyspaces.catalog

    def clear_at(self, index: MemberIndex) -> ClearKeyspaces | None:
        """Return the dropped keyspaces that this member is to clear."""
        return self._keyspaces.dropped.clear_at(index)

    def over_quota(self) -> tuple[str, ...] | None:
        """Return the keyspaces that may not grow, None while their sizes are not known."""
        return self._keyspaces.over_quota

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
        recreated. What was as it should be is looked at again once it or the cluster has changed."""
        cluster, uid, children = self.cluster(), self.cluster_uid, self._children
        present = cluster, *self._present(index)
        if are_same(self._ensured.get(index, ()), present):
            return
        member = await children.ensure(MEMBERS, manifests.member_object(cluster, index), uid)
        if member is None:
            return
        pod = self._members.pod(member)
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
        elif claim is not None and are_same(present[1:], self._present(index)):
            self._ensured[index] = present

    def _present(self, index: MemberIndex) -> tuple[Object | None, ...]:
        """Return a member's object, claim and pod as they are in the cache."""
        name = manifests.name_of(self.name, index)
        return tuple(self._cache.get(kind, self.namespace, name) for kind in (MEMBERS, CLAIMS, PODS))

    async def _make_pod(self, cluster: TabletCluster, member: Object, index: MemberIndex) -> None:
        """Create the pod.

        It mounts a claim by name, so the claim's owner is checked now rather than in the cache.
        """
        model, children = self._members.parse(member), self._children
        if isinstance(model, Unreadable) or model.metadata.deletion_timestamp is not None:
            return
        claim = manifests.kept_claim(manifests.claim(cluster, index), cluster)
        if await children.create(CLAIMS, claim, self.volumes_uid) is None:
            return
        await self._security.ensure_member(cluster, model, self._clock_at(self._now()))
        level = self._security.first_level(cluster, self._state)
        body = manifests.member_pod(cluster, model, self._settings.members, level)
        await children.ensure(PODS, body, model.metadata.uid)

    async def remove_member(self, index: MemberIndex, *, keep_volume: bool) -> None:
        """Delete the volume (if the spec says so), the pod, and last the object, so that a crash in
        between resumes."""
        name, uid, children = manifests.name_of(self.name, index), self.cluster_uid, self._children
        self._ensured.pop(index, None)
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

    async def replace_pod(self, index: MemberIndex, pod_uid: str) -> None:
        """Delete the pod with this UID; `ensure_member` makes the next one."""
        await self._api.delete(PODS, self.namespace, manifests.name_of(self.name, index), pod_uid)

    async def restart_member(self, index: MemberIndex, pod_uid: str, keep_seconds: float) -> None:
        """Note that the member restarts, then delete its pod; `ensure_member` makes the next one."""
        member = self._children.find(MEMBERS, manifests.name_of(self.name, index), self.cluster_uid)
        if member is not None:
            await self._restarts.begin(member, pod_uid, keep_seconds)

    async def finish_restart(self, index: MemberIndex) -> None:
        member = self._children.find(MEMBERS, manifests.name_of(self.name, index), self.cluster_uid)
        if member is not None:
            await self._restarts.finish(member)

    async def ensure_shared(self) -> None:
        """Create or update the services, the budget, the copier and what else all members share.

        A step that fails delays no other. Raises the first error, and logs the others; an API server that
        does not answer ends the round.
        """
        self._children.begin_round(self._now())
        await self.read_nodes()
        failed = await errors_of(self._shared_steps(), STEP_ERRORS)
        for other in failed[1:]:
            log.warning("shared objects: %s", other)
        if failed:
            raise failed[0]

    def _shared_steps(self) -> Iterator[Awaitable[None]]:
        cluster, uid, children = self.cluster(), self.cluster_uid, self._children
        yield children.apply(SERVICES, manifests.headless_service(cluster), uid)
        yield children.apply(SERVICES, manifests.client_service(cluster), uid)
        if self._state is not None:
            yield self._ensure_budget(cluster, self._state)
        yield self._revisions.note(cluster)
        yield self._ensure_keyspaces()
        listed = [member for _, member in self._members.listed]
        yield self._security.ensure(cluster, listed, self._state, self._clock_at(self._now()))
        # It mounts its certificate, which is made before.
        yield self._ensure_copier(cluster)
        yield self._policies.ensure(cluster, self._now())
        stored = [member for member, _ in self._members.listed]
        yield self._refreshed_users.ask(self._security.lacking_users, stored, self._now())
        yield self._refreshed_certificates.ask(self._security.lacking_certificates, stored, self._now())

    async def _ensure_budget(self, cluster: TabletCluster, state: State) -> None:
        """Keep the disruption budget; delete it once, where the spec asks for none."""
        uid, children = self.cluster_uid, self._children
        if cluster.spec.pod_disruption_budget.enabled:
            parts = partition_counts(state, cluster.spec.replicas)
            all_safe = parts.safe == parts.total
            self._may_have_budget = True
            await children.apply(BUDGETS, manifests.budget(cluster, len(state.table.members), all_safe), uid)
        elif self._may_have_budget:
            await children.withdraw(BUDGETS, cluster.metadata.name, uid)
            self._may_have_budget = False

    async def _ensure_keyspaces(self) -> None:
        """Store the catalog of keyspaces and take the next step of those that are deleted, as the master."""
        if self._state is None or not self._state.recovered:
            return
        desired, liveness = self.desired(), self._state.membership.liveness.items()
        reachable = {index for index, each in liveness if each.reachable(self._shown_seconds, desired.timing)}
        undeclared = self.cluster().spec.keyspaces.undeclared
        await self._keyspaces.ensure(self._state, reachable, undeclared, waits_until(self._state, desired))

    async def _ensure_copier(self, cluster: TabletCluster) -> None:
        """Keep a pod as specified, with TLS where members take it: which they do is known from the state.

        An outdated one is deleted once no Spark job is running.
        """
        name, uid, children = manifests.copier_name(self.name), self.cluster_uid, self._children
        if not manifests.wants_copier(cluster):
            await children.delete(PODS, name, uid)
            return
        if self._state is None or not await self._namespace_setup.ensure():
            return
        body = manifests.copier_pod(
            cluster, self._settings.copier, with_tls=self._state.tls.level.listens_tls
        )
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

    def copier_url(self) -> str:
        """Return where the copier takes jobs; empty while it is not ready, or takes no TLS where members are
        dialled with it."""
        pod = self._children.find(PODS, manifests.copier_name(self.name), self.cluster_uid)
        address = "" if pod is None else ready_address(pod)
        if pod is None or not address:
            return ""
        with_tls = manifests.takes_tls(pod)
        if not with_tls and self._state is not None and self._state.tls.level.dials_tls:
            return ""
        return root(address, manifests.COPIER_PORT, with_tls=with_tls)

    def trusted(self) -> str:
        """Return the CAs of the cluster, PEM; empty while they are not known."""
        return self._security.trusted

    async def post_events(self, events: Sequence[ClusterEvent]) -> None:
        await self._events.post(self._cluster, events)

    def _subject(self, subject: Subject) -> Reference | None:
        """Return a reference to what an Event is about; None when there is no such object."""
        if isinstance(subject, AboutRequest):
            return reference_to(REBALANCES, self.namespace, subject.name, subject.uid)
        if isinstance(subject, AboutMember):
            kind, name = MEMBERS, manifests.name_of(self.name, subject.index)
        else:
            kind, name = REBALANCES, f"{self.name}-{subject.id}"
        stored = self._children.find(kind, name, self.cluster_uid)
        return None if stored is None else reference_to(kind, self.namespace, name, stored["metadata"]["uid"])

    async def write_status(self, state: State, now: float) -> None:
        """Write the changed statuses of the cluster, its members and plans.

        Until members have reported, only the epoch is written.

        Raises Stale once a newer master has written the status.
        """
        self._state, self._shown_seconds = state, now
        cluster, view = self.cluster(), self._view(state, now)
        wanted = facts.cluster_status(cluster, view, f"{self.name}-{state.plan_id}")
        early = facts.too_early(view, cluster.status, wanted)
        if early:
            security = self._policies.noted(cluster.status.security, cluster)
            wanted = cluster.status.model_copy(update={"epoch": state.epoch, "security": security})
        if self.unreadable is not None:
            wanted = facts.invalid(wanted, self.unreadable, view.clock)
        await self._patch(CLUSTERS, self.name, wanted.to_dict())
        self.shown = wanted
        if early:
            return
        await self._write_members(view)
        self._check_leads(state)
        await show_plans(self._api, self._cache, self._children, cluster, view)
        for stored, keyspace_status in self._keyspaces.statuses(state, view.clock):
            await show(self._api, self._cache, KEYSPACES, stored, keyspace_status)
        for stored, user_status in self._security.user_statuses(view.clock):
            await show(self._api, self._cache, USERS, stored, user_status)
        await self._events.post_waiting(cluster)

    def _view(self, state: State, now: float) -> View:
        """Return what statuses show: the state, and what of the cluster's objects is not as it should be."""
        cluster, keys = self.cluster(), self.cluster().spec.placement.topology_keys
        unknown = self._nodes.problem(keys, self._members.node_names()) if keys else ""
        pods = ((member, self._members.pod(stored)) for stored, member in self._members.listed)
        updated, outdated, resizing = self._outdated.of_all(cluster, pods, state.tls.level)
        security = self._security.facts(cluster, self.desired(), state)
        return View(
            state,
            self.desired(),
            now,
            self._clock_at(now),
            self._foreign_claims(),
            self.name,
            self.requests(),
            unknown,
            self._but_foreign((*self._children.taken(), *self._security.taken)),
            updated,
            outdated,
            resizing,
            self._but_foreign(self._children.leaving()),
            self._children.refused(),
            self._volumes.cannot_grow(cluster),
            self._spark_problem(cluster),
            self._nodes.unreadable(),
            self._members.maintenance_problems(),
            manifests.member_image(cluster, self._settings.members),
            replace(security, status=self._policies.noted(security.status, cluster)),
        )

    async def _write_members(self, view: View) -> None:
        """Write the statuses of as many members as one round may, beginning behind those of the last one."""
        listed = self._members.listed
        names = [member.metadata.name for _, member in listed]
        first = bisect_right(names, self._last_shown) if len(listed) > STATUSES_MAX else 0
        for stored, member in (*listed[first:], *listed[:first])[:STATUSES_MAX]:
            self._last_shown = member.metadata.name
            claim = self._children.find(CLAIMS, member.metadata.name, self.volumes_uid)
            status = member_status(member, view, restarts_of(self._members.pod(stored)), claim)
            await self._patch(MEMBERS, member.metadata.name, status.to_dict())

    async def write_blocked(self, why: NameTaken | NameLeaves, now: float) -> None:
        """Report that nothing is done for this cluster, because other owners' objects have its table's
        names."""
        cluster = self.cluster()
        wanted = facts.blocked(cluster.status, why, cluster.metadata.generation, self._clock_at(now))
        await self._patch(CLUSTERS, self.name, wanted.to_dict())
        self.shown = wanted

    async def write_stopped(self, text: str, *, lasting: bool, epoch: int) -> None:
        """Report that the master failed, unless the status is of one with a higher epoch: it may lead.

        What a later build wrote of the status, and this one does not know, stays.
        """
        stored = await self._api.find(CLUSTERS, self.namespace, self.name)
        cluster = None if stored is None else TabletCluster.read(stored)
        if stored is None or not isinstance(cluster, TabletCluster) or cluster.status.epoch > epoch:
            return
        if cluster.metadata.uid != self.cluster_uid:
            return
        clock, generation = self._clock_at(self._now()), cluster.metadata.generation
        wanted = facts.stopped(cluster.status, text, generation, clock, lasting=lasting)
        self.shown, fields, before = wanted, wanted.to_dict(), stored.get("status") or {}
        changed = {name: fields[name] for name in STOPPED_FIELDS if before.get(name) != fields[name]}
        if changed:
            await patch_status(self._api, self._cache, CLUSTERS, stored, changed)

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


def _keyspace_store(api: Api, cluster: TabletCluster) -> KeyspaceStore:
    name = cluster.metadata.name
    return KeyspaceStore(
        api,
        cluster.metadata.namespace,
        manifests.keyspaces_name(name),
        manifests.owned_by_cluster(cluster),
        manifests.labels(name, "keyspaces"),
    )
