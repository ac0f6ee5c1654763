"""The file of users: the operator writes it into a Secret, members read it where it is mounted.

It is JSON, so that `kubectl get secret orders-users -o jsonpath='{.data.users}' | base64 -d` shows

    {"format":1,"users":[{"name":"shop","active":true,"passwords":["sha256:2c26..."],
                          "rules":["+@read","~orders:*"],"keyspaces":["shop"],"connections_max":0}]}

A file of another format, or with an unknown field or an impossible value, is rejected as Corrupt and never
read in part. No password is in it: generated ones, of 256 random bits, are stored as their SHA-256, those
that people chose as scrypt. A user has two passwords while one is rotated. Certificates of users are in a
file of their own (`wire.user_certificates`).
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from stele.core.kv.acl import RULES_MAX, RuleError, User, compile_user
from stele.core.kv.keyspaces import name_fault
from stele.core.kv.user_limits import (
    BYTES_PER_SECOND_MAX,
    BYTES_PER_SECOND_MIN,
    CONNECTIONS_MAX,
    KEYSPACES_MAX,
    NAME,
    NAME_CHARACTERS_MAX,
)
from stele.core.security.user_certificates import certificate_fault
from stele.errors import BadInput, Corrupt
from stele.wire.user_certificates import decode_certificates, encode_certificates

FORMAT = 1
FILE_BYTES_MAX = 700 * 1024
"""Of both files. In base64, with what else a Secret has, it is below the 1 MiB that an HTTP client sends at
once."""
USERS_MAX = 1_000
PASSWORDS_MAX = 2
SALT_BYTES_MIN, SALT_BYTES_MAX = 16, 64
SCRYPT_N, SCRYPT_R, SCRYPT_P = 16_384, 8, 1
"""What a new password is hashed with: 16 MiB of memory and about 50 ms."""
SCRYPT_MEMORY_MAX = 32 * 1024 * 1024
DIGEST_BYTES = 32

_SHA256 = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_SCRYPT = re.compile(r"scrypt:(\d{1,7}):(\d{1,2}):(\d{1,2}):([0-9a-f]{2,128}):([0-9a-f]{64})", re.ASCII)


class StoredUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One user, as in the file.

    `passwords` are those that are valid, hashed by `generated_hash` or `chosen_hash`; without any, nobody can
    log in by one. `rules` are those of `core.kv.acl`. `keyspaces` may be selected, the first one is where a
    connection begins; empty: all. `connections_max` counts those to one member; 0: any number.
    `bytes_per_second` are those that they send and receive together; 0: any number.
    """

    name: str
    passwords: Annotated[tuple[str, ...], Meta(max_length=PASSWORDS_MAX)]
    rules: Annotated[tuple[str, ...], Meta(max_length=RULES_MAX)]
    keyspaces: Annotated[tuple[str, ...], Meta(max_length=KEYSPACES_MAX)] = ()
    active: bool = True
    connections_max: Annotated[int, Meta(ge=0, le=CONNECTIONS_MAX)] = 0
    bytes_per_second: Annotated[int, Meta(ge=0, le=BYTES_PER_SECOND_MAX)] = 0


class UserEntry(StoredUser, frozen=True):
    """One user. `certificate` is the text of those that log clients in as this user; empty for none."""

    certificate: str = ""

    @property
    def credentials(self) -> tuple[str, ...]:
        """What clients may have logged in by: entries of passwords, and the certificate."""
        return (*self.passwords, self.certificate) if self.certificate else self.passwords

    def rights(self) -> User:
        """Return its compiled rights. Raises BadInput that names the field."""
        try:
            return compile_user(self.name, self.rules, self.keyspaces, active=self.active)
        except RuleError as error:
            raise BadInput(f"rules: {error}") from None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    users: Annotated[tuple[StoredUser, ...], Meta(max_length=USERS_MAX)]


class _Format(msgspec.Struct, frozen=True):
    format: int


