"""Watches the files of users, which the kubelet replaces when the operator changes the Secret."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stele.core.control.member_settings import ClientAuth
from stele.errors import SteleError
from stele.member.resp.access import Access, Accounts, FileState, accounts_of
from stele.wire.user_certificates import CERTIFICATES_KEY
from stele.wire.users import FILE_BYTES_MAX, UserFiles, decode_users

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0

Stamp = tuple[tuple[int, int, int], ...]
"""What is different when one of the files is."""


class UsersFile:
    """Hands the users of a file, if there is a path, and the level that the master sends, to `access`.

    Beside it may be the file of their certificates.

    A file that is missing or cannot be read changes nothing: nobody is locked out by accident.
    """

    def __init__(self, access: Access, path: str, level: Callable[[], ClientAuth | None]) -> None:
        self._access, self._path, self._level = access, Path(path) if path else None, level
        self._seen: Stamp = ()
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
                found, digest = await asyncio.to_thread(_read, self._path, self._access.users)
                if self._stat(self._path) == seen:  # Else one was replaced meanwhile: the next look has both.
                    users, self._digest, self._seen, self._problem = found, digest, seen, ""
                    log.info("%s has %d users", self._path, len(found))
            except (OSError, SteleError) as error:
                self._report(str(error))
        self._access.adopt(users, self._level(), FileState(self._digest, self._problem))

    def _stat(self, path: Path) -> Stamp:
        """Return what there is; what there was before while the file of users is gone."""
        try:
            stamp = [_stamp(path)]
        except OSError as error:
            if self._seen:
                self._report(str(error))
            return self._seen
        with suppress(FileNotFoundError):
            stamp.append(_stamp(path.with_name(CERTIFICATES_KEY)))
        return tuple(stamp)

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            log.error("users stay as they were: %s", problem)
        self._problem = problem


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _read(path: Path, before: Accounts) -> tuple[Accounts, str]:
    """Return the accounts of the files, and their digest."""
    files = UserFiles(_content(path))
    with suppress(FileNotFoundError):
        files = files._replace(certificates=_content(path.with_name(CERTIFICATES_KEY)))
    return accounts_of(decode_users(*files), before), files.digest


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_BYTES_MAX + 1)
