"""An operator that is older than the partition table says so and leaves everything as it is."""

import pytest

from stele.adapters.kubernetes.api import CLUSTERS, CONFIG_MAPS, EVENTS, PODS
from tests.fakes.kstatus import kstatus
from tests.operator.test_operator import Stage

pytestmark = pytest.mark.control_plane


async def set_features(stage: Stage, features: int) -> str:
    """Store what a later release would; return the version of the object."""
    stored = await stage.api.get(CONFIG_MAPS, stage.namespace, "demo-table")
    body = {**stored, "data": {**stored["data"], "features": str(features)}}
    return str((await stage.api.replace(CONFIG_MAPS, stage.namespace, body))["metadata"]["resourceVersion"])


async def test_a_table_of_a_later_release_is_left_alone(stage: Stage) -> None:
    await stage.until_converged(3)
    pods = {each["metadata"]["uid"] for each in await stage.api.list(PODS, stage.namespace)}
    before = int((await stage.api.get(CONFIG_MAPS, stage.namespace, "demo-table"))["data"]["features"])
    assert await stage.operator.end() == 0
    version = await set_features(stage, 99)
    await stage.operator.start()

    async def reported() -> bool:
        events = await stage.api.list(EVENTS, stage.namespace)
        texts = [each["message"] for each in events if each["reason"] == "MasterStopped"]
        return any("the cluster uses format 99; this version of Stele speaks" in text for text in texts)

    await stage.until("an Event that names the format", reported)
    shown = await stage.api.get(CLUSTERS, stage.namespace, "demo")
    assert kstatus(shown) == "Failed"
    ready = next(each for each in shown["status"]["conditions"] if each["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "MasterStopped")
    assert "the cluster uses format 99; this version of Stele speaks" in ready["message"]
    stored = await stage.api.get(CONFIG_MAPS, stage.namespace, "demo-table")
    assert stored["metadata"]["resourceVersion"] == version
    assert {each["metadata"]["uid"] for each in await stage.api.list(PODS, stage.namespace)} == pods
    await set_features(stage, before)
    await stage.table_snapshot(2)
    await stage.until_converged(3)
