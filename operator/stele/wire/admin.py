"""JSON of the admin port: tablets, quarantine and copy sessions of a member (docs/internals/member.md).

`stele-member inspect` prints the same structs for a volume that is not in use.
"""

from typing import Literal

import msgspec

from stele.core.control.commands import OpId

TABLETS_LIMIT_MAX = 1000
"""Most tablets in one answer; `after` requests the rest."""

CHECKSUM_ENTRIES_MAX = 2000
"""Most entries of one checksum; twice as many where the answer ends at a name."""

TRANSACTIONS_LIMIT_MAX = 1000
"""Most transactions in one answer."""

RoleName = Literal["OWNER", "BACKUP", "LEARNER", "NONE"]


class LogRange(msgspec.Struct, frozen=True):
    """Operations first..last of a log; `last` is below `first` when it is empty. `bytes` counts records."""

    first: int
    last: int
    bytes: int


class QuarantinedTablet(msgspec.Struct, frozen=True):
    """Data of a dropped tablet, deleted at `until_s` (Unix seconds)."""

    partition: int
    generation: int
    until_s: float
    last: OpId
    applied: OpId
    entries: int
    bytes: int


class QuarantinedVolume(msgspec.Struct, frozen=True):
    """A whole volume in quarantine since `since_s` (Unix seconds), until a user purges it."""

    name: str
    reason: str
    bytes: int
    since_s: float


class QuarantineList(msgspec.Struct, frozen=True):
    """Response of `GET /v1/quarantine`."""

    retention_seconds: float
    tablets: tuple[QuarantinedTablet, ...]
    volumes: tuple[QuarantinedVolume, ...]


class TabletFacts(msgspec.Struct, frozen=True):
    """One tablet of one member.

    `role` follows the table that this member has; a LEARNER receives a copy. `term` is that of the owner it
    follows (0: none yet), `promised` the lowest term it still accepts. `committed` and `flushed` are indexes.
    `lag` counts committed operations that are not applied here; at the owner, `behind` counts the operations
    that each member has not acknowledged. `bytes` counts keys and values. `offline` is why the tablet is out
    of service; empty when it is not. `copy` is the id of the migration to this member, if any.
    """

    partition: int
    role: RoleName
    state: str
    generation: int
    version: int
    replicas: tuple[int | None, ...]
    term: int
    promised: int
    last: OpId
    applied: OpId
    committed: int
    flushed: int
    log: LogRange
    lag: int | None
    behind: dict[str, int]
    serving: bool
    entries: int
    bytes: int
    offline: str
    copy: str
    quarantined: tuple[QuarantinedTablet, ...] = ()


class TabletList(msgspec.Struct, frozen=True):
    """Response of `GET /v1/tablets`. `next` is the `after` of the next page; None at the end."""

    uuid: str
    name: str
    index: int
    epoch: int
    stamp: str
    tablets: tuple[TabletFacts, ...]
    next: int | None = None


class TabletChecksum(msgspec.Struct, frozen=True):
    """Response of `GET /v1/checksum`: entries of one tablet from one moment, at which it had `applied`.

    `end` is the name of the last one that was read (URL-safe base64 of the keyspace's length, the keyspace
    and the key; empty without one), `more` whether others may follow. `entries` and `checksum` (128 bits, the
    sum of all entries' hashes, in hex) leave out those that had expired at `now_ms` (Unix milliseconds; 0
    from members that do not say it), `bytes` does not. `items` are names with hashes, if they were asked for.
    """

    partition: int
    generation: int
    applied: OpId
    end: str
    more: bool
    entries: int
    bytes: int
    checksum: str
    items: tuple[tuple[str, str], ...] = ()
    now_ms: int = 0


class SessionFacts(msgspec.Struct, frozen=True):
    """One copy session at its source, with names of members.

    `bytes` are those of its tablets, `sent_bytes` those sent since the transfer process opened it (None:
    unknown), `held_bytes` the files that only the session keeps. `limit_bytes_per_second` is 0 without a
    limit. `ended` is why it ended by itself, if it did.
    """

    session: str
    source: str
    destination: str
    engine: str
    tablets: int
    bytes: int
    sent_bytes: int | None
    streams: int
    age_seconds: float
    lease_left_seconds: float
    held_bytes: int
    limit_bytes_per_second: int
    ended: str = ""


class TransactionFacts(msgspec.Struct, frozen=True):
    """One transaction across partitions that has locks in a partition that this member owns.

    `originator` is the member whose client sent it, by name if it is known; `live`: its process is connected
    and goes on with it. `in_doubt`: the `coordinator` has lost its data, so only a user can end it.
    """

    transaction: str
    partition: int
    coordinator: int
    participants: tuple[int, ...]
    keys: int
    originator: str
    age_seconds: float
    live: bool
    in_doubt: bool


class TransactionList(msgspec.Struct, frozen=True):
    """Response of `GET /v1/transactions`: the oldest TRANSACTIONS_LIMIT_MAX, those in doubt first."""

    transactions: tuple[TransactionFacts, ...]


class Done(msgspec.Struct, frozen=True):
    """Response to a request that was carried out: a restored tablet, a cancelled session."""

    code: str = "OK"


class Purged(msgspec.Struct, frozen=True):
    """Response of `DELETE /v1/quarantine/...`; False: there was nothing (any more)."""

    purged: bool


class Resolved(msgspec.Struct, frozen=True):
    """Response of `POST /v1/transactions/{transaction}/resolve`: where it is ended at this member."""

    partitions: tuple[int, ...]


class SessionList(msgspec.Struct, frozen=True):
    """Response of `GET /v1/sessions`: the sessions that are not closed."""

    sessions: tuple[SessionFacts, ...]
