"""Access to every partition of the cluster, for the clients' endpoint."""

from collections.abc import Sequence
from typing import Protocol

from stele.core.kv.cluster_map import ClusterMap
from stele.core.kv.commands import REPLY_BYTES_MAX, Reply


class Outcome(Protocol):
    """The part of a future's interface that the service uses to answer."""

    def done(self) -> bool: ...

    def set_result(self, result: list[Reply], /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class KeyValueService(Protocol):
    """Runs commands on any partition, wherever its owner is.

    Requests for a partition that is moving wait; they do not fail. Raises Unavailable at the end of the wait
    limit, and Uncertain when a write may or may not have been applied.
    """

    @property
    def partitions(self) -> int: ...

    def cluster_map(self) -> ClusterMap:
        """Return which member owns which slots, by the rows that are published here."""
        ...

    def home(self, partition: int) -> str:
        """Return the address of the member that clients should send a partition's requests to.

        It is empty when that is this member, and while requests wait here: there is no owner, or it cannot be
        reached from here.
        """
        ...

    async def execute(
        self,
        partition: int,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        room: int = REPLY_BYTES_MAX,
    ) -> list[Reply]:
        """Run single-key commands of one partition, in order; reads are linearizable.

        Returns one reply per command that ran: the first ones, as long as their replies fit into `room`
        bytes. The others did not run. With room for any single reply, the first command always runs.
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
        """Run `execute` without a task; `outcome` is set exactly once, during the call or later."""
        ...

    def read_now(
        self, keyspace: bytes, partitions: Sequence[int], keys: Sequence[bytes]
    ) -> list[Reply] | None:
        """Return GET's reply for each key, or for the first ones; None when it cannot be answered at once."""
        ...

    async def scan(
        self, partition: int, keyspace: bytes, after: bytes, limit: int
    ) -> tuple[list[bytes], bytes | None]:
        """Return up to `limit` keys greater than `after` in order, and how far the search got.

        There are fewer when keys or values are long. The second value may be beyond the last key (expired
        keys are skipped); it is None at the end of the keyspace.
        """
        ...

    async def count(self, partition: int, keyspace: bytes) -> int:
        """Return the number of entries of a keyspace in one partition; expired ones count until removed."""
        ...

    def info(self) -> dict[str, str | int]:
        """Return the fields of INFO."""
        ...
