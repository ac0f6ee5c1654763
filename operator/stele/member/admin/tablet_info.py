"""Details of this member's tablets (`wire.admin`)."""

from stele.core.control.commands import OpId
from stele.core.tablet.lifecycle import state_name
from stele.member.node import Node
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.wire.admin import LogRange, QuarantinedTablet, RoleName, TabletFacts, TabletList
from stele.wire.storage import keys


def tablet_list(node: Node, after: int, limit: int) -> TabletList:
    """Return up to `limit` tablets of partitions greater than `after`, in order."""
    remaining = sorted(partition for partition in node.replicas if partition > after)
    shown = remaining[:limit]
    return TabletList(
        uuid=node.uuid,
        name=node.settings.name,
        index=node.me,
        epoch=node.table.epoch,
        stamp=str(node.table.stamp),
        tablets=tuple(tablet_facts(node.tablets, node.replicas[partition]) for partition in shown),
        next=shown[-1] if len(shown) < len(remaining) else None,
    )


def tablet_facts(tablets: TabletStore, replica: Replica) -> TabletFacts:
    tablet, record_log, owner = replica.tablet, replica.tablet.log, replica.owner
    role = _role(replica)
    return TabletFacts(
        partition=replica.partition,
        role=role,
        state=state_name(replica.state),
        generation=replica.generation,
        version=tablet.row.version,
        replicas=tablet.row.replicas,
        term=tablet.leader_term if owner is None else owner.term,
        promised=tablet.promised,
        last=replica.last,
        applied=OpId(*record_log.applied),
        committed=record_log.committed,
        flushed=replica.flushed,
        log=LogRange(record_log.first, record_log.last[1], record_log.bytes),
        lag=None if role in {"OWNER", "NONE"} else max(0, replica.owner_commit - record_log.applied[1]),
        behind=_behind(replica),
        serving=owner is not None and owner.serving,
        entries=replica.entries,
        bytes=replica.size_bytes,
        offline=replica.broken,
        copy="" if replica.meta.copy is None else replica.meta.copy.id,
        quarantined=tuple(quarantined_tablets(tablets, replica)),
    )


def _role(replica: Replica) -> RoleName:
    row, me = replica.tablet.row, replica.tablet.me
    if me >= 0 and row.owner == me:
        return "OWNER"
    if me in row.replicas:
        return "BACKUP"
    return "NONE" if replica.meta.copy is None else "LEARNER"


def _behind(replica: Replica) -> dict[str, int]:
    owner = replica.owner
    if owner is None:
        return {}
    last = replica.tablet.log.last[1]
    return {str(member): max(0, last - progress.match) for member, progress in owner.progress.items()}


def quarantined_tablets(tablets: TabletStore, replica: Replica) -> list[QuarantinedTablet]:
    """Return the tablet's quarantined generations, with the totals of their data."""
    generations = []
    for entry in () if replica.block is None else replica.block.quarantined:
        state = tablets.read_state(replica.partition, entry.generation)
        generations.append(
            QuarantinedTablet(
                partition=replica.partition,
                generation=entry.generation,
                until_s=entry.until_s,
                last=entry.last,
                applied=state.applied,
                entries=sum(count for name, (count, _) in state.keyspaces.items() if name != keys.SERVICE),
                bytes=sum(size for _, size in state.keyspaces.values()),
            )
        )
    return generations
