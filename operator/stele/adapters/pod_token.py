"""A secret of one pod, by which its processes know each other: a file on the volume that they share.

The loopback address proves nothing, as forwarded ports come from there, too.
"""

import os
import secrets
from pathlib import Path

from aiohttp import web

from stele.adapters import http

FILE = "pod-token"
TOKEN_BYTES = 32


def make() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_hex(TOKEN_BYTES)


def write(folder: Path, token: str) -> None:
    """Let the pod's other processes read the token from now on, in place of the one before.

    It is for the process that has locked the volume. A crash may lose it: each start writes another.
    """
    draft = folder / f"{FILE}.new"
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)
    os.replace(draft, folder / FILE)


def read(folder: Path) -> str:
    """Return the token, which is empty before a member was started. Raises OSError."""
    try:
        return (folder / FILE).read_text("ascii", "replace")
    except FileNotFoundError:
        return ""


def headers(token: str) -> dict[str, str]:
    """Return what a process of the pod sends."""
    return {"Authorization": f"Bearer {token}"}


def is_own(request: web.Request, token: str) -> bool:
    """Return whether a process of this pod sent the request: from inside of it, and with its token."""
    return http.is_local(request) and bool(token) and http.bears(request, token)
