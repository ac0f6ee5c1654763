"""The partition table put together from volumes, after the TabletCluster and its ConfigMaps were deleted.

Each volume holds the whole table as its member last knew it, so the newest row of a partition is on the
volumes of that row's members. The result is complete only with the volume of every member that counts. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from stele.core.control.commands import ExchangeReply, MemberInfo
from stele.core.table.groups import NO_GROUPS, PartitionGroups, newest_groups
from stele.core.table.ids import MemberIndex, PartitionId
from stele.core.table.table import Member, Partition, newer, stamp_of
from stele.errors import Corrupt, Refused

ROWS_SHOWN_MAX = 5
"""Partitions that a message lists."""


class RecoveryPolicy(StrEnum):
    """Which tables count when those of the volumes differ.

    Merge: of each partition the row with the highest version. MostRecent: the table with the greatest sum of
    versions. MostComplete: the table that most volumes have. With the last two, the volumes of members that
    have another table must be left out by name.
    """

    MERGE = "Merge"
    MOST_RECENT = "MostRecent"
    MOST_COMPLETE = "MostComplete"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What is desired: the cluster's name, the UID of its volumes, and members that are given up."""

    cluster: str
    uid: str
    policy: RecoveryPolicy = RecoveryPolicy.MERGE
    accept_loss: frozenset[str] = frozenset()


class RecoveryIncomplete(Refused):
    """Why no table can be put together; says what to do. Nothing was changed."""

    code_default = "RECOVERY_INCOMPLETE"


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume: its member's name, what it reported with its rows, and those rows."""

    name: str
    report: ExchangeReply
    rows: Mapping[PartitionId, Partition]

    def is_same(self, report: ExchangeReply) -> bool:
        """Return whether a later report, which may lack the rows, is of the same table."""
        return _table_key(self.report) == _table_key(report)

    @property
    def version_sum(self) -> int:
        return sum(row.version for row in self.rows.values())


@dataclass(frozen=True, slots=True)
class RecoveredTable:
    """The rows, the members and the groups of the recovered table, the list versions of the volumes, and a
    summary."""

    rows: Mapping[PartitionId, Partition]
    members: Mapping[MemberIndex, Member]
    list_versions: tuple[int, ...]
    summary: str
    groups: PartitionGroups = NO_GROUPS


def _table_key(report: ExchangeReply) -> tuple[object, ...]:
    versions = report.member_list_version, report.groups_version
    return report.uuid, report.epoch, report.stamp, versions, report.accepted


def volume_of(name: str, report: ExchangeReply) -> Volume | None:
    """Return what a report says of a volume; None when it lacks the table that the volume holds."""
    rows = {row.partition: Partition(row.version, tuple(row.replicas)) for row in report.rows}
    if not rows:
        empty = report.member_list_version <= 0 or report.members
        return Volume(name, report, rows) if empty else None
    partitions = report.groups.end(max(rows) + 1)
    versions = (rows[number].version if number in rows else 0 for number in range(partitions))
    return Volume(name, report, rows) if stamp_of(versions) == report.stamp else None


def recovered_table(
    volumes: Mapping[MemberIndex, Volume],
    stored: Mapping[PartitionId, Partition],
    partitions: int,
    recovery: Recovery,
) -> RecoveredTable:
    """Return the table of a cluster from the volumes of its members, by index.

    `stored` are rows that an interrupted attempt has stored. Raises RecoveryIncomplete with what is missing.
    """
    _check_identities(volumes.values())
    _check_partitions(volumes.values(), partitions)
    listed = _newest_list(volumes.values())
    _check_policy([volumes[info.index] for info in listed.values() if _is_present(volumes, info)], recovery)
    rows = _newest_rows(volumes.values(), stored)
    if missing := [number for number in range(partitions) if number not in rows]:
        raise RecoveryIncomplete(f"no volume knows {_partitions(missing)}: find the volumes that are missing")
    named = frozenset[MemberIndex]().union(*(row.members for row in rows.values()))
    counted = named | _accepting(volumes.values(), rows)
    counted |= {index for index, info in listed.items() if not info.lite}
    infos = _with_older_lists(listed, counted, volumes.values())
    _check_missing(volumes, infos, counted, recovery)
    members = {
        index: Member(index, info.name, info.uuid, "", info.lite and index not in named)
        for index, info in sorted(infos.items())
        if index in named or _is_present(volumes, info)
    }
    reports = [volume.report for volume in volumes.values()]
    list_versions = tuple(report.member_list_version for report in reports)
    summary = _summary(volumes.values(), rows, recovery)
    return RecoveredTable(rows, members, list_versions, summary, _groups(reports, partitions))


