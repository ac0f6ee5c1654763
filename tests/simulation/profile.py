"""What one seed simulates: the size of the cluster, its settings, and which faults there are."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import stele.core.control.rebalance.scheduler
import stele.core.table.digests
import stele.core.tablet.log
import stele.core.tablet.owner
import stele.member.limits
from stele.core.formats import SPOKEN, FormatRange
from stele.core.kv.keyspaces import Settings
from stele.member.events.moves import EntryMoves
from stele.member.replication.keyspaces import Keyspaces
from stele.member.settings import Fsync
from stele.model import API_VERSION
from tests.fakes.spec import OPEN
from tests.simulation.kinds import CHANGE_DETECTION

CLUSTER = "demo"

HEARTBEATS = (0.2, 0.5, 1.0)
LEASES = (2.5, 5, 12)
"""What CHANGE_DETECTION draws: seconds between heartbeats, and how many of them a lease lasts."""

LOCAL, MOVABLE = "local", "movable"
"""Volumes that are bound to their node, or can be attached to another one."""

KNOBS = (
    (stele.core.tablet.log, "SEGMENT_BYTES", (200, 2000)),
    (stele.core.tablet.owner, "FILL_BYTES_MAX", (100, 300, 2000)),
    (stele.core.tablet.owner, "LEARNER_LAG_OPERATIONS", (1, 4, 256)),
    (stele.member.limits, "LOG_RETAINED_BYTES", (0, 500, 4000)),
    (stele.member.limits, "FLUSH_SECONDS", (0.5, 3.0, 30.0)),
    (stele.member.limits, "GC_INTERVAL_SECONDS", (1.0, 5.0)),
    (stele.member.limits, "WAIT_SECONDS_MAX", (2.0, 6.0)),
    (stele.member.limits, "LOST_SECONDS_MAX", (3.0, 10.0)),
    (stele.member.limits, "APPEND_BYTES", (300, 512 * 1024)),
    (stele.member.limits, "FETCH_BYTES", (100, 1024 * 1024)),
    (stele.member.limits, "REPLY_BYTES", (4, 512 * 1024)),
    (stele.core.control.rebalance.scheduler, "STALL_SECONDS", (10.0, 20.0)),
    (stele.member.limits, "SESSION_STREAMS_BYTES_MAX", (0, 32 * 1024 * 1024)),
)
"""Limits of the product that are drawn too, so that small data reaches what only much data would."""


class Backups(Enum):
    """When backups may answer clients: never, after READONLY, or as the keyspace's reads are Available."""

    NEVER = ""
    READONLY = "READONLY"
    AVAILABLE = "Available"


STALENESS_SECONDS = 0.5
"""How long owners go on answering reads of an Available keyspace in runs of that kind."""

RANGE_ROWS = 2
"""Rows of a digest: small tables have several, too."""


