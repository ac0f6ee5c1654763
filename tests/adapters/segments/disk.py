"""What a crash, or a loss of power, at any time would leave of files: calls that change them are watched."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

Files = dict[str, bytes]
"""Content by path below the root."""


class Progress(NamedTuple):
    """Writes that are synced, done, and done or under way."""

    synced: int
    done: int
    begun: int


class Moment(NamedTuple):
    """Files as they are, bytes of each that are on disk, and files that are still, or not yet, on disk."""

    files: Files
    synced: dict[str, int]
    deleted: Files
    created: frozenset[str]
    progress: Progress

    def after_power_loss(self, chance: random.Random) -> Files:
        """Return one of the states that a loss of power may leave."""
        left = {name: data for name, data in self.deleted.items() if chance.random() < 0.5}
        for name, data in self.files.items():
            least = self.synced.get(name, 0)
            size = chance.choice((least, len(data), chance.randint(least, len(data))))
            if name not in self.created or chance.random() < 0.5:
                left[name] = data[:size]
        return left


class Disk:
    """Watches the files below a folder. `moments` has one after each call that changed something."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.moments = root, list[Moment]()
        self.progress: Callable[[], Progress] = lambda: Progress(0, 0, 0)
        self._synced = {name: len(data) for name, data in self._files().items()}
        self._deleted: Files = {}
        self._created: set[str] = set()
        for name in ("write", "ftruncate", "open", "unlink", "rename", "fdatasync", "fsync"):
            patch.setattr(os, name, self._watched(getattr(os, name), getattr(self, f"_{name}")))

    def _watched(self, call: Callable[..., Any], note: Callable[..., bool]) -> Callable[..., Any]:
        def watched(*args: Any, **more: Any) -> Any:
            before = self._files() if note == self._unlink else {}
            result = call(*args, **more)
            if note(before, *args):
                self._look()
            return result

        return watched

    def _files(self) -> Files:
        paths = [path for path in self.root.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): path.read_bytes() for path in paths}

    def _look(self) -> None:
        facts = dict(self._synced), dict(self._deleted), frozenset(self._created)
        self.moments.append(Moment(self._files(), *facts, self.progress()))

    def _name(self, path: object) -> str | None:
        """Return the path below the root of a path or a handle, None for any other."""
        real = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        return os.path.relpath(real, self.root) if real.startswith(str(self.root)) else None

    def _write(self, before: Files, handle: int, data: bytes) -> bool:
        return self._name(handle) is not None

    def _ftruncate(self, before: Files, handle: int, size: int) -> bool:
        name = self._name(handle)
        if name is not None:
            self._synced[name] = min(size, self._synced.get(name, 0))
        return name is not None

    def _open(self, before: Files, path: object, flags: int, mode: int = 0) -> bool:
        name = self._name(path)
        if name is None or not flags & os.O_CREAT:
            return False
        self._created.add(name)
        self._synced[name] = 0
        return True

    def _unlink(self, before: Files, path: object) -> bool:
        name = self._name(path)
        if name is None:
            return False
        self._deleted[name] = before[name][: self._synced.get(name, 0)]
        self._created.discard(name)
        return True

    def _rename(self, before: Files, old: object, new: object) -> bool:
        there, here = self._name(old), self._name(new)
        self._synced = {name.replace(f"{there}/", f"{here}/"): size for name, size in self._synced.items()}
        self._created = {name.replace(f"{there}/", f"{here}/") for name in self._created}
        return True

    def _fdatasync(self, before: Files, handle: int) -> bool:
        name = self._name(handle)
        if name is not None:
            self._synced[name] = os.fstat(handle).st_size
        return name is not None

    def _fsync(self, before: Files, handle: int) -> bool:
        folder = self._name(handle)
        self._deleted = {
            name: data for name, data in self._deleted.items() if os.path.dirname(name) != folder
        }
        self._created = {name for name in self._created if os.path.dirname(name) != folder}
        return folder is not None


def restore(files: Files, root: Path) -> Path:
    """Write files below a new folder in place of those that are there; return the folder of the log."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "log").mkdir(parents=True)
    for name, data in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)
    return root / "log"
