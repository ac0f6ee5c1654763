"""What the session of a link rests on."""

from dataclasses import dataclass

from stele.member import limits
from stele.member.replication.member_tls import MemberTls


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
