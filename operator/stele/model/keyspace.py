"""Keyspace: the settings of one keyspace of a cluster."""

from enum import StrEnum
from typing import ClassVar, NamedTuple

from pydantic import ConfigDict, Field

from stele.core.kv.keyslot import SLOTS
from stele.core.kv.keyspaces import (
    NAME_CHARACTERS_MAX,
    NEAR_CACHE_SECONDS_MAX,
    NOTIFY_FLAGS,
    QUOTA_ENTRIES_MAX,
    REPLICATED_PARTITIONS,
    TTL_SECONDS_MAX,
    Mode,
    Reads,
    Replication,
)
from stele.core.kv.keyspaces import NearCache as NearCacheSettings
from stele.core.kv.keyspaces import Quota as QuotaSettings
from stele.core.kv.keyspaces import Settings as KeyspaceSettings
from stele.core.table.ids import MAX_REPLICAS
from stele.model.common import (
    CLUSTER_NAME_LENGTH,
    Model,
    Quantity,
    Resource,
    cel,
    count,
    quantity,
    quantity_bytes,
    whole,
)
from stele.model.conditions import Conditions, conditions_field

_NAME = rf"^[a-z0-9][a-z0-9-]{{0,{NAME_CHARACTERS_MAX - 1}}}$"
_EXPECTED = "1 to 63 of a-z, 0-9 and -, not starting with -, and not a number, which is named db<number>"
NOTIFY_LENGTH = 2 * len(NOTIFY_FLAGS)


class OnDelete(StrEnum):
    """What happens to the entries when the Keyspace is deleted.

    Keep: they stay, with the settings of a keyspace that is not declared. Drop: they are deleted first.
    """

    KEEP = "Keep"
    DROP = "Drop"


class NearCache(Model):
    """What a member may keep of values that other members own."""

    bytes: Quantity = quantity(
        "spec.nearCache.bytes",
        ...,
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('1Ti')) <= 0",
            "spec.nearCache.bytes must be at most 1Ti",
        ),
    )
    """Memory of one member for these values."""
    seconds: int = whole("spec.nearCache.seconds", 1, NEAR_CACHE_SECONDS_MAX)
    """Seconds after which a value that was kept is asked for again."""


class LocalCache(Model):
    """What each member keeps of a keyspace with mode Invalidation."""

    bytes: Quantity = quantity(
        "spec.localCache.bytes",
        ...,
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('1Ti')) <= 0",
            "spec.localCache.bytes must be at most 1Ti",
        ),
    )
    """Memory of one member for these entries; the least recently used ones make room for others."""


class Placement(Model):
    """Partitions of the keyspace's own."""

    partitions: int = whole("spec.placement.partitions", 1, SLOTS)
    """Number of these partitions."""
    replicas: int | None = whole(
        "spec.placement.replicas", 1, MAX_REPLICAS, None, "it counts the owner too, so 2 is one backup"
    )
    """Copies of each of them, including the owner; with mode Replicated, which has one at each data member,
    it is left out."""


class Quota(Model):
    """What the keyspace may have in all before writes that make it larger are refused."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.entries) || has(self.bytes)",
                "spec.quota must have entries or bytes; without a quota leave it out",
            ),
        )
    )

    entries: int | None = whole(
        "spec.quota.entries", 1, QUOTA_ENTRIES_MAX, None, "leave it out for any number"
    )
    """Number of entries, each counted once; any number when omitted."""
    bytes: Quantity | None = quantity(
        "spec.quota.bytes",
        None,
        (
            "!isQuantity(self) || quantity(self).compareTo(quantity('1Pi')) <= 0",
            "spec.quota.bytes must be at most 1Pi",
        ),
    )
    """Bytes of their keys and values; any number when omitted."""


class KeyspaceSpec(Model):
    """Desired settings."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.cluster == oldSelf.cluster",
                "spec.cluster cannot change: create another Keyspace",
            ),
            (
                "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
                "spec.name cannot change: create another Keyspace",
            ),
            (
                f"!has(self.name) || (self.name.matches('{_NAME}') && !self.name.matches('^[0-9]+$'))",
                f"spec.name must be {_EXPECTED}",
            ),
            (
                f"!has(self.notify) || self.notify.matches('^[{NOTIFY_FLAGS}]*$')",
                f"spec.notify must consist of flags of {NOTIFY_FLAGS}, such as KEA",
            ),
            (
                "self.mode == oldSelf.mode",
                "spec.mode cannot change: create another Keyspace",
            ),
            (
                "has(self.placement) == has(oldSelf.placement)"
                " && (!has(self.placement) || self.placement == oldSelf.placement)",
                "spec.placement cannot change: create another Keyspace with another spec.name",
            ),
            (
                f"self.mode != '{Mode.DISTRIBUTED}' || !has(self.placement) || has(self.placement.replicas)",
                f"spec.placement.replicas is needed with spec.mode {Mode.DISTRIBUTED}",
            ),
            (
                f"self.mode != '{Mode.REPLICATED}' || !has(self.placement) || !has(self.placement.replicas)",
                f"spec.placement.replicas is not possible with spec.mode {Mode.REPLICATED}, which has a copy"
                f" at each data member, {MAX_REPLICAS} at most: leave it out",
            ),
            (
                f"self.mode != '{Mode.REPLICATED}' || self.reads == '{Reads.AVAILABLE}'",
                f"spec.mode {Mode.REPLICATED} needs spec.reads {Reads.AVAILABLE}:"
                " each member answers from its own copy",
            ),
            (
                f"(self.mode == '{Mode.INVALIDATION}') == has(self.localCache)",
                f"spec.localCache is needed with spec.mode {Mode.INVALIDATION}, and only then",
            ),
            (
                f"self.mode != '{Mode.INVALIDATION}' || !(has(self.notify) || has(self.nearCache) ||"
                f" has(self.quota) || has(self.placement) || self.reads != '{Reads.LINEARIZABLE}' ||"
                f" self.replication != '{Replication.SYNC}')",
                f"spec.mode {Mode.INVALIDATION} excludes spec.notify, nearCache, quota, placement, reads"
                f" {Reads.AVAILABLE} and replication {Replication.ASYNC}: leave them out",
            ),
        )
    )

    cluster: str = Field(min_length=1, max_length=CLUSTER_NAME_LENGTH)
    """Name of the TabletCluster. Cannot change."""
    name: str | None = Field(default=None, min_length=1, max_length=NAME_CHARACTERS_MAX)
    """Name of the keyspace, as in SELECT; the name of this object when omitted. Cannot change."""
    mode: Mode = Mode.DISTRIBUTED
    """Where the entries are: in partitions with copies, with a copy at each data member, or in the memory of
    each member. Cannot change."""
    placement: Placement | None = None
    """Partitions of its own; without it the keyspace shares those of the cluster, or with mode Replicated has
    a few. Cannot change."""
    local_cache: LocalCache | None = None
    """What each member keeps of a keyspace with mode Invalidation; needed there."""
    ttl: int = whole("spec.ttl", 0, TTL_SECONDS_MAX, 0, "0 means that entries do not expire")
    """Seconds after which an entry expires that is written without an expiry; 0 for never."""
    notify: str | None = Field(default=None, max_length=NOTIFY_LENGTH)
    """Events that are published: flags of Redis' notify-keyspace-events, and M for entries that move; none
    when omitted."""
    near_cache: NearCache | None = None
    """What a member may keep of values that other members own; nothing when omitted."""
    reads: Reads = Reads.LINEARIZABLE
    """Which members answer reads."""
    quota: Quota | None = None
    """What the keyspace may have before writes that make it larger are refused; no limit when omitted."""
    replication: Replication = Replication.SYNC
    """When a write is answered: once all copies hold it, or once its owner does."""
    on_delete: OnDelete = OnDelete.KEEP
    """What happens to the entries when this object is deleted."""


