"""The systems that bench-steady asks: three members, or redis-server alone, and processes of clients."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from e2e.bench import machine
from e2e.bench.grid import CLIENTS, Grid, node
from e2e.bench.member_stage import RedisServer, stage
from e2e.bench.secured import Secured
from e2e.bench.steady_table import LETTUCE, PLAIN, REDIS, REPLICAS, SMART
from e2e.bench.talk import Talker
from stele.core.kv.keyspaces import REPLICATED_PARTITIONS, Catalog, Mode, Reads, Settings
from stele.core.table.groups import PartitionGroup, PartitionGroups

PARTITIONS = 271
_REPLICATED = Catalog(
    3, {"default": Settings(mode=Mode.REPLICATED, reads=Reads.AVAILABLE, own_partitions=True)}
)
_GROUPS = PartitionGroups(1, (PartitionGroup("default", PARTITIONS, REPLICATED_PARTITIONS, 3),))


@dataclass(frozen=True, slots=True)
class Running:
    """A system that serves: its clients, by the name of the row, and the processes of its servers.

    `declare` gives the clients' keyspace these settings and groups, `replicate` every member a copy of it.
    `used_bytes` is the memory of all servers: of a JVM the heap that is left after a collection, of other
    processes what is resident.
    """

    clients: dict[str, Talker]
    servers: Sequence[int]
    used_bytes: Callable[[], int]
    replicate: Callable[[], object] = lambda: None
    declare: Callable[[Catalog], None] = lambda _catalog: None


def resident_bytes(pids: Sequence[int]) -> int:
    """Memory of these processes that is in RAM."""
    return sum(map(machine.resident_bytes, pids))


@contextmanager
def stele(*, fsync: str = "Interval", secured: bool = False) -> Iterator[Running]:
    """Stele, and its clients on port 6380 and 6379."""
    with (
        tempfile.TemporaryDirectory() as folder,
        stage(Path(folder), 3, PARTITIONS, REPLICAS, fsync, secured=secured) as made,
    ):
        options = _options(made.secured)
        cluster = _addresses(*(f"{each.host}:{each.cluster_port}" for each in made.members))
        proxy = _addresses(*(f"{each.host}:{each.port}" for each in made.members))
        with (
            node("stele-cluster", CLIENTS, PARTITIONS, cluster, *options) as smart,
            node("lettuce-cluster", CLIENTS, PARTITIONS, cluster, *options) as lettuce,
            node("stele-proxy", CLIENTS, PARTITIONS, proxy, *options) as plain,
        ):
            servers = [each.pid for each in made.members]
            yield Running(
                {SMART: smart, LETTUCE: lettuce, PLAIN: plain},
                servers,
                partial(resident_bytes, servers),
                partial(made.publish, _REPLICATED, _GROUPS),
                made.publish,
            )


def _addresses(*addresses: str) -> str:
    """The option that tells a process of clients where the servers are."""
    return f"-Dstele.members={','.join(addresses)}"


def _options(secured: Secured | None) -> list[str]:
    """What the clients are told of certificates and passwords."""
    if secured is None:
        return []
    return [f"-Dstele.ca={secured.trusted}", f"-Dstele.password={secured.password}"]


@contextmanager
def redis() -> Iterator[Running]:
    """redis-server alone, which keeps one copy and syncs its file every second, and the same clients."""
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder) / "redis") as server:
        address = _addresses(f"{server.host}:{server.port}")
        with (
            node("stele-proxy", CLIENTS, PARTITIONS, address) as jedis,
            node("lettuce", CLIENTS, PARTITIONS, address) as lettuce,
        ):
            clients = {REDIS[SMART]: jedis, REDIS[LETTUCE]: lettuce}
            yield Running(clients, [server.pid], server.resident_bytes)


@contextmanager
def peer(name: str) -> Iterator[Running]:
    """Hazelcast or Infinispan, and its clients."""
    with Grid(name.lower(), PARTITIONS) as grid:
        grid.members[0].ask("mark")
        servers = [each.pid for each in grid.members]
        yield Running({name: grid.clients}, servers, partial(_heaps, grid), partial(_replicate, grid))


def _replicate(grid: Grid) -> None:
    for each in (*grid.members, grid.clients):
        each.ask("replicate")


def _heaps(grid: Grid) -> int:
    return sum(int(each.ask("memory")["heap_bytes"]) for each in grid.members)
