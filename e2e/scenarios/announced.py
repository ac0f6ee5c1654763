"""Cluster clients outside of the pod network: a NodePort of each member is announced, and one client follows.

As docs/reference/clients.md says under "Clients outside of the pod network".
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from e2e.cluster.errors import ClusterError
from e2e.cluster.steps import step
from e2e.demo import stage
from e2e.demo.settings import Settings
from e2e.scenarios import reaching
from e2e.scenarios.reaching import kubectl

PORT, READ_PORT = 31_000, 31_100
KEYS = 500
SECONDS_MAX = 60.0
NODE = '{.items[0].status.addresses[?(@.type=="InternalIP")].address}'
NAMES = "{.items[*].metadata.name}"


@dataclass(frozen=True)
class Outcome:
    """What the client saw: addresses of owners, values that were not as written, and requests that a member
    passed on to another one while they were read."""

    expected: frozenset[str]
    owners: frozenset[str]
    wrong: int
    forwarded: int


def run(settings: Settings) -> Outcome:
    """Announce node ports of the cluster that runs; write and read through them. They stay announced, their
    Services are removed.

    Raises ClusterError when they are not announced in time.
    """
    host = kubectl(settings, "get", "nodes", f"--output=jsonpath={NODE}")
    selector = f"--selector={stage.CLUSTER_LABEL}={settings.cluster}"
    members = kubectl(settings, "get", "tabletmembers", selector, f"--output=jsonpath={NAMES}").split()
    ordinals = {name: int(name.rpartition("-")[2]) for name in members}
    expected = frozenset(f"{host}:{PORT + ordinal}" for ordinal in ordinals.values())
    services = [_service(name, ordinal) for name, ordinal in ordinals.items()]
    _, login = reaching.login(settings)
    announce = {"host": host, "port": PORT, "readPort": READ_PORT, "portStep": 1}
    patch = json.dumps({"spec": {"resp": {"cluster": {"announce": announce}}}})
    try:
        with step("announce a node port of each member"):
            manifest = {"apiVersion": "v1", "kind": "List", "items": services}
            reaching.apply(settings, manifest)
            kubectl(settings, "patch", settings.resource, "--type=merge", f"--patch={patch}")
        with step("write and read with a cluster client through them"):
            return _ask(expected, login)
    finally:
        names = [each["metadata"]["name"] for each in services]
        kubectl(settings, "delete", "service", "--ignore-not-found", *names)


def _ask(expected: frozenset[str], login: dict[str, Any]) -> Outcome:
    with _client(expected, login) as client:
        values = {f"announced-{number}": str(number).encode() for number in range(KEYS)}
        for key, value in values.items():
            client.set(key, value)
        before = _forwarded(client)
        wrong = sum(client.get(key) != value for key, value in values.items())
        return Outcome(expected, _owners(client), wrong, _forwarded(client) - before)


def _client(expected: frozenset[str], login: dict[str, Any]) -> RedisCluster:
    """Return a client once members announce these addresses: each learns them with its next exchange."""
    host, _, port = min(expected).rpartition(":")
    end, seen = time.monotonic() + SECONDS_MAX, "nothing"
    while time.monotonic() < end:
        try:
            client = RedisCluster(host=host, port=int(port), **login)
        except (RedisError, RedisClusterException) as error:
            seen = repr(error)
        else:
            if _owners(client) <= expected:
                return client
            seen = str(sorted(_owners(client)))
            client.close()
        time.sleep(1.0)
    raise ClusterError(f"Members announce {seen} after {SECONDS_MAX:.0f} s, expected {sorted(expected)}.")


def _owners(client: RedisCluster) -> frozenset[str]:
    return frozenset(_info(client))


def _forwarded(client: RedisCluster) -> int:
    return sum(int(each["forwarded"]) for each in _info(client).values())


def _info(client: RedisCluster) -> dict[str, dict[str, Any]]:
    """Return INFO of each owner, by its address as the client has it."""
    found: dict[str, dict[str, Any]] = client.info(target_nodes=RedisCluster.PRIMARIES)
    return found


def _service(member: str, ordinal: int) -> dict[str, Any]:
    ports = [
        {"name": "resp-cluster", "port": 6380, "nodePort": PORT + ordinal},
        {"name": "resp-read", "port": 6381, "nodePort": READ_PORT + ordinal},
    ]
    spec = {"type": "NodePort", "selector": {"stele.dev/member": member}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"{member}-redis"}, "spec": spec}
