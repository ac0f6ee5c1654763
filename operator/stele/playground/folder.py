"""The folder of a playground: who has it, and what is in it."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stele.errors import BadInput, Refused, Unavailable
from stele.playground.limits import SOCKET_PATH_BYTES_MAX

DEFAULT = Path.home() / ".stele" / "playground"
CONTENT = ("cluster.yaml", "table", "objects", "volumes", "spark", "logs", "ports.json", "socket", "lock")
"""All that a playground makes; `remove` deletes nothing else."""


def socket_of(folder: Path) -> Path:
    """Return the socket. Raises BadInput when its path is too long for a socket."""
    path = folder / "socket"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise BadInput(
            f"--dir is {folder}: the path of its socket has {len(os.fsencode(path))} bytes, and may have "
            f"{SOCKET_PATH_BYTES_MAX}; choose a shorter folder"
        )
    return path


def running_socket(folder: Path) -> Path:
    """Return the socket of the playground that runs there. Raises Unavailable when none does."""
    path = socket_of(folder)
    if not path.exists() or not is_held(folder):
        raise Unavailable(f"no playground runs in {folder}: start it with kubectl stele playground up")
    return path


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder, for this user alone, and have it.

    Raises BadInput for one with other content, and Refused while another playground has it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        foreign = sorted(each.name for each in folder.iterdir() if each.name not in CONTENT)
        if foreign and not (folder / "lock").exists():
            raise BadInput(f"--dir is {folder}, which has {foreign[0]}: choose a folder that is new or empty")
        folder.chmod(0o700)
        lock = (folder / "lock").open("a+")
    except OSError as error:
        raise BadInput(f"--dir is {folder}, which cannot be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"a playground runs in {folder} already; Ctrl-C there, or playground down, ends it"
            ) from None
        (folder / "logs").mkdir(exist_ok=True)
        yield


def is_held(folder: Path) -> bool:
    """Return whether a playground runs there."""
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def remove(folder: Path) -> None:
    """Delete what a playground made, and the folder if that leaves it empty."""
    for name in CONTENT:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
