"""The clients against a store that keeps the rules, and against one that breaks them."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from e2e.demo.clients import Clients
from e2e.demo.errors import DemoError
from e2e.demo.history import replay
from e2e.demo.loader import batches, load
from e2e.demo.padded import VALUE_BYTES, entries, value_of
from e2e.demo.resp import Endpoint
from e2e.demo.workload import Config, hash_of
from tests.e2e.faulty_store import FaultyStore, running

RUN_SECONDS = 1.5


def config(folder: Path, endpoint: Endpoint) -> Config:
    records = folder / "records"
    records.write_bytes(msgspec.msgpack.encode({b"a": hash_of(b"1"), b"b": hash_of(b"2")}))
    history = str(folder / "history")
    return Config(
        endpoint.host, endpoint.port, "run", history, str(records), clients=4, keys_per_client=3, rate=400
    )


async def run(folder: Path, store: FaultyStore) -> dict[str, Any]:
    store.spaces[b"packages"].update({b"a": b"1", b"b": b"2"})
    async with running(store) as endpoint:
        clients = Clients(config(folder, endpoint), folder)
        await clients.start()
        await clients.phase("measured")
        async with asyncio.timeout(60):
            while store.close_at_rest:  # noqa: ASYNC110  the store tells nobody
                await asyncio.sleep(0.05)
        await asyncio.sleep(RUN_SECONDS)
        result = await clients.stop()
    assert [each["phase"] for each in clients.phases] == ["start", "measured"]
    return result


async def test_a_right_store(tmp_path: Path) -> None:
    store = FaultyStore()
    result = await run(tmp_path, store)
    assert result["violations_total"] == 0
    assert result["total"]["writes"]["count"] == result["acknowledged"] > 50
    assert result["total"]["reads"]["count"] > 50
    assert result["total"]["writes"]["errors"] == 0
    ledger = replay((tmp_path / "history").read_text().splitlines(keepends=True))
    assert ledger.acknowledged_writes == result["acknowledged"]
    assert set(store.spaces[b"default"]) == {key.encode() for key in ledger.keys()}  # noqa: SIM118


@pytest.mark.parametrize(
    ("fault", "breach"),
    [
        ("old_reads", "read is older"),
        ("forget_writes", "is missing"),
        ("refuse_and_do", "refused is visible"),
    ],
)
async def test_each_broken_rule_is_seen(tmp_path: Path, fault: str, breach: str) -> None:
    store = FaultyStore()
    setattr(store, fault, 60)
    result = await run(tmp_path, store)
    assert result["violations_total"] > 0
    assert any(breach in each["breach"] for each in result["violations"])


async def test_a_changed_record_is_seen(tmp_path: Path) -> None:
    store = FaultyStore()
    asyncio.get_running_loop().call_later(1.2, store.spaces[b"packages"].update, {b"a": b"x"})
    result = await run(tmp_path, store)
    assert {each["key"] for each in result["violations"]} == {"a"}


async def test_refused_writes_are_errors_that_are_tried_again(tmp_path: Path) -> None:
    store = FaultyStore()
    store.refuse = 5
    result = await run(tmp_path, store)
    assert result["total"]["writes"]["errors_by_code"] == {"TRYAGAIN": 5}
    assert (result["violations_total"], result["doubtful"]) == (0, 0)


async def test_what_was_asked_on_a_lost_connection_is_asked_once_more(tmp_path: Path) -> None:
    store = FaultyStore()
    store.cut_after_doing = 50
    result = await run(tmp_path, store)
    lost = result["total"]["writes"]["errors_by_code"]["CONNECTION_LOST"]
    assert lost + result["reconnects"]["closed by the server while asked"] == 50
    assert (result["violations_total"], result["doubtful"]) == (0, lost)
    assert result["reconnects"]["opened"] > 8


async def test_clients_that_cannot_start_say_why(tmp_path: Path) -> None:
    wrong = msgspec.structs.replace(config(tmp_path, Endpoint("127.0.0.1", 1)), records="/no")
    with pytest.raises(DemoError, match="No such file"):
        await Clients(wrong, tmp_path).start()


async def test_loading_sends_again_what_was_refused_or_cut() -> None:
    store = FaultyStore()
    store.refuse, store.cut_after_doing = 3, 2
    told = []
    async with running(store) as endpoint:
        done = await load(endpoint, "padded", entries(100), lambda each: told.append(each.entries))
    assert store.spaces[b"padded"] == dict(entries(100))
    assert (done.entries, told[-1]) == (100, 100)
    assert done.retries >= 1


def test_batches_are_bounded_and_keep_all() -> None:
    pairs = list(entries(50))
    made = list(batches(iter(pairs)))
    assert [pair for batch in made for pair in batch] == pairs
    assert max(map(len, made)) == 15
    assert [len(each) for each in batches((b"%d" % n, b"") for n in range(130))] == [64, 64, 2]
    assert [len(each) for each in batches([(b"k", b"v" * 1_000_000)] * 2)] == [1, 1]


def test_padded_values_can_be_made_again_and_differ() -> None:
    assert len(value_of(b"a")) == VALUE_BYTES
    assert value_of(b"a") == value_of(b"a") != value_of(b"b")


async def test_a_connection_that_the_server_closes_at_rest_is_opened_again_without_an_error(
    tmp_path: Path,
) -> None:
    store = FaultyStore()
    store.close_at_rest = 3
    result = await run(tmp_path, store)
    assert (result["total"]["writes"]["errors"], result["total"]["reads"]["errors"]) == (0, 0)
    assert result["reconnects"]["closed by the server at rest"] == 3
