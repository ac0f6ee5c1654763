"""The users of one cluster: those of its TabletUsers, a generated one, and the file of them for members."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from stele.adapters.kubernetes.secret_store import Content, Mark, SecretStore, StoredSecret
from stele.core.control.member_settings import ClientAuth, ClientCertificates
from stele.errors import Corrupt
from stele.master.cache import Cache
from stele.master.certificates import listed, mark_of
from stele.master.kept_secrets import KeptSecrets
from stele.master.pod_refresh import Lacking
from stele.master.secret_volumes import USERS_KEY, users_name
from stele.master.tablet_users import UserObjects
from stele.master.user_passwords import (
    BASIC_AUTH,
    LOOK_SECONDS,
    PASSWORD,
    USERNAME,
    UserPasswords,
    hashes_of,
    new_password,
    salt_of,
)
from stele.model import TabletCluster
from stele.model.conditions import Reason
from stele.model.ownership import NameTaken
from stele.model.user import DEFAULT_USER, TabletUserStatus, default_user_name
from stele.wire.user_certificates import CERTIFICATES_KEY
from stele.wire.users import UserEntry, UserFiles, decode_users, encode_files

log = logging.getLogger(__name__)

Entries = Mapping[str, UserEntry]

EVERYTHING = ("~*", "&*", "+@all")

FILES_KEPT = 8
"""Files whose users are remembered, for members that have not read the newest one."""


class Users:
    """Keeps the Secret with the file of users, and that with the password of user `default`.

    A file that others made is left to them, and reported when members could not read it; then TabletUsers
    have no effect. `waits` says which members do not use the newest file; once it is empty, they may ask for
    passwords. `lacking` are those that run without it.
    """

    def __init__(self, kept: KeptSecrets, store: SecretStore, cache: Cache, place: tuple[str, str]) -> None:
        """`place` is the cluster's namespace and name."""
        self._secrets = kept
        self.objects = UserObjects(cache, *place, UserPasswords(store))
        self._hashed: tuple[StoredSecret, tuple[str, ...]] | None = None
        self._encoded: tuple[tuple[UserEntry, ...], UserFiles] = (), encode_files(())
        self._theirs: StoredSecret | None = None
        self._theirs_until = float("-inf")
        self._decoded: tuple[StoredSecret, Entries | str] | None = None
        self._files: dict[str, Entries] = {}
        self._digest = ""
        self._reported: Mapping[str, str] = {}
        self.waits = "members have the file of users"
        self.lacking: Lacking = {}

    def wanted(self, cluster: TabletCluster) -> bool:
        """Return whether a file is needed, or one has users that are gone."""
        asked = cluster.clients.asked_auth is ClientAuth.REQUIRED
        return asked or bool(self.objects.declared()) or bool(self._files.get(self._digest))

    async def ensure(self, cluster: TabletCluster, now: float) -> None:
        """Make what is missing; what has changed is in the file within LOOK_SECONDS.

        Raises as `KeptSecrets` does, and Corrupt for a Secret without a password, or a file of others that
        members could not read.
        """
        name, mark = users_name(cluster.metadata.name), mark_of(cluster, "users")
        if (theirs := await self._file_of_others(name, mark, now)) is not None:
            found = await self._entries(theirs)
            if isinstance(found, str):
                self._digest = ""
                raise Corrupt(f"Secret {name}: {found}; correct it: members keep the users that they have")
            self._note_file(theirs, found)
            return
        before = await self._secrets.read(name, mark, now, LOOK_SECONDS)
        decoded = {} if before is None else await self._entries(before)
        if isinstance(decoded, str):
            log.warning("Secret %s is written anew: %s", name, decoded)
        known: Entries = {} if isinstance(decoded, str) else decoded
        ignored = cluster.clients.asked_certificates is ClientCertificates.IGNORE
        await self.objects.look(known, mark, now, asks_certificates=not ignored)
        if not known and self.objects.pending:
            return
        users = dict(self.objects.entries)
        asked = cluster.clients.asked_auth is ClientAuth.REQUIRED
        if DEFAULT_USER not in users and (asked or DEFAULT_USER in known):
            users[DEFAULT_USER] = await self._default(cluster, mark, now)
        files = await self._encode(tuple(users.values()))
        more = {CERTIFICATES_KEY: files.certificates} if files.certificates else {}
        content = Content({USERS_KEY: files.users, **more})
        self._note_file(await self._secrets.keep(name, content, mark, now), users)

    async def _default(self, cluster: TabletCluster, mark: Mark, now: float) -> UserEntry:
        name = default_user_name(cluster.metadata.name)
        found = await self._secrets.read(name, mark, now, LOOK_SECONDS)
        if found is None:
            content = Content({USERNAME: DEFAULT_USER.encode(), PASSWORD: new_password()}, type=BASIC_AUTH)
            found = await self._secrets.keep(name, content, mark, now)
        if self._hashed is None or self._hashed[0] is not found:
            salt = salt_of(found.stored["metadata"]["uid"])
            self._hashed = found, await hashes_of(found, salt, chosen=False)
        return UserEntry(DEFAULT_USER, self._hashed[1], EVERYTHING)

    async def _encode(self, users: tuple[UserEntry, ...]) -> UserFiles:
        if self._encoded[0] != users:
            # To check many users takes long.
            self._encoded = users, await asyncio.to_thread(encode_files, users)
        return self._encoded[1]

    # -- what members use

    def note(self, members: Iterable[str], reported: Mapping[str, str]) -> None:
        """Note the digests of the files that those of the `members` have reported that run, by name."""
        self._reported = {name: reported.get(name, "") for name in members}
        behind = [name for name, digest in sorted(self._reported.items()) if digest != self._digest]
        if not self._digest:
            self.waits = "members have the file of users"
        else:
            self.waits = f"these members have the file of users: {listed(behind)}" if behind else ""
        self.lacking = {name: self._digest for name in behind if name in reported and self._digest}

    def _note_file(self, file: StoredSecret, users: Entries) -> None:
        self._digest = _files_of(file).digest
        self._files.pop(self._digest, None)
        self._files[self._digest] = users
        while len(self._files) > FILES_KEPT:
            del self._files[next(iter(self._files))]

    def statuses(
        self, problem: tuple[Reason, str] | None, clock: datetime
    ) -> list[tuple[dict[str, Any], TabletUserStatus]]:
        """Return the statuses of TabletUsers; `problem` is why the file is not as they say."""
        if self._theirs is not None:
            text = f"Secret {self._theirs.name} was not made by the operator, so TabletUsers have no effect"
            problem = Reason.NAME_TAKEN, f"{text}: delete it, and the operator makes one"
        used = {name: self._files.get(digest) for name, digest in self._reported.items()}
        return self.objects.statuses(used, problem, clock)

    # -- what is stored

    async def _entries(self, file: StoredSecret) -> Entries | str:
        """Return the users of a file, or why it cannot be read; each version is decoded once, in a thread."""
        if self._decoded is None or self._decoded[0] is not file:
            found: Entries | str
            try:
                users = await asyncio.to_thread(decode_users, *_files_of(file))
                found = {each.name: each for each in users}
            except Corrupt as error:
                found = error.text
            self._decoded = file, found
        return self._decoded[1]

    async def _file_of_others(self, name: str, mark: Mark, now: float) -> StoredSecret | None:
        """Return the file of users that people made; None when it is the operator's, or none is there."""
        if now < self._theirs_until:
            return self._theirs
        try:
            await self._secrets.read(name, mark, now, LOOK_SECONDS)
            self._theirs = None
        except NameTaken:
            found = await self._secrets.read_of_anybody(name)
            if found is None or USERS_KEY not in found.data:
                raise
            if self._theirs is None or self._theirs.stored != found.stored:
                self._theirs = found
            self._theirs_until = now + LOOK_SECONDS
        return self._theirs


def _files_of(secret: StoredSecret) -> UserFiles:
    return UserFiles(secret.data.get(USERS_KEY, b""), secret.data.get(CERTIFICATES_KEY, b""))
