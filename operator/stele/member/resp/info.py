"""INFO, in the sections and under the names by which monitoring tools of Redis look for its fields."""

import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from stele import __version__
from stele.ports.key_value_service import KeyValueService

REDIS_VERSION = "7.4.0"
"""Tells clients and tools which commands and replies to expect."""

STATM = Path("/proc/self/statm")
_BEGAN = time.monotonic()

_CLIENTS = (
    "connected_clients",
    "client_tls",
    "tls_clients",
    "tls_handshakes_waiting",
    "maxclients",
    "waiting_bytes",
    "reply_bytes",
    "push_bytes",
    "push_clients_closed",
)
_STATS = (
    "total_connections_received",
    "rejected_connections",
    "evicted_unauthenticated_clients",
    "total_commands_processed",
    "tls_handshakes",
    "tls_handshakes_failed",
    "tls_required_refused",
    "pubsub_channels",
    "pubsub_patterns",
    "acl_access_denied_auth",
    "acl_access_denied_tls_cert",
    "acl_access_denied_cmd",
    "acl_access_denied_key",
    "acl_access_denied_channel",
    "unauthenticated_clients",
)

Facts = Mapping[str, str | int]


class InfoServer(Protocol):
    """The part of the RESP server that INFO shows."""

    store: KeyValueService

    def facts(self) -> dict[str, str | int]: ...


def info(server: InfoServer, cluster: bool, names: Iterable[bytes]) -> str:
    """Return the named sections; all of them without a name. Unknown ones are left out, as in Redis."""
    wanted = {name.decode(errors="replace").lower() for name in names}
    if not wanted or wanted & {"all", "default", "everything"}:
        wanted = set(_SECTIONS)
    return "\r\n".join(
        _section(title, facts(server, cluster)) for title, facts in _SECTIONS.items() if title in wanted
    )


def _section(title: str, facts: Facts) -> str:
    return f"# {title.capitalize()}\r\n" + "".join(f"{key}:{value}\r\n" for key, value in facts.items())


def _server(server: InfoServer, cluster: bool) -> Facts:
    uptime_seconds = int(time.monotonic() - _BEGAN)
    return {
        "redis_version": REDIS_VERSION,
        "redis_mode": "cluster" if cluster else "standalone",
        "os": " ".join((os.uname().sysname, os.uname().release, os.uname().machine)),
        "arch_bits": 64,
        "process_id": os.getpid(),
        "tcp_port": server.facts()["tcp_port"],
        "uptime_in_seconds": uptime_seconds,
        "uptime_in_days": uptime_seconds // 86_400,
        "stele_version": __version__,
    }


def _clients(server: InfoServer, cluster: bool) -> Facts:
    tracking = {"tracking_clients": server.store.near_caches.clients}
    return {**_some(server.facts(), _CLIENTS), **tracking}


def _memory(server: InfoServer, cluster: bool) -> Facts:
    resident, peak = _resident_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"used_memory": resident, "used_memory_rss": resident, "used_memory_peak": peak}


def _resident_bytes() -> int:
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _stats(server: InfoServer, cluster: bool) -> Facts:
    return {**_some(server.facts(), _STATS), **server.store.near_caches.facts()}


def _replication(server: InfoServer, cluster: bool) -> Facts:
    """Return what tools ask for; copies are kept by partition, so no member is a replica of another."""
    return {"role": "master", "connected_slaves": 0}


def _cpu(server: InfoServer, cluster: bool) -> Facts:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"used_cpu_sys": f"{used.ru_stime:.6f}", "used_cpu_user": f"{used.ru_utime:.6f}"}


def _cluster(server: InfoServer, cluster: bool) -> Facts:
    return {"cluster_enabled": int(cluster)}


def _stele(server: InfoServer, cluster: bool) -> Facts:
    return server.store.info()


def _some(facts: Facts, names: Iterable[str]) -> Facts:
    return {name: facts[name] for name in names}


_SECTIONS: dict[str, Callable[[InfoServer, bool], Facts]] = {
    "server": _server,
    "clients": _clients,
    "memory": _memory,
    "stats": _stats,
    "replication": _replication,
    "cpu": _cpu,
    "cluster": _cluster,
    "stele": _stele,
}