class KeyspaceMembers(Model):
    """Members of the cluster, as far as these settings are concerned."""

    total: int = count()
    """Number of members."""
    current: int = count()
    """Number of members that use these settings."""


class KeyspacePlacement(Model):
    """Partitions of the keyspace's own."""

    partitions: int = count()
    """Number of these partitions; 0 for a keyspace that shares those of the cluster."""
    replicas: int = count()
    """Copies that each of them should have."""


class KeyspaceStatus(Model):
    """Observed state of the keyspace. Written by the operator only."""

    observed_generation: int = count()
    """metadata.generation that this status describes."""
    keyspace: str = ""
    """Name of the keyspace, as in SELECT."""
    catalog_version: int = count()
    """Version of the cluster's catalog of keyspaces that has these settings; 0 while none has them."""
    entries: int = count()
    """Number of entries, each counted once; may be some minutes old."""
    bytes: int = count()
    """Bytes of their keys and values; may be some minutes old."""
    members: KeyspaceMembers = Field(default_factory=KeyspaceMembers)
    placement: KeyspacePlacement = Field(default_factory=KeyspacePlacement)
    conditions: Conditions = conditions_field()


class WantedGroup(NamedTuple):
    """Partitions, and copies of each: 0 for one at each data member."""

    partitions: int
    replicas: int


class Keyspace(Resource):
    """Settings of one keyspace of a cluster. A keyspace without such an object has the defaults."""

    KIND: ClassVar[str] = "Keyspace"
    PLURAL: ClassVar[str] = "keyspaces"

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"has(self.spec.name) || (self.metadata.name.matches('{_NAME}')"
                " && !self.metadata.name.matches('^[0-9]+$'))",
                f"metadata.name, which names the keyspace without spec.name, must be {_EXPECTED}",
            ),
        )
    )

    kind: str = "Keyspace"
    spec: KeyspaceSpec
    status: KeyspaceStatus = Field(default_factory=KeyspaceStatus)

    @property
    def keyspace(self) -> str:
        """Return the name of the keyspace."""
        return self.spec.name or self.metadata.name

    @property
    def wanted_group(self) -> WantedGroup | None:
        """Return the partitions that it should have for itself, None when it shares those of the cluster."""
        placement = self.spec.placement
        if self.spec.mode is Mode.REPLICATED:
            return WantedGroup(REPLICATED_PARTITIONS if placement is None else placement.partitions, 0)
        if placement is None or placement.replicas is None:
            return None
        return WantedGroup(placement.partitions, placement.replicas)

    @property
    def settings(self) -> KeyspaceSettings:
        """Return what members look up, as it is before the keyspace has partitions of its own."""
        spec, near = self.spec, self.spec.near_cache
        kept = None if near is None else NearCacheSettings(quantity_bytes(near.bytes), near.seconds)
        return KeyspaceSettings(
            spec.ttl,
            spec.notify or "",
            kept,
            spec.reads,
            _quota(spec.quota),
            spec.replication,
            spec.mode,
            0 if spec.local_cache is None else quantity_bytes(spec.local_cache.bytes),
        )


def _quota(quota: Quota | None) -> QuotaSettings | None:
    if quota is None:
        return None
    return QuotaSettings(quota.entries or 0, 0 if quota.bytes is None else quantity_bytes(quota.bytes))
