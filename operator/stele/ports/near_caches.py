"""Near caches: clients that keep values which they read, and must hear when these change."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Track:
    """What the owner of a partition is to remember of a request, for a client of `member`.

    `names` are those of the keys that it reads (wire.storage.keys.user_tail), none for a client that hears of
    all writes. `writer` is the client if it does not want to hear of its own writes, else 0. `lost`: an owner
    of an earlier build has the request, which remembers nothing.
    """

    member: int
    names: list[bytes]
    writer: int = 0
    lost: bool = False

    def lose(self) -> None:
        """Note that the owner remembers nothing."""
        self.lost = True


class CachingClient(Protocol):
    """A client with a near cache. `keyspace` is the one whose keys it caches now."""

    @property
    def id(self) -> int: ...

    @property
    def keyspace(self) -> bytes: ...

    def invalidate(self, keys: Sequence[bytes]) -> None:
        """Drop these keys, after the replies to all requests that have begun."""
        ...

    def invalidate_all(self) -> None:
        """Drop everything, as above."""
        ...


class TooManyBroadcastsError(Exception):
    """Clients of this member ask for broadcasts beyond a limit; nothing was changed."""


class NearCaches(Protocol):
    """Which clients of this member cache what.

    A client hears of the change of a key that it read while it was tracked, or that it drops the key for
    another reason: at the latest two leases after a write was acknowledged.
    """

    @property
    def clients(self) -> int:
        """Number of clients."""
        ...

    def facts(self) -> dict[str, str | int]:
        """Return what INFO shows: keys, keys of each client, and prefixes."""
        ...

    def open(self, client: CachingClient) -> None:
        """Begin to tell a client."""
        ...

    def close(self, client: CachingClient) -> None:
        """Forget a client."""
        ...

    def broadcast(self, client: CachingClient, prefixes: Iterable[bytes]) -> None:
        """Tell a client of all writes of keys with these prefixes. Raises TooManyBroadcastsError."""
        ...

    def prefixes_of(self, client: CachingClient) -> list[bytes]:
        """Return the prefixes that a client asked for, in their order as bytes."""
        ...

    def begin(
        self, client: CachingClient, partition: int, keys: Sequence[bytes], *, noloop: bool = False
    ) -> Track:
        """Begin a request of a client that reads these keys, and tell it of changes from now on."""
        ...

    def end(self, client: CachingClient, partition: int, keys: Sequence[bytes], track: Track) -> None:
        """End it, before its reply is written: what nobody watches is to be dropped at once."""
        ...
