"""Settings of the member process, from the environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from stele.adapters import environment
from stele.adapters.environment import Port, setting
from stele.core.security.level import InternalTls
from stele.errors import BadInput


class Fsync(Enum):
    """When an operation counts as held: once synced or, for Interval and Never, once the system has it."""

    ALWAYS = "Always"
    INTERVAL = "Interval"
    NEVER = "Never"


Heartbeat = Annotated[int, Meta(ge=10, le=60_000)]
LEASE_MS_MAX = 600_000
Lease = Annotated[int, Meta(ge=20, le=LEASE_MS_MAX)]
Retention = Annotated[int, Meta(ge=0, le=31_536_000)]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the process; everything else comes from the master.

    `boot_id` is that of the node's running kernel, and not from the environment.
    """

    data_dir: Path = setting("STELE_DATA_DIR", "the volume's folder")
    cluster: str = setting("STELE_CLUSTER_UID", "the UID of the TabletCluster")
    name: str = setting("STELE_MEMBER_NAME", "the name of the TabletMember")
    bind: str = setting("STELE_BIND", "address to listen on; every one of the pod by default", default="")
    resp_port: Port = setting("STELE_RESP_PORT", "clients, RESP", default=6379)
    cluster_port: Port = setting(
        "STELE_CLUSTER_PORT", "clients, Redis Cluster protocol; the same at all members", default=6380
    )
    read_port: Port = setting(
        "STELE_READ_PORT",
        "clients, Redis Cluster protocol, reads from backups; the same at all members",
        default=6381,
    )
    peer_port: Port = setting("STELE_PEER_PORT", "members; the same at all members", default=7000)
    admin_port: Port = setting("STELE_ADMIN_PORT", "master, tools", default=7001)
    transfer_port: Port = setting(
        "STELE_TRANSFER_PORT", "the transfer process of this pod, and of every other", default=7002
    )
    metrics_port: Port = setting("STELE_METRICS_PORT", "probes and metrics, read only", default=7004)
    fsync: Fsync = setting("STELE_FSYNC", "Interval: every 100 ms", default=Fsync.ALWAYS)
    heartbeat_ms: Heartbeat = setting("STELE_HEARTBEAT_MS", "between two heartbeats to a member", default=300)
    lease_ms: Lease = setting("STELE_LEASE_MS", "of a lease, at least 2 heartbeats", default=2000)
    retention_seconds: Retention = setting(
        "STELE_RETENTION_SECONDS", "how long a deleted tablet's data stays in quarantine", default=3600
    )
    pod_uid: str = setting(
        "STELE_POD_UID", "of its pod; without it its death is never proven, leases are waited for", default=""
    )
    tls_dir: str = setting(
        "STELE_TLS_DIR", "folder with tls.crt, tls.key and ca.crt; without it no TLS", default=""
    )
    first_member_tls: InternalTls = setting(
        "STELE_FIRST_MEMBER_TLS",
        "level of TLS between members while the volume has none, or a damaged one",
        default=InternalTls.OFF,
    )
    users_file: str = setting("STELE_USERS_FILE", "the users of the cluster", default="")
    crash_point: str = setting("STELE_CRASH_POINT", "for tests: die at this step, NAME or NAME:N", default="")
    boot_id: str = ""

    @property
    def local_host(self) -> str:
        """Address at which processes of this pod listen, for those of the same pod."""
        return "127.0.0.1" if self.bind in {"", "0.0.0.0", "::"} else self.bind


def read_settings(env: Mapping[str, str]) -> Settings:
    """Read the settings. Raises BadInput with the variable, its value and what it must be."""
    settings = environment.read(Settings, env)
    if settings.lease_ms < 2 * settings.heartbeat_ms:
        raise BadInput(
            f"STELE_LEASE_MS is {settings.lease_ms}; it must be at least twice STELE_HEARTBEAT_MS "
            f"({settings.heartbeat_ms}), or reads stop whenever one heartbeat is late"
        )
    return settings
