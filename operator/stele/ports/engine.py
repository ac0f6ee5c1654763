"""The ordered store on a member's volume."""

from collections.abc import Sequence
from typing import Protocol

SCAN_BYTES_MAX = 1 << 62
"""Practically unlimited."""


class View(Protocol):
    """A snapshot of the `data` family. Close it soon: it keeps obsolete files alive."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, begin: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` entries of [begin, end), in order."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """One ordered store per member, with two families.

    `log` survives a crash of the process at once, and a loss of power after `sync_log`. `data` survives
    either only after `flush`: what it then holds of a tablet is a prefix of the `write_data` calls, each
    whole or absent. Methods marked "slow" may block for long and run in a thread; the others run on the event
    loop, with at most ENGINE_WRITE_BYTES_MAX per call.
    """

    def get(self, key: bytes) -> bytes | None: ...

    def scan(
        self, begin: bytes, end: bytes, limit: int, bytes_max: int = SCAN_BYTES_MAX
    ) -> list[tuple[bytes, bytes]]:
        """Return up to `limit` entries of [begin, end) of `data`, in order.

        The last entry is the one that reaches `bytes_max` of keys and values.
        """
        ...

    def last_key(self, begin: bytes, end: bytes) -> bytes | None:
        """Return the greatest key of [begin, end) in `data`."""
        ...

    def write_data(
        self, changes: Sequence[tuple[bytes, bytes | None]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Delete ranges of a tablet, then apply all its changes, in order, as one; None deletes."""
        ...

    def drop_data(self, begin: bytes, end: bytes) -> None:
        """Delete the range [begin, end) of `data`."""
        ...

    def view(self) -> View: ...

    def write_log(
        self, puts: Sequence[tuple[bytes, bytes]], drops: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Delete the ranges, then put the operations, as one. In the hands of the operating system on return.

        A range is of one partition: its first operations, its last ones, or all. An operation follows its
        partition's last one, or begins its log. Raises Corrupt for others, and writes nothing.
        """
        ...

    def get_log(self, key: bytes) -> bytes | None: ...

    def scan_log(self, begin: bytes, end: bytes, bytes_max: int) -> list[tuple[bytes, bytes]]:
        """Return operations of [begin, end) of one partition in order, up to the one that reaches
        `bytes_max` of records."""
        ...

    def log_bounds(self, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the first and last key of [begin, end) of one partition, None when it is empty."""
        ...

    def sync_log(self) -> None:
        """Slow. Everything written by `write_log` before the call is on disk on return."""
        ...

    def log_end(self) -> tuple[str, int] | None:
        """Return the newest file of the log and its size, where it is to be noted what was synced."""
        ...

    def use_format(self, number: int) -> None:
        """Store as this format does from now on, where it needs no copy of the log; else a start does it."""
        ...

    def flush(self) -> None:
        """Slow. Everything written by `write_data` before the call is on disk on return."""
        ...

    def checkpoint(self, path: str) -> None:
        """Slow. Create a directory for `open_checkpoint`; its files are hard links."""
        ...

    def open_checkpoint(self, path: str) -> View:
        """Slow. Open a checkpoint that this engine created."""
        ...

    def make_file(self, path: str, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Slow. Write ascending entries into an SST file for `ingest`; it is on disk on return."""
        ...

    def file_bounds(self, paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
        """Slow. Return the first and last key of each SST file, without changing the files.

        Raises Corrupt for a file that is empty or not an SST file.
        """
        ...

    def ingest(self, paths: Sequence[str]) -> None:
        """Slow.

        Move finished SST files, whose ranges never overlap, into `data`: all or none, on disk on return.
        """
        ...

    def close(self) -> None:
        """Slow. Flush `data` and close.

        Once it is called, in any thread, every other method either raises Unavailable (CLOSED), or its effect
        is there after reopening. A second call does nothing.
        """
        ...
