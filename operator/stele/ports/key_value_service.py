"""Any partition of the cluster, as the endpoint for clients needs it."""

from collections.abc import Sequence
from typing import Protocol

from stele.core.kv.commands import REPLY_BYTES_MAX, Reply


class Outcome(Protocol):
    """As much of a future as the store needs to answer."""

    def done(self) -> bool: ...

    def set_result(self, result: list[Reply], /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class KeyValueService(Protocol):
    """What a member's RESP server needs of the tablets: any partition, wherever its owner is.

    Requests for a partition that is moving wait, they do not fail. `Unavailable` (errors) is
    raised when the wait limit ends, `Uncertain` when a write may or may not have happened.
    """

    @property
    def partitions(self) -> int: ...

    async def execute(
        self,
        partition: int,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        room: int = REPLY_BYTES_MAX,
    ) -> list[Reply]:
        """Run single-key commands of one partition, in order; reads are linearizable. One reply for each that
        ran: those at the begin whose replies take at most `room` bytes. The others did not run. With the room
        for any reply, the first always runs.
        """
        ...

    def start(
        self,
        partition: int,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        outcome: Outcome,
        room: int = REPLY_BYTES_MAX,
    ) -> None:
        """`execute` without a task: `outcome` is told, during the call or later, and once."""
        ...

    def read_now(
        self, keyspace: bytes, partitions: Sequence[int], keys: Sequence[bytes]
    ) -> list[Reply] | None:
        """What GET answers for each key, or for the first ones; None when it cannot be answered at once."""
        ...

    async def scan(
        self, partition: int, keyspace: bytes, after: bytes, limit: int
    ) -> tuple[list[bytes], bytes | None]:
        """Up to `limit` keys greater than `after` in order, fewer when they or their values are long; and up
        to where was looked (perhaps behind keys that expired), None when the keyspace is known to end.
        """
        ...

    async def count(self, partition: int, keyspace: bytes) -> int:
        """Number of entries of a keyspace in one partition (expired ones count until they are removed)."""
        ...

    def info(self) -> dict[str, str | int]:
        """Facts for INFO."""
        ...
