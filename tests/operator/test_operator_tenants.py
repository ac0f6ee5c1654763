"""What somebody writes into the table of one cluster stops that cluster alone; a real API server."""

from typing import Any

import pytest

from stele.adapters.kubernetes.api import CLUSTERS, CONFIG_MAPS, EVENTS
from stele.core.table.ids import EPOCH_MAX
from stele.errors import Conflict
from tests.operator.test_operator import Stage, cluster

pytestmark = pytest.mark.control_plane


async def epoch_of(stage: Stage) -> int:
    stored = await stage.api.find(CONFIG_MAPS, stage.namespace, "other-table")
    return 0 if stored is None else int(stored["data"]["epoch"])


async def write_epoch(stage: Stage, epoch: int, members: int) -> None:
    """As a tenant may who edits ConfigMaps. With another number of members the operator writes there too."""
    while True:
        stored = await stage.api.get(CONFIG_MAPS, stage.namespace, "other-table")
        stored["data"]["epoch"] = str(epoch)
        try:
            await stage.api.replace(CONFIG_MAPS, stage.namespace, stored)
            break
        except Conflict:
            continue
    await stage.api.patch_spec(CLUSTERS, stage.namespace, "other", {"members": members})


async def is_told(stage: Stage, text: str) -> bool:
    events: list[dict[str, Any]] = await stage.api.list(EVENTS, stage.namespace)
    return any(each["reason"] == "MasterStopped" and text in each["message"] for each in events)


async def test_a_higher_epoch_in_one_table_ends_that_loop_alone(stage: Stage, namespace: str) -> None:
    await stage.api.create(CLUSTERS, namespace, cluster("other", 1))
    await stage.until_converged(3)

    async def begun() -> bool:
        return await epoch_of(stage) == 1

    await stage.until("the other cluster's table", begun)
    await write_epoch(stage, 50, 2)
    await stage.until("the Event", lambda: is_told(stage, "the table has epoch 50"))
    await stage.scale(4)
    await stage.until_converged(4)

    async def above() -> bool:
        return await epoch_of(stage) > 50

    await stage.until("an epoch above", above)
    await write_epoch(stage, EPOCH_MAX, 3)
    await stage.until("the other Event", lambda: is_told(stage, "Numbers that jump"))
    assert await epoch_of(stage) == EPOCH_MAX
    await stage.scale(3)
    await stage.until_converged(3)
    # It is the same process: nobody took over from it.
    assert ((await stage.cluster()).get("status") or {})["epoch"] == 1
    assert await stage.operator.end() == 0
