"""Detection of full volumes, whose errors are temporary and must not end the process."""

import errno
from collections.abc import Awaitable

from stele.errors import SteleError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_disk_full(error: BaseException) -> bool:
    """Return whether the error means that the volume is full."""
    if isinstance(error, SteleError):
        return error.code == "NO_SPACE"
    return isinstance(error, OSError) and error.errno in _FULL


def is_stopping(error: BaseException) -> bool:
    """Return whether the error means that this member is stopping."""
    return isinstance(error, SteleError) and error.code in ("STOPPING", "CLOSED")


def raise_unless_disk_full(error: Exception) -> None:
    """Reraise the current exception unless it means a full volume, which is waited for."""
    if not is_disk_full(error):
        raise error


async def is_saved(saving: Awaitable[None]) -> bool:
    """Await what saves something; return False, with nothing saved, when the volume is full."""
    try:
        await saving
    except OSError as error:
        raise_unless_disk_full(error)
        return False
    return True
