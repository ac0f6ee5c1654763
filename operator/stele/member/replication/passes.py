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


def agreed(replicas: dict[int, Replica]) -> list[Replica]:
    """Return the tablets of which this member has accepted a row."""
    return [each for each in replicas.values() if each.meta.accepted is not None]


def unserved(owned: set[int], replicas: dict[int, Replica]) -> list[int]:
    """Return those of the partitions that this member owns by its table that it does not serve."""
    found = []
    for partition in owned:
        replica = replicas.get(partition)
        if replica is None or not replica.serves:
            found.append(partition)
    return sorted(found)


def news(replicas: dict[int, Replica], *, positions: bool) -> tuple[list[Replica], list[int]]:
    """Return the tablets that are not as they were when this was called last, and partitions without one now.

    Other positions alone count only with `positions`.
    """
    changed, gone = [], []
    for partition, replica in replicas.items():
        block, promised = replica.block, replica.tablet.promised
        if block is None or replica.broken:
            if replica.seen_block is not None:
                replica.seen_block = None
                gone.append(partition)
            continue
        at = (replica.tablet.log.applied, replica.tablet.log.last)
        same = block is replica.seen_block and promised == replica.seen_promised
        if not same or (positions and at != replica.seen_at):
            changed.append(replica)
            replica.seen_block, replica.seen_promised, replica.seen_at = block, promised, at
    return changed, gone


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
