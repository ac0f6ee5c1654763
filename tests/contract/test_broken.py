"""Each suite can fail: twins that are broken on purpose, and the rule of the suite that sees it."""

from typing import Any

import pytest

from stele.adapters.memory.table_store import MemoryTableStore, StoredObjects
from tests.contract import test_api, test_table_store
from tests.contract.conftest import simulated_api
from tests.simulation.api import NAMESPACE, ApiServer

FAILS = (AssertionError, pytest.fail.Exception)


def last_write_wins(server: ApiServer, kind: Any, body: Any) -> Any:
    stored = server.find(kind, body["metadata"]["name"])
    assert stored is not None
    return server._put(kind, body)


async def test_an_api_server_that_compares_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ApiServer, "replace", last_write_wins)
    with pytest.raises(FAILS):
        await test_api.test_a_replacement_of_an_older_version_changes_nothing((simulated_api(), NAMESPACE))


async def test_a_table_store_that_raises_no_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find(store: MemoryTableStore, number: int, partitions: int) -> Any:
        return test_table_store.rows(number)

    monkeypatch.setattr(MemoryTableStore, "_raise_shard", find)
    table = test_table_store.Memory(StoredObjects())
    with pytest.raises(FAILS):
        await test_table_store.test_a_deposed_master_can_write_neither_head_nor_any_shard(table)
