"""Passes over all tablets of a member, which may be thousands: each looks at few fields, and is compiled."""

from stele.member.replication.replica import Replica
from stele.wire.storage import keys


def serving(replicas: dict[int, Replica]) -> list[Replica]:
    """Return the tablets that this member serves as their owner."""
    return [each for each in replicas.values() if each.serves]


def with_entries(replicas: dict[int, Replica]) -> list[Replica]:
    """Return those tablets that this member serves as their owner which have entries of users."""
    of_users: dict[bytes, bool] = {}
    return [each for each in serving(replicas) if _has_entries(each, of_users)]


def _has_entries(replica: Replica, of_users: dict[bytes, bool]) -> bool:
    for keyspace, (count, _) in replica.keyspaces.items():
        if count and _is_of_users(keyspace, of_users):
            return True
    return False


def _is_of_users(keyspace: bytes, of_users: dict[bytes, bool]) -> bool:
    """Return whether a keyspace is no service's; `of_users` remembers it for all tablets."""
    if keyspace not in of_users:
        of_users[keyspace] = not keys.is_service(keyspace)
    return of_users[keyspace]


def locked(replicas: dict[int, Replica]) -> list[Replica]:
    """Return those of which transactions across partitions have locked keys."""
    return [each for each in replicas.values() if each.locks is not None]


def holding(replicas: dict[int, Replica], keyspace: bytes) -> list[Replica]:
    """Return the tablets with entries of a keyspace."""
    return [each for each in replicas.values() if each.keyspaces.get(keyspace, (0, 0))[0]]


def quarantined(replicas: dict[int, Replica]) -> list[Replica]:
    """Return the tablets of which this member keeps generations in quarantine."""
    return [each for each in replicas.values() if each.block is not None and each.block.quarantined]


def learning(replicas: dict[int, Replica]) -> list[Replica]:
    """Return the owned tablets that a destination gets."""
    return [each for each in replicas.values() if each.owner is not None and each.owner.learner is not None]


def unserved(owned: set[int], replicas: dict[int, Replica]) -> list[int]:
    """Return those of the partitions that this member owns by its table that it does not serve."""
    return sorted(owned.difference([each.partition for each in serving(replicas)]))


class Survey:
    """What a report has of all tablets.

    `changed` are not as they were in the last survey, and `gone` are the partitions whose tablet went offline
    since. `agreed` have accepted a row, `copying` are being received, and `learning` have a destination that
    gets them from here. `serving` are the partitions that are served.
    """

    __slots__ = ("agreed", "changed", "copying", "gone", "learning", "serving")

    def __init__(self) -> None:
        self.changed: list[Replica] = []
        self.gone: list[int] = []
        self.agreed: list[Replica] = []
        self.copying: list[Replica] = []
        self.learning: list[Replica] = []
        self.serving: list[int] = []


def survey(replicas: dict[int, Replica], *, positions: bool) -> Survey:
    """Look at all tablets once: fetching one of thousands into the processor's cache is most of the cost.

    Other positions alone make a tablet changed only with `positions`.
    """
    found = Survey()
    for partition, replica in replicas.items():
        meta, owner = replica.meta, replica.owner
        if meta.accepted is not None:
            found.agreed.append(replica)
        if meta.copy is not None:
            found.copying.append(replica)
        if owner is not None and owner.serving:
            found.serving.append(partition)
        if owner is not None and owner.learner is not None:
            found.learning.append(replica)
        if replica.block is None or replica.broken:
            if replica.seen_block is not None:
                replica.seen_block = None
                found.gone.append(partition)
        elif _is_new(replica, positions):
            found.changed.append(replica)
    return found


def _is_new(replica: Replica, positions: bool) -> bool:
    """Return whether a tablet has changed since this was asked last."""
    block, promised, log = replica.block, replica.tablet.promised, replica.tablet.log
    at = (log.applied, log.last)
    same = block is replica.seen_block and promised == replica.seen_promised
    if same and not (positions and at != replica.seen_at):
        return False
    replica.seen_block, replica.seen_promised, replica.seen_at = block, promised, at
    return True


def grown(replicas: dict[int, Replica]) -> list[tuple[Replica, int]]:
    """Return the tablets to which something was written since this was called last, each with the bytes that
    had been written until then."""
    found = []
    for replica in replicas.values():
        before, appended = replica.seen_bytes, replica.tablet.log.appended_bytes
        if appended != before:
            found.append((replica, before))
            replica.seen_bytes = appended
    return found


def totals(replicas: dict[int, Replica], owned: set[int]) -> tuple[int, int, int]:
    """Return how many backups this member holds, and the entries and bytes of all its tablets."""
    backups, entries, size_bytes = 0, 0, 0
    of_users: dict[bytes, bool] = {}
    for partition, replica in replicas.items():
        if not replica.ready:
            continue
        if replica.tablet.named and partition not in owned:
            backups += 1
        for keyspace, (count, size) in replica.keyspaces.items():
            if _is_of_users(keyspace, of_users):
                entries += count
            size_bytes += size
    return backups, entries, size_bytes
