"""Mounts Secrets for processes that stand for the containers of a pod, as a kubelet does."""

import base64
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def mount(folder: Path, stored: Mapping[str, Any]) -> None:
    """Replace all files of a Secret at once: by a link to a folder of this version."""
    version = f"..{stored['metadata']['uid']}-{stored['metadata']['resourceVersion']}"
    data = decoded(stored)
    if not data or (folder / version).exists():
        return
    (folder / version).mkdir(parents=True)
    for name, value in data.items():
        (folder / version / name).write_bytes(value)
    (folder / "..next").symlink_to(version)
    os.replace(folder / "..next", folder / "..data")
    for name in data:
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(f"..data/{name}")


def decoded(stored: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the values of a Secret."""
    return {name: base64.b64decode(value) for name, value in (stored.get("data") or {}).items()}
