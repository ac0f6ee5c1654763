"""Reading the table and the replicas, against an API server that is a dictionary."""

import base64
import json
from typing import Any

import pytest

from e2e.demo import padded, verify
from e2e.demo.errors import DemoError
from e2e.demo.history import Breach, Ledger, Outcome, value_of
from e2e.demo.judge import Fault, partition_of
from e2e.demo.workload import hash_of
from stele.core.table.table import Member, Partition
from stele.wire.configmap import Head, encode_head, encode_shard
from tests.e2e.faulty_store import FaultyStore, running

PARTITIONS = 5
MEMBERS = ("demo-0", "demo-1")
RECORDS = {b"r%d" % number: b"v%d" % number for number in range(40)}


class DictionaryApi:
    """Serves ConfigMaps and digests as the API server does. `held` is (member, keyspace) -> values."""

    def __init__(self, held: dict[tuple[str, str], dict[bytes, bytes]]) -> None:
        self.held = held
        self.digests = 0
        self.after: dict[int, tuple[tuple[str, str], bytes, bytes]] = {}

    async def get(self, path: str) -> dict[str, Any]:
        if path.endswith("configmaps/demo-table"):
            return {"data": encode_head(head())}
        if path.endswith("configmaps/demo-table-0"):
            return {"data": encode_shard(1, 0, [Partition(1, (0, 1))] * PARTITIONS)}
        raise AssertionError(path)

    async def text(self, member: str, path: str) -> str:
        _, query = path.split("/v1/digest?")
        asked = dict(part.split("=") for part in query.split("&"))
        return self.digest(member, int(asked["partition"]), asked["keyspace"])

    def digest(self, member: str, partition: int, keyspace: str) -> str:
        self.digests += 1
        if self.digests in self.after:
            place, key, value = self.after[self.digests]
            self.held[place][key] = value
        values = self.held.get((member, keyspace), {})
        entries = [
            [base64.b64encode(key).decode(), hash_of(value).hex(), 0]
            for key, value in values.items()
            if partition_of(key, PARTITIONS) == partition
        ]
        head_line = {"partition": partition, "generation": 1, "applied": [1, 1], "last": [1, 1]}
        return "".join(json.dumps(each) + "\n" for each in [head_line, *entries])


def head() -> Head:
    members = tuple(Member(n, name, f"uuid-{n}", f"10.0.0.{n}") for n, name in enumerate(MEMBERS))
    return Head(1, "Active", PARTITIONS, 2, 1, 2, 0, PARTITIONS, members)


def ledger() -> Ledger:
    made = Ledger()
    for outcome in (Outcome.ACKNOWLEDGED, Outcome.ACKNOWLEDGED):
        made.end("ledger:run:k", made.send("ledger:run:k"), outcome)
    return made


def right() -> DictionaryApi:
    spaces = {
        "packages": RECORDS,
        "padded": dict(padded.entries(10)),
        "default": {b"ledger:run:k": value_of("ledger:run:k", 2), b"ledger:old:k": b"old"},
    }
    return DictionaryApi({(name, space): dict(spaces[space]) for name in MEMBERS for space in spaces})


async def check(api: DictionaryApi) -> verify.Tally:
    table = await verify.read_table(api, "ns", "demo")  # type: ignore[arg-type]
    assert table.rows == (MEMBERS,) * PARTITIONS
    hashes = {key: hash_of(value) for key, value in RECORDS.items()}
    wanted = verify.expected(hashes, 10, ledger(), "run", PARTITIONS)
    reader = verify.ReplicaReader(api)  # type: ignore[arg-type]
    return await verify.ReplicaCheck(reader, table, wanted, lambda tally: None).run()


async def test_replicas_that_are_right() -> None:
    tally = await check(right())
    assert (tally.faults, tally.replicas, tally.partitions) == ({}, 10, 5)
    assert tally.entries == {"packages": 80, "padded": 20, "default": 4}


@pytest.mark.parametrize(
    ("place", "key", "value", "fault"),
    [
        (("demo-1", "packages"), b"r7", None, Fault.MISSING),
        (("demo-0", "padded"), padded.key_of(3), b"x", Fault.DIFFERENT),
        (("demo-1", "packages"), b"more", b"x", Fault.EXTRA),
        (("demo-0", "default"), b"ledger:run:k", value_of("ledger:run:k", 1), Fault.DIFFERENT),
        (("demo-1", "default"), b"ledger:old:k", b"other", Fault.REPLICAS),
    ],
)
async def test_each_fault_on_one_replica_is_found(
    place: tuple[str, str],
    key: bytes,
    value: bytes | None,
    fault: Fault,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "EQUAL_SECONDS", 0.0)
    api = right()
    if value is None:
        del api.held[place][key]
    else:
        api.held[place][key] = value
    tally = await check(api)
    assert tally.faults == {fault: 1}
    assert [(each.fault, each.keyspace, each.key) for each in tally.differences] == [(fault, place[1], key)]


async def test_a_backup_that_lags_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "EQUAL_SECONDS", 0.0)
    api = right()
    place = ("demo-1", "default")
    api.after[40] = (place, b"ledger:run:k", api.held[place].pop(b"ledger:run:k"))
    assert (await check(api)).faults == {}
    assert api.digests >= 40


HEAD = '{"partition": 1}\n'


@pytest.mark.parametrize(
    "text", ["", "{}\n", "ok\n", HEAD + '["%", "00", 0]\n', HEAD + '["YQ==", "z', HEAD + "[1]\n"]
)
def test_a_digest_that_is_not_understood_is_no_empty_one(text: str) -> None:
    with pytest.raises(DemoError, match="not understood"):
        verify.parse_digest(text)


async def test_the_ledger_is_read_through_a_client() -> None:
    store = FaultyStore()
    async with running(store) as endpoint:
        assert [each.breach for each in await verify.read_ledger(endpoint, ledger())] == [Breach.LOST]
        store.spaces[b"default"][b"ledger:run:k"] = value_of("ledger:run:k", 1)
        assert [each.breach for each in await verify.read_ledger(endpoint, ledger())] == [Breach.STALE]
        store.spaces[b"default"][b"ledger:run:k"] = value_of("ledger:run:k", 2)
        assert await verify.read_ledger(endpoint, ledger()) == []
