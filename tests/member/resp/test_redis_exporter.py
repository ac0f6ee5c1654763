"""Prometheus' exporter for Redis reads INFO and a few other commands of a member without an error."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from e2e.bench.member_stage import free_ports
from tests import packages
from tests.member.harness.cluster import Cluster, eventually
from tests.member.resp.test_cluster_clients import CLUSTER_PORT

PACKAGE = "prometheus-redis-exporter"


@asynccontextmanager
async def exporter(made: Cluster, port: int) -> AsyncIterator[str]:
    """Run one that looks at a port of member 0; the address of its metrics."""
    await asyncio.to_thread(packages.ensure, PACKAGE)
    host, (listens,) = made.members[0].host, free_ports(1)
    redis, web = f"redis://{host}:{made.ports[port]}", f"{host}:{listens}"
    process = await asyncio.create_subprocess_exec(PACKAGE, "-redis.addr", redis, "-web.listen-address", web)
    try:
        yield f"http://{web}/metrics"
    finally:
        process.terminate()
        await process.wait()


async def scraped(url: str) -> dict[str, float]:
    """The metrics without labels, and those whose labels are empty."""

    async def text() -> str:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.text()

    found = await eventually(text, bool)
    return {name: float(value) for name, value in re.findall(r'^(\w+)(?:{err=""})? (\S+)$', found, re.M)}


@pytest.mark.parametrize("port", [0, CLUSTER_PORT])
async def test_a_member_is_scraped_without_an_error(one: Cluster, port: int) -> None:
    async with exporter(one, port) as url:
        metrics = await scraped(url)
    assert metrics["redis_up"] == 1
    assert metrics["redis_exporter_last_scrape_error"] == 0
    assert metrics["redis_cluster_enabled"] == bool(port)
    for name in (
        "redis_connected_clients",
        "redis_commands_processed_total",
        "redis_connections_received_total",
        "redis_memory_used_bytes",
        "redis_cpu_user_seconds_total",
    ):
        assert metrics[name] > 0, name
    for name in ("redis_tracking_clients", "redis_tracking_total_keys", "redis_pubsub_channels"):
        assert metrics[name] == 0, name
