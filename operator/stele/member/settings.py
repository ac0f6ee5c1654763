"""Settings of the member process, from the environment; a wrong one is named with what is expected."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from stele.errors import BadInput


class Fsync(Enum):
    """When an operation counts as held: once synced, or (Interval, Never) once the system has it."""

    ALWAYS = "Always"
    INTERVAL = "Interval"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the process is started with; everything else it learns from the master. `boot_id`: of its node's
    running kernel, not from the environment.
    """

    data_dir: Path
    cluster: str
    name: str
    bind: str = "0.0.0.0"
    resp_port: int = 6379
    peer_port: int = 7000
    admin_port: int = 7001
    transfer_port: int = 7002
    fsync: Fsync = Fsync.ALWAYS
    heartbeat_ms: int = 300
    lease_ms: int = 2000
    retention_seconds: int = 3600
    pod_uid: str = ""
    boot_id: str = ""

    @property
    def local_host(self) -> str:
        """Where the second container of this pod listens."""
        return "127.0.0.1" if self.bind in {"0.0.0.0", "::"} else self.bind


VARIABLES = """\
STELE_DATA_DIR            the volume's folder (required)
STELE_CLUSTER_UID         UID of the TabletCluster (required)
STELE_MEMBER_NAME         name of the TabletMember (required)
STELE_BIND                address to listen on (0.0.0.0)
STELE_RESP_PORT           clients, RESP (6379)
STELE_PEER_PORT           members; the same at all members (7000)
STELE_ADMIN_PORT          master, probes, metrics (7001)
STELE_TRANSFER_PORT       the transfer process of this pod, and of every other (7002)
STELE_FSYNC               Always, Interval (100 ms) or Never (Always)
STELE_HEARTBEAT_MS        between two heartbeats to each member, 10 to 60000 (300)
STELE_LEASE_MS            how long a lease lasts, at least 2 heartbeats, at most 600000 (2000)
STELE_RETENTION_SECONDS   how long a deleted tablet's data stays in quarantine, 0 to 31536000 (3600)
STELE_POD_UID             UID of its pod (none: its death is never proven, leases are waited for)
STELE_CRASH_POINT         for tests: die at this step, NAME or NAME:N (never)
"""


def read_settings(env: Mapping[str, str]) -> Settings:
    """Raise BadInput that names the variable, its value and what is expected."""
    made = Settings(
        data_dir=Path(_required(env, "STELE_DATA_DIR", "a folder")),
        cluster=_required(env, "STELE_CLUSTER_UID", "the UID of the TabletCluster"),
        name=_required(env, "STELE_MEMBER_NAME", "the name of the TabletMember"),
        bind=env.get("STELE_BIND", "0.0.0.0"),
        resp_port=_number(env, "STELE_RESP_PORT", 6379, 1, 65535),
        peer_port=_number(env, "STELE_PEER_PORT", 7000, 1, 65535),
        admin_port=_number(env, "STELE_ADMIN_PORT", 7001, 1, 65535),
        transfer_port=_number(env, "STELE_TRANSFER_PORT", 7002, 1, 65535),
        fsync=_fsync(env.get("STELE_FSYNC", Fsync.ALWAYS.value)),
        heartbeat_ms=_number(env, "STELE_HEARTBEAT_MS", 300, 10, 60_000),
        lease_ms=_number(env, "STELE_LEASE_MS", 2000, 20, 600_000),
        retention_seconds=_number(env, "STELE_RETENTION_SECONDS", 3600, 0, 31_536_000),
        pod_uid=env.get("STELE_POD_UID", ""),
    )
    if made.lease_ms < 2 * made.heartbeat_ms:
        raise BadInput(
            f"STELE_LEASE_MS is {made.lease_ms}; it must be at least twice STELE_HEARTBEAT_MS "
            f"({made.heartbeat_ms}), or reads stop whenever one heartbeat is late"
        )
    return made


def _required(env: Mapping[str, str], name: str, what: str) -> str:
    value = env.get(name, "")
    if not value:
        raise BadInput(f"{name} is not set; it must be {what}")
    return value


def _number(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = env.get(name)
    if text is None or text == "":
        return default
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise BadInput(f"{name} is {text!r}; it must be a whole number from {least} to {most}")
    return int(text)


def _fsync(text: str) -> Fsync:
    try:
        return Fsync(text)
    except ValueError:
        names = ", ".join(mode.value for mode in Fsync)
        raise BadInput(f"STELE_FSYNC is {text!r}; it must be one of {names}") from None