@dataclass(frozen=True)
class Profile:
    """Drawn from the seed. `chaos_seconds` is how long faults begin, about every `calm_seconds`.

    `without` names faults that are drawn and do not happen. `ending` is what becomes of a member for good
    when they end: one of ENDINGS but the last, or "" when all come back. `build` is what the operator and
    the members speak with which the cluster begins. `recovered`: then the cluster's object is deleted, and
    another one is made from its volumes, while faults go on. With `volumes`, LOCAL or MOVABLE, pods have
    nodes. `clears` is the part of the operations that clear all keys of a partition.
    `redis_clients` have connections, and do more than the other `clients`; `tracking_clients` cache what they
    read, `cluster_clients` route by the map, entries of `expiring_clients` expire, `transfer_clients` run
    transactions, whose keys are in several partitions with `apart`, and who undo theirs with `written_back`;
    `async_clients` have an Async keyspace, `local_clients` one with mode Invalidation; `group_clients` have
    keyspaces with partitions of their own, which are declared after `declared_seconds`. With `listens` there
    are subscribers of events, and with
    `resp_subscribers` they have connections.
    """

    seed: int
    members: int
    replicas: int
    partitions: int
    clients: int
    keys: int
    think_seconds: tuple[float, float]
    heartbeat_seconds: float
    lease_seconds: float
    grace_seconds: int
    retention_seconds: int
    chaos_seconds: float
    calm_seconds: float
    faults: tuple[str, ...]
    rates: Mapping[str, float]
    knobs: tuple[float, ...]
    parallel: int = 10
    fsync: Fsync = Fsync.ALWAYS
    ending: str = ""
    without: frozenset[str] = frozenset()
    build: FormatRange = SPOKEN
    recovered: bool = False
    backups: Backups = Backups.NEVER
    near_caches: bool = False
    volumes: str = ""
    replace_after_seconds: int = 0
    clears: float = 0.0
    redis_clients: int = 0
    tracking_clients: int = 0
    cluster_clients: int = 0
    expiring_clients: int = 0
    transfer_clients: int = 0
    apart: bool = False
    written_back: bool = False
    local_clients: int = 0
    async_clients: int = 0
    group_clients: int = 0
    declared_seconds: float = 0.0
    listens: bool = False
    resp_subscribers: bool = False

    def rate(self, name: str) -> float:
        """One of RATES; 0 when it is not drawn, or left out."""
        return 0.0 if name in self.without else self.rates.get(name, 0.0)

    @property
    def shortest_lease_seconds(self) -> float:
        """The least that leases last in this run."""
        changed = CHANGE_DETECTION in self.faults
        return min(HEARTBEATS) * min(LEASES) if changed else self.lease_seconds

    def cluster_object(self) -> dict[str, Any]:
        """The TabletCluster that the user made."""
        spec: dict[str, Any] = {
            "members": self.members,
            "partitions": self.partitions,
            "replicas": self.replicas,
            "migration": {"engine": "Direct", "maxParallelPerMember": self.parallel},
            "storage": {"size": "1Gi", "quarantineRetentionSeconds": self.retention_seconds},
            "failureDetection": {
                "heartbeatSeconds": self.heartbeat_seconds,
                "leaseSeconds": self.lease_seconds,
                "rejoinGracePeriodSeconds": self.grace_seconds,
            },
            "security": OPEN,
        }
        if self.replace_after_seconds:
            spec["failureDetection"] |= {"replaceAfterSeconds": self.replace_after_seconds}
        metadata = {"name": CLUSTER}
        return {"apiVersion": API_VERSION, "kind": "TabletCluster", "metadata": metadata, "spec": spec}

    @contextmanager
    def turned(self) -> Iterator[None]:
        """The product with this profile's limits."""
        before = [getattr(module, name) for module, name, _ in KNOBS]
        staleness = stele.member.limits.STALENESS_SECONDS_MAX
        range_rows = stele.core.table.digests.RANGE_ROWS
        settings_of, moves_wanted = Keyspaces.settings_of, EntryMoves.wanted
        try:
            stele.member.limits.STALENESS_SECONDS_MAX = STALENESS_SECONDS
            stele.core.table.digests.RANGE_ROWS = RANGE_ROWS
            if self.listens:
                Keyspaces.settings_of = lambda *_: Settings(notify="KEAM")  # type: ignore[method-assign]
                EntryMoves.wanted = True  # type: ignore[assignment,method-assign]
            for (module, name, _), value in zip(KNOBS, self.knobs, strict=True):
                setattr(module, name, value)
            yield
        finally:
            stele.member.limits.STALENESS_SECONDS_MAX = staleness
            stele.core.table.digests.RANGE_ROWS = range_rows
            Keyspaces.settings_of = settings_of  # type: ignore[method-assign]
            EntryMoves.wanted = moves_wanted  # type: ignore[method-assign]
            for (module, name, _), value in zip(KNOBS, before, strict=True):
                setattr(module, name, value)


Families = dict[str, Callable[[int], Profile]]
"""What draws the profile of a seed, by the name of the family."""
