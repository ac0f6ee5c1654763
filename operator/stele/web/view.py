"""One JSON document of a cluster, for the page. Pure.

Rows of the table are sent as [partition, owner, backup, ...], with null for an index that nobody holds. Who
presents the `version` of the document before gets only rows that changed since then, with that as `base`.
"""

from collections.abc import Mapping
from typing import Any

from stele.core.control.commands import LATENCY_BOUNDS_SECONDS
from stele.core.control.operations.copy_session import CopySession
from stele.core.control.operations.move import MigrationOperation
from stele.core.control.state import State
from stele.model import TabletMember, TabletRebalance
from stele.web.facts import Facts
from stele.web.limits import MOVES_SHOWN_MAX, PLANS_SHOWN_MAX, REFUSALS_SHOWN_MAX, SESSIONS_SHOWN_MAX

Document = dict[str, Any]


def base_of(state: State, since: str) -> str:
    """Return the version that a document can build on, for who has version `since`; empty: on none."""
    epoch, _, number = since.partition("-")
    known = int(number) if number.isascii() and number.isdigit() and len(number) < 19 else 0
    current = epoch == str(state.epoch) and 0 < known <= state.table.changes
    return f"{state.epoch}-{known}" if current else ""


def view(facts: Facts, base: str = "") -> Document:
    """Return the document; its rows are those that changed after the version `base`, or all of them."""
    state, cluster = facts.state, facts.cluster
    _, changed = state.table.rows_since(int(base.partition("-")[2] or 0))
    moves = state.operations.migrations
    sessions = state.operations.sessions
    parts = state.table.groups.parts(len(state.table.partitions), cluster.spec.replicas)
    return {
        "version": f"{state.epoch}-{state.table.changes}",
        "base": base,
        "rows": [[row.partition, *row.replicas] for row in changed],
        "partitions": len(state.table.partitions),
        "parts": [[part.first, part.end, part.replicas, part.keyspace] for part in parts],
        "lost": sorted(state.failover.lost),
        "seconds": round(facts.now, 3),
        "bounds": LATENCY_BOUNDS_SECONDS,
        "cluster": _cluster(facts),
        "members": [_member(facts, each) for each in facts.members],
        "moves": [_move(each, facts.now) for each in list(moves.values())[:MOVES_SHOWN_MAX]],
        "moving": len(moves),
        "waiting": len(state.rebalance.queues),
        "sessions": [_session(each, facts.now) for each in list(sessions.values())[:SESSIONS_SHOWN_MAX]],
        "plans": _plans(facts),
    }


def _cluster(facts: Facts) -> Document:
    meta, spec, status = facts.cluster.metadata, facts.cluster.spec, facts.cluster.status
    return {
        "namespace": meta.namespace,
        "name": meta.name,
        "phase": "" if status.phase is None else status.phase.value,
        "message": status.message,
        "state": facts.state.operations.change.state,
        "epoch": facts.state.epoch,
        "desired": spec.members,
        "replicas": spec.replicas,
        "ready": status.members.ready,
        "conditions": [
            [each.type, each.status.value, each.reason, each.message, each.last_transition_time]
            for each in status.conditions
        ],
    }


def _member(facts: Facts, member: TabletMember) -> Document:
    index, status = member.spec.index, member.status
    liveness = facts.state.membership.liveness.get(index)
    report = None if liveness is None else liveness.report
    found: Document = {
        "index": index,
        "name": member.metadata.name,
        "state": "" if status.state is None else status.state.value,
        "lite": status.lite,
        "drain": member.spec.drain,
        "weight": member.spec.weight,
        "node": status.node,
        "zone": "/".join(status.zone),
        "restarts": status.restarts,
        "safe": status.safe_to_evict,
    }
    if report is None or liveness is None:
        return found
    stats = report.stats
    found |= {
        "silent": round(facts.now - liveness.answered_seconds, 1),
        "bytes": stats.bytes,
        "entries": stats.entries,
        "free": stats.disk_free_bytes,
        # Those of one process; another one counts from 0.
        "process": report.incarnation,
        "counters": [stats.reads, stats.writes, stats.forwarded, stats.errors],
        "durations": stats.durations,
    }
    return found


def _move(each: MigrationOperation, now: float) -> Document:
    migration = each.migration
    return {
        "partition": migration.partition,
        "type": migration.type.value,
        "source": migration.source,
        "destination": migration.destination,
        "leaves": migration.source is not None and migration.source_new_index < 0,
        "step": each.step.value,
        "seconds": round(now - each.started_seconds, 1),
        "session": each.session,
    }


def _session(each: CopySession, now: float) -> Document:
    return {
        "id": each.id,
        "source": each.source,
        "destination": each.destination,
        "partitions": len(each.partitions),
        "stage": each.stage.value,
        "engine": "" if each.engine is None else each.engine.value,
        "why": each.engine_reason,
        "bytes": each.bytes,
        "copied": each.copied_bytes,
        "limit": each.bytes_per_second,
        "seconds": round(now - each.started_seconds, 1),
    }


def _plans(facts: Facts) -> list[Document]:
    """Return plans, those under way first, then the newest."""
    plans = sorted(facts.rebalances, key=lambda each: each.metadata.creation_timestamp or "", reverse=True)
    plans.sort(key=lambda each: each.status.finished_at is not None)
    return [_plan(each) for each in plans[:PLANS_SHOWN_MAX]]


def _plan(each: TabletRebalance) -> Document:
    status = each.status
    counts: Mapping[str, int] = status.planned.model_dump()
    return {
        "name": each.metadata.name,
        "phase": "" if status.phase is None else status.phase.value,
        "reason": status.reason,
        "planned": status.planned.total,
        "done": status.done.total,
        "failed": status.failed,
        "types": {name: number for name, number in counts.items() if number and name != "total"},
        "bytes": status.bytes_planned,
        "copied": status.bytes_copied,
        "rate": status.throughput_bytes_per_second,
        "eta": status.eta_seconds,
        "started": status.started_at,
        "finished": status.finished_at,
        "refusals": [[r.partition, r.reason, r.message] for r in status.refusals[:REFUSALS_SHOWN_MAX]],
        "refused": status.refusals_total,
    }
