"""`kubectl stele page`: a port of this machine that leads to the page of the operator that leads."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from e2e.page.facts import KEY, Known, facts_of
from e2e.page.served import served
from tests.cli.conftest import Run
from tests.fakes.pod_proxy import fake_api

LEASE = "leases/stele-operator"
SECONDS_MAX = 60.0


def lease(holder: str) -> dict[str, Any]:
    return {"metadata": {"name": "stele-operator"}, "spec": {"holderIdentity": holder}}


def pods(*names: str) -> dict[str, Any]:
    return {"items": [{"metadata": {"name": name, "uid": f"uid-{name}"}} for name in names], "metadata": {}}


class Page:
    """The command as a process, and the address that it printed."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process, self.url = process, url

    async def ask(self, path: str = "v1/clusters") -> tuple[int, Any]:
        """What a browser gets over a new connection."""
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
            return answer.status, await answer.json()

    async def end(self) -> tuple[int | None, str]:
        """Ctrl-C; its exit code and what it said of errors."""
        self.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(SECONDS_MAX):
            _, errors = await self.process.communicate()
        return self.process.returncode, errors.decode()


@asynccontextmanager
async def page(config: Path, *words: str) -> AsyncIterator[Page]:
    """Run the command on this API server."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stele.cli", "page", "-n", "ns", "--kubeconfig", str(config), *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SECONDS_MAX):
            said = (await process.stdout.readline()).decode()
        url = re.match(r"(http://127\.0\.0\.1:\d+/)  \(Ctrl-C ends it\)\n", said)
        assert url, said
        yield Page(process, url[1])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_leads_to_who_leads_also_when_that_changes(tmp_path: Path) -> None:
    first, second = Known(facts_of()), Known(facts_of(), why_not="it stands by")
    objects = {LEASE: lease("uid-op-0"), "pods": pods("op-0", "op-1")}
    async with served(first) as here, served(second) as there:
        ports = {"op-0:8081": here, "op-1:8081": there}
        async with fake_api(tmp_path, ports, objects) as config, page(config) as shown:
            assert await shown.ask() == (200, [list(KEY)])
            assert (await shown.ask(f"v1/clusters/{KEY[0]}/{KEY[1]}"))[0] == 200
            first.why_not, second.why_not = "it stands by", ""
            assert await shown.ask() == (503, {"problem": "it stands by"})
            objects[LEASE] = lease("uid-op-1")
            assert await shown.ask() == (200, [list(KEY)])
            assert await shown.end() == (0, "")


async def test_what_goes_wrong_is_said_once(tmp_path: Path) -> None:
    objects = {LEASE: lease("uid-op-0"), "pods": pods("op-0")}
    async with fake_api(tmp_path, {}, objects) as config, page(config) as shown:
        for _ in range(2):
            try:
                await shown.ask()
            except aiohttp.ClientError:
                continue
            raise AssertionError("there is no such port")
        code, errors = await shown.end()
        assert code == 0
        assert errors.count("kubectl stele: ") == 1, errors


async def test_it_says_where_there_is_no_operator_or_none_leads(tmp_path: Path, run: Run) -> None:
    for objects, expected in (
        ({}, "-n names that of the operator"),
        ({LEASE: lease(""), "pods": pods("op-0")}, "no pod in namespace"),
    ):
        async with fake_api(tmp_path, {}, objects) as config:
            words = ("page", "-n", "ns", "--kubeconfig", str(config))
            ran = await asyncio.to_thread(run, *words)
        assert ran.code != 0
        assert expected in ran.err