_decode_format = msgspec.json.Decoder(_Format).decode
_decode = msgspec.json.Decoder(_File).decode
_encode = msgspec.json.Encoder().encode


class UserFiles(NamedTuple):
    """The content of both files; no bytes of certificates where no user has one."""

    users: bytes
    certificates: bytes = b""

    @property
    def digest(self) -> str:
        """What a member says of the files that it uses."""
        text = self.users if not self.certificates else b"%d %s%s" % (len(self.users), *self)
        return hashlib.sha256(text).hexdigest()


def encode_users(users: Sequence[UserEntry]) -> bytes:
    """Return the file of users alone, as `encode_files` does."""
    return encode_files(users).users


def encode_files(users: Sequence[UserEntry]) -> UserFiles:
    """Return the content of the files, in the order of names. Raises BadInput that names the field."""
    ordered = tuple(sorted(users, key=lambda user: user.name))
    if (fault := users_fault(ordered)) is not None:
        raise BadInput(fault)
    data = bytes(_encode(_File(FORMAT, tuple(map(_stored, ordered)))))
    certificates = encode_certificates((each.name, each.certificate) for each in ordered if each.certificate)
    if (size := len(data) + len(certificates)) > FILE_BYTES_MAX:
        text = f"users take {size} bytes; at most {FILE_BYTES_MAX} fit into a Secret"
        raise BadInput(f"{text}: delete some, or use fewer rules", "TOO_LARGE")
    return UserFiles(data, certificates)


def entry_bytes(user: UserEntry) -> int:
    """Return what one user takes of the files, at most."""
    return len(_encode(user)) + 1 + (len(user.name) if user.certificate else 0)


def decode_users(data: bytes, certificates: bytes = b"") -> tuple[UserEntry, ...]:
    """Parse the content of the files. Raises Corrupt with the field and what was expected."""
    stored, held = _decode_stored(data, len(certificates)), decode_certificates(certificates)
    if unknown := sorted(held.keys() - {each.name for each in stored}):
        raise Corrupt(f"file of certificates: user {unknown[0][:80]!r} is not in the file of users")
    users = tuple(_entry(each, held.get(each.name, "")) for each in stored)
    if (fault := users_fault(users)) is not None:
        raise Corrupt(f"file of users: {fault}")
    return users


def _decode_stored(data: bytes, more: int) -> tuple[StoredUser, ...]:
    if (size := len(data) + more) > FILE_BYTES_MAX:
        raise Corrupt(f"file of users: {size} bytes; at most {FILE_BYTES_MAX} are possible")
    try:
        format = _decode_format(data).format
        if format != FORMAT:
            problem = f"format is {format}; this version of Stele reads {FORMAT}"
            raise Corrupt(f"file of users: {problem}; use the version that wrote it", "UNKNOWN_FORMAT")
        return _decode(data).users
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"file of users: {error}") from None


def _stored(user: UserEntry) -> StoredUser:
    return StoredUser(*(getattr(user, field) for field in StoredUser.__struct_fields__))


def _entry(stored: StoredUser, certificate: str) -> UserEntry:
    return UserEntry(**msgspec.structs.asdict(stored), certificate=certificate)


def users_fault(users: Sequence[UserEntry]) -> str | None:
    """Return what is wrong with users, with the user and the field; None when all are possible."""
    if len(users) > USERS_MAX:
        return f"{len(users)} users; at most {USERS_MAX} are possible"
    seen, holders = set[str](), dict[str, str]()
    for number, user in enumerate(users):
        if (fault := _fault(user)) is not None:
            return f"users[{number}] {user.name[:80]!r}: {fault}"
        if user.name in seen:
            return f"users[{number}].name is {user.name!r} a second time; names must differ"
        if user.certificate in holders:
            holder = holders[user.certificate]
            return f"users[{number}] {user.name!r}: certificate is that of {holder!r}; they must differ"
        seen.add(user.name)
        if user.certificate:
            holders[user.certificate] = user.name
    return None


