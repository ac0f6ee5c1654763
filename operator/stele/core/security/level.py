"""TLS between members, switched on and off while they run: one step at a time.

Members learn of a step one after the other. So a step is taken only when all have reported the one before,
and members at two neighbouring levels can always dial each other.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum


class InternalTls(StrEnum):
    """What a member listens to and how it dials others, in the order of the steps.

    Off: plain only. Accept: listens to both, dials plain. Dial: listens to both, dials with TLS.
    Required: TLS only.
    """

    OFF = "Off"
    ACCEPT = "Accept"
    DIAL = "Dial"
    REQUIRED = "Required"

    @property
    def listens_plain(self) -> bool:
        return self is not InternalTls.REQUIRED

    @property
    def listens_tls(self) -> bool:
        return self is not InternalTls.OFF

    @property
    def dials_tls(self) -> bool:
        return self in (InternalTls.DIAL, InternalTls.REQUIRED)


STEPS = tuple(InternalTls)


def strongest(levels: Iterable[InternalTls]) -> InternalTls:
    """Return the highest of these levels; Off without any."""
    return max(levels, key=STEPS.index, default=InternalTls.OFF)


def can_dial(dialler: InternalTls, listener: InternalTls) -> bool:
    """Return whether a connection comes about."""
    return listener.listens_tls if dialler.dials_tls else listener.listens_plain


def next_level(
    current: InternalTls, wanted: InternalTls, reported: Collection[InternalTls | None]
) -> InternalTls:
    """Return the level to send: one step from the current one to the wanted one, when all report the current.

    `reported` has every member that others know, None for one that has not reported: it holds the step up, as
    it may have any level that was sent before.
    """
    if current is wanted or any(level is not current for level in reported):
        return current
    place = STEPS.index(current)
    return STEPS[place + 1 if STEPS.index(wanted) > place else place - 1]
