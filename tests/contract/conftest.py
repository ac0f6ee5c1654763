"""Two API servers to choose from: a real one, and the simulation's."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stele.adapters.kubernetes.api import Api
from stele.adapters.kubernetes.login import log_in
from tests.fakes.api import NAMESPACE, ApiServer, SimApi
from tests.fakes.bridge import Bridged
from tests.fakes.loop import Clock, ProcessLoop
from tests.fakes.network import Network

REAL = pytest.param("kubernetes", marks=pytest.mark.control_plane)


def simulated_api() -> Any:
    """A client of a simulated API server of its own."""
    clock = Clock(1)
    loop = ProcessLoop(clock, "master-0")
    return Bridged(SimApi(ApiServer(clock, Network(clock)), loop), loop)


@pytest.fixture(params=["simulated", REAL])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Any, str]]:
    """A client of the API server, and a namespace in which there is nothing yet."""
    if request.param == "simulated":
        yield simulated_api(), NAMESPACE
        return
    namespace = request.getfixturevalue("namespace")
    plane = request.getfixturevalue("control_plane")
    async with Api(await log_in(str(plane.kubeconfig))) as api:
        yield api, namespace
