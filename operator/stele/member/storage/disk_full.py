"""A full volume: what then fails passes by itself once there is room, and ends nothing."""

import errno

from stele.errors import SteleError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException) -> bool:
    """Whether the error says that the volume has no room."""
    if isinstance(error, SteleError):
        return error.code == "NO_SPACE"
    return isinstance(error, OSError) and error.errno in _FULL


def is_stopping(error: BaseException) -> bool:
    """Whether the error says that this member takes nothing more because it is about to end."""
    return isinstance(error, SteleError) and error.code in ("STOPPING", "CLOSED")


def raise_unless_disk_full(error: Exception) -> None:
    """Call it where the error is caught: only a full volume is waited for, anything else is raised again."""
    if not is_disk_full(error):
        raise error
