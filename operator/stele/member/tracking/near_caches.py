"""Near caches of this member's clients: who caches what, and when they have to drop it.

A client drops a key when the owner says that it has changed, and everything of a partition when the owner may
have changed it without this member hearing of it: its row has another version, the session with the owner
ended, or the owner vouched for nothing for a lease. A heartbeat vouches from when this member *asked*, not
from when it reads the answer: one that waited in a socket may be older than a change behind it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from stele.core.formats import TRACKING
from stele.core.kv.interest import PREFIXES_BYTES_MAX, PREFIXES_MAX, Interest
from stele.core.tablet.leases import held_until
from stele.member.replication.links import Link
from stele.member.replication.table_cache import TableCache
from stele.ports.local_caches import LOCAL
from stele.ports.near_caches import CachingClient, TooManyBroadcastsError, Track
from stele.wire import peer
from stele.wire.storage.keys import split_tail, user_tail

BROADCASTING_MAX = 1_000
"""Clients of a member that hear of all writes."""


class NearCaches:
    """Implements ports.near_caches.NearCaches. `announce` says at this member which prefixes it asks for."""

    def __init__(
        self,
        table: TableCache,
        links: Mapping[int, Link],
        now: Callable[[], float],
        announce: Callable[[Iterable[bytes]], None],
    ) -> None:
        self._table = table
        self._links = links
        self._now = now
        self._announce = announce
        self._interest = Interest()
        self._clients: dict[int, CachingClient] = {}
        self._prefixes: dict[bytes, dict[int, CachingClient]] = {}
        self._broadcasting: dict[int, CachingClient] = {}
        self._lengths: list[int] = []
        self._vouched: dict[int, float] = {}

    @property
    def keys(self) -> int:
        """Number of keys that clients cache."""
        return self._interest.keys

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that remembering these keys takes."""
        return self._interest.held_bytes

    @property
    def clients(self) -> int:
        """Number of clients with a near cache."""
        return len(self._clients)

    def facts(self) -> dict[str, str | int]:
        return {
            "tracking_total_keys": self._interest.keys,
            "tracking_total_items": self._interest.items,
            "tracking_total_prefixes": len(self._prefixes),
        }

    # -- clients

    def open(self, client: CachingClient) -> None:
        self._clients[client.id] = client

    def close(self, client: CachingClient) -> None:
        self._clients.pop(client.id, None)
        self._broadcasting.pop(client.id, None)
        unused = []
        for prefix, clients in self._prefixes.items():
            if clients.pop(client.id, None) and not clients:
                unused.append(prefix)
        for prefix in unused:
            del self._prefixes[prefix]
        if unused:
            self._ask()

    def broadcast(self, client: CachingClient, prefixes: Iterable[bytes]) -> None:
        wanted = list(prefixes)
        self._check_room(client, wanted)
        known = len(self._prefixes)
        for prefix in wanted:
            self._prefixes.setdefault(prefix, {})[client.id] = client
        self._broadcasting[client.id] = client
        if len(self._prefixes) > known:
            self._ask()

    def prefixes_of(self, client: CachingClient) -> list[bytes]:
        return sorted(prefix for prefix, clients in self._prefixes.items() if client.id in clients)

    def _check_room(self, client: CachingClient, prefixes: list[bytes]) -> None:
        all_prefixes = self._prefixes.keys() | set(prefixes)
        if len(self._broadcasting.keys() | {client.id}) > BROADCASTING_MAX:
            text = f"{BROADCASTING_MAX} clients of this member are in BCAST mode"
        elif len(all_prefixes) > PREFIXES_MAX:
            text = f"clients of this member ask for {PREFIXES_MAX} prefixes"
        elif sum(map(len, all_prefixes)) > PREFIXES_BYTES_MAX:
            text = f"prefixes of clients of this member exceed {PREFIXES_BYTES_MAX} bytes"
        else:
            return
        raise TooManyBroadcastsError(f"{text}, which is the limit; connect to another member")

    def _ask(self) -> None:
        """Tell all owners which keys this member has to hear of."""
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})
        self._announce(self._prefixes)
        for link in self._links.values():
            self._ask_owner(link)

    def _ask_owner(self, link: Link) -> None:
        if link.format >= TRACKING:
            link.send(peer.Broadcast(list(self._prefixes)))

    # -- requests

    def begin(
        self, client: CachingClient, partition: int, keys: Sequence[bytes], *, noloop: bool = False
    ) -> Track:
        names = [user_tail(client.keyspace, key) for key in keys]
        for name in names:
            self._interest.add(partition, name, client.id)
        for gone in self._interest.evicted():
            self._drop({reader: [split_tail(gone.name)[1]] for reader in gone.readers})
        return Track(self._table.me, names, client.id if noloop else 0)

    def end(self, client: CachingClient, partition: int, keys: Sequence[bytes], track: Track) -> None:
        if track.lost or not self.is_vouched(partition):
            client.invalidate(keys)

    def is_vouched(self, partition: int) -> bool:
        """Return whether this member hears of all changes of the partition."""
        owner = self._table.rows[partition].owner
        return owner == self._table.me or (owner is not None and self._vouched.get(owner, 0.0) > self._now())

    def backs_up(self, partition: int) -> bool:
        """Return whether this member has a tablet of the partition."""
        return self._table.me in self._table.rows[partition].replicas

    # -- what owners say

    def on_invalidate(self, link: Link, message: peer.Invalidate) -> None:
        """An owner says what has changed."""
        self.invalidate(message)

    def invalidate(self, message: peer.Invalidate) -> None:
        """The same, also for this member's own partitions."""
        if message.names is None:
            self._drop_partition(message.partition)
            return
        dropped: dict[int, list[bytes]] = {}
        for name in message.names:
            for client in self._interest.take(message.partition, name):
                if client == message.writer:
                    self._interest.add(message.partition, name, client)
                else:
                    dropped.setdefault(client, []).append(split_tail(name)[1])
        self._drop(dropped)
        if self._prefixes:
            self._broadcast_names(message.names, message.writer)

    def _broadcast_names(self, names: Sequence[bytes], writer: int) -> None:
        hits: dict[tuple[bytes, bytes], list[bytes]] = {}
        for keyspace, key in map(split_tail, names):
            for length in self._lengths:
                if key[:length] in self._prefixes:
                    hits.setdefault((key[:length], keyspace), []).append(key)
        for (prefix, keyspace), keys in hits.items():
            for client in self._prefixes[prefix].values():
                if client.keyspace == keyspace and client.id != writer:
                    client.invalidate(keys)

    def vouched(self, link: Link, lease: peer.Lease) -> None:
        """Everything that this owner changed before it was asked has arrived."""
        if self._vouched.get(link.member, self._now() + 1) <= self._now():
            self._lost(link.member)
        self._vouched[link.member] = held_until(lease.at, lease.seconds)

    def session_began(self, link: Link) -> None:
        """Ask a new session for what this member has to hear of."""
        if self._prefixes:
            self._ask_owner(link)

    def session_ended(self, member: int) -> None:
        """What this owner says from now on is lost."""
        if self._vouched.pop(member, None) is not None:
            self._lost(member)

    def row_changed(self, partition: int) -> None:
        """Drop what was read under the row before."""
        if self._interest or self._prefixes:
            self._drop_partition(partition)

    def moved(self, keyspaces: Set[bytes]) -> None:
        """Drop what was read of keyspaces that have other partitions from now on: the owners of those do not
        know who read it. Broadcasts come from all owners."""
        prefixes = tuple(user_tail(keyspace, b"") for keyspace in keyspaces)
        for partition in self._interest.partitions():
            self._drop_keys(partition, prefixes)

    def tick(self) -> None:
        """Drop what owners have not vouched for during a lease."""
        now = self._now()
        for member in [member for member, until in self._vouched.items() if until <= now]:
            del self._vouched[member]
            self._lost(member)

    # -- what is dropped

    def _lost(self, member: int) -> None:
        """Drop everything of which this member is the owner."""
        rows = self._table.rows
        for partition in self._interest.partitions():
            if partition != LOCAL and rows[partition].owner == member:
                self._drop_keys(partition)
        self._drop_broadcasts()

    def _drop_partition(self, partition: int) -> None:
        self._drop_keys(partition)
        self._drop_broadcasts()

    def _drop_keys(self, partition: int, prefixes: bytes | tuple[bytes, ...] = b"") -> None:
        dropped: dict[int, list[bytes]] = {}
        for name, readers in self._interest.take_all(partition, prefixes):
            for client in readers:
                dropped.setdefault(client, []).append(split_tail(name)[1])
        self._drop(dropped)

    def _drop_broadcasts(self) -> None:
        """Who hears of all writes has missed some, and does not say what it caches."""
        for client in self._broadcasting.values():
            client.invalidate_all()

    def _drop(self, dropped: Mapping[int, Sequence[bytes]]) -> None:
        for id, keys in dropped.items():
            client = self._clients.get(id)
            # One that asks for broadcasts hears of keys that it read before in that way alone.
            if client is not None and id not in self._broadcasting:
                client.invalidate(keys)
