"""What the applications need of the outside world, as Protocols.

Adapters implement them, each with an in-memory twin.
"""

from collections.abc import Sequence
from typing import Protocol

from stele.core.commands import REPLY_BYTES_MAX, Reply

SCAN_BYTES_MAX = 1 << 62
"""As good as no limit."""


class Outcome(Protocol):
    """As much of a future as the store needs to answer."""

    def done(self) -> bool: ...

    def set_result(self, result: list[Reply], /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Store(Protocol):
    """What a member's client door needs of the tablets: any partition, wherever its owner is.

    Requests for a partition that is moving wait, they do not fail. `Unavailable` (core.errors) is
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


class View(Protocol):
    """The `data` family as it was at one moment. Close it soon: it keeps old files alive."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` entries of [begin, end) in order."""
        ...

    def close(self) -> None: ...


class Transfer(Protocol):
    """The process that copies tablets into this member's volume."""

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Raise Refused for an answer that says no, and Unavailable when there is none."""
        ...

    async def close(self) -> None: ...


class Engine(Protocol):
    """One ordered store per member, with two families (design 40-tablet, "One RocksDB per member").

    `log` survives the death of the process at once and the loss of power after `sync_log`. `data` survives
    either only after `flush`: what it then holds of a tablet is a prefix of the `write_data` calls, each
    whole or absent. Methods marked "slow" may block for long and are called in a thread; the others on the
    event loop, with at most ENGINE_WRITE_BYTES_MAX per call.
    """

    def get(self, key: bytes) -> bytes | None: ...

    def scan(
        self, begin: bytes, end: bytes, limit: int, bytes_max: int = SCAN_BYTES_MAX
    ) -> list[tuple[bytes, bytes]]:
        """Up to `limit` entries of [begin, end) of `data`, in order; the last is the one that reaches
        `bytes_max` of keys and values.
        """
        ...

    def last_key(self, begin: bytes, end: bytes) -> bytes | None:
        """The greatest key of [begin, end) in `data`."""
        ...

    def write_data(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Apply all changes of a tablet as one (None deletes), in order."""
        ...

    def drop_data(self, begin: bytes, end: bytes) -> None:
        """Delete the range [begin, end) of `data`."""
        ...

    def view(self) -> View: ...

    def write_log(
        self, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Delete the ranges, then put the entries, as one. In the hands of the operating system on return."""
        ...

    def get_log(self, key: bytes) -> bytes | None: ...

    def scan_log(self, begin: bytes, end: bytes, bytes_max: int) -> list[tuple[bytes, bytes]]:
        """Entries of [begin, end) in order; stops after the one that reaches `bytes_max` of values."""
        ...

    def log_bounds(self, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """First and last key of [begin, end), None when there is none."""
        ...

    def sync_log(self) -> None:
        """Slow. What `write_log` was given before the call is on disk on return."""
        ...

    def flush(self) -> None:
        """Slow. What `write_data` was given before the call is on disk on return."""
        ...

    def checkpoint(self, path: str) -> None:
        """Slow. A directory that `open_checkpoint` reads; files are hard links."""
        ...

    def open_checkpoint(self, path: str) -> View:
        """Slow. The data of a checkpoint that this engine made."""
        ...

    def make_file(self, path: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Slow. Write ascending entries into an SST file for `ingest`; on disk on return."""
        ...

    def file_bounds(self, paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
        """Slow. First and last key of each finished SST file; the files stay as they are. Raise Corrupt for
        one that is none, or empty.
        """
        ...

    def ingest(self, paths: Sequence[str]) -> None:
        """Slow. Move finished SST files into `data`, all or none, on disk on return. Their ranges never
        overlap.
        """
        ...

    def close(self) -> None:
        """Slow. Flushes `data`. From its call on, in any thread, every other method raises Unavailable
        (CLOSED), or what it did is there after reopening. A second call does nothing.
        """
        ...
