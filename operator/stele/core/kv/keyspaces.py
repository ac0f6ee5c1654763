"""Settings of keyspaces, and the catalog that the master publishes to all members.

A keyspace that is not declared has DEFAULTS. Each member looks settings up in the catalog that it has: two
members may use different ones until both have reported the same version (docs/operating/keyspaces.md).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from stele.core.kv.commands import Failure

KEYSPACES_MAX = 1000
"""Most keyspaces that one cluster can declare."""

NAME_CHARACTERS_MAX = 63
TTL_SECONDS_MAX = 10 * 365 * 86_400
NEAR_CACHE_BYTES_MAX = 1 << 40
NEAR_CACHE_SECONDS_MAX = 86_400
QUOTA_ENTRIES_MAX = 10**15
QUOTA_BYTES_MAX = 1 << 50
LOCAL_CACHE_BYTES_MAX = 1 << 40
CATALOG_VERSION_MAX = 2**53

NOTIFY_FLAGS = "KEg$lshzxetdmnAM"
"""Redis' flags of `notify-keyspace-events`, and M for entries that move to another member."""

REPLICATED_PARTITIONS = 4
"""Partitions of a keyspace with mode Replicated that does not say how many."""

_NAME = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{NAME_CHARACTERS_MAX - 1}}}", re.ASCII)


class Mode(StrEnum):
    """Where the entries are.

    Distributed: in partitions, with copies. Replicated: in a few partitions, with a copy at every member that
    holds data, MAX_REPLICAS at most. Invalidation: in the memory of each member whose clients put them there;
    a change is told to all others, which drop what they have.
    """

    DISTRIBUTED = "Distributed"
    REPLICATED = "Replicated"
    INVALIDATION = "Invalidation"


class Reads(StrEnum):
    """Which members answer reads.

    Linearizable: the owner, while it holds leases. Available: backups too, with values that may be older.
    """

    LINEARIZABLE = "Linearizable"
    AVAILABLE = "Available"


class Replication(StrEnum):
    """When a write is answered.

    Sync: once all copies hold it. Async: once the owner's log holds it, while the owner has leases.
    """

    SYNC = "Sync"
    ASYNC = "Async"


class Undeclared(StrEnum):
    """What clients may do with keyspaces that no Keyspace declares: use them with DEFAULTS, or nothing."""

    ALLOW = "Allow"
    REFUSE = "Refuse"


