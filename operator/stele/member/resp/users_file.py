"""Watches the file of users, which the kubelet replaces when the operator changes the Secret."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from stele.core.control.member_settings import ClientAuth
from stele.errors import SteleError
from stele.member.resp.access import Access, Accounts, FileState, accounts_of
from stele.wire.users import FILE_BYTES_MAX, decode_users

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class UsersFile:
    """Hands the users of a file, if there is a path, and the level that the master sends, to `access`.

    A file that is missing or cannot be read changes nothing: nobody is locked out by accident.
    """

    def __init__(self, access: Access, path: str, level: Callable[[], ClientAuth | None]) -> None:
        self._access, self._path, self._level = access, Path(path) if path else None, level
        self._seen: tuple[int, int, int] | None = None
        self._problem = self._digest = ""

    async def watch(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Apply what has changed since the last time."""
        users: Accounts | None = None
        if self._path is not None and (seen := self._stat(self._path)) != self._seen:
            try:
                # To compile many users takes long.
                found, self._digest = await asyncio.to_thread(_read, self._path, self._access.users)
                users, self._seen, self._problem = found, seen, ""
                log.info("%s has %d users", self._path, len(found))
            except (OSError, SteleError) as error:
                self._report(str(error))
        self._access.adopt(users, self._level(), FileState(self._digest, self._problem))

    def _stat(self, path: Path) -> tuple[int, int, int] | None:
        """Return what is different when the file is; what was there before while there is none."""
        try:
            found = path.stat()
        except OSError as error:
            if self._seen is not None:
                self._report(str(error))
            return self._seen
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            log.error("users stay as they were: %s", problem)
        self._problem = problem


def _read(path: Path, before: Accounts) -> tuple[Accounts, str]:
    """Return the accounts of a file, and its digest."""
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    return accounts_of(decode_users(data), before), hashlib.sha256(data).hexdigest()
