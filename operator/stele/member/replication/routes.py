"""Which partitions have the entries of each keyspace, as the table on this member's volume says."""

from collections.abc import Callable, Set

from stele.core.kv.keyspaces import Catalog
from stele.core.table.groups import PartitionGroups


class Routes:
    """`groups` has all partitions: first those outside of groups, then each group; empty without a table.

    `homeless` are the keyspaces whose own partitions are not known here yet: they have none. It is always the
    same set.
    """

    def __init__(self, groups: PartitionGroups, main: int, catalog: Catalog) -> None:
        self.homeless: set[bytes] = set()
        self._moved: Callable[[Set[bytes]], None] = lambda keyspaces: None
        self._own: dict[bytes, range] = {}
        self.use(groups, main, catalog)

    def when_moved(self, moved: Callable[[Set[bytes]], None]) -> None:
        """Have `moved` told of keyspaces that get other partitions, before requests go there."""
        self._moved = moved

    def use(self, groups: PartitionGroups, main: int, catalog: Catalog) -> None:
        """Use these groups behind `main` partitions from now on; they are on the volume, as is the
        catalog."""
        self._main = range(main)
        before, self._own = (
            self._own,
            {each.keyspace.encode(): range(each.first, each.end) for each in groups.groups},
        )
        self.groups = [self._main, *self._own.values()] if main else []
        placed = {name.encode() for name, each in catalog.keyspaces.items() if each.own_partitions}
        self.homeless.clear()
        self.homeless |= placed - self._own.keys()
        self._own |= dict.fromkeys(self.homeless, range(0))
        keyspaces = before.keys() | self._own.keys()
        if moved := {each for each in keyspaces if before.get(each) != self._own.get(each)}:
            self._moved(moved)

    def group(self, keyspace: bytes) -> range:
        """Return the partitions that have a keyspace's entries; none before there is a table."""
        return self._own.get(keyspace, self._main)

    def has(self, partition: int, keyspace: bytes) -> bool:
        """Return whether entries of a keyspace may be in a partition; b"" stands for no one keyspace."""
        return not keyspace or partition in self._own.get(keyspace, self._main)
