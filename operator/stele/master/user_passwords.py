"""Passwords of users, in Secrets: those that the operator generates, and those of people."""

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stele.adapters.kubernetes.secret_store import Content, Mark, SecretStore, StoredSecret
from stele.errors import BadInput, Corrupt
from stele.master.manifests import owner_reference
from stele.model import TabletUser
from stele.model.conditions import Reason
from stele.model.ownership import NameLeaves, NameTaken, belongs_to, leaves
from stele.wire.users import SALT_BYTES_MIN, chosen_hash, generated_hash

BASIC_AUTH = "kubernetes.io/basic-auth"
USERNAME, PASSWORD, PREVIOUS = "username", "password", "previousPassword"

PASSWORD_BYTES = 32
GENERATED_LENGTH = 43
"""Characters of a generated password: 256 random bits in base64."""
PASSWORD_LENGTH_MAX = 1024

RENEW, RENEWED = "stele.dev/renew-password", "stele.dev/renewed-password"
"""Annotation of a TabletUser that asks for a new password by another value; that of its Secret with the last
value which was carried out."""

LOOK_SECONDS = 10.0
"""Seconds until a changed password is in the file."""
LOOKS_PER_ROUND_MAX = 8
"""Secrets that are read in one round, and hashed for up to 0.1 s each, so that they delay no heartbeat."""


def new_password() -> bytes:
    return secrets.token_urlsafe(PASSWORD_BYTES).encode()


async def hashes_of(secret: StoredSecret, salt: bytes, *, chosen: bool) -> tuple[str, ...]:
    """Return the entries of its one or two valid passwords, always the same ones.

    Those of generated length are taken for random unless they are `chosen`. Raises Corrupt.
    """
    found: list[str] = []
    for key in (PASSWORD, PREVIOUS):
        if key == PREVIOUS and key not in secret.data:
            continue
        password = secret.data.get(key, b"")
        if not 0 < len(password) <= PASSWORD_LENGTH_MAX:
            text = f"Secret {secret.name}: {key} has {len(password)} bytes"
            remedy = "correct it, or delete a Secret that the operator made: it makes another"
            raise Corrupt(f"{text}; expected 1 to {PASSWORD_LENGTH_MAX}: {remedy}")
        if chosen or len(password) < GENERATED_LENGTH:
            found.append(await asyncio.to_thread(chosen_hash, password, salt))
        else:
            found.append(generated_hash(password))
    return tuple(dict.fromkeys(found))


def salt_of(uid: str) -> bytes:
    """Return the same salt in each process, so that the file does not change with the operator."""
    return hashlib.sha256(uid.encode()).digest()[:SALT_BYTES_MIN]


@dataclass(frozen=True)
class KnownPassword:
    """What one user's Secret said when it was read. `asked` is what the user's object asked for then."""

    asked: object
    looked_seconds: float
    secret: StoredSecret | None = None
    hashes: tuple[str, ...] = ()
    problem: tuple[Reason, str] | None = None


NO_PASSWORD = KnownPassword(None, float("inf"))
"""Of a user who has none."""


class UserPasswords:
    """Reads and makes the Secrets of one cluster's TabletUsers, a few in each round."""

    def __init__(self, store: SecretStore) -> None:
        self._store = store
        self._known: dict[str, KnownPassword] = {}

    def of(self, user: TabletUser) -> KnownPassword | None:
        """Return what is known of the user's password; None before its Secret was read."""
        if user.spec.password is None:
            return NO_PASSWORD
        return self._known.get(user.metadata.uid)

    async def look(self, users: Sequence[TabletUser], mark: Mark, now: float) -> None:
        """Read what is due. Raises Refused without the right to Secrets, and what the API server raises."""
        users = [each for each in users if each.spec.password is not None]
        uids = {each.metadata.uid for each in users}
        self._known = {uid: known for uid, known in self._known.items() if uid in uids}
        due = sorted((each for each in users if self._due_at(each) <= now), key=self._due_at)
        for user in due[:LOOKS_PER_ROUND_MAX]:
            self._known[user.metadata.uid] = await self._look(user, mark, now)

    def _due_at(self, user: TabletUser) -> float:
        known = self.of(user)
        if known is None or known.asked != _asked(user):
            return float("-inf")
        return known.looked_seconds + LOOK_SECONDS

    async def _look(self, user: TabletUser, mark: Mark, now: float) -> KnownPassword:
        asked, before = _asked(user), self.of(user)
        try:
            secret = await self._secret(user, mark)
            if before is not None and before.asked == asked and before.secret == secret:
                return replace(before, looked_seconds=now)
            chosen = not _is_generated(user)
            hashes = await hashes_of(secret, salt_of(user.metadata.uid), chosen=chosen)
            return KnownPassword(asked, now, secret, hashes)
        except NameTaken as error:
            problem = Reason.NAME_TAKEN, str(error.args[0])
        except NameLeaves as error:
            problem = Reason.WAITS_FOR_REMOVAL, str(error.args[0])
        except (Corrupt, BadInput) as error:
            problem = Reason.PASSWORD_UNUSABLE, error.text
        return KnownPassword(asked, now, problem=problem)

    async def _secret(self, user: TabletUser, mark: Mark) -> StoredSecret:
        name = user.secret
        found = await self._store.read_of_anybody(name)
        if _is_generated(user):
            return await self._generated(user, found, mark)
        if found is None:
            raise Corrupt(
                f"spec.password.secretRef.name is {name}: make that Secret, with the key {PASSWORD}"
            )
        return found

    async def _generated(self, user: TabletUser, found: StoredSecret | None, mark: Mark) -> StoredSecret:
        meta, name, asked = user.metadata, user.secret, user.metadata.annotations.get(RENEW, "")
        owner = owner_reference(TabletUser.KIND, meta.name, meta.uid)
        mark = Mark(mark.cluster_uid, owner, mark.labels)
        if found is None:
            data = {USERNAME: user.user.encode(), PASSWORD: new_password()}
            found = await self._store.create(name, Content(data, {RENEWED: asked}, BASIC_AUTH), mark)
        if not belongs_to(found.stored, meta.uid):
            raise (NameLeaves if leaves(found.stored, [owner]) else NameTaken)([f"Secret {name}"])
        if asked and asked != found.annotations.get(RENEWED):
            kept = {PREVIOUS: found.data[PASSWORD]} if found.data.get(PASSWORD) else {}
            data = {**found.data, PASSWORD: new_password(), **kept}
            found = await self._store.replace(found, Content(data, {RENEWED: asked}), mark)
        return found


def _is_generated(user: TabletUser) -> bool:
    return user.spec.password is not None and user.spec.password.secret_ref is None


def _asked(user: TabletUser) -> object:
    return user.spec.password, user.metadata.annotations.get(RENEW, "")
