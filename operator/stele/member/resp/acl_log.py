"""ACL LOG: what was refused lately, and how often."""

from collections.abc import Callable
from dataclasses import dataclass

from stele.wire.resp import Answer

ENTRIES_MAX = 128
GROUPED_SECONDS = 60.0
"""The same refusal within this time is counted, as in Redis."""
OBJECT_BYTES_MAX = 128

REASONS = ("auth", "tls-cert", "command", "key", "channel", "keyspace")


@dataclass(slots=True)
class _Entry:
    count: int
    at: float
    client: str


class AclLog:
    """The latest refusals, newest first. `now` returns seconds; `counts` has their numbers by reason."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: dict[tuple[str, str, bytes, bytes], _Entry] = {}
        self.counts = dict.fromkeys(REASONS, 0)

    def add(self, reason: str, context: str, what: bytes, user: bytes, client: str) -> None:
        """Note that a user was refused something."""
        self.counts[reason] += 1
        key, now = (reason, context, what[:OBJECT_BYTES_MAX], user[:OBJECT_BYTES_MAX]), self._now()
        entry = self._entries.pop(key, None)
        if entry is None or now - entry.at > GROUPED_SECONDS:
            entry = _Entry(0, now, client)
        entry.count, entry.at, entry.client = entry.count + 1, now, client
        self._entries[key] = entry
        while len(self._entries) > ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]

    def reset(self) -> None:
        """Forget the entries; the numbers stay."""
        self._entries.clear()

    def newest(self, count: int) -> list[Answer]:
        """Return entries as ACL LOG has them."""
        found: list[Answer] = []
        for (reason, context, what, user), entry in reversed(list(self._entries.items())[-count:]):
            found.append(
                {
                    b"count": entry.count,
                    b"reason": reason.encode(),
                    b"context": context.encode(),
                    b"object": what,
                    b"username": user,
                    b"age-seconds": f"{self._now() - entry.at:.3f}".encode(),
                    b"client-info": entry.client.encode(),
                }
            )
        return found
