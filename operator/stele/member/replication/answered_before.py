"""What the process before this one may have answered without its commit, at the ends of the logs."""

from stele.member import limits
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore
from stele.wire.storage.log_record import DELETE, KIND_AT, PUT, split_record


def note_answered(tablets: TabletStore, delayed_replies: DelayedReplies) -> None:
    """Count the operations of Async keyspaces that are not known to be committed, where this member was the
    owner: they are lost if its log is cut there."""
    if not tablets.table.keyspaces.asynchronous:
        return
    for replica in tablets.replicas.values():
        if replica.ready and replica.tablet.row.owner == tablets.me:
            _note(tablets, delayed_replies, replica)


def _note(tablets: TabletStore, delayed_replies: DelayedReplies, replica: Replica) -> None:
    log, asynchronous = replica.tablet.log, tablets.table.keyspaces.asynchronous
    index = log.applied[1] + 1
    while index <= log.last[1]:
        records = tablets.read_records(replica, index, limits.ENGINE_WRITE_BYTES_MAX)
        for at, record in enumerate(records, index):
            if record[KIND_AT] in (PUT, DELETE) and split_record(record)[1] in asynchronous:
                delayed_replies.may_have_answered(replica, at, len(record))
        if not records:
            return
        index += len(records)
