"""The users of one cluster: a generated one, whose password clients read from a Secret, and their file."""

import asyncio
import hashlib
import secrets
from datetime import UTC, datetime

from stele.adapters.kubernetes.secret_store import Content, Mark, StoredSecret
from stele.errors import Corrupt
from stele.master.certificates import mark_of
from stele.master.kept_secrets import KeptSecrets
from stele.master.secret_volumes import USERS_KEY, users_name
from stele.model import TabletCluster
from stele.model.ownership import NameTaken
from stele.wire.users import SALT_BYTES_MIN, UserEntry, chosen_hash, encode_users, generated_hash

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

SPREAD_SECONDS = 120.0
"""Seconds that the kubelets may take to bring new users to members that run already."""


def default_user_name(cluster: str) -> str:
    return f"{cluster}-default-user"


class Users:
    """Keeps the Secret with the password of user `default`, and that with the file of users.

    A Secret with a file of users that others made is left to them. `ready`: members have the file, so that
    they may ask for passwords.
    """

    def __init__(self, kept: KeptSecrets) -> None:
        self._secrets = kept
        self._hashed: tuple[StoredSecret, str] | None = None
        self._theirs_until = float("-inf")
        self.ready = False

    async def ensure(self, cluster: TabletCluster, now: float) -> None:
        """Make what is missing; a password that was changed in its Secret is in the file within LOOK_SECONDS.

        Raises as `KeptSecrets` does, and Corrupt for a Secret without a password.
        """
        name, mark = cluster.metadata.name, mark_of(cluster, "users")
        if now < self._theirs_until or await self._is_theirs(users_name(name), mark, now):
            self.ready = True
            return
        found = await self._secrets.read(default_user_name(name), mark, now, LOOK_SECONDS)
        if found is None:
            password = secrets.token_urlsafe(PASSWORD_BYTES).encode()
            content = Content({USERNAME: DEFAULT_USER.encode(), PASSWORD: password}, type=BASIC_AUTH)
            found = await self._secrets.keep(default_user_name(name), content, mark, now)
        entry = UserEntry(DEFAULT_USER, (await self._hash(found),), EVERYTHING)
        file = Content({USERS_KEY: encode_users([entry])})
        written = await self._secrets.keep(users_name(name), file, mark, now)
        # Pods of a new cluster start with the file.
        is_new = cluster.status.version_sum == 0
        self.ready = is_new or now - _made(written) >= SPREAD_SECONDS

    async def _is_theirs(self, name: str, mark: Mark, now: float) -> bool:
        try:
            await self._secrets.read(name, mark, now)
        except NameTaken:
            if not await self._secrets.has_key(name, USERS_KEY):
                raise
            self._theirs_until = now + LOOK_SECONDS
            return True
        return False

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


def _made(secret: StoredSecret) -> float:
    stamp = secret.stored["metadata"]["creationTimestamp"]
    return datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
