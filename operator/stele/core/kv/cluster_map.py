"""Which member owns which slots, in the words of the Redis Cluster protocol.

Each partition holds a range of slots, so members own slots as masters of Redis Cluster do. A hand-over is one
step: no slot is ever importing or migrating, and nothing is redirected by ASK.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha1
from typing import NamedTuple, Protocol

from stele.core.kv.keyslot import SLOTS
from stele.core.table.table import Partition


class Entry(Protocol):
    """The part of a member's entry in the member list that clients need."""

    @property
    def uuid(self) -> str: ...

    @property
    def address(self) -> str: ...


class ClusterNode(NamedTuple):
    """A member as clients see it: an ID of 40 hexadecimal digits, and the address that they connect to."""

    id: str
    host: str


class SlotRange(NamedTuple):
    """The slots from `first` to `last`, both included, and the member that owns them."""

    first: int
    last: int
    owner: ClusterNode


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
        """Return the ranges that a member owns."""
        return [each for each in self.ranges if each.owner == node]


def node_id(uuid: str) -> str:
    """Return the ID of a member in the protocol, which stays as long as its volume."""
    return sha1(uuid.encode(), usedforsecurity=False).hexdigest()


def slots_of_partition(partition: int, partitions: int) -> range:
    """Return the slots of a partition: those that `keyslot.partition_of` maps to it."""
    return range(-(-SLOTS * partition // partitions), -(-SLOTS * (partition + 1) // partitions))


def cluster_map(
    rows: Sequence[Partition], members: Mapping[int, Entry], me: int, *, epoch: int
) -> ClusterMap:
    """Return the map of these rows. Neighbours of one owner are one range."""
    nodes = {index: ClusterNode(node_id(each.uuid), each.address) for index, each in members.items()}
    ranges = tuple(_merged(_owned(rows, nodes)))
    own = nodes.get(me)
    owners = {each.owner for each in ranges} | ({own} if own is not None else set())
    return ClusterMap(ranges, tuple(sorted(owners)), own, epoch)


def _owned(rows: Sequence[Partition], nodes: Mapping[int, ClusterNode]) -> Iterable[SlotRange]:
    for partition, row in enumerate(rows):
        owner = None if row.owner is None else nodes.get(row.owner)
        slots = slots_of_partition(partition, len(rows))
        if owner is not None and owner.host and slots:
            yield SlotRange(slots[0], slots[-1], owner)


def _merged(ranges: Iterable[SlotRange]) -> list[SlotRange]:
    merged: list[SlotRange] = []
    for each in ranges:
        last = merged[-1] if merged else None
        if last is not None and last.owner == each.owner and last.last + 1 == each.first:
            merged[-1] = last._replace(last=each.last)
        else:
            merged.append(each)
    return merged
