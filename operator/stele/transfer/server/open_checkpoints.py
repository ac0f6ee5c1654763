"""Sessions that a transfer process serves: open checkpoints, their use and their rates."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from stele.core.control.commands import SessionTablet
from stele.core.copy.pacing import Pace
from stele.errors import Corrupt, Refused
from stele.transfer.server.checkpoint import Checkpoint, StoredStreams, open_snapshot, read_session
from stele.wire.copy.jobs import SentSession, SentSessions, SessionFile, damage_note

SESSIONS_OPEN_MAX = 32

RATE_SECONDS = 0.5
"""How often a stream checks its rate, which the member can change in the session's file."""

PIECE_BYTES = 64 * 1024
"""Largest write of a rate-limited stream: readers time out when nothing arrives for long."""


@dataclass(slots=True)
class _Open:
    """An open checkpoint, its current readers and the bytes sent so far."""

    checkpoint: Checkpoint | StoredStreams
    readers: int = 0
    sent_bytes: int = 0
    pace: Pace = field(default_factory=lambda: Pace(0))
    looked_seconds: float = float("-inf")


class OpenCheckpoints:
    """Checkpoints below `checkpoints/`, each opened once. Thread-safe."""

    def __init__(self, checkpoints: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._checkpoints = checkpoints
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()

    def describe(self, session: str) -> SessionFile | None:
        """Return the current content of the session's file; None when it does not exist (any more)."""
        return read_session(self._checkpoints / session)

    @contextmanager
    def reading(self, session: str) -> Iterator[Checkpoint | StoredStreams]:
        """Yield what the session serves, which stays open until the block ends."""
        with self._lock:
            entry = self._open.get(session)
            if entry is None:
                if len(self._open) >= SESSIONS_OPEN_MAX and not self._close_ended():
                    raise Refused(f"{SESSIONS_OPEN_MAX} sessions are open: retry later", "BUSY")
                entry = self._open[session] = _Open(open_snapshot(self._checkpoints / session))
            entry.readers += 1
        try:
            yield entry.checkpoint
        finally:
            with self._lock:
                entry.readers -= 1

    async def send(self, session: str, data: bytes, write: Callable[[memoryview], Awaitable[None]]) -> None:
        """Write part of a stream at the session's rate; inside `reading`, on the event loop."""
        entry, remaining = self._open[session], memoryview(data)
        while remaining:
            self._look_at_rate(session)
            piece = remaining[:PIECE_BYTES] if entry.pace.bytes_per_second else remaining
            wait = entry.pace.wait_seconds(len(piece), self._clock())
            if wait:
                await asyncio.sleep(wait)
            await write(piece)
            self.note_sent(session, len(piece))
            remaining = remaining[len(piece) :]

    def rate(self, session: str) -> int:
        """Return the session's bytes per second, 0 without a limit; inside `reading`."""
        with suppress(ConnectionAbortedError):
            self._look_at_rate(session)
        return self._open[session].pace.bytes_per_second

    def note_sent(self, session: str, size_bytes: int) -> None:
        """Count sent bytes; inside `reading`."""
        self._open[session].sent_bytes += size_bytes

    def _look_at_rate(self, session: str) -> None:
        """Update the rate. Raises ConnectionAbortedError when the session was closed meanwhile."""
        entry, now = self._open[session], self._clock()
        if now - entry.looked_seconds < RATE_SECONDS:
            return
        entry.looked_seconds = now
        try:
            described = self.describe(session)
        except Corrupt as error:
            raise ConnectionAbortedError(str(error)) from error
        if described is None:
            raise ConnectionAbortedError(f"session {session} was closed")
        entry.pace.change_rate(described.bytes_per_second)

    def sent(self) -> SentSessions:
        """Return the bytes sent, by session."""
        with self._lock:
            return SentSessions(
                tuple(SentSession(name, each.sent_bytes, each.readers) for name, each in self._open.items())
            )

    def note_damage(self, session: str, tablet: SessionTablet, reason: str) -> None:
        """Leave a mark for the member, which checks at the end of a session; without it only the copy
        fails.

        A session whose description is gone is being removed, and its files with it: that is no damage.
        """
        if not self._is_described(session):
            return
        path = self._checkpoints / session / damage_note(tablet.partition, tablet.generation)
        draft = path.with_name(f"new-{path.name}")
        with suppress(OSError):
            draft.write_text(reason)
        # Rename, as the member may look at any time. On a full volume a truncated reason has to suffice.
        with suppress(OSError):
            draft.replace(path)

    def _is_described(self, session: str) -> bool:
        return (self._checkpoints / session / "session.json").exists()

    def close_ended(self) -> int:
        """Close checkpoints of ended sessions without readers; return how many were closed."""
        with self._lock:
            return self._close_ended()

    def _close_ended(self) -> int:
        ended = [
            name for name, entry in self._open.items() if not entry.readers and not self._is_described(name)
        ]
        for name in ended:
            self._open.pop(name).checkpoint.close()
        return len(ended)

    def close(self) -> None:
        """Close all checkpoints without readers."""
        with self._lock:
            for name in [name for name, entry in self._open.items() if not entry.readers]:
                self._open.pop(name).checkpoint.close()
