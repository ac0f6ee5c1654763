"""What of each declared keyspace is in the partitions that this member owns."""

from collections import Counter

from stele.core.control.commands import KeyspaceSize
from stele.member.replication.replica import Replica
from stele.member.replication.tablet_store import TabletStore


def owned_sizes(tablets: TabletStore) -> tuple[KeyspaceSize, ...]:
    """Return the declared keyspaces that are not empty here; entries count once, at their owner.

    What no Keyspace declares is left out: anyone can make such names, without a limit.
    """
    declared = tablets.table.keyspaces.declared
    if not declared:
        return ()
    entries, sizes = Counter[bytes](), Counter[bytes]()
    for partition, replica in tablets.replicas.items():
        if replica.ready and partition in tablets.table.owned:
            for keyspace in replica.keyspaces.keys() & declared:
                count, size = replica.keyspaces[keyspace]
                entries[keyspace] += count
                sizes[keyspace] += size
    return tuple(KeyspaceSize(each.decode(), entries[each], sizes[each]) for each in sorted(+entries))


def vacant_keyspaces(tablets: TabletStore) -> tuple[str, ...]:
    """Return the keyspaces that get partitions of their own, and that have nothing where this member owns.

    It takes nothing more of them, so that stays true of what is in a log now.
    """
    homeless, owned = tablets.table.routes.homeless, tablets.table.owned
    return tuple(
        sorted(
            keyspace.decode()
            for keyspace in homeless
            if all(_is_vacant(tablets.replicas.get(partition), keyspace) for partition in owned)
        )
    )


def _is_vacant(replica: Replica | None, keyspace: bytes) -> bool:
    """Return whether an owner has no entry of a keyspace, none in its log, and no transaction about one."""
    if replica is None or not replica.serves or replica.loading:
        return False
    if replica.keyspaces.get(keyspace, (0, 0))[0] or (replica.locks and replica.locks.any_in(keyspace)):
        return False
    prefix = replica.prefix(keyspace)
    return not any(key.startswith(prefix) for key in replica.pending)
