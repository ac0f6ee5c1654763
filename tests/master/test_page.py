"""The page of the operator: what it knows, and where it listens."""

import socket
from typing import Any

import aiohttp
import pytest

from e2e.page.facts import KEY, facts_of
from stele.adapters.kubernetes.api import CLUSTERS, MEMBERS, REBALANCES
from stele.master.__main__ import Process
from stele.master.cache import Cache
from stele.master.page import SupervisorFacts
from stele.master.settings import Settings


class Supervisor:
    """As much of one as the page reads."""

    def __init__(self) -> None:
        self.cache = Cache(lambda kind, stored: None)
        self.running: dict[Any, Any] = {}

    def states(self) -> dict[Any, Any]:
        return self.running


def stored(name: str, spec: dict[str, Any], namespace: str = KEY[0], version: int = 1) -> dict[str, Any]:
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"{namespace}-{name}",
        "resourceVersion": str(version),
    }
    return {"metadata": meta, "spec": spec}


@pytest.fixture
def supervisor() -> Supervisor:
    made = Supervisor()
    for namespace in ("other", KEY[0]):
        made.cache.put(CLUSTERS, stored(KEY[1], {"members": 2, "storage": {"size": "1Gi"}}, namespace))
        for index in (1, 0):
            member = stored(f"demo-{index}", {"cluster": KEY[1], "index": index}, namespace)
            made.cache.put(MEMBERS, member)
    made.cache.put(MEMBERS, stored("shop-0", {"cluster": "shop", "index": 0}))
    made.cache.put(REBALANCES, stored("demo-3-1", {"cluster": KEY[1]}))
    made.cache.put(REBALANCES, stored("shop-3-1", {"cluster": "shop"}))
    made.running[KEY] = facts_of().state
    return made


def test_a_cluster_has_its_own_objects_and_no_others(supervisor: Supervisor) -> None:
    source: Any = SupervisorFacts(supervisor)  # type: ignore[arg-type]
    assert source.clusters() == [("other", KEY[1]), KEY]
    facts = source.facts(KEY)
    assert [each.metadata.name for each in facts.members] == ["demo-0", "demo-1"]
    assert {each.metadata.namespace for each in facts.members} == {KEY[0]}
    assert [each.metadata.name for each in facts.rebalances] == ["demo-3-1"]
    assert source.facts(("other", KEY[1])) is None, "its loop does not run"
    assert source.facts((KEY[0], "absent")) is None


def test_an_object_is_read_once_for_each_of_its_versions(supervisor: Supervisor) -> None:
    source: Any = SupervisorFacts(supervisor)  # type: ignore[arg-type]
    before = source.facts(KEY).members
    assert all(new is old for new, old in zip(source.facts(KEY).members, before, strict=True))
    drained = stored("demo-0", {"cluster": KEY[1], "index": 0, "drain": True}, version=2)
    supervisor.cache.put(MEMBERS, drained)
    supervisor.cache.put(MEMBERS, stored("demo-1", {"cluster": KEY[1], "index": "wrong"}, version=2))
    (after,) = source.facts(KEY).members
    assert after.spec.drain


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_it_listens_inside_the_pod_alone_and_says_when_another_process_leads() -> None:
    nobody: Any = None
    settings = Settings("member", "spark", own_namespace="stele", http_port=_free(), page_port=_free())
    process = Process(nobody, nobody, settings)
    await process._serve()
    try:
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{settings.page_port}"
            async with session.get(url) as answer:
                assert answer.status == 200
            async with session.get(f"{url}/v1/clusters") as answer:
                assert answer.status == 503
                assert "stele/stele-operator" in (await answer.json())["problem"]
            process._leads = True
            async with session.get(f"{url}/v1/clusters") as answer:
                assert await answer.json() == []
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"http://127.0.0.2:{settings.page_port}")
    finally:
        process._leads = False
        await process.close()


async def test_it_can_be_switched_off() -> None:
    nobody: Any = None
    process = Process(nobody, nobody, Settings("member", "spark", http_port=_free(), page_port=0))
    await process._serve()
    assert len(process._servers) == 1
    await process.close()
