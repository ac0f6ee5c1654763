"""A real Prometheus that scrapes what a test runs, and what panels of dashboards show of it."""

import asyncio
import json
import math
import re
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from e2e.bench.member_stage import free_ports
from e2e.supply.dashboards import Dashboard
from tests import packages


def targets(job: str, labels_by_address: Mapping[str, Mapping[str, str]], **more: Any) -> dict[str, Any]:
    """What Prometheus is to scrape: addresses with ports, and the labels that each series gets."""
    listed = [{"targets": [address], "labels": labels} for address, labels in labels_by_address.items()]
    return {"job_name": job, "static_configs": listed, **more}


def targets_of_file(job: str, file: Path, **more: Any) -> dict[str, Any]:
    """The same, of targets that `name_targets` has written, which may change."""
    return {"job_name": job, "file_sd_configs": [{"files": [str(file)]}], **more}


def name_targets(file: Path, labels_by_address: Mapping[str, Mapping[str, str]]) -> None:
    """Write them where Prometheus looks again when the file is replaced."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(targets("", labels_by_address)["static_configs"]))
    new.replace(file)


def panels(dashboard: Dashboard, values: Mapping[str, str]) -> dict[str, list[str]]:
    """The queries of each panel, with values for the dashboard's variables (`$cluster`)."""
    return {
        panel.title: [
            re.sub(r"\$\w+", lambda found: values[found[0]], query) for query in panel.queries.values()
        ]
        for panel in dashboard.panels
    }


class Prometheus:
    def __init__(self, http: aiohttp.ClientSession, port: int) -> None:
        self._http, self._url = http, f"http://127.0.0.1:{port}/api/v1"

    async def ask(self, query: str) -> list[dict[str, Any]]:
        """The series of the answer now; none while it does not answer."""
        return list((await self._get("query", query=query)).get("result", []))

    async def numbers(self, query: str) -> list[float]:
        """The values that a panel would show now."""
        values = [float(each["value"][1]) for each in await self.ask(query)]
        return [each for each in values if math.isfinite(each)]

    async def since(self, query: str, began: float, step_seconds: float) -> list[dict[str, Any]]:
        """The series of the answer from a moment until now, as a graph shows them."""
        span = {"start": str(began), "end": str(time.time()), "step": str(step_seconds)}
        return list((await self._get("query_range", query=query, **span)).get("result", []))

    async def alerts(self) -> dict[str, dict[str, Any]]:
        """The alerts, by name, with their state and health."""
        groups = (await self._get("rules")).get("groups", [])
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    async def _get(self, path: str, **query: str) -> dict[str, Any]:
        try:
            async with self._http.get(f"{self._url}/{path}", params=query) as answer:
                if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
                    return {}  # It is starting.
                found = json.loads(await answer.text())
        except OSError:
            return {}
        assert found["status"] == "success", found
        return dict(found["data"])


@asynccontextmanager
async def prometheus(
    http: aiohttp.ClientSession, folder: Path, scraped: Sequence[dict[str, Any]], rules: Sequence[Path] = ()
) -> AsyncIterator[Prometheus]:
    """One that asks its targets, and evaluates its rules, each second."""
    packages.ensure("prometheus")
    (port,) = free_ports(1)
    settings = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(each) for each in rules],
        "scrape_configs": list(scraped),
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
        yield Prometheus(http, port)
    finally:
        process.kill()
        await process.wait()
