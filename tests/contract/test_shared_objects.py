"""What all members share: an object that the API server refuses delays no other, and is tried again."""

from typing import Any

import pytest

from stele.adapters.kubernetes.api import SERVICES
from stele.errors import Refused
from stele.master.children import RETRY_SECONDS
from tests.contract.test_certificates import NAMES, TLS, Scene

WHY = "Service demo is invalid: the node port is taken"


class Refusing:
    """A client of the API server, which refuses to create the Service of clients while `refuses`."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self.refuses, self.tries = True, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    async def create(self, kind: Any, namespace: str, body: dict[str, Any]) -> Any:
        if kind is SERVICES and body["metadata"]["name"] == "demo":
            self.tries += 1
            if self.refuses:
                raise Refused(WHY)
        return await self._api.create(kind, namespace, body)


@pytest.fixture
async def scene(place: tuple[Any, str]) -> Scene:
    return Scene(*place)


async def test_a_refused_service_delays_nothing_else_and_is_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.api._api = api = Refusing(scene.api._api)
    await scene.begin(**TLS)
    now = 100.0
    monkeypatch.setattr(scene.world, "_now", lambda: now)
    with pytest.raises(Refused, match="node port"):
        await scene.world.ensure_shared()
    await scene.round(2)
    assert api.tries == 1
    assert all([await scene.exists(name) for name in NAMES])
    status, _, text = await scene.condition("Stalled")
    assert (status, WHY in text) == ("True", True)

    now += RETRY_SECONDS
    with pytest.raises(Refused):
        await scene.world.ensure_shared()
    api.refuses = False
    now += RETRY_SECONDS
    await scene.round(2)
    assert api.tries == 3
    assert await api.find(SERVICES, scene.namespace, "demo") is not None


async def test_a_refused_service_that_is_to_be_another_is_tried_at_once(scene: Scene) -> None:
    scene.api._api = api = Refusing(scene.api._api)
    await scene.begin()
    with pytest.raises(Refused):
        await scene.world.ensure_shared()
    api.refuses = False
    await scene.change(resp={"serviceType": "NodePort"})
    await scene.round()
    assert api.tries == 2
