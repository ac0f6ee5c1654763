"""Which partitions have the entries of each keyspace, as the table on this member's volume says."""

from stele.core.table.groups import PartitionGroups


class Routes:
    """`groups` has all partitions: first those outside of groups, then each group; empty without a table."""

    def __init__(self, groups: PartitionGroups, main: int) -> None:
        self.use(groups, main)

    def use(self, groups: PartitionGroups, main: int) -> None:
        """Use these groups behind `main` partitions from now on; they are on the volume."""
        self._main = range(main)
        self._own = {each.keyspace.encode(): range(each.first, each.end) for each in groups.groups}
        self.groups = [self._main, *self._own.values()] if main else []

    def group(self, keyspace: bytes) -> range:
        """Return the partitions that have a keyspace's entries; none before there is a table."""
        return self._own.get(keyspace, self._main)
