"""One suite for what fills the master's cache: Kopf's watches of a real API server, and the simulation's.

Those of the simulation lose, repeat and delay events; its lists make up for it, as the master's own do.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stele.adapters.kubernetes.api import CLUSTERS, Api, Kind
from stele.adapters.kubernetes.login import log_in
from stele.master import watch
from stele.master.cache import Cache
from tests.contract.conftest import REAL
from tests.contract.test_api import cluster
from tests.fakes.api import NAMESPACE, ApiServer, SimApi
from tests.fakes.bridge import Bridged, pass_time
from tests.fakes.loop import Clock, ProcessLoop
from tests.fakes.network import Network
from tests.simulation.kubelet import Kubelet
from tests.simulation.master import Listeners, MasterProcess

LOOKS_MAX = 300
BADLY = {"watch_lost": 0.3, "watch_repeated": 0.3, "watch_seconds": 2.0}


@dataclass
class Case:
    """`told` are the versions that the cache told of, or what went, by name; `watch` begins to fill it."""

    api: Any
    namespace: str
    watch: Callable[[], Awaitable[Cache]]
    step: Callable[[], Awaitable[None]]
    told: dict[str, list[int]] = field(default_factory=dict)

    def changed(self, kind: Kind, stored: dict[str, Any]) -> None:
        meta = stored["metadata"]
        self.told.setdefault(meta["name"], []).append(int(meta["resourceVersion"]))

    async def make(self, name: str) -> dict[str, Any]:
        made: dict[str, Any] = await self.api.create(CLUSTERS, self.namespace, cluster(name=name))
        return made

    async def until(self, cache: Cache, name: str, expected: dict[str, Any] | None) -> None:
        for _ in range(LOOKS_MAX):
            found = cache.get(CLUSTERS, self.namespace, name)
            if (found is None) == (expected is None) and (not found or _same(found, expected)):
                return
            await self.step()
        raise AssertionError(f"{name}: {found}, expected {expected}")


def _same(found: dict[str, Any], expected: Any) -> bool:
    return all(found.get(key) == expected.get(key) for key in ("spec", "status", "metadata"))


class Watching(MasterProcess):
    """A master that only looks."""

    async def _run(self) -> None:
        await self._list()


def simulated(folder: Path, faults: dict[str, float]) -> Case:
    clock = Clock(1)
    network = Network(clock)
    server = ApiServer(clock, network)
    for name, part in faults.items():
        setattr(server.faults, name, part)
    kubelet = Kubelet(clock, network, server, folder, lambda _: pytest.fail("no pod is asked for"))
    user = ProcessLoop(clock, "user", network)

    async def begin() -> Cache:
        master = Watching(network, server, kubelet, "master-0", Listeners(*[lambda *_: None] * 2))
        master.cache._changed = case.changed
        return master.cache

    async def step() -> None:
        pass_time(clock, 0.2)

    case = Case(Bridged(SimApi(server, user), user), NAMESPACE, begin, step)
    return case


async def real(plane: Any, namespace: str, stack: list[asyncio.Task[None]]) -> Case:
    login = await log_in(str(plane.kubeconfig))
    api = await Api(login).__aenter__()

    async def begin() -> Cache:
        cache, ready = Cache(case.changed), asyncio.Event()
        stack.append(asyncio.create_task(watch.run(cache, login, (namespace,), ready)))
        await asyncio.wait_for(ready.wait(), 20)
        return cache

    case = Case(api, namespace, begin, lambda: asyncio.sleep(0.05))
    return case


@pytest.fixture(params=["simulated", "simulated badly", REAL])
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    if request.param != "kubernetes":
        yield simulated(tmp_path, BADLY if request.param.endswith("badly") else {})
        return
    tasks: list[asyncio.Task[None]] = []
    plane = request.getfixturevalue("control_plane")
    made = await real(plane, request.getfixturevalue("namespace"), tasks)
    yield made
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await made.api.__aexit__()
    # Connections that were cut off close in the turns of the loop that follow.
    await asyncio.sleep(0.3)


async def test_the_cache_gets_what_is_there_what_changes_and_what_goes(case: Case) -> None:
    before = await case.make("before")
    cache = await case.watch()
    await case.until(cache, "before", before)
    after = await case.make("after")
    await case.until(cache, "after", after)
    for epoch in range(1, 6):
        before = await case.api.patch_status(CLUSTERS, case.namespace, "before", {"epoch": epoch})
    await case.until(cache, "before", before)
    await case.api.delete(CLUSTERS, case.namespace, "after", after["metadata"]["uid"])
    await case.until(cache, "after", None)
    for versions in case.told.values():
        assert versions == sorted(set(versions)), "an older version after a newer one"
    assert cache.newest() == int(before["metadata"]["resourceVersion"])


async def test_what_was_removed_is_known_as_it_was_last(case: Case) -> None:
    """As the API server streams it with the deletion; where that got lost, as it was seen last."""
    cache = await case.watch()
    made = await case.make("a")
    assert cache.removed(CLUSTERS, case.namespace, "a") is None
    await case.until(cache, "a", made)
    await case.api.delete(CLUSTERS, case.namespace, "a", made["metadata"]["uid"])
    await case.until(cache, "a", None)
    removed = cache.removed(CLUSTERS, case.namespace, "a")
    assert removed is not None
    assert removed["metadata"]["uid"] == made["metadata"]["uid"]
    again = await case.make("a")
    await case.until(cache, "a", again)
    assert cache.removed(CLUSTERS, case.namespace, "a") == removed


async def test_another_object_of_the_name_takes_the_place_of_the_first(case: Case) -> None:
    cache = await case.watch()
    first = await case.make("one")
    await case.until(cache, "one", first)
    await case.api.delete(CLUSTERS, case.namespace, "one", first["metadata"]["uid"])
    second = await case.make("one")
    await case.until(cache, "one", second)
    for _ in range(20):
        await case.step()
    await case.until(cache, "one", second)
