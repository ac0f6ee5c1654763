"""Maps of the cluster are encoded once, and in pieces: a large one holds up nobody."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
import redis.asyncio

from stele.core.kv.cluster_map import ClusterMap, SlotRange, cluster_map, node_id
from stele.core.kv.keyslot import SLOTS
from stele.core.table.table import Member, Partition
from stele.member import limits
from stele.member.resp.cluster_answers import ENCODERS, ClusterAnswers, Ports
from stele.member.resp.server import RespServer
from stele.member.turn_budget import TurnBudget
from tests.fakes.key_value_service import FakeKeyValueService

PARTITIONS = SLOTS


@pytest.fixture
def store() -> FakeKeyValueService:
    """One with the most partitions there can be, every second one of another member."""
    made = FakeKeyValueService(PARTITIONS)
    made.elsewhere = set(range(1, PARTITIONS, 2))
    return made


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[ClusterMap]:
    """The map once for each time that all of it is looked at."""
    found: list[ClusterMap] = []

    def pieces(table: ClusterMap, rows: int) -> Iterator[list[SlotRange]]:
        found.append(table)
        return whole(table, rows)

    whole = ClusterMap.pieces
    monkeypatch.setattr(ClusterMap, "pieces", pieces)
    return found


async def test_a_large_map_is_whole(server: RespServer) -> None:
    mine, others = (node_id(f"uuid-{n}").encode() for n in (0, 1))
    port = server.cluster_port
    async with redis.asyncio.Redis(port=port) as client:
        found = await client.execute_command("CLUSTER SLOTS")
        assert [each[:2] for each in found] == [[slot, slot] for slot in range(SLOTS)]
        assert [each[2] for each in found[:2]] == [
            [b"10.0.0.1", port, mine, []],
            [b"10.0.0.2", port, others, []],
        ]
        nodes = await client.execute_command("CLUSTER NODES")
        assert nodes[f"10.0.0.1:{port}"]["slots"] == [[str(slot)] for slot in range(0, SLOTS, 2)]
        assert (await client.execute_command("CLUSTER INFO"))["cluster_slots_assigned"] == str(SLOTS)
    async with redis.asyncio.Redis(port=port, protocol=3) as client:
        for each in await client.execute_command("CLUSTER SHARDS"):
            first = int(each[b"nodes"][0][b"id"] == others)
            assert each[b"slots"] == [slot for slot in range(first, SLOTS, 2) for _ in "ab"]


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("name", sorted(ENCODERS))
async def test_it_is_encoded_once_for_all(
    server: RespServer, store: FakeKeyValueService, passes: list[ClusterMap], name: bytes, protocol: int
) -> None:
    clients = [redis.asyncio.Redis(port=server.cluster_port, protocol=protocol) for _ in range(8)]
    asked = [client.execute_command(b"CLUSTER " + name) for client in clients]
    # Hashes, as pytest would compare megabytes line by line where one differs.
    first, *others = (hash(repr(each)) for each in await asyncio.gather(*asked))
    assert others == [first] * 7
    assert hash(repr(await clients[0].execute_command(b"CLUSTER " + name))) == first
    assert len(passes) == 1
    store.elsewhere = set(range(100))
    assert hash(repr(await clients[0].execute_command(b"CLUSTER " + name))) != first, "the table has changed"
    assert len(passes) == 2
    for client in clients:
        await client.aclose()


async def test_a_client_that_is_gone_takes_no_answer_along(server: RespServer) -> None:
    gone, client = (redis.asyncio.Redis(port=server.cluster_port) for _ in range(2))
    await asyncio.gather(gone.ping(), client.ping())
    leaving = asyncio.ensure_future(gone.execute_command("CLUSTER SLOTS"))
    await asyncio.sleep(0)
    asked = asyncio.ensure_future(client.execute_command("CLUSTER SLOTS"))
    await asyncio.sleep(0.005)
    leaving.cancel()
    await gone.aclose()
    assert len(await asked) == PARTITIONS
    await client.aclose()


@pytest.mark.plain
@pytest.mark.parametrize("name", sorted(ENCODERS))
async def test_a_large_map_is_made_in_many_turns(name: bytes) -> None:
    turns = TurnBudget(asyncio.get_running_loop().call_soon)
    spent: list[int] = []
    spend = turns.spend
    turns.spend = lambda entries, size: spent.append(entries) or spend(entries, size)  # type: ignore[method-assign, func-returns-value]
    await ClusterAnswers(turns).of(large_map(), name, Ports(6380, 6381), resp3=True)
    await asyncio.sleep(0)
    assert sum(spent) >= PARTITIONS, "each row counts as an entry"
    assert 0 < turns.entries_max <= limits.TURN_ENTRIES_MAX


@pytest.mark.parametrize("failure", [MemoryError, asyncio.CancelledError])
async def test_an_answer_that_could_not_be_made_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    answers = ClusterAnswers(TurnBudget(asyncio.get_running_loop().call_soon))
    table, ports = large_map(), Ports(6380, 6381)

    def pieces(*_: object) -> Iterator[list[SlotRange]]:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(ClusterMap, "pieces", pieces)
        asked = [answers.of(table, b"SLOTS", ports, resp3=False) for _ in range(2)]
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in told] == [failure] * 2
    assert len((await answers.of(table, b"SLOTS", ports, resp3=False)).data) > 1_000_000


async def test_all_answers_for_a_map_take_no_more_than_documented() -> None:
    answers, table = ClusterAnswers(TurnBudget(asyncio.get_running_loop().call_soon)), large_map()
    size = 0
    for name in ENCODERS:
        for resp3 in (False, True):
            size += len((await answers.of(table, name, Ports(6380, 6381), resp3=resp3)).data)
    assert size <= 6 * 1024 * 1024


async def test_answers_go_with_their_map() -> None:
    answers = ClusterAnswers(TurnBudget(asyncio.get_running_loop().call_soon))
    table = large_map()
    gone = weakref.ref(table)
    assert len((await answers.of(table, b"SLOTS", Ports(6380, 6381), resp3=False)).data) > 1_000_000
    del table
    gc.collect()
    assert gone() is None


def large_map() -> ClusterMap:
    members = {n: Member(n, f"m{n}", f"uuid-{n}", f"10.0.0.{n + 1}") for n in range(3)}
    rows = [Partition(1, (n % 3, (n + 1) % 3)) for n in range(PARTITIONS)]
    return cluster_map(rows, members, 0, epoch=1)
