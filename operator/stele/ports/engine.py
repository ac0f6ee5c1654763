"""One ordered store on the volume of a member."""

from collections.abc import Sequence
from typing import Protocol

SCAN_BYTES_MAX = 1 << 62
"""As good as no limit."""


class View(Protocol):
    """The `data` family as it was at one moment. Close it soon: it keeps old files alive."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Up to `limit` entries of [begin, end) in order."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """One ordered store per member, with two families (docs/design/tablets.md, "On the volume").

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