@dataclass(frozen=True, slots=True)
class NearCache:
    """What a member may keep of values that other members own: bytes in all, each for so many seconds."""

    bytes: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Quota:
    """What a keyspace may have in all, each entry counted once; bytes are of keys and values. 0: any."""

    entries: int = 0
    bytes: int = 0

    def reached(self, entries: int, size_bytes: int) -> bool:
        """Return whether a keyspace of this size may not grow."""
        return 0 < self.entries <= entries or 0 < self.bytes <= size_bytes


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one keyspace.

    `ttl_seconds` is the expiry of entries that are written without one, 0 for none; `notify` has flags of
    NOTIFY_FLAGS, and is empty when no events are published. `local_cache_bytes` is what each member keeps of
    a keyspace with mode Invalidation. With `own_partitions` all entries are in partitions that are the
    keyspace's own: a member that does not know these yet answers no request.
    """

    ttl_seconds: int = 0
    notify: str = ""
    near_cache: NearCache | None = None
    reads: Reads = Reads.LINEARIZABLE
    quota: Quota | None = None
    replication: Replication = Replication.SYNC
    mode: Mode = Mode.DISTRIBUTED
    local_cache_bytes: int = 0
    own_partitions: bool = False


DEFAULTS = Settings()
"""Settings of a keyspace that is not declared."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All declared keyspaces of a cluster by name, and what holds for others.

    `version` grows with each change; 0: none was stored.
    """

    version: int = 0
    keyspaces: Mapping[str, Settings] = field(default_factory=dict)
    undeclared: Undeclared = Undeclared.ALLOW

    def changed_to(
        self, keyspaces: Mapping[str, Settings], undeclared: Undeclared = Undeclared.ALLOW
    ) -> "Catalog":
        """Return the catalog with this content: this one when it is the same, else the next version."""
        changed = Catalog(self.version, dict(keyspaces), undeclared)
        return self if changed == self else changed.next()

    def next(self) -> "Catalog":
        """Return the next version with the same content."""
        return replace(self, version=self.version + 1)


NO_CATALOG = Catalog()


def undeclared_failure(keyspace: bytes) -> Failure:
    """Return the answer to clients of a keyspace that is not declared, where all have to be."""
    text = f"keyspace {keyspace.decode()} is not declared: create a Keyspace with this name"
    return Failure("UNDECLARED", f"{text} (keyspaces.undeclared of the TabletCluster is {Undeclared.REFUSE})")


def elsewhere_text(keyspace: bytes) -> str:
    """Return the text of the error for a request that was sent to a partition without the keyspace's
    entries."""
    return f"keyspace {keyspace.decode()} is in other partitions now; nothing was done: retry in a second"


def homeless_text(keyspace: bytes) -> str:
    """Return the text of the error that clients of a keyspace get before its own partitions are known."""
    return f"keyspace {keyspace.decode()} gets partitions of its own; nothing was done: retry in a second"


def load_failure(keyspace: bytes) -> Failure:
    """Return the answer to a bulk load into a keyspace with mode Invalidation."""
    text = f"keyspace {keyspace.decode()} has mode {Mode.INVALIDATION} and takes no bulk loads"
    return Failure("WRONG_MODE", f"{text}: each member keeps only what its clients put there; write with SET")


def name_fault(name: str) -> str | None:
    """Return what is wrong with the name of a keyspace, None when clients can select it."""
    if not _NAME.fullmatch(name):
        expected = f"expected 1 to {NAME_CHARACTERS_MAX} of a-z, 0-9 and -, not starting with -"
        return f"keyspace is {name[:80]!r}; {expected}"
    if name.isdigit():
        return f"keyspace is {name!r}: SELECT of a number n goes to db<n>, of 0 to default; declare that one"
    return None


def catalog_fault(catalog: Catalog) -> str | None:
    """Return what is wrong with a catalog from a message or a volume, None when it is possible."""
    if not 0 <= catalog.version <= CATALOG_VERSION_MAX:
        return f"the catalog's version is {catalog.version}; at most {CATALOG_VERSION_MAX} is possible"
    if len(catalog.keyspaces) > KEYSPACES_MAX:
        return f"the catalog has {len(catalog.keyspaces)} keyspaces; at most {KEYSPACES_MAX} are possible"
    return next(filter(None, (fault_of(*declared) for declared in catalog.keyspaces.items())), None)


def fault_of(name: str, settings: Settings) -> str | None:
    """Return what is wrong with the name or the settings of a keyspace, None when both are possible."""
    if (fault := name_fault(name)) is not None:
        return fault
    if not 0 <= settings.ttl_seconds <= TTL_SECONDS_MAX:
        return f"ttl of keyspace {name} is {settings.ttl_seconds}; expected 0 to {TTL_SECONDS_MAX} seconds"
    if not set(settings.notify) <= set(NOTIFY_FLAGS):
        return f"notify of keyspace {name} is {settings.notify[:80]!r}; expected flags of {NOTIFY_FLAGS}"
    return (
        _quota_fault(name, settings.quota)
        or _near_cache_fault(name, settings.near_cache)
        or _mode_fault(name, settings)
    )


def _mode_fault(name: str, settings: Settings) -> str | None:
    most = settings.local_cache_bytes
    if settings.mode is not Mode.INVALIDATION:
        if settings.mode is Mode.REPLICATED and settings.reads is not Reads.AVAILABLE:
            return f"keyspace {name} has mode {Mode.REPLICATED}, which needs reads {Reads.AVAILABLE}"
        return f"localCache.bytes of keyspace {name} takes mode {Mode.INVALIDATION}" if most else None
    if not 0 < most <= LOCAL_CACHE_BYTES_MAX:
        return f"localCache.bytes of keyspace {name} is {most}; expected 1 to {LOCAL_CACHE_BYTES_MAX}"
    plain = replace(settings, ttl_seconds=0, mode=Mode.DISTRIBUTED, local_cache_bytes=0)
    if plain != DEFAULTS:
        text = "notify, nearCache, reads, quota, replication and placement are not possible"
        return f"keyspace {name} has mode {Mode.INVALIDATION}: {text}"
    return None


def _quota_fault(name: str, quota: Quota | None) -> str | None:
    if quota is None:
        return None
    if not 0 <= quota.entries <= QUOTA_ENTRIES_MAX:
        text = f"expected 1 to {QUOTA_ENTRIES_MAX}, or 0 for any number"
        return f"quota.entries of keyspace {name} is {quota.entries}; {text}"
    if not 0 <= quota.bytes <= QUOTA_BYTES_MAX:
        text = f"expected 1 to {QUOTA_BYTES_MAX}, or 0 for any number"
        return f"quota.bytes of keyspace {name} is {quota.bytes}; {text}"
    return None


def _near_cache_fault(name: str, near: NearCache | None) -> str | None:
    if near is None:
        return None
    if not 0 < near.bytes <= NEAR_CACHE_BYTES_MAX:
        return f"nearCache.bytes of keyspace {name} is {near.bytes}; expected 1 to {NEAR_CACHE_BYTES_MAX}"
    if not 0 < near.seconds <= NEAR_CACHE_SECONDS_MAX:
        text = f"expected 1 to {NEAR_CACHE_SECONDS_MAX} seconds"
        return f"nearCache.seconds of keyspace {name} is {near.seconds}; {text}"
    return None
