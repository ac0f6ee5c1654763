"""TLS among members: the level in force, and the next one.

The level is stored in the head of the table before members are told it, so every master goes on from there.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stele.core.security.level import STEPS, InternalTls, next_level, strongest


@dataclass(frozen=True, slots=True)
class WantedTls:
    """The level that the spec asks for, None while it is not ready; and whether the level may fall to it."""

    level: InternalTls | None = InternalTls.OFF
    may_fall: bool = False


NO_TLS = WantedTls()


@dataclass(slots=True)
class MemberTls:
    """`level` is stored, and what members are told; `coming` is what to store.

    Invariant: members have `level` or a neighbour of it, so any two of them can dial each other.
    """

    level: InternalTls = InternalTls.OFF
    coming: InternalTls = InternalTls.OFF

    def restore(self, shown: Iterable[InternalTls | None]) -> None:
        """Note what is on the volumes of members: a head with less is an older copy, or a new one."""
        self.coming = strongest([self.coming, *(level for level in shown if level is not None)])

    def drive(
        self, wanted: WantedTls, reported: Collection[InternalTls | None], *, formed: bool, plain: bool
    ) -> InternalTls | None:
        """Take a step when all listed members have reported the one before. Returns the new level.

        It does not rise while a link is `plain` that the level dials with TLS: the next one would end it. It
        falls nevertheless. Nobody has used a cluster whose table is not `formed`: it begins with the level
        that it asks for.
        """
        if self.coming is not self.level or wanted.level is None:
            return None
        rises = STEPS.index(wanted.level) > STEPS.index(self.level)
        if rises and not formed:
            self.coming = wanted.level
        elif (not plain) if rises else wanted.may_fall:
            self.coming = next_level(self.level, wanted.level, reported)
        return None if self.coming is self.level else self.coming

    def stored(self) -> None:
        """Apply what was stored: members are told from now on."""
        self.level = self.coming