def _fault(user: UserEntry) -> str | None:
    if not NAME.fullmatch(user.name):
        text = (
            f"1 to {NAME_CHARACTERS_MAX} letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )
        return f"name: expected {text}"
    counts = (("passwords", user.passwords, PASSWORDS_MAX), ("keyspaces", user.keyspaces, KEYSPACES_MAX))
    for name, values, most in counts:
        if len(values) > most:
            return f"{name}: {len(values)} values; at most {most} are possible"
    if not 0 <= user.connections_max <= CONNECTIONS_MAX:
        return f"connections_max is {user.connections_max}; expected 0 to {CONNECTIONS_MAX}"
    least, most = BYTES_PER_SECOND_MIN, BYTES_PER_SECOND_MAX
    if user.bytes_per_second and not least <= user.bytes_per_second <= most:
        return f"bytes_per_second is {user.bytes_per_second}; expected 0, or {least} to {most}"
    for number, each in enumerate(user.passwords):
        if not _SHA256.fullmatch(each) and (fault := _scrypt_fault(each)) is not None:
            return f"passwords[{number}]: {fault}"
    if (fault := next(filter(None, map(name_fault, user.keyspaces)), None)) is not None:
        return f"keyspaces: {fault}"
    if user.certificate and (fault := certificate_fault(user.certificate)):
        return f"certificate: {fault}"
    try:
        user.rights()
    except BadInput as error:
        return error.text
    return None


# -- passwords


class Scrypt(msgspec.Struct, frozen=True):
    """A password that a person chose. `matches` takes about 50 ms and SCRYPT_MEMORY_MAX bytes at most."""

    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def compute(self, password: bytes) -> bytes:
        """Return the digest that a password has with this salt."""
        return scrypt(password, self.salt, self.n, self.r, self.p)


def scrypt(password: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    """Compute scrypt; outside of the event loop."""
    most = 2 * SCRYPT_MEMORY_MAX
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=most, dklen=DIGEST_BYTES)


def generated_hash(password: bytes) -> str:
    """Return the entry of a password of at least 256 random bits."""
    return f"sha256:{hashlib.sha256(password).hexdigest()}"


def chosen_hash(password: bytes, salt: bytes) -> str:
    """Return the entry of a password that a person chose. Takes about 50 ms."""
    digest = scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    return f"scrypt:{SCRYPT_N}:{SCRYPT_R}:{SCRYPT_P}:{salt.hex()}:{digest.hex()}"


def read_hash(text: str) -> bytes | Scrypt:
    """Return the SHA-256 of a generated password, or what a chosen one is checked with; `text` is valid."""
    if (found := _SHA256.fullmatch(text)) is not None:
        return bytes.fromhex(found[1])
    found = _SCRYPT.fullmatch(text)
    assert found is not None
    n, r, p = map(int, found.groups()[:3])
    return Scrypt(n, r, p, bytes.fromhex(found[4]), bytes.fromhex(found[5]))


def _scrypt_fault(text: str) -> str | None:
    found = _SCRYPT.fullmatch(text)
    if found is None:
        return "expected sha256:HEX or scrypt:N:R:P:SALT:HEX, hex digits in lower case, 32 bytes of digest"
    n, r, p = map(int, found.groups()[:3])
    if n < 2 or n & (n - 1) or r < 1 or p < 1 or n >= 2 ** (16 * r) or 128 * n * r * p > SCRYPT_MEMORY_MAX:
        expected = f"N a power of 2 below 2^(16*R), and 128*N*R*P up to {SCRYPT_MEMORY_MAX}"
        return f"N is {n}, R {r}, P {p}; expected {expected}"
    if len(found[4]) % 2 or not SALT_BYTES_MIN <= len(found[4]) // 2 <= SALT_BYTES_MAX:
        return f"a salt of {len(found[4])} hex digits; expected {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes"
    return None
