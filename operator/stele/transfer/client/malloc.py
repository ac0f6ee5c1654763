"""Memory settings of processes through which blocks flow."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's numbers of these settings, for `mallopt`."""

KEPT_BYTES_MAX = 256 * 1024 * 1024
BUFFER_BYTES_MAX = 32 * 1024 * 1024
"""Larger buffers are still returned to the kernel at once."""


def tune_malloc() -> None:
    """Let glibc keep freed memory; otherwise it returns each block's buffer, and the kernel clears new pages.

    Does nothing with another C library.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, BUFFER_BYTES_MAX)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
