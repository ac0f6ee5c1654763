"""Tablets, quarantine and copy sessions on a member's admin port, as JSON (docs/internals/member.md).

The same structs are what `stele-member inspect` prints of a volume that no process has open.
"""

from typing import Literal

import msgspec

from stele.core.control.commands import OpId

TABLETS_LIMIT_MAX = 1000
"""Tablets in one answer; the rest is asked for with `after`."""

RoleName = Literal["OWNER", "BACKUP", "LEARNER", "NONE"]
StateName = Literal["DOES_NOT_EXIST", "COPYING", "READY", "DELETED"]


class LogRange(msgspec.Struct, frozen=True):
    """Operations first..last of a log; `last` is below `first` when it holds none. `bytes` counts records."""

    first: int
    last: int
    bytes: int


class QuarantinedTablet(msgspec.Struct, frozen=True):
    """Data of a tablet that was given up. `until_s`: when it goes (Unix seconds)."""

    partition: int
    generation: int
    until_s: float
    last: OpId
    applied: OpId
    entries: int
    bytes: int


class QuarantinedVolume(msgspec.Struct, frozen=True):
    """A whole volume that was put aside. It goes only when somebody purges it."""

    name: str
    reason: str
    bytes: int
    put_aside_s: float


class Quarantine(msgspec.Struct, frozen=True):
    """Answer of `GET /v1/quarantine`."""

    retention_seconds: float
    tablets: tuple[QuarantinedTablet, ...]
    volumes: tuple[QuarantinedVolume, ...]


class TabletFacts(msgspec.Struct, frozen=True):
    """One tablet of one member.

    `role` is by the table that this member knows; LEARNER receives a copy. `term` is the term of the owner
    that is followed (0: none was heard yet), `promised` the lowest that is still heard. `committed` and
    `flushed` are indexes. `lag` counts operations that the owner told as committed and that are not applied
    here; at the owner `behind` counts, by member, operations that the member did not acknowledge. `bytes`
    counts keys and values. `offline` says why the tablet takes no part; empty when it does. `copy`: the id of
    the migration to this member, if any.
    """

    partition: int
    role: RoleName
    state: StateName
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
    """Answer of `GET /v1/tablets`. `next`: what to pass as `after` for the rest; None at the end."""

    uuid: str
    name: str
    index: int
    epoch: int
    stamp: str
    tablets: tuple[TabletFacts, ...]
    next: int | None = None


class SessionFacts(msgspec.Struct, frozen=True):
    """One copy session at its source, by names of members. `ended`: why it ended by itself, if it did.

    `bytes` are those of its tablets, `sent_bytes` went out since the transfer process opened it (None: it
    does not tell), `held_bytes` are files that only the session keeps; `limit_bytes_per_second` 0: no limit.
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


class SessionList(msgspec.Struct, frozen=True):
    """`GET /v1/sessions`: what was not closed yet."""

    sessions: tuple[SessionFacts, ...]