def _groups(reports: Iterable[ExchangeReply], partitions: int) -> PartitionGroups:
    try:
        return newest_groups(NO_GROUPS, partitions, (report.groups for report in reports))
    except Corrupt as error:
        raise RecoveryIncomplete(error.text) from error


def _check_identities(volumes: Iterable[Volume]) -> None:
    known: dict[str, str] = {}
    for volume in volumes:
        other = known.setdefault(volume.report.uuid, volume.name)
        if other != volume.name:
            text = f"{other} and {volume.name} have one identity, {volume.report.uuid}"
            raise RecoveryIncomplete(f"{text}: one volume is a copy of the other; leave one of them out")


def _check_partitions(volumes: Iterable[Volume], partitions: int) -> None:
    """Raise RecoveryIncomplete unless the volumes' tables have as many partitions as the spec."""
    counts = {each.name: each.report.groups.main(max(each.rows) + 1) for each in volumes if each.rows}
    if not counts:
        raise RecoveryIncomplete("no volume holds a partition table: these are not volumes of a used cluster")
    for name, count in counts.items():
        if count != partitions:
            text = f"the table of {name} has {count} partitions, but spec.partitions is {partitions}"
            raise RecoveryIncomplete(f"{text}: delete this TabletCluster and recover with {count}")


def _check_policy(volumes: Iterable[Volume], recovery: Recovery) -> None:
    """Raise RecoveryIncomplete when the policy takes one table and some volumes have another."""
    if recovery.policy is RecoveryPolicy.MERGE:
        return
    groups = groups_of(volumes)
    chosen = chosen_group(groups, recovery.policy)
    others = [volume for group in groups if group is not chosen for volume in group]
    if others:
        raise RecoveryIncomplete(
            f"{recovery.policy} takes the table of {_with_sums(chosen)} and leaves out {_with_sums(others)}; "
            f"to go on without what only these hold: {_command(recovery, (each.name for each in others))}"
        )


def groups_of(volumes: Iterable[Volume]) -> list[list[Volume]]:
    """Return the volumes that hold a table, those with equal tables together.

    Rows are compared, and not stamps: tables that contradict each other may have the same versions.
    """
    groups: dict[frozenset[tuple[PartitionId, Partition]], list[Volume]] = {}
    for volume in volumes:
        if volume.rows:
            groups.setdefault(frozenset(volume.rows.items()), []).append(volume)
    return list(groups.values())


def chosen_group(groups: Iterable[list[Volume]], policy: RecoveryPolicy) -> list[Volume]:
    """Return the group that MostRecent or MostComplete chooses; a tie is decided by the other rule."""

    def rank(group: list[Volume]) -> tuple[int, int, str]:
        recent, complete = group[0].version_sum, len(group)
        first = min(volume.name for volume in group)
        return (
            (recent, complete, first) if policy is RecoveryPolicy.MOST_RECENT else (complete, recent, first)
        )

    return max(groups, key=rank)


def _newest_rows(
    volumes: Iterable[Volume], stored: Mapping[PartitionId, Partition]
) -> dict[PartitionId, Partition]:
    rows = dict(stored)
    for volume in volumes:
        for number, row in volume.rows.items():
            try:
                rows[number] = newer(number, rows.get(number, row), row)
            except Corrupt as error:
                text = f"{volume.name}: {error.text}, or choose one table with another policy"
                raise RecoveryIncomplete(text) from error
    return rows


