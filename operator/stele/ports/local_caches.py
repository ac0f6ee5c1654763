"""Keyspaces with `mode: Invalidation`: the entries that this member has of them."""

from collections.abc import Sequence
from typing import Protocol

from stele.core.kv.commands import REPLY_BYTES_MAX, Reply
from stele.core.kv.local_cache import Misses

LOCAL = -1
"""Stands for the partition of a key in the near caches of clients: these keyspaces have none."""


class LocalCaches(Protocol):
    """Runs commands on this member's entries, and has all other members drop what a client changes."""

    keyspaces: set[bytes]
    """The keyspaces with this mode: always the same set, whose content changes."""

    @property
    def covered(self) -> bool:
        """Return whether hits are answered; otherwise every read misses."""
        ...

    def read(self, keyspace: bytes, commands: Sequence[Sequence[bytes]], misses: Misses) -> list[Reply]:
        """Return the replies to the leading reads, as many as can be answered at once."""
        ...

    async def execute(
        self,
        keyspace: bytes,
        commands: Sequence[Sequence[bytes]],
        misses: Misses,
        room: int = REPLY_BYTES_MAX,
        *,
        writer: int = 0,
        whole: bool = False,
    ) -> list[Reply]:
        """Run single-key commands in order, in one step; `misses` are those of their connection.

        Returns the replies of the first commands, as many as fit into `room` bytes; the others did not run.
        With `whole`, all commands run, or none when their replies may not fit.
        What is written takes effect at once, and is answered when no member answers hits of what it replaces.
        The client `writer` of this member does not hear of its own writes in its near cache. Raises
        Unavailable, with nothing changed, while this member takes no writes.
        """
        ...

    async def clear(self, keyspace: bytes) -> None:
        """Drop all entries of a keyspace at all members."""
        ...

    def count(self, keyspace: bytes) -> int:
        """Return the number of this member's entries; expired ones count until they are removed."""
        ...
