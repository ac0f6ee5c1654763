"""What a developer needs to write a service: code of one's own on every member, with state that moves along.

A service is a class that an installed package names in the entry-point group `stele.services`; see
docs/reference/services.md. All its methods are called in one thread of its own, one after the other, never
on the member's event loop. A call that takes longer than its limit, or that raises, is logged with the
service's name.
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
    "FragmentedMigrationAwareService",
    "MigrationAwareService",
    "MigrationType",
    "PartitionMigrationEvent",
]

GROUP = "stele.services"
"""The entry-point group. The name of the entry is the service's: 1 to 40 of a-z, 0-9 and -."""

Changes = Mapping[bytes, bytes | None]
"""What a service stores under its keys from now on; None deletes a key."""


class Context(Protocol):
    """The member, as a service sees it. May be used in any thread but the member's own."""

    @property
    def member(self) -> str:
        """Name of this TabletMember."""
        ...

    @property
    def partitions(self) -> int:
        """How many there are; 0 before the member heard of its cluster."""
        ...

    def replica_index(self, partition: int) -> int:
        """This member's by the published row, -1 when it holds none."""
        ...

    def serves(self, partition: int) -> bool:
        """Whether this member owns the partition and answers for it now.

        False until every service heard how the last migration of the partition ended here, and so in
        `commit_migration` and `rollback_migration` as well.
        """
        ...

    def owner(self, partition: int) -> str:
        """Name of the owner, as far as this member knows; empty when there is none."""
        ...

    def entries(
        self, partition: int, namespace: str = "", after: bytes = b"", limit: int = 1000
    ) -> list[tuple[bytes, bytes]]:
        """What the service stored, as this member has applied it: keys greater than `after`, in order.

        Any replica has it; a backup may lag by a moment. Empty when the partition is not here. At most
        `limit` entries, 1 to 10,000.
        """
        ...

    def put(self, partition: int, changes: Changes, namespace: str = "") -> None:
        """Store at the owner, wherever it is; on all in-sync replicas on return, so that no crash takes it.

        Keys are written in order, each by itself. Raise Unavailable or Refused (`stele.errors`) when it
        was not done, Uncertain when it may be. While the partition is handed over it waits: never call it in
        `prepare_replication`.
        """
        ...


class MigrationAwareService(Protocol):
    """A service without namespaces. What all of these store of a partition is one fragment."""

    def start(self, context: Context) -> None:
        """The member begins. Migrations that were begun before it restarted are ended after this."""
        ...

    def stop(self) -> None:
        """The member ends politely; after a crash this was not called."""
        ...

    def before_migration(self, event: PartitionMigrationEvent) -> None:
        """A migration of the partition begins here. It may still be committed or rolled back."""
        ...

    def prepare_replication(self, event: PartitionMigrationEvent, namespace: str = "") -> Changes:
        """At the owner that feeds a destination: what the others shall know of this service's state.

        It is logged in the partition, and thus on the destination and on every in-sync replica before the
        migration is committed. Called when the migration begins, and, when the owner changes, once more while
        all requests of the partition wait. At most 1 MiB, and at most 10,000 keys.
        """
        ...

    def commit_migration(self, event: PartitionMigrationEvent) -> None:
        """The row with the new replica index is published. What was prepared is in `Context.entries` here."""
        ...

    def rollback_migration(self, event: PartitionMigrationEvent) -> None:
        """Nothing came of it: this member's replica index is the current one of the event."""
        ...


class FragmentedMigrationAwareService(MigrationAwareService, Protocol):
    """A service with namespaces of its own, such as one per queue: each is a fragment of its own.

    `prepare_replication` is called once for each namespace.
    """

    def namespaces(self, event: PartitionMigrationEvent) -> Collection[str]:
        """Those that it has in the partition: 1 to 20 of a-z, 0-9 and - each, 100 at most."""
        ...