def _newest_list(volumes: Iterable[Volume]) -> dict[MemberIndex, MemberInfo]:
    newest = max(volumes, key=lambda volume: volume.report.member_list_version)
    return {info.index: info for info in newest.report.members}


def _accepting(volumes: Iterable[Volume], rows: Mapping[PartitionId, Partition]) -> frozenset[MemberIndex]:
    """Return the members of rows that some member accepted and that are newer than any published one."""
    accepted = (row for volume in volumes for row in volume.report.accepted)
    newer_rows = (row for row in accepted if row.version > rows[row.partition].version)
    return frozenset(member for row in newer_rows for member in row.replicas if member is not None)


def _with_older_lists(
    listed: Mapping[MemberIndex, MemberInfo], counted: Iterable[MemberIndex], volumes: Iterable[Volume]
) -> dict[MemberIndex, MemberInfo]:
    """Return the newest member list with the counted members that only older lists have.

    Raises RecoveryIncomplete for one that no list has.
    """
    oldest_first = sorted(volumes, key=lambda volume: volume.report.member_list_version)
    known = {info.index: info for volume in oldest_first for info in volume.report.members}
    if unknown := sorted(set(counted) - known.keys()):
        text = ", ".join(f"member {index}" for index in unknown)
        raise RecoveryIncomplete(f"rows name {text}, which no volume's member list has: find the volumes")
    return {**{index: known[index] for index in counted}, **listed}


def _is_present(volumes: Mapping[MemberIndex, Volume], info: MemberInfo) -> bool:
    volume = volumes.get(info.index)
    return volume is not None and volume.report.uuid == info.uuid


def _check_missing(
    volumes: Mapping[MemberIndex, Volume],
    infos: Mapping[MemberIndex, MemberInfo],
    counted: Iterable[MemberIndex],
    recovery: Recovery,
) -> None:
    """Raise RecoveryIncomplete when a volume that counts is missing and not given up."""
    missing = {
        infos[index].name: "the volume is that of another member" if index in volumes else "no claim"
        for index in counted
        if not _is_present(volumes, infos[index])
    }
    if refused := sorted(missing.keys() - recovery.accept_loss):
        listed = ", ".join(f"{name} ({missing[name]})" for name in refused)
        raise RecoveryIncomplete(
            f"volumes that may hold newer data are missing: {listed}; restore them, or accept that what only "
            f"they hold is lost: {_command(recovery, refused)}"
        )


def _command(recovery: Recovery, names: Iterable[str]) -> str:
    given_up = " ".join(f"--accept-loss {name}" for name in names)
    return f"kubectl stele recover {recovery.cluster} --from-uid {recovery.uid} {given_up}"


def _summary(volumes: Iterable[Volume], rows: Mapping[PartitionId, Partition], recovery: Recovery) -> str:
    listed = [volume for volume in volumes if volume.rows]
    differ = [n for n, row in rows.items() if any(v.rows.get(n, row) != row for v in listed)]
    text = f"{recovery.policy} of {_with_sums(listed)}; the tables differ in {_partitions(differ)}"
    return text + (f"; without {_listed(recovery.accept_loss)}" if recovery.accept_loss else "")


def _with_sums(volumes: Iterable[Volume]) -> str:
    return ", ".join(f"{each.name} (version sum {each.version_sum})" for each in volumes)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _partitions(numbers: list[PartitionId]) -> str:
    if not numbers:
        return "no partition"
    more = f" and {len(numbers) - ROWS_SHOWN_MAX} more" if len(numbers) > ROWS_SHOWN_MAX else ""
    return f"partition {', '.join(map(str, sorted(numbers)[:ROWS_SHOWN_MAX]))}{more}"
