"""Each suite can fail: fakes that are broken on purpose, and the rule of the suite that sees it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stele.adapters.members import client
from stele.errors import Corrupt
from stele.master.cache import Cache
from stele.wire.copy.jobs import CopyJobStatus
from tests.contract import (
    test_api,
    test_copier,
    test_engine,
    test_key_value_service,
    test_links,
    test_members,
    test_table_store,
    test_transfer,
    test_volume,
    test_watch,
)
from tests.contract.conftest import simulated_api
from tests.fakes.api import NAMESPACE, ApiServer
from tests.fakes.disk import Disk, SimEngine
from tests.fakes.key_value_service import FakeKeyValueService
from tests.fakes.members import FakeMember
from tests.fakes.network import End
from tests.fakes.table_store import MemoryTableStore, StoredObjects
from tests.fakes.transfer import TransferContainer

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


async def test_a_transfer_that_takes_each_job_for_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = msgspec.json.encode(CopyJobStatus("s-1", "RUNNING"))
    case, container = test_transfer.simulated(tmp_path)
    submit = TransferContainer._submit
    monkeypatch.setattr(
        TransferContainer, "_submit", lambda own, body: first if own._running else submit(own, body)
    )
    with pytest.raises(FAILS):
        await test_transfer.test_another_job_of_the_session_is_refused_until_the_first_is_deleted(case)
    container.end()


def test_a_disk_that_tears_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def tear(disk: Disk, work: Any) -> None:
        disk.files.update({name: content[:-1] for name, content in work.args[0].items()})

    monkeypatch.setattr(Disk, "_maybe", tear)
    with pytest.raises(FAILS):
        test_volume.test_without_power_each_file_is_old_or_new(
            test_volume.Simulated(tmp_path / "volume"), "file.aside", 1
        )


async def test_a_member_that_obeys_an_older_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMember, "_check", lambda member, request: "")
    with pytest.raises(FAILS):
        await test_members.test_who_is_not_meant_takes_nothing(
            test_members.in_memory(), {"epoch": 1}, "STALE_EPOCH"
        )


async def test_a_client_that_takes_what_came_first_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(answer: Any, bytes_max: int, _arrived: Any) -> bytes:
        return bytes(await answer.content.read(bytes_max))

    monkeypatch.setattr(client, "read_body", read)
    with pytest.raises(Corrupt):
        await test_members.test_an_answer_that_comes_in_parts_is_read_to_its_end()


async def test_a_network_whose_last_segment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    send = End._send

    def jump(end: End, data: bytes) -> None:
        send(end, data)
        end._way.rotate(1)

    monkeypatch.setattr(End, "_send", jump)
    with pytest.raises(FAILS):
        await test_links.test_messages_arrive_whole_and_in_order_both_ways(test_links.Simulated())


def test_an_engine_that_forgets_its_log_with_the_process() -> None:
    case = test_engine.Case(
        SimEngine(lambda: 0.0),
        lambda case, lost: test_engine.simulated(case).after_crash(
            power_lost=True, chance=test_engine.LeastKept()
        ),
    )
    with pytest.raises(FAILS):
        test_engine.test_a_dead_process_keeps_its_log_and_the_flushed_prefix_of_data(case)


async def test_a_copier_that_tells_of_what_nobody_wants() -> None:
    case = test_copier.in_memory()
    want = case.copier.want
    case.copier.want = lambda waves, state: want(waves, state) if waves else None  # type: ignore[method-assign]
    with pytest.raises(FAILS):
        await test_copier.test_what_is_wanted_again_begins_anew(case)


async def test_a_store_that_scans_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = FakeKeyValueService.scan

    async def begin(store: Any, partition: int, keyspace: bytes, after: bytes, limit: int) -> Any:
        return await scan(store, partition, keyspace, b"", limit)

    monkeypatch.setattr(FakeKeyValueService, "scan", begin)
    with pytest.raises(FAILS):
        await test_key_value_service.test_a_scan_goes_page_by_page_in_order(FakeKeyValueService(2))


async def test_a_cache_that_takes_what_came_last_for_the_newest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def put(cache: Cache, kind: Any, stored: Any) -> None:
        meta = stored["metadata"]
        cache._objects.setdefault(kind, {})[meta["namespace"], meta["name"]] = stored
        cache._changed(kind, stored)

    monkeypatch.setattr(Cache, "put", put)
    with pytest.raises(FAILS):
        await test_watch.test_the_cache_gets_what_is_there_what_changes_and_what_goes(
            test_watch.simulated(tmp_path, test_watch.BADLY)
        )
