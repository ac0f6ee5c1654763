"""The disruption budget of a cluster, on either API server, while the spec asks for it."""

from typing import Any

import pytest

from stele.adapters.kubernetes.api import BUDGETS
from tests.contract.test_certificates import Scene
from tests.fakes.objects import body

OFF = {"podDisruptionBudget": {"enabled": False}}


class Counting:
    """A client of the API server, which counts questions for budgets."""

    def __init__(self, api: Any) -> None:
        self._api, self.asked = api, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def find(self, kind: Any, *rest: Any) -> Any:
        self.asked += kind is BUDGETS
        return await self._api.find(kind, *rest)


@pytest.fixture
async def scene(place: tuple[Any, str]) -> Scene:
    return Scene(*place)


async def exists(scene: Scene) -> bool:
    return await scene.api.find(BUDGETS, scene.namespace, "demo") is not None


async def test_a_budget_is_there_while_the_spec_asks_for_it(scene: Scene) -> None:
    await scene.begin()
    await scene.round(2)
    assert await exists(scene)
    await scene.change(**OFF)
    await scene.round()
    assert not await exists(scene)
    await scene.change(podDisruptionBudget={"enabled": True})
    await scene.round()
    assert await exists(scene)
    await scene.change(**OFF)
    scene.restart()
    await scene.round(2)
    assert not await exists(scene), "another process takes it away, too"


async def test_one_of_a_user_s_own_is_left_alone_and_not_asked_for_again_and_again(scene: Scene) -> None:
    await scene.begin(**OFF)
    own = {"minAvailable": 1, "selector": {"matchLabels": {"stele.dev/cluster": "demo"}}}
    await scene.api.create(BUDGETS, scene.namespace, body(BUDGETS, "demo", own))
    scene.api._api = counting = Counting(scene.api._api)
    await scene.round(5)
    assert counting.asked == 1
    stored = await scene.api.get(BUDGETS, scene.namespace, "demo")
    assert stored["spec"]["minAvailable"] == 1
    assert "ownerReferences" not in stored["metadata"]
