"""One member joins three that hold data, while clients read and write: Stele, Hazelcast or Infinispan.

All run as processes on loopback. Safe is: every partition has its owner and its backup, the joiner has its
share, and the system itself says that nothing moves. Times begin when the members know of the joiner: what a
pod or a JVM takes to start is in `total_seconds` alone.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.bench.copy_rig import MemberRig, member_rig, spec_of
from e2e.bench.grid import Grid, log_of
from e2e.bench.secured_rig import SecuredRig
from e2e.bench.talk import Talker
from e2e.cluster.steps import say

SECURED = "stele, TLS"
SYSTEMS = ("stele", SECURED, "hazelcast", "infinispan")
PARTITIONS = 271
REPLICAS = 2
VALUE_BYTES = 16_384
RATE = 500
CLIENT_THREADS = 8
LOAD_SECONDS_MAX = 300.0
SAFE_SECONDS_MAX = 240
RIGS: dict[str, type[MemberRig]] = {"stele": MemberRig, SECURED: SecuredRig}
WARM_SECONDS = {"stele": 3.0, SECURED: 3.0, "hazelcast": 10.0, "infinispan": 10.0}
QUIET_SECONDS = 5.0
LAG_SECONDS_MAX = 0.05
IDLE_SECONDS_MAX = 20.0

Owners = Sequence[Sequence[object]]


@dataclass(frozen=True, slots=True)
class Joined:
    """Moments (seconds of the monotonic clock): the joiner was asked for, was known, everything was safe."""

    begun: float
    known: float
    safe: float
    replicas_moved: int


def moved(before: Owners, after: Owners) -> int:
    """Replicas on a member that had none of the partition before."""
    return sum(len({*new} - {*old}) for old, new in zip(before, after, strict=True))


def measure(system: str, data_bytes: int) -> dict[str, Any]:
    """One row: times, bytes, and clients' latencies, quiet and while the member joined."""
    say(f"{system}: a member joins three with {data_bytes >> 20} MiB")
    if system in RIGS:
        return asyncio.run(_ours(system, data_bytes))
    with Grid(system, PARTITIONS) as grid:
        return _observe(system, data_bytes, grid.clients, lambda: _join(grid))


# -- clients, the same for all systems


def _observe(system: str, data_bytes: int, clients: Talker, join: Callable[[], Joined]) -> dict[str, Any]:
    loaded = clients.ask("load", data_bytes, VALUE_BYTES, seconds=LOAD_SECONDS_MAX)
    clients.ask("live", RATE, CLIENT_THREADS)
    time.sleep(WARM_SECONDS[system])
    kept_up = until_idle(clients)
    begin = time.monotonic_ns()
    time.sleep(QUIET_SECONDS)
    quiet = clients.ask("stats", begin, time.monotonic_ns())
    found = join()
    during = clients.ask("stats", round(found.known * 1e9), round(found.safe * 1e9))
    ended, verified = clients.ask("end"), clients.ask("verify", seconds=LOAD_SECONDS_MAX)
    latencies = latencies_of({"quiet": quiet, "join": during})
    return row_of(system, data_bytes, found) | latencies | {
        "load_seconds": loaded["seconds"],
        "kept_up": kept_up,
        "failed": sum(stats[kind]["failed"] for stats in (quiet, during) for kind in ("get", "set")),
        "wrong": sum(ended[each] for each in ("stale_reads", "missing_reads"))
        + sum(verified[each] for each in ("missing", "corrupt", "older")),
    }  # fmt: skip


def until_idle(clients: Talker) -> bool:
    """Wait until the clients are not behind their plan; whether that came."""
    end = time.monotonic() + IDLE_SECONDS_MAX
    while (lag := clients.ask("lag")["seconds"]) > LAG_SECONDS_MAX and time.monotonic() < end:
        time.sleep(0.2)
    return bool(lag <= LAG_SECONDS_MAX)


def row_of(system: str, data_bytes: int, found: Joined) -> dict[str, Any]:
    """How long the join took and how much it moved: each replica is one of equal partitions."""
    seconds = found.safe - found.known
    moved_bytes = found.replicas_moved * data_bytes // PARTITIONS
    return {
        "system": system,
        "data_bytes": data_bytes,
        "safe_seconds": seconds,
        "total_seconds": found.safe - found.begun,
        "replicas_moved": found.replicas_moved,
        "moved_bytes": moved_bytes,
        "bytes_per_second": moved_bytes / seconds if seconds > 0 else None,
    }


def latencies_of(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`quiet_get_p99_seconds` and the others, from what the clients said for each time."""
    return {
        f"{when}_{kind}_{name}": stats[kind][name]
        for when, stats in measured.items()
        for kind in ("get", "set")
        for name in ("p50_seconds", "p99_seconds", "max_seconds", "call_max_seconds")
    }


# -- Stele


async def _ours(system: str, data_bytes: int) -> dict[str, Any]:
    async with member_rig(RIGS[system]) as rig:
        await rig.start_operator()
        await rig.apply(spec_of(3, PARTITIONS))
        await rig.until_whole(3)
        hosts = [f"{host}:{port}" for host, port in rig.hosts()]
        command = [sys.executable, "-m", "e2e.bench.copy_load", *hosts, *await rig.login()]
        loop = asyncio.get_running_loop()
        with Talker("The clients", command, log_of("stele-clients")) as clients:

            def join() -> Joined:
                return asyncio.run_coroutine_threadsafe(_join_ours(rig), loop).result()

            row = await asyncio.to_thread(_observe, system, data_bytes, clients, join)
        return row | await _told(rig)


async def _join_ours(rig: MemberRig) -> Joined:
    before = [row.replicas for row in await rig.rows(PARTITIONS)]
    begun = time.monotonic()
    used = rig.cpu_seconds()
    await rig.apply(spec_of(4, PARTITIONS))
    known = await rig.until_joined()
    safe = await rig.until_spread(PARTITIONS, 4, REPLICAS)
    rig.note_cpu(used)
    await rig.until_whole(4)
    after = [row.replicas for row in await rig.rows(PARTITIONS)]
    return Joined(begun, known, safe, moved(before, after))


async def _told(rig: MemberRig) -> dict[str, Any]:
    """What the operator says of the copy, and the processor time that the join took."""
    done = [each["status"] for each in await rig.rebalances() if each.get("status", {}).get("bytesPlanned")]
    last = done[-1] if done else {}
    return {
        "engine": last.get("engine"),
        "copied_bytes": last.get("bytesCopied"),
        "cpu_seconds": rig.used_seconds,
    }


# -- Hazelcast and Infinispan


def _join(grid: Grid) -> Joined:
    first = grid.members[0]
    before = first.ask("table")["rows"]
    first.ask("mark")
    begun = time.monotonic()
    first.send("await", 4, SAFE_SECONDS_MAX)
    grid.members.append(grid.start(3))
    told = first.answer("await", SAFE_SECONDS_MAX + 10.0)
    after = first.ask("table")["rows"]
    return Joined(begun, told["view"] / 1e9, told["safe"] / 1e9, moved(before, after))
