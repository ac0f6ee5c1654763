"""The sessions that a transfer process serves: which checkpoints are open, for how long, and how fast."""

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
from stele.transfer.server.checkpoint import Checkpoint, read_session
from stele.wire.copy.jobs import SentSession, SentSessions, SessionFile, damage_note

SESSIONS_OPEN_MAX = 32

RATE_SECONDS = 0.5
"""How old the rate may be that a stream is held to; the member changes it in the session's description."""

PIECE_BYTES = 64 * 1024
"""With a rate no more is written at once: who reads takes a stream for dead when nothing comes for long."""


@dataclass(slots=True)
class _Open:
    """One open checkpoint, how many streams read it now, and what they sent so far."""

    checkpoint: Checkpoint
    readers: int = 0
    sent_bytes: int = 0
    pace: Pace = field(default_factory=lambda: Pace(0))
    looked_seconds: float = float("-inf")


class OpenCheckpoints:
    """Checkpoints below `checkpoints/`, each opened once. May be used by many threads."""

    def __init__(self, checkpoints: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._checkpoints = checkpoints
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()

    def describe(self, session: str) -> SessionFile | None:
        """The session's file as it is now; None when there is no such session (any more)."""
        return read_session(self._checkpoints / session)

    @contextmanager
    def reading(self, session: str) -> Iterator[Checkpoint]:
        """The session's checkpoint, which stays open until the block ends."""
        with self._lock:
            entry = self._open.get(session)
            if entry is None:
                if len(self._open) >= SESSIONS_OPEN_MAX:
                    raise Refused(f"{SESSIONS_OPEN_MAX} sessions are open: ask again later", "BUSY")
                entry = self._open[session] = _Open(Checkpoint(self._checkpoints / session))
            entry.readers += 1
        try:
            yield entry.checkpoint
        finally:
            with self._lock:
                entry.readers -= 1

    async def send(self, session: str, data: bytes, write: Callable[[memoryview], Awaitable[None]]) -> None:
        """Write a part of a stream as fast as the session's rate allows; inside `reading`, on the loop."""
        entry, rest = self._open[session], memoryview(data)
        while rest:
            self._look_at_rate(session)
            piece = rest[:PIECE_BYTES] if entry.pace.bytes_per_second else rest
            wait = entry.pace.wait_seconds(len(piece), self._clock())
            if wait:
                await asyncio.sleep(wait)
            await write(piece)
            self.note_sent(session, len(piece))
            rest = rest[len(piece) :]

    def is_paced(self, session: str) -> bool:
        """Whether the session has a rate; inside `reading`."""
        with suppress(ConnectionAbortedError):
            self._look_at_rate(session)
        return bool(self._open[session].pace.bytes_per_second)

    def note_sent(self, session: str, size_bytes: int) -> None:
        """Count what was sent; inside `reading`."""
        self._open[session].sent_bytes += size_bytes

    def _look_at_rate(self, session: str) -> None:
        """Raise ConnectionAbortedError when the session was closed meanwhile: nobody wants the rest."""
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
        entry.pace.bytes_per_second = described.bytes_per_second

    def sent(self) -> SentSessions:
        """What was sent, by session."""
        with self._lock:
            return SentSessions(
                tuple(SentSession(name, each.sent_bytes, each.readers) for name, each in self._open.items())
            )

    def note_damage(self, session: str, tablet: SessionTablet, reason: str) -> None:
        """Leave word for the member, which looks when the session ends; without it only the copy fails."""
        path = self._checkpoints / session / damage_note(tablet.partition, tablet.generation)
        draft = path.with_name(f"new-{path.name}")
        with suppress(OSError):
            draft.write_text(reason)
        # The member may look at any moment. On a full volume what there is of the reason has to do.
        with suppress(OSError):
            draft.replace(path)

    def close_ended(self) -> int:
        """Close what belongs to no session and is read by nobody; how many were closed."""
        with self._lock:
            gone = [
                name
                for name, entry in self._open.items()
                if not entry.readers and not (self._checkpoints / name / "session.json").exists()
            ]
            for name in gone:
                self._open.pop(name).checkpoint.close()
        return len(gone)

    def close(self) -> None:
        """Close all that nobody reads."""
        with self._lock:
            for name in [name for name, entry in self._open.items() if not entry.readers]:
                self._open.pop(name).checkpoint.close()
