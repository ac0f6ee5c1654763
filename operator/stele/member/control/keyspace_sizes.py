"""How many entries and bytes of each declared keyspace are in the partitions that this member owns."""

from collections import Counter

from stele.core.control.commands import KeyspaceSize
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
        if replica.ready and tablets.rows[partition].owner == tablets.me:
            for keyspace in replica.keyspaces.keys() & declared:
                count, size = replica.keyspaces[keyspace]
                entries[keyspace] += count
                sizes[keyspace] += size
    return tuple(KeyspaceSize(each.decode(), entries[each], sizes[each]) for each in sorted(+entries))
