"""Whether this member accepts writes: not while the cluster is Passive or its volume is full."""

from stele.core.control.commands import ClusterState
from stele.core.kv.commands import Failure
from stele.member import limits
from stele.member.replication.table_cache import TableCache
from stele.member.replication.tablet_store import TabletStore
from stele.member.storage.volume import Volume

PASSIVE = Failure(
    "CLUSTER_PASSIVE", "the cluster is Passive: it answers reads, and refuses writes until it is Active"
)


def no_space(member: int, role: str) -> Failure:
    """Return the refusal of writes to a partition while the volume of a member of its row is full.

    `role` says in a clause what that member is to the partition.
    """
    return Failure(
        "NO_SPACE",
        f"the volume of member {member}, which {role}, is full: writes and deletions are refused until "
        f"{limits.NO_SPACE_BYTES >> 20} MiB are free; enlarge it, or move partitions to other members",
    )


class WriteGate:
    """`refusal` is why writes are refused, if so; `full` is what other members are told about the volume.

    `free_bytes` is its free space at the last measurement.
    """

    def __init__(self, volume: Volume, table: TableCache, tablets: TabletStore) -> None:
        self._volume, self._table, self._tablets = volume, table, tablets
        self.refusal: Failure | None = None
        self.full = False
        self.free_bytes = volume.free_bytes()

    def measure(self) -> None:
        """Measure the free space and decide."""
        self.free_bytes = self._volume.free_bytes()
        self.update()

    def update(self) -> None:
        """Decide again: the cluster's state changed, or the log refuses writes."""
        self.full = bool(self._tablets.writer.stalled) or self.free_bytes < limits.NO_SPACE_BYTES
        passive = self._table.state == ClusterState.PASSIVE
        full = no_space(self._table.me, "owns this partition") if self.full else None
        self.refusal = PASSIVE if passive else full
