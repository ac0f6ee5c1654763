"""TabletRebalance objects: requests to the master, and their statuses."""

from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any

from stele.adapters.kubernetes.api import CLUSTERS, REBALANCES, Api
from stele.core.control.migration_queue import planned_bytes
from stele.core.control.progress import FINAL, RebalancePhase, RebalanceProgress
from stele.core.control.rebalance.planner import preview, sizes
from stele.core.control.requests import NamedHandover, NamedMove, RebalanceRequest
from stele.core.control.state import State
from stele.master import manifests, plan_status
from stele.master.cache import Cache
from stele.master.children import Children
from stele.master.merge_patch import patch_of
from stele.master.status_writer import patch_status
from stele.master.view import View
from stele.model import API_VERSION, TabletCluster, TabletRebalance, Unreadable
from stele.model.ownership import belongs_to
from stele.model.rebalance import RebalanceMode, Refusal, TabletRebalanceStatus

FINISHED_SHOWN_SECONDS = 60.0
"""Seconds for which a plan that has finished is shown, however few of them are kept."""

PLAN_LABEL = "stele.dev/plan"

Object = dict[str, Any]


class RebalanceRequests:
    """Requests of the stored objects. Each version of an object is parsed once."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[Object, RebalanceRequest | None]] = {}

    def read(self, cache: Cache, namespace: str, cluster: str, uid: str) -> tuple[RebalanceRequest, ...]:
        """Return requests, oldest first, without previews and objects that cannot be parsed."""
        objects = _of_cluster(cache, namespace, cluster, uid)
        before, self._read = self._read, {}
        for stored in objects:
            name = stored["metadata"]["name"]
            known = before.get(name)
            self._read[name] = (
                known if known and known[0] is stored else (stored, _request_of(stored, cluster))
            )
        return tuple(request for _, request in self._read.values() if request is not None)


def _of_cluster(cache: Cache, namespace: str, cluster: str, uid: str) -> list[Object]:
    """Return users' requests for this cluster and its own plans, but no object that only claims to be one."""
    objects = [
        each
        for each in cache.all(REBALANCES)
        if each["metadata"]["namespace"] == namespace
        and each["spec"].get("cluster") == cluster
        and (not _says_plan(each) or belongs_to(each, uid))
    ]
    return sorted(objects, key=_age)


def _says_plan(stored: Object) -> bool:
    return PLAN_LABEL in (stored["metadata"].get("labels") or {})


def _age(stored: Object) -> tuple[str, str]:
    return str(stored["metadata"].get("creationTimestamp", "")), stored["metadata"]["name"]


def _request_of(stored: Object, cluster: str) -> RebalanceRequest | None:
    model = TabletRebalance.read(stored)
    if isinstance(model, Unreadable) or model.spec.mode is RebalanceMode.DRY_RUN:
        return None
    name, spec, own = model.metadata.name, model.spec, PLAN_LABEL in model.metadata.labels
    if not own and not spec.moves and spec.handover is None:
        return None
    wanted = None if own else spec.handover
    return RebalanceRequest(
        name,
        uid=model.metadata.uid,
        plan=name.removeprefix(f"{cluster}-") if own else "",
        approved=spec.approved,
        cancel=spec.cancel or model.metadata.deletion_timestamp is not None,
        roll_back=spec.roll_back,
        cancelled=frozenset(spec.cancel_migrations or ()),
        moves=() if own else moves_of(model),
        handover=None if wanted is None else NamedHandover(wanted.member, wanted.destination or ""),
        phase=model.status.phase or "",
        situation=model.status.situation,
    )


def moves_of(model: TabletRebalance) -> tuple[NamedMove, ...]:
    return tuple(
        NamedMove(each.partition, each.source or "", each.destination or "")
        for each in model.spec.moves or ()
    )


async def show_plans(api: Api, cache: Cache, children: Children, cluster: TabletCluster, view: View) -> None:
    """Create what is missing, write what changed, delete what is too old.

    The present plan comes first: a master that ends here leaves no moment without what was approved.
    """
    state, now, meta = view.state, view.now, cluster.metadata
    present = [] if state.rebalance.progress is None else [state.rebalance.progress]
    records = {name_of(cluster, state, each): each for each in (*present, *state.rebalance.finished)}
    for name, progress in records.items():
        stored = children.find(REBALANCES, name, meta.uid)
        if stored is None:
            if not _is_shown(progress, now):
                continue
            body = _object(cluster, name, approved=state.has_approved(progress))
            stored = await children.ensure(REBALANCES, body, meta.uid)
        if stored is not None:
            await _progress(api, cache, stored, progress, view)
    others = [
        each
        for each in _of_cluster(cache, meta.namespace, meta.name, meta.uid)
        if each["metadata"]["name"] not in records or not belongs_to(each, meta.uid)
    ]
    for stored in others:
        user_plan = state.rebalance.user_plans.get(stored["metadata"]["name"])
        if user_plan is None or user_plan.uid != stored["metadata"]["uid"]:
            await _others(api, cache, stored, view)
        else:
            await _progress(api, cache, stored, user_plan, view)
    own = [each for each in _of_cluster(cache, meta.namespace, meta.name, meta.uid) if _says_plan(each)]
    shown = {name for name, progress in records.items() if _is_shown(progress, now)}
    for each in _too_old(own, shown, meta.name, cluster.spec.migration.history_limit):
        await api.delete(REBALANCES, meta.namespace, each["metadata"]["name"], each["metadata"]["uid"])


