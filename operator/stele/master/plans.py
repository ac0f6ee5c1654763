"""TabletRebalance objects: one for each plan with its progress, a preview for each that a user made."""

from collections import Counter
from datetime import datetime
from typing import Any

from stele.adapters.kubernetes.api import CLUSTERS, REBALANCES, AlreadyExists, Api, NotFound
from stele.core.plan import Plan, plan
from stele.core.queues import planned_bytes
from stele.core.rebalance import data_members, sizes
from stele.core.reign import Record, State
from stele.master import facts, manifests
from stele.master.cache import Cache
from stele.master.status import patch_of
from stele.model import API_VERSION, TabletCluster, TabletRebalance, Unreadable
from stele.model.rebalance import RebalanceMode, RebalancePhase, Refusal, TabletRebalanceStatus

HISTORY_LIMIT = 10
"""Finished plans that are kept for each cluster."""

PLAN_LABEL = "stele.dev/plan"

Object = dict[str, Any]


async def show_plans(api: Api, cache: Cache, cluster: TabletCluster, view: facts.View) -> None:
    """Create what is missing, write what changed, delete what is too old."""
    state, now = view.state, view.now
    records = {name_of(cluster, state, each): each for each in state.finished}
    if state.record is not None:
        records[name_of(cluster, state, state.record)] = state.record
    namespace = cluster.metadata.namespace
    for name, record in records.items():
        stored = cache.get(REBALANCES, namespace, name)
        if stored is None:
            if record.finished_seconds is not None and now - record.finished_seconds > 60:
                continue
            stored = await _create(api, cache, cluster, name)
        model = TabletRebalance.read(stored)
        if not isinstance(model, Unreadable):
            await _write(api, cache, stored, facts.rebalance_status(record, view, model))
    others = [
        each
        for each in cache.all(REBALANCES)
        if each["metadata"]["namespace"] == namespace
        and each["spec"].get("cluster") == cluster.metadata.name
        and each["metadata"]["name"] not in records
    ]
    for stored in others:
        await _others(api, cache, stored, view)
    await _trim(api, others)


def name_of(cluster: TabletCluster, state: State, record: Record) -> str:
    return f"{cluster.metadata.name}-{state.epoch}-{record.number}"


async def _create(api: Api, cache: Cache, cluster: TabletCluster, name: str) -> Object:
    meta = cluster.metadata
    body = {
        "apiVersion": API_VERSION,
        "kind": "TabletRebalance",
        "metadata": {
            "name": name,
            "labels": manifests.labels(meta.name, "rebalance") | {PLAN_LABEL: name},
            "ownerReferences": [manifests.owned_by_cluster(cluster)],
        },
        "spec": {"cluster": meta.name, "mode": RebalanceMode.EXECUTE.value},
    }
    try:
        made = await api.create(REBALANCES, meta.namespace, body)
    except AlreadyExists:
        made = await api.get(REBALANCES, meta.namespace, name)
    cache.put(REBALANCES, made)
    return made


async def _write(api: Api, cache: Cache, stored: Object, status: TabletRebalanceStatus) -> None:
    patch = patch_of(stored.get("status") or {}, status.to_dict())
    if not patch:
        return
    meta = stored["metadata"]
    try:
        cache.put(REBALANCES, await api.patch_status(REBALANCES, meta["namespace"], meta["name"], patch))
    except NotFound:
        return


async def _others(api: Api, cache: Cache, stored: Object, view: facts.View) -> None:
    """Plans of an earlier master are over; a preview is answered; a plan that a user wants run is refused."""
    model = TabletRebalance.read(stored)
    if isinstance(model, Unreadable) or model.status.phase in facts.FINAL:
        return
    if PLAN_LABEL in model.metadata.labels:
        status = model.status.model_copy(update={"phase": RebalancePhase.SUPERSEDED})
    elif model.spec.mode is RebalanceMode.DRY_RUN:
        if model.status.phase is RebalancePhase.PROPOSED:
            return
        status = _preview(view)
    else:
        text = "plans are made and run by the operator; to see one, create it with spec.mode DryRun"
        refusal = Refusal(reason="NOT_ALLOWED", message=text)
        status = TabletRebalanceStatus(
            phase=RebalancePhase.FAILED, reason=text, refusals=(refusal,), refusals_total=1
        )
    await _write(api, cache, stored, facts.with_ready(status, model, view.clock))


async def show_orphans(api: Api, cache: Cache, clock: datetime) -> None:
    """Say of each plan of a cluster that does not exist that it waits for one; those that the operator made
    go with their cluster.
    """
    clusters = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in cache.all(CLUSTERS)}
    for stored in list(cache.all(REBALANCES)):
        model = TabletRebalance.read(stored)
        if isinstance(model, Unreadable) or model.status.phase in facts.FINAL | {RebalancePhase.PROPOSED}:
            continue
        known = (model.metadata.namespace, model.spec.cluster) in clusters
        if known or PLAN_LABEL in model.metadata.labels or model.metadata.deletion_timestamp is not None:
            continue
        status = TabletRebalanceStatus(phase=RebalancePhase.PENDING)
        await _write(api, cache, stored, facts.with_ready(status, model, clock))


def _preview(view: facts.View) -> TabletRebalanceStatus:
    state = view.state
    members = data_members(state, view.wishes, view.now)
    made = plan(state.table, members, view.wishes.replicas) if members else Plan()
    return TabletRebalanceStatus(
        phase=RebalancePhase.PROPOSED,
        reason="what would be done now",
        planned=facts.counts(Counter(each.type for each in made.migrations)),
        bytes_planned=sum(planned_bytes(made, sizes(state)).values()),
        refusals=facts.shown_refusals(made.refusals),
        refusals_total=len(made.refusals),
    )


async def _trim(api: Api, others: list[Object]) -> None:
    finals = {each.value for each in facts.FINAL}
    finished = [
        each
        for each in others
        if (each.get("status") or {}).get("phase") in finals
        and PLAN_LABEL in (each["metadata"].get("labels") or {})
    ]
    finished.sort(key=lambda each: str(each["metadata"].get("creationTimestamp", "")))
    for each in finished[: max(0, len(finished) - HISTORY_LIMIT)]:
        meta = each["metadata"]
        await api.delete(REBALANCES, meta["namespace"], meta["name"], meta["uid"])
