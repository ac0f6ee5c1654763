"""The interface for services: user code that runs on every member, with state that moves with partitions.

A service is a class that an installed package names in the entry-point group `stele.services`; see
docs/reference/services.md. All its methods are called in a dedicated thread, one after the other, never on
the member's event loop. A call that exceeds its time limit, or raises, is logged with the service's name.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from stele.core.placement.migration import Type as MigrationType
from stele.core.service_events import Endpoint, PartitionMigrationEvent

__all__ = [
    "GROUP",
    "Changes",
    "Context",
    "Endpoint",
    "EntryMovedAwareService",
    "FragmentedMigrationAwareService",
    "MigrationAwareService",
    "MigrationType",
    "PartitionMigrationEvent",
]

GROUP = "stele.services"
"""Entry-point group. The name of the entry is that of the service: 1 to 40 of a-z, 0-9 and -."""

Changes = Mapping[bytes, bytes | None]
"""New values for a service's keys; None deletes a key."""


class Context(Protocol):
    """The member, as a service sees it. Usable in any thread but the member's own."""

    @property
    def member(self) -> str:
        """Name of this TabletMember."""
        ...

    @property
    def partitions(self) -> int:
        """Number of partitions; 0 before the member has joined its cluster."""
        ...

    def replica_index(self, partition: int) -> int:
        """Return this member's replica index in the published row, -1 for none."""
        ...

    def serves(self, partition: int) -> bool:
        """Return whether this member owns the partition and serves it now.

        False until every service has been notified of how the partition's last migration ended here, and
        therefore also in `commit_migration` and `rollback_migration`.
        """
        ...

    def owner(self, partition: int) -> str:
        """Return the name of the owner, as far as this member knows; empty when there is none."""
        ...

    def entries(
        self, partition: int, namespace: str = "", after: bytes = b"", limit: int = 1000
    ) -> list[tuple[bytes, bytes]]:
        """Return entries of the service that this member has applied: keys greater than `after`, in order.

        Every replica has them; a backup may lag slightly. Empty when this member has no replica. Returns at
        most `limit` entries, 1 to 10,000.
        """
        ...

    def put(self, partition: int, changes: Changes, namespace: str = "") -> None:
        """Store entries at the owner, wherever it is. They are on all in-sync replicas on return.

        Keys are written in order, each by itself. Raises Unavailable or Refused (`stele.errors`) when it was
        not done, Uncertain when it may have been. Blocks during a hand-over of the partition, so never call
        it in `prepare_replication`.
        """
        ...


class MigrationAwareService(Protocol):
    """A service without namespaces. The data of all such services in a partition is one fragment."""

    def start(self, context: Context) -> None:
        """Start with the member. Migrations that a restart interrupted are ended after this call."""
        ...

    def stop(self) -> None:
        """Stop with the member; not called before a crash."""
        ...

    def before_migration(self, event: PartitionMigrationEvent) -> None:
        """Handle the start of a migration here, which will be committed or rolled back."""
        ...

    def prepare_replication(self, event: PartitionMigrationEvent, namespace: str = "") -> Changes:
        """Return the state to replicate, at an owner that feeds a destination.

        It is logged in the partition, and thus on the destination and on every in-sync replica before the
        migration is committed. Called when the migration starts and, if the owner changes, again while all
        requests of the partition wait. At most 1 MiB and 10,000 keys.
        """
        ...

    def commit_migration(self, event: PartitionMigrationEvent) -> None:
        """Handle a commit: the new row is published, and the prepared state is in `Context.entries` here."""
        ...

    def rollback_migration(self, event: PartitionMigrationEvent) -> None:
        """Handle a rollback: this member's replica index is the event's current one."""
        ...


class FragmentedMigrationAwareService(MigrationAwareService, Protocol):
    """A service with namespaces, such as one per queue, each of which is a fragment of its own.

    `prepare_replication` is called once per namespace.
    """

    def namespaces(self, event: PartitionMigrationEvent) -> Collection[str]:
        """Return its namespaces in the partition: each 1 to 20 of a-z, 0-9 and -, at most 100."""
        ...


class EntryMovedAwareService(MigrationAwareService, Protocol):
    """A service that is informed of clients' entries that come to this member and leave it."""

    def entries_moved(self, partition: int, keyspace: str, keys: list[bytes], arrived: bool) -> None:
        """Handle some entries of a partition, at most 256.

        `arrived`: a copy brought them, and the row that names this member is published; a member that
        restarts may call it again, or not for all. Else they left with this member's replica: once at most.
        """
        ...


class EntryExpiredAwareService(MigrationAwareService, Protocol):
    """A service that is informed of clients' entries that expired."""

    def entries_expired(self, partition: int, keyspace: str, keys: list[bytes]) -> None:
        """Handle some expired entries of a partition that this member owns, at most 256.

        Their removal is committed and applied. Called once at most for each: not for those that wait when
        the partition gets another owner, or when the member ends.
        """
        ...