def _is_shown(progress: RebalanceProgress, now: float) -> bool:
    """Return whether the plan has an object in any case: it runs, or has finished a moment ago."""
    return progress.finished_seconds is None or now - progress.finished_seconds <= FINISHED_SHOWN_SECONDS


async def _progress(api: Api, cache: Cache, stored: Object, progress: RebalanceProgress, view: View) -> None:
    model = TabletRebalance.read(stored)
    if not isinstance(model, Unreadable):
        await _write(api, cache, stored, plan_status.rebalance_status(progress, view, model))


def name_of(cluster: TabletCluster, state: State, progress: RebalanceProgress) -> str:
    return f"{cluster.metadata.name}-{state.epoch}-{progress.number}"


def _object(cluster: TabletCluster, name: str, *, approved: bool) -> Object:
    """Build a plan's object. `approved`: it continues an approved plan; a new master reads that here."""
    meta = cluster.metadata
    spec = {"cluster": meta.name, "mode": RebalanceMode.EXECUTE.value}
    return {
        "apiVersion": API_VERSION,
        "kind": REBALANCES.kind,
        "metadata": {
            "name": name,
            "labels": manifests.labels(meta.name, "rebalance") | {PLAN_LABEL: name},
            "ownerReferences": [manifests.owned_by_cluster(cluster)],
        },
        "spec": spec | ({"approved": True} if approved else {}),
    }


async def _write(api: Api, cache: Cache, stored: Object, status: TabletRebalanceStatus) -> None:
    patch = patch_of(stored.get("status") or {}, status.to_dict())
    if patch:
        await patch_status(api, cache, REBALANCES, stored, patch)


async def _others(api: Api, cache: Cache, stored: Object, view: View) -> None:
    """Supersede plans of an earlier master, answer previews, and refuse plans that name nothing to do."""
    model = TabletRebalance.read(stored)
    if isinstance(model, Unreadable) or model.status.phase in FINAL:
        return
    if PLAN_LABEL in model.metadata.labels:
        if not view.state.rebalance.plan_key:
            # Its last status counts until this master has planned.
            return
        status = model.status.model_copy(update={"phase": RebalancePhase.SUPERSEDED})
    elif model.spec.mode is RebalanceMode.DRY_RUN:
        if model.status.phase is RebalancePhase.PROPOSED:
            return
        status = _preview(view, model)
    elif model.spec.moves or model.spec.handover:
        # The next decision starts it.
        return
    else:
        text = "it names nothing to do: set spec.moves or spec.handover, or create it with spec.mode DryRun"
        refusal = Refusal(reason="NOT_ALLOWED", message=text)
        status = TabletRebalanceStatus(
            phase=RebalancePhase.FAILED, reason=text, refusals=(refusal,), refusals_total=1
        )
    await _write(api, cache, stored, plan_status.with_conditions_of(status, model, view.clock))


async def fail_ownerless(api: Api, cache: Cache, clock: datetime) -> None:
    """Report plans of a cluster that does not exist as waiting; the operator's own plans are deleted with
    their cluster."""
    clusters = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in cache.all(CLUSTERS)}
    for stored in list(cache.all(REBALANCES)):
        model = TabletRebalance.read(stored)
        if isinstance(model, Unreadable) or model.status.phase in FINAL | {RebalancePhase.PROPOSED}:
            continue
        known = (model.metadata.namespace, model.spec.cluster) in clusters
        if known or PLAN_LABEL in model.metadata.labels or model.metadata.deletion_timestamp is not None:
            continue
        status = TabletRebalanceStatus(phase=RebalancePhase.PENDING)
        await _write(api, cache, stored, plan_status.with_conditions_of(status, model, clock))


def _preview(view: View, model: TabletRebalance) -> TabletRebalanceStatus:
    state, changes = view.state, model.spec.changes
    desired = view.desired
    if changes is not None:
        desired = replace(
            desired,
            members=changes.members or desired.members,
            replicas=changes.replicas or desired.replicas,
        )
    plan = preview(state, view.requests, desired, view.now, moves_of(model))
    return TabletRebalanceStatus(
        phase=RebalancePhase.PROPOSED,
        reason=f"the plan for {desired.members} members and {desired.replicas} replicas",
        planned=plan_status.counts(Counter(each.type for each in plan.migrations)),
        bytes_planned=sum(planned_bytes(plan, sizes(state)).values()),
        refusals=plan_status.shown_refusals(plan.refusals),
        refusals_total=len(plan.refusals),
    )


def _too_old(own: list[Object], shown: set[str], cluster: str, limit: int) -> list[Object]:
    """Return the operator's finished plans to delete, so that the newest ones are left; `shown` ones stay.

    The last plan stays while it is cancelled: a new master reads there that nothing is to be planned again.
    """
    finals = {each.value for each in FINAL}
    plans = sorted(own, key=lambda each: _order(each, cluster))
    finished = [each for each in plans if (each.get("status") or {}).get("phase") in finals]
    old = finished[: max(0, len(finished) - limit)]
    needed = [each for each in plans[-1:] if each["spec"].get("cancel")]
    return [each for each in old if each["metadata"]["name"] not in shown and each not in needed]


def _order(plan: Object, cluster: str) -> tuple[int, ...]:
    """Return the sort key of one of the operator's plans, as RebalanceRequest.order."""
    number = plan["metadata"]["name"].removeprefix(f"{cluster}-")
    return tuple(int(part) for part in number.split("-") if part.isdigit())
