"""Which member owns which slots, in the words of the Redis Cluster protocol.

Each partition holds a range of slots, so members own slots as masters of Redis Cluster do. A hand-over is one
step: no slot is ever importing or migrating, and nothing is redirected by ASK.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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


@dataclass(frozen=True, eq=False)
class ClusterMap:
    """The rows of partitions, by position, and the nodes of the members, by index: owners apart from backups.

    `my_index` is that of the member that answers; `epoch` only grows. There may be 16,384 rows: what looks at
    all of them is done in pieces, or once.
    """

    rows: Sequence[Partition]
    owners: Mapping[int, ClusterNode]
    backups: Mapping[int, ClusterNode]
    my_index: int
    epoch: int

    @property
    def me(self) -> ClusterNode | None:
        """The member that answers, None while it is not in the member list."""
        return self.owners.get(self.my_index)

    @cached_property
    def own(self) -> Sequence[int]:
        """The positions of the rows that this member owns, in order."""
        me = self.me
        if me is None or not me.host:
            return ()
        return tuple(position for position, row in enumerate(self.rows) if row.owner == self.my_index)

    def pieces(self, rows: int) -> Iterator[list[SlotRange]]:
        """Yield the slots that have an owner, in order, for so many rows at a time.

        Neighbours of the same members are one range, which comes with the last of them.
        """
        last: SlotRange | None = None
        for begin in range(0, len(self.rows), rows):
            done: list[SlotRange] = []
            for position in range(begin, min(begin + rows, len(self.rows))):
                each = self._range_of(position)
                if each is not None and last is not None and _follows(last, each):
                    last = last._replace(last=each.last)
                elif each is not None:
                    done.extend([] if last is None else [last])
                    last = each
            yield done
        yield [] if last is None else [last]

    def owner_of(self, position: int) -> ClusterNode | None:
        """Return who owns a row, if clients can reach that member."""
        index = self.rows[position].owner
        owner = None if index is None else self.owners.get(index)
        return owner if owner is not None and owner.host else None

    def _range_of(self, position: int) -> SlotRange | None:
        owner, slots = self.owner_of(position), slots_of_partition(position, len(self.rows))
        if owner is None or not slots:
            return None
        others = (
            self.backups.get(each, NOBODY) for each in self.rows[position].replicas[1:] if each is not None
        )
        return SlotRange(slots[0], slots[-1], owner, tuple(each for each in others if each.host))


NOBODY = ClusterNode("", "")


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
    """Return the map of these rows."""
    owners = {index: owner_node(each, announce) for index, each in members.items()}
    backups = {index: _backup_node(each, announce) for index, each in members.items()}
    return ClusterMap(rows, owners, backups, me, epoch)


def moved_slots(before: ClusterMap, after: ClusterMap) -> list[tuple[ClusterNode, ClusterNode, str]]:
    """Return (owner before, owner now, slots such as `0-60,122`) of the slots that have another owner.

    Both maps are of the same partitions.
    """
    same = {index for index, node in before.owners.items() if after.owners.get(index) == node}
    moved: dict[tuple[ClusterNode, ClusterNode], list[tuple[int, int]]] = {}
    for position, (old, new) in enumerate(zip(before.rows, after.rows, strict=True)):
        if old.owner == new.owner and old.owner in same:
            continue
        source, target = before.owner_of(position), after.owner_of(position)
        slots = slots_of_partition(position, len(after.rows))
        if source is not None and target is not None and source != target and slots:
            extend(moved.setdefault((source, target), []), slots[0], slots[-1])
    return [(*pair, ",".join(text_of(*each) for each in ranges)) for pair, ranges in moved.items()]


def extend(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    """Add slots behind ranges of slots: neighbours are one range."""
    if ranges and ranges[-1][1] + 1 == first:
        ranges[-1] = ranges[-1][0], last
    else:
        ranges.append((first, last))


def text_of(first: int, last: int) -> str:
    """Return a range of slots as Redis writes it."""
    return str(first) if first == last else f"{first}-{last}"


def _follows(one: SlotRange, other: SlotRange) -> bool:
    return one.last + 1 == other.first and one[2:] == other[2:]
