"""Access to every partition of the cluster, for the clients' endpoint."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from stele.core.kv.cluster_map import ClusterMap, ClusterNode
from stele.core.kv.commands import REPLY_BYTES_MAX, Reply
from stele.core.kv.keyspaces import Settings
from stele.core.kv.seen import SeenOperations
from stele.core.kv.written import OpId, WrittenOperations
from stele.ports.local_caches import LocalCaches
from stele.ports.near_caches import NearCaches, Track
from stele.ports.transactions import Transactions


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

    available: set[bytes]
    """The keyspaces with `reads: Available`: always the same set, whose content changes."""

    aside: set[bytes]
    """The keyspaces whose requests do not run in common batches: those and the ones of `local`. As above."""

    @property
    def local(self) -> LocalCaches:
        """Return the keyspaces with `mode: Invalidation`: nothing of them is in any partition."""
        ...

    only: set[bytes]
    """The keyspaces that clients may use, and b""; empty when they may use any. Always the same set."""

    asynchronous: set[bytes]
    """The keyspaces with `replication: Async`: always the same set."""

    def group(self, keyspace: bytes) -> range:
        """Return the partitions that have a keyspace's entries; none before there is a table."""
        ...

    def groups(self) -> Sequence[range]:
        """Return all partitions: first those that have the keyspaces without partitions of their own."""
        ...

    @property
    def transactions(self) -> Transactions: ...

    @property
    def near_caches(self) -> NearCaches: ...

    def cluster_map(self, group: range) -> ClusterMap:
        """Return which member owns which slots of the keyspaces in these partitions, by the rows that are
        published here."""
        ...

    def home(self, partition: int) -> ClusterNode | None:
        """Return the member that clients should send a partition's requests to, as clients see it.

        It is None when that is this member, and while requests wait here: there is no owner, or it cannot be
        reached from here.
        """
        ...

    def backups_min(self, group: range) -> int:
        """Return how many backups each of these has at least, by the rows that are published here."""
        ...

    def backs_up(self, partition: int) -> bool:
        """Return whether this member is a backup of the partition, by the row that is published here."""
        ...

    def settings_of(self, keyspace: bytes) -> Settings:
        """Return the settings of a keyspace as known to this member."""
        ...

    def execute(
        self,
        partition: int,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        room: int = REPLY_BYTES_MAX,
        seen: SeenOperations | None = None,
        *,
        track: Track | None = None,
        written: WrittenOperations | None = None,
    ) -> Awaitable[list[Reply]]:
        """Run single-key commands of one partition, in order; reads are linearizable.

        The call itself submits them.

        Returns one reply per command that ran: the first ones, as long as their replies fit into `room`
        bytes. The others did not run. With room for any single reply, the first command always runs. `track`
        is for a client with a near cache, between `near_caches.begin` and `end`. With `seen` and without
        `track`, reads may be answered as by `read_here`; what the replies depend on is recorded in `seen`.

        With `written`, writes of Async keyspaces are answered before they are committed, and recorded there.
        """
        ...

    def start(
        self,
        partition: int,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        outcome: Outcome,
        room: int = REPLY_BYTES_MAX,
        *,
        track: Track | None = None,
        saw: Callable[[OpId | None], None] | None = None,
    ) -> None:
        """Run `execute` without a task; `outcome` is set exactly once, during the call or later.

        With `saw`, writes of Async keyspaces are answered before they are committed; it gets the operation,
        None for one that was committed.
        """
        ...

    def read_now(self, keyspace: bytes, partitions: list[int], keys: list[bytes]) -> list[Reply] | None:
        """Return GET's reply for each key, or for the first ones; None when it cannot be answered at once."""
        ...

    def read_here(
        self,
        seen: SeenOperations,
        keyspace: bytes,
        partitions: Sequence[int],
        commands: Sequence[Sequence[bytes]],
    ) -> list[Reply]:
        """Return the replies of the first commands, as far as this member may answer them at once.

        It also answers as a backup what the connection may read from backups: values that may be older than
        the last acknowledged ones, but not older than what it has `seen`.
        """
        ...

    def available_since(self, keyspace: bytes) -> float | None:
        """Return what `SeenOperations.since` has to be at first in this keyspace; None if its reads are
        linearizable."""
        ...

    def scan(
        self, partition: int, keyspace: bytes, after: bytes, limit: int
    ) -> Awaitable[tuple[list[bytes], bytes | None]]:
        """Return up to `limit` keys greater than `after` in order, and how far the search got.

        There are fewer when keys or values are long. The second value may be beyond the last key (expired
        keys are skipped); it is None at the end of the keyspace.
        """
        ...

    def count(self, partition: int, keyspace: bytes) -> Awaitable[int]:
        """Return the number of entries of a keyspace in one partition; expired ones count until removed."""
        ...

    def clear(self, partition: int, keyspace: bytes, catalog: int = 0) -> Awaitable[None]:
        """Delete all entries of a keyspace in one partition, as one operation; b"": of all users' keyspaces.

        With `catalog`, only while no later catalog of keyspaces is in use where the owner is. Raises Refused
        when writes are refused.
        """
        ...

    def info(self) -> dict[str, str | int]:
        """Return the fields of INFO."""
        ...
