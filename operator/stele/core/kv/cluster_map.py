"""Which member owns which slots, in the words of the Redis Cluster protocol.

Each partition holds a range of slots, so members own slots as masters of Redis Cluster do. A hand-over is one
step: no slot is ever importing or migrating, and nothing is redirected by ASK.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha1
from typing import NamedTuple, Protocol

from stele.core.kv.announce import POD_ADDRESSES, Announce
from stele.core.kv.keyslot import SLOTS
from stele.core.table.table import Partition


class Entry(Protocol):
    """The part of a member's entry in the member list that clients need."""

    @property
    def name(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    @property
    def address(self) -> str: ...


class ClusterNode(NamedTuple):
    """A member as clients see it: an ID of 40 hexadecimal digits, and the address that they connect to.

    `port` is 0 where it is that of all members.

    As a backup it has another ID and port than as an owner: clients give each address one role, and take a
    replica for that of one primary.
    """

    id: str
    host: str
    port: int = 0


class SlotRange(NamedTuple):
    """The slots from `first` to `last`, both included, the member that owns them, and their backups."""

    first: int
    last: int
    owner: ClusterNode
    backups: tuple[ClusterNode, ...] = ()


class ClusterMap(NamedTuple):
    """The slots that have an owner, in order, and all their owners.

    `me` is the member that answers, None while it is not in the member list; `epoch` only grows.
    """

    ranges: tuple[SlotRange, ...]
    nodes: tuple[ClusterNode, ...]
    me: ClusterNode | None
    epoch: int

    @property
    def assigned(self) -> int:
        """Number of slots that have an owner."""
        return sum(each.last - each.first + 1 for each in self.ranges)

    def slots_of(self, node: ClusterNode) -> list[SlotRange]:
        """Return the ranges that a member owns, whichever members back them up."""
        return _merged(each._replace(backups=()) for each in self.ranges if each.owner == node)


def node_id(uuid: str) -> str:
    """Return the ID of a member in the protocol, which stays as long as its volume."""
    return sha1(uuid.encode(), usedforsecurity=False).hexdigest()


def backup_id(uuid: str) -> str:
    """Return the ID of a member where it answers reads as a backup."""
    return node_id(f"{uuid} as a backup")


def slots_of_partition(partition: int, partitions: int) -> range:
    """Return the slots of a partition: those that `keyslot.partition_of` maps to it."""
    return range(-(-SLOTS * partition // partitions), -(-SLOTS * (partition + 1) // partitions))


def owner_node(member: Entry, announce: Announce = POD_ADDRESSES) -> ClusterNode:
    """Return a member as the owner of slots."""
    host, port, _ = announce.of(member.name, member.address)
    return ClusterNode(node_id(member.uuid), host, port)


def _backup_node(member: Entry, announce: Announce) -> ClusterNode:
    host, _, port = announce.of(member.name, member.address)
    return ClusterNode(backup_id(member.uuid), host, port)


def cluster_map(
    rows: Sequence[Partition],
    members: Mapping[int, Entry],
    me: int,
    *,
    epoch: int,
    announce: Announce = POD_ADDRESSES,
) -> ClusterMap:
    """Return the map of these rows. Neighbours of the same members are one range."""
    nodes = {index: owner_node(each, announce) for index, each in members.items()}
    backups = {index: _backup_node(each, announce) for index, each in members.items()}
    ranges = tuple(_merged(_owned(rows, nodes, backups)))
    own = nodes.get(me)
    owners = {each.owner for each in ranges} | ({own} if own is not None else set())
    return ClusterMap(ranges, tuple(sorted(owners)), own, epoch)


def moved_slots(before: ClusterMap, after: ClusterMap) -> list[tuple[ClusterNode, ClusterNode, str]]:
    """Return (owner before, owner now, slots such as `0-60,122`) of the slots that have another owner."""
    moved: dict[tuple[ClusterNode, ClusterNode], list[SlotRange]] = {}
    old, new = iter(before.ranges), iter(after.ranges)
    one, other = next(old, None), next(new, None)
    while one is not None and other is not None:
        first, last = max(one.first, other.first), min(one.last, other.last)
        if first <= last and one.owner != other.owner:
            moved.setdefault((one.owner, other.owner), []).append(SlotRange(first, last, other.owner))
        if one.last < other.last:
            one = next(old, None)
        else:
            other = next(new, None)
    return [(*pair, ",".join(map(_text, _merged(ranges)))) for pair, ranges in moved.items()]


def _text(each: SlotRange) -> str:
    return str(each.first) if each.first == each.last else f"{each.first}-{each.last}"


def _owned(
    rows: Sequence[Partition], nodes: Mapping[int, ClusterNode], backups: Mapping[int, ClusterNode]
) -> Iterable[SlotRange]:
    for partition, row in enumerate(rows):
        owner = None if row.owner is None else nodes.get(row.owner)
        slots = slots_of_partition(partition, len(rows))
        if owner is not None and owner.host and slots:
            others = (backups[each] for each in row.replicas[1:] if each is not None and each in backups)
            yield SlotRange(slots[0], slots[-1], owner, tuple(each for each in others if each.host))


def _merged(ranges: Iterable[SlotRange]) -> list[SlotRange]:
    merged: list[SlotRange] = []
    for each in ranges:
        last = merged[-1] if merged else None
        if last is not None and last[2:] == each[2:] and last.last + 1 == each.first:
            merged[-1] = last._replace(last=each.last)
        else:
            merged.append(each)
    return merged
