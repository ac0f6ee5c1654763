"""The users of one cluster: a generated one, whose password clients read from a Secret, and their file."""

import asyncio
import hashlib
import secrets
from collections.abc import Mapping

from stele.adapters.kubernetes.secret_store import Content, Mark, StoredSecret
from stele.errors import Corrupt
from stele.master.certificates import listed, mark_of
from stele.master.kept_secrets import KeptSecrets
from stele.master.secret_volumes import USERS_KEY, users_name
from stele.model import TabletCluster
from stele.model.ownership import NameTaken
from stele.wire.users import (
    SALT_BYTES_MIN,
    UserEntry,
    chosen_hash,
    decode_users,
    encode_users,
    generated_hash,
)

BASIC_AUTH = "kubernetes.io/basic-auth"
USERNAME, PASSWORD = "username", "password"
DEFAULT_USER = "default"
EVERYTHING = ("~*", "&*", "+@all")

PASSWORD_BYTES = 32
GENERATED_LENGTH = 43
"""Characters of a generated password: 256 random bits in base64."""
PASSWORD_LENGTH_MAX = 1024

LOOK_SECONDS = 10.0
"""Seconds until a changed password is in the file."""


def default_user_name(cluster: str) -> str:
    return f"{cluster}-default-user"


class Users:
    """Keeps the Secret with the password of user `default`, and that with the file of users.

    A Secret with a file of users that others made is left to them; of its own one, the operator changes only
    the user `default`. A file that cannot be read is reported and never written over. `waits` says which
    members do not use the file yet; once it is empty, they may ask for passwords.
    """

    def __init__(self, kept: KeptSecrets) -> None:
        self._secrets = kept
        self._hashed: tuple[StoredSecret, str] | None = None
        self._theirs: StoredSecret | None = None
        self._theirs_until = float("-inf")
        self._decoded: tuple[StoredSecret, tuple[UserEntry, ...] | str] | None = None
        self._digest = ""
        self.waits = "members have the file of users"

    async def ensure(self, cluster: TabletCluster, now: float) -> None:
        """Make what is missing; a password that was changed in its Secret is in the file within LOOK_SECONDS.

        Raises as `KeptSecrets` does, and Corrupt for a Secret without a password, or a file of users that
        members could not read.
        """
        name, mark = cluster.metadata.name, mark_of(cluster, "users")
        if (theirs := await self._file_of_others(users_name(name), mark, now)) is not None:
            await self._entries(theirs)
            self._note_file(theirs)
            return
        found = await self._secrets.read(default_user_name(name), mark, now, LOOK_SECONDS)
        if found is None:
            password = secrets.token_urlsafe(PASSWORD_BYTES).encode()
            content = Content({USERNAME: DEFAULT_USER.encode(), PASSWORD: password}, type=BASIC_AUTH)
            found = await self._secrets.keep(default_user_name(name), content, mark, now)
        entry = UserEntry(DEFAULT_USER, (await self._hash(found),), EVERYTHING)
        before = await self._secrets.read(users_name(name), mark, now, LOOK_SECONDS)
        file = Content({USERS_KEY: await self._file_with(entry, before)})
        self._note_file(await self._secrets.keep(users_name(name), file, mark, now))

    def note(self, reported: Mapping[str, str]) -> None:
        """Note the digests of the files that members have reported, by member."""
        behind = [name for name, digest in sorted(reported.items()) if digest != self._digest]
        if not self._digest:
            self.waits = "members have the file of users"
        else:
            self.waits = f"these members have the file of users: {listed(behind)}" if behind else ""

    def _note_file(self, file: StoredSecret) -> None:
        self._digest = hashlib.sha256(file.data[USERS_KEY]).hexdigest()

    async def _file_with(self, entry: UserEntry, before: StoredSecret | None) -> bytes:
        """Return the file with this user and those that people have added, as they wrote it if it has it."""
        if before is None or USERS_KEY not in before.data:
            return encode_users([entry])
        entries = await self._entries(before)
        if entry in entries:
            return before.data[USERS_KEY]
        return encode_users([entry, *(each for each in entries if each.name != DEFAULT_USER)])

    async def _entries(self, file: StoredSecret) -> tuple[UserEntry, ...]:
        """Return the users of a file; each version is decoded once, outside of the event loop."""
        if self._decoded is None or self._decoded[0] is not file:
            found: tuple[UserEntry, ...] | str
            try:
                found = await asyncio.to_thread(decode_users, file.data[USERS_KEY])
            except Corrupt as error:
                found = error.text
            self._decoded = file, found
        users = self._decoded[1]
        if isinstance(users, str):
            self._digest = ""
            raise Corrupt(f"Secret {file.name}: {users}; correct it: members keep the users that they have")
        return users

    async def _file_of_others(self, name: str, mark: Mark, now: float) -> StoredSecret | None:
        """Return the file of users that people made; None when it is the operator's, or none is there."""
        if now < self._theirs_until:
            return self._theirs
        try:
            await self._secrets.read(name, mark, now, LOOK_SECONDS)
        except NameTaken:
            found = await self._secrets.read_of_anybody(name)
            if found is None or USERS_KEY not in found.data:
                raise
            if self._theirs is None or self._theirs.stored != found.stored:
                self._theirs = found
            self._theirs_until = now + LOOK_SECONDS
            return self._theirs
        return None

    async def _hash(self, secret: StoredSecret) -> str:
        """Return the entry of a password; each version of the Secret is hashed once."""
        if self._hashed is None or self._hashed[0] is not secret:
            password = secret.data.get(PASSWORD, b"")
            if not 0 < len(password) <= PASSWORD_LENGTH_MAX:
                raise Corrupt(
                    f"Secret {secret.name} needs {PASSWORD} of 1 to {PASSWORD_LENGTH_MAX} bytes; delete it, "
                    "and the operator makes a new password"
                )
            if len(password) >= GENERATED_LENGTH:
                self._hashed = secret, generated_hash(password)
            else:
                # The same in each process, so that the file does not change with the operator.
                salt = hashlib.sha256(secret.stored["metadata"]["uid"].encode()).digest()[:SALT_BYTES_MIN]
                self._hashed = secret, await asyncio.to_thread(chosen_hash, password, salt)
        return self._hashed[1]
