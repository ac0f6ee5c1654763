"""Transactions whose keys are in several partitions, for the clients' endpoint."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from stele.core.kv.commands import Failure, Reply
from stele.core.kv.seen import SeenOperations
from stele.core.kv.transaction import Watch
from stele.ports.near_caches import Track


class PartitionPart(NamedTuple):
    """The part of a transaction in one partition; `track` as in `KeyValueService.execute`."""

    watches: list[Watch]
    commands: list[list[bytes]]
    track: Track | None = None


class NoTransactions:
    """There are none."""

    available = False

    async def run(
        self, keyspace: bytes, parts: Mapping[int, PartitionPart], seen: SeenOperations | None
    ) -> Mapping[int, list[Reply]] | Reply:
        return Failure("ERR", "transactions across partitions are not available")


class Transactions(Protocol):
    """Runs them: all commands have their effect, at one moment, or none has."""

    @property
    def available(self) -> bool:
        """Return whether all members of the cluster can take part."""
        ...

    async def run(
        self, keyspace: bytes, parts: Mapping[int, PartitionPart], seen: SeenOperations | None
    ) -> Mapping[int, list[Reply]] | Reply:
        """Return the replies of each partition's part; or None when a watched key changed, or an error.

        There are at least two parts. Raises Uncertain when the transaction may or may not have been done.
        """
        ...
