"""The dashboard of members, asked from a real Prometheus that scrapes real members."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from e2e.bench.member_stage import free_ports
from e2e.supply.dashboards import MEMBERS
from tests import packages
from tests.member.harness.cluster import Client, Cluster, cluster, eventually, key_in

LABELS = {"namespace": "shop", "cluster": "demo"}
VALUES = {"$__rate_interval": "5s", "$namespace": "shop", "$cluster": "demo", "$member": "demo-.*"}
EMPTY = {"Days of certificates"}
"""These members have no certificates."""


class Prometheus:
    def __init__(self, made: Cluster, port: int) -> None:
        self._made, self._url = made, f"http://127.0.0.1:{port}/api/v1/query"

    async def ask(self, query: str) -> list[dict[str, Any]]:
        """The series of the answer now; none while it does not answer."""
        try:
            async with self._made.http.get(self._url, params={"query": query}) as answer:
                if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
                    return []  # It is starting.
                found = json.loads(await answer.text())
        except OSError:
            return []
        assert found["status"] == "success", found
        return list(found["data"]["result"])


@asynccontextmanager
async def prometheus(made: Cluster, folder: Path) -> AsyncIterator[Prometheus]:
    packages.ensure("prometheus")
    (port,) = free_ports(1)
    targets = [
        {"targets": [f"{each.host}:{each.ports[4]}"], "labels": {**LABELS, "pod": f"demo-{index}"}}
        for index, each in made.members.items()
    ]
    settings = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "members", "static_configs": targets}],
    }
    folder.joinpath("prometheus.yaml").write_text(yaml.safe_dump(settings))
    process = await asyncio.create_subprocess_exec(
        shutil.which("prometheus") or "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    )
    try:
        yield Prometheus(made, port)
    finally:
        process.kill()
        await process.wait()


async def test_panels_of_members_show_something(tmp_path: Path) -> None:
    async with cluster(tmp_path, 2, partitions=2) as made, prometheus(made, tmp_path) as asked:
        client = Client(made)

        async def shown(query: str) -> str:
            """What the query answers while clients write and read; empty without a series."""
            await client.set(made.owner(0), key_in(0, 2), b"v")
            await client.call(made.owner(0), b"GET", key_in(0, 2))
            return f"{query}: {found}" if (found := await asked.ask(query)) else ""

        for panel in MEMBERS.panels:
            for query in panel.queries.values():
                real = re.sub(r"\$\w+", lambda found: VALUES[found[0]], query)
                if panel.title in EMPTY:
                    assert await asked.ask(real) == []
                else:
                    await eventually(partial(shown, real), bool)
