"""What the applications need of the outside world, as Protocols.

Adapters implement them, each with an in-memory twin.
"""

from collections.abc import Sequence
from typing import Protocol

from stele.core.commands import Reply


class Store(Protocol):
    """What a member's client door needs of the tablets: any partition, wherever its owner is.

    Requests for a partition that is moving wait, they do not fail. `Unavailable` (core.errors) is
    raised when the wait limit ends, `Uncertain` when a write may or may not have happened.
    """

    @property
    def partitions(self) -> int: ...

    async def execute(
        self, partition: int, keyspace: bytes, commands: Sequence[Sequence[bytes]]
    ) -> list[Reply]:
        """Run single-key commands of one partition, in order; one reply each. Reads are linearizable."""
        ...

    async def scan(
        self, partition: int, keyspace: bytes, after: bytes, limit: int
    ) -> tuple[list[bytes], bool]:
        """Up to `limit` keys greater than `after` in order, and whether the keyspace ends there."""
        ...

    async def count(self, partition: int, keyspace: bytes) -> int:
        """Number of entries of a keyspace in one partition (expired ones count until they are removed)."""
        ...

    def info(self) -> dict[str, str | int]:
        """Facts for INFO."""
        ...
