"""Folders whose changes are on disk when a call returns."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Bring what was created, renamed and deleted in the folder to disk. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
