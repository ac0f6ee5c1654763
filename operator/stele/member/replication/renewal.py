"""Replacing the session of a link: what it rests on, what waits meanwhile, and when it is tried again."""

from dataclasses import dataclass, field
from enum import Enum, auto

from stele.member import limits
from stele.member.replication.member_tls import MemberTls
from stele.wire import peer


class Hold(Enum):
    """What of a link waits: nothing, new requests alone, or all that is sent."""

    NOTHING = auto()
    REQUESTS = auto()
    ALL = auto()


@dataclass(slots=True)
class Shown:
    """The certificates that a session began with, each with its CAs; none: it is plain.

    `trusted_s` is when it was last seen that they are trusted, or that TLS is not asked for.
    """

    trusted_s: float = 0.0
    chains: tuple[frozenset[bytes], ...] = ()

    def outdated_too_long(self, tls: MemberTls, now: float) -> bool:
        """Return whether it has been with a CA that is not trusted any more for longer than allowed."""
        if not self.chains or not tls.is_outdated(self.chains):
            self.trusted_s = now
        return now - self.trusted_s > limits.OUTDATED_SECONDS_MAX


@dataclass(slots=True)
class Held:
    """Messages that wait. `full`: what may be lost should not be added."""

    _messages: list[peer.Message] = field(default_factory=list)
    _bytes: int = 0

    @property
    def full(self) -> bool:
        return self._bytes > limits.RENEW_HELD_BYTES_MAX

    def add(self, message: peer.Message, size: int) -> None:
        self._messages.append(message)
        self._bytes += size + limits.REQUEST_OVERHEAD_BYTES

    def take(self) -> list[peer.Message]:
        """Return what waits, in the order in which it was added, and forget it."""
        messages, self._messages, self._bytes = self._messages, [], 0
        return messages


@dataclass(slots=True)
class Attempts:
    """How long the next attempt may hold traffic back, and when it is due.

    So traffic stands still for a small part of the time, however often an attempt fails.
    """

    due_s: float = 0.0
    hold_seconds: float = field(default_factory=lambda: limits.RENEW_HOLD_SECONDS_MIN)

    def note(self, *, done: bool, now: float) -> None:
        """Note how an attempt has ended."""
        self.due_s = 0.0 if done else now + self.hold_seconds * limits.RENEW_REST_RATIO
        longer = min(self.hold_seconds * 2, limits.RENEW_HOLD_SECONDS_MAX)
        self.hold_seconds = limits.RENEW_HOLD_SECONDS_MIN if done else longer
