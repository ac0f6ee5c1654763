"""The sessions that a transfer process serves: which checkpoints are open, and for how long."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stele.adapters.transfer.checkpoint import Checkpoint, read_session
from stele.core.errors import Refused
from stele.wire.copyjobs import SessionFile, damage_note
from stele.wire.messages import SessionTablet

SESSIONS_OPEN_MAX = 32


@dataclass(slots=True)
class _Open:
    """One open checkpoint and how many streams read it now."""

    checkpoint: Checkpoint
    readers: int = 0


class Sessions:
    """Checkpoints below `checkpoints/`, each opened once. May be used by many threads."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
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

    def note_damage(self, session: str, tablet: SessionTablet, reason: str) -> None:
        """Leave word for the member, which looks when the session ends; without it only the copy fails."""
        path = self._checkpoints / session / damage_note(tablet.partition, tablet.generation)
        with suppress(OSError):
            path.write_text(reason)

    def sweep(self) -> int:
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
