"""The cache outside the checkout: entries keyed by a hash of what they were made from.

An entry is either whole or absent: it is made beside its place and renamed into it, so that an interrupted
build leaves nothing that a later run could take for finished work.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import lanes
from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import say

LOCK_WAIT_SECONDS_MAX = 3600  # a cold build of everything beside other work, with room
LOCK_POLL_SECONDS = 0.5
HASH_LETTERS = 12
IGNORED_NAMES = frozenset({"__pycache__", ".DS_Store"})


def root() -> Path:
    """The cache's folder: `STELE_CACHE`, or `~/.cache/stele`. Always absolute; need not exist yet."""
    return Path(os.environ.get("STELE_CACHE") or "~/.cache/stele").expanduser().absolute()


def files_below(folder: Path) -> list[Path]:
    """Every regular file below `folder`, sorted, without what tools leave behind."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if not IGNORED_NAMES & set(path.relative_to(folder).parts))


def hash_inputs(folders: Iterable[Path] = (), files: Iterable[Path] = (), values: Iterable[str] = ()) -> str:
    """`HASH_LETTERS` hexadecimal letters that change when a file's name or content, or a value, changes.

    Where the folders lie, times and owners do not count: another checkout of the same gives the same hash.
    """
    digest = hashlib.sha256()
    for folder in folders:
        for path in files_below(folder):
            _feed(digest, f"{folder.name}/{path.relative_to(folder)}", path.read_bytes())
    for path in files:
        _feed(digest, path.name, path.read_bytes())
    for value in values:
        _feed(digest, "value", value.encode())
    return digest.hexdigest()[:HASH_LETTERS]


def _feed(digest: hashlib._Hash, name: str, content: bytes) -> None:
    # Lengths go first, so that no two different lists of parts run together to the same bytes.
    digest.update(f"{len(name)} {len(content)} {name}".encode())
    digest.update(content)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock file `locks/<name>` of the cache; two processes never make the same entry at once.

    Waits at most `LOCK_WAIT_SECONDS_MAX`. Not reentrant.
    """
    path = root() / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        _wait_for(file.fileno(), path)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _wait_for(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_WAIT_SECONDS_MAX
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = path.read_text(encoding="utf-8").strip() or "unknown"
        lanes.check()
        if not told:
            say(f"waiting for process {holder}, which works on the same ({path.name})")
            told = True
        if time.monotonic() > deadline:
            raise ClusterError(
                f"Process {holder} holds {path} for over {LOCK_WAIT_SECONDS_MAX} s; end it and try again."
            )
        time.sleep(LOCK_POLL_SECONDS)


def entry(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """The folder `<kind>/<key>` of the cache; `make(folder)` fills it when it is not there yet."""
    place = root() / kind / key
    if place.is_dir():
        return place
    with locked(f"{kind}-{key}"):
        if place.is_dir():
            return place
        aside = place.with_name(f"{key}.making")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        make(aside)
        aside.rename(place)
    return place
