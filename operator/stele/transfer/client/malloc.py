"""Memory of processes through which blocks flow."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of glibc's settings, as `mallopt` takes them."""

KEPT_BYTES_MAX = 256 * 1024 * 1024
BUFFER_BYTES_MAX = 32 * 1024 * 1024
"""Larger ones than these are still given back to the kernel at once."""


def tune_malloc() -> None:
    """Let glibc keep what is freed: otherwise it hands each block's buffer back, and the kernel clears
    the pages of the next one. Nothing happens with another C library.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, BUFFER_BYTES_MAX)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
