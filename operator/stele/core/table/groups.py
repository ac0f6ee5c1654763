"""Groups of partitions: each belongs to one keyspace and has a replica count of its own.

The partitions before the first group belong to all other keyspaces; their number never changes. A group is
appended to the table, and its numbers are never used for anything else. Members use a list of groups by its
version, which only grows.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stele.core.table.ids import EPOCH_MAX, MAX_REPLICAS, PARTITIONS_MAX, PartitionId
from stele.errors import Corrupt, Refused

GROUPS_MAX = 1_000
"""Most groups of one table. Groups stay when their keyspaces are deleted, so it may run out of them."""


@dataclass(frozen=True, slots=True)
class PartitionGroup:
    """Partitions `first` to `first + count - 1`, which have the entries of `keyspace`."""

    keyspace: str
    first: PartitionId
    count: int
    replicas: int

    @property
    def end(self) -> PartitionId:
        """The number after that of the last partition."""
        return self.first + self.count


class DesiredGroup(NamedTuple):
    """The group that a keyspace should have.

    `replicas` is 0 for one at each member that holds data. It is added once no owner has anything of the
    keyspace elsewhere, by a report with the catalog of version `since` or later.
    """

    keyspace: str
    partitions: int
    replicas: int
    since: int = 0


class Part(NamedTuple):
    """Partitions `first` to `end - 1`, which are balanced by themselves; `keyspace` is empty for those
    outside of groups."""

    first: PartitionId
    end: PartitionId
    replicas: int
    keyspace: str = ""


@dataclass(frozen=True, slots=True)
class PartitionGroups:
    """The groups of a table, in order of their partitions. `version` grows with each change; 0: none was
    stored."""

    version: int = 0
    groups: tuple[PartitionGroup, ...] = ()

    def position(self, number: PartitionId) -> int:
        """Return the position among `parts` of the part that a partition of the table is in."""
        if not self.groups or number < self.groups[0].first:
            return 0
        return bisect_right(self.groups, number, key=lambda group: group.first)

    def group_of(self, number: PartitionId) -> PartitionGroup | None:
        """Return the group of a partition of the table, None for one outside of groups."""
        position = self.position(number)
        return self.groups[position - 1] if position else None

    def main(self, partitions: int) -> int:
        """Return how many of a table's partitions are outside of groups."""
        return self.groups[0].first if self.groups else partitions

    def end(self, main: int) -> int:
        """Return how many partitions a table has, `main` of them outside of groups."""
        return self.groups[-1].end if self.groups else main

    def parts(self, partitions: int, replicas: int) -> Iterator[Part]:
        """Iterate over what is balanced by itself: first the partitions outside of groups, which should have
        `replicas` copies, then each group."""
        yield Part(0, self.main(partitions), replicas)
        for group in self.groups:
            yield Part(group.first, group.end, group.replicas, group.keyspace)

    def of(self, keyspace: str) -> PartitionGroup | None:
        """Return the group of a keyspace, None when it has none."""
        return next((group for group in self.groups if group.keyspace == keyspace), None)

    def with_replicas(self, replicas: Mapping[str, int]) -> "PartitionGroups":
        """Return the groups with other numbers of replicas, by keyspace: these when all have them already."""
        groups = tuple(
            replace(each, replicas=replicas.get(each.keyspace, each.replicas)) for each in self.groups
        )
        return self if groups == self.groups else PartitionGroups(self.version + 1, groups)

    def with_group(self, partitions: int, keyspace: str, count: int, replicas: int) -> "PartitionGroups":
        """Return the groups with one more, behind a table of `partitions`.

        Raises Refused when the table would be too large.
        """
        if len(self.groups) >= GROUPS_MAX:
            raise Refused(
                f"{len(self.groups)} keyspaces have had partitions of their own, and these stay; at most "
                f"{GROUPS_MAX} are possible: use the name of an earlier one, or another cluster",
                "TOO_MANY_GROUPS",
            )
        if partitions + count > PARTITIONS_MAX:
            raise Refused(
                f"the table has {partitions} partitions, keyspace {keyspace} would add {count}; at most "
                f"{PARTITIONS_MAX} are possible: use fewer partitions, or another cluster",
                "TOO_MANY_PARTITIONS",
            )
        group = PartitionGroup(keyspace, partitions, count, replicas)
        return PartitionGroups(self.version + 1, (*self.groups, group))


NO_GROUPS = PartitionGroups()


def groups_fault(groups: PartitionGroups, partitions: int, main: int | None = None) -> str | None:
    """Return what is wrong with the groups of a table of `partitions`, as a sentence, or None.

    `main` of them are outside of groups, if that is known.
    """
    if not 0 <= groups.version <= EPOCH_MAX:
        return f"the version of the groups is {groups.version}; expected 0 to {EPOCH_MAX}"
    if len(groups.groups) > GROUPS_MAX:
        return f"there are {len(groups.groups)} groups; at most {GROUPS_MAX} are possible"
    if len({group.keyspace for group in groups.groups}) != len(groups.groups):
        return "two groups belong to one keyspace"
    if bool(groups.groups) != bool(groups.version):
        return f"there are {len(groups.groups)} groups of version {groups.version}; version 0 has none"
    if partitions > PARTITIONS_MAX:
        return f"the table has {partitions} partitions; at most {PARTITIONS_MAX} are possible"
    end = groups.main(partitions) if main is None else main
    for group in groups.groups:
        if not 1 <= group.replicas <= MAX_REPLICAS:
            return (
                f"the group of {group.keyspace} has {group.replicas} replicas; expected 1 to {MAX_REPLICAS}"
            )
        if group.first != end or group.count < 1 or end < 1:
            return f"the group of {group.keyspace} has {group.count} partitions from {group.first}, not {end}"
        end = group.end
    return None if end == partitions else f"the groups end at {end}; the table has {partitions} partitions"


def newest_groups(
    known: PartitionGroups, partitions: int, reported: Iterable[PartitionGroups]
) -> PartitionGroups:
    """Return the newest groups of those known and those that members have, behind so many partitions.

    Raises Corrupt when two contradict each other: partitions never change their keyspace.
    """
    newest = known
    for groups in (each for each in reported if each.version):
        if fault := groups_fault(groups, groups.end(partitions), partitions):
            raise Corrupt(f"a member has groups of partitions that do not fit the table: {fault}")
        older, newer = sorted((groups, newest), key=lambda each: each.version)
        same = older.version == newer.version
        if older != newer if same else not is_extension(newer, older):
            raise Corrupt("members have different groups of partitions; stop the operator and compare them")
        newest = newer
    return newest


def is_extension(groups: PartitionGroups, of: PartitionGroups) -> bool:
    """Return whether all groups of the one are in the other, so that no partition changed its keyspace."""
    return _places(groups.groups[: len(of.groups)]) == _places(of.groups)


def _places(groups: Sequence[PartitionGroup]) -> list[tuple[str, PartitionId, int]]:
    return [(group.keyspace, group.first, group.count) for group in groups]
