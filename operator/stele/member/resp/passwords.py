"""Checks passwords in constant time: that of a user who exists takes as long as that of one who does not.

SHA-256 is computed at once, scrypt in threads, of which there are few: other work needs the processor. A
password that was right is remembered as an HMAC with a key of this process, so it costs scrypt once.
"""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from stele.wire.users import (
    DIGEST_BYTES,
    PASSWORDS_MAX,
    SALT_BYTES_MIN,
    SCRYPT_N,
    SCRYPT_P,
    SCRYPT_R,
    Scrypt,
    read_hash,
)

PASSWORD_BYTES_MAX = 1024
SCRYPT_AT_ONCE = 2
SCRYPT_WAITING_MAX = 64

_NEVER = bytes(DIGEST_BYTES)


class BusyError(Exception):
    """Too many passwords wait to be checked."""

    def __init__(self) -> None:
        super().__init__(f"{SCRYPT_WAITING_MAX} passwords wait to be checked at this member: send AUTH again")


class Passwords:
    """The valid passwords of one user, as in the file. `remembered` has HMACs of those that were right."""

    __slots__ = ("_hashes", "_remembered", "scrypts")

    def __init__(self, texts: Sequence[str]) -> None:
        self._hashes = [(text, read_hash(text)) for text in texts]
        self._remembered: dict[str, bytes] = {}
        self.scrypts = [(text, each) for text, each in self._hashes if isinstance(each, Scrypt)]

    def find_fast(self, sha256: bytes, mac: bytes) -> str | None:
        """Return the entry of the file that a password matches, if no scrypt is needed to see that."""
        found = None
        padding = [("", _NEVER)] * (PASSWORDS_MAX - len(self._hashes))
        for text, each in [*self._hashes, *padding]:
            if isinstance(each, Scrypt):
                same = hmac.compare_digest(mac, self._remembered.get(text, _NEVER))
            else:
                same = hmac.compare_digest(sha256, each)
            found = text if same and text else found
        return found

    def remember(self, text: str, mac: bytes) -> None:
        self._remembered[text] = mac


NO_PASSWORDS = Passwords(())


class PasswordChecker:
    """`scrypts` is the most scrypt passwords that any user has: every failure costs so many,
    and where the user has fewer, each as much as the most expensive one of all."""

    def __init__(self) -> None:
        self.scrypts = 0
        self._key = secrets.token_bytes(DIGEST_BYTES)
        salt, digest = secrets.token_bytes(SALT_BYTES_MIN), secrets.token_bytes(DIGEST_BYTES)
        self._dummy = Scrypt(SCRYPT_N, SCRYPT_R, SCRYPT_P, salt, digest)
        self._pool: ThreadPoolExecutor | None = None
        self._waiting = 0

    def begin(self, users: Sequence[Passwords]) -> None:
        """Check passwords of these users from now on."""
        self.scrypts = max((len(each.scrypts) for each in users), default=0)
        known = [scrypt for each in users for _, scrypt in each.scrypts]
        if known:
            most = max(known, key=lambda each: each.n * each.r * each.p)
            self._dummy = Scrypt(most.n, most.r, most.p, self._dummy.salt, self._dummy.digest)

    async def find(self, passwords: Passwords, password: bytes) -> str | None:
        """Return the entry of the file that a password matches, None for a wrong one. Raises BusyError."""
        if len(password) > PASSWORD_BYTES_MAX:
            return None
        mac = hmac.digest(self._key, password, "sha256")
        found = passwords.find_fast(hashlib.sha256(password).digest(), mac)
        if found is None and self.scrypts:
            found = await self._find_slowly(passwords, password)
            if found is not None:
                passwords.remember(found, mac)
        return found

    async def _find_slowly(self, passwords: Passwords, password: bytes) -> str | None:
        if self._waiting >= SCRYPT_WAITING_MAX + SCRYPT_AT_ONCE:
            raise BusyError
        if self._pool is None:
            self._pool = ThreadPoolExecutor(SCRYPT_AT_ONCE, "scrypt")
        candidates = [*passwords.scrypts, *[("", self._dummy)] * self.scrypts][: self.scrypts]
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, _find, candidates, password)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Start no more checks."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _find(candidates: Sequence[tuple[str, Scrypt]], password: bytes) -> str | None:
    found = None
    for text, each in candidates:
        if hmac.compare_digest(each.compute(password), each.digest) and text:
            found = text
    return found
