"""Everything once more at the end: each key through each member's port, and each replica as it is stored."""

from __future__ import annotations

from collections.abc import Mapping

from e2e.cluster import kind
from e2e.demo import padded
from e2e.demo.admin_ports import admin_ports
from e2e.demo.history import Violation
from e2e.demo.judge import Tally, by_partition
from e2e.demo.kube import Api
from e2e.demo.resp import Endpoint
from e2e.demo.settings import LEDGER_KEYSPACE, PADDED_KEYSPACE, Settings
from e2e.demo.verify import ReplicaCheck, ReplicaReader, read_table, read_values
from e2e.demo.workload import hash_of
from e2e.storm.books import Books

BATCH_KEYS = 16
OWNED = b"storm:"


async def read_all(endpoints: Mapping[str, Endpoint], books: Books) -> list[Violation]:
    """Read every key through every member's port, and judge what comes back. Nobody may write meanwhile."""
    found: list[Violation] = []
    keys = books.keys()
    for name, endpoint in endpoints.items():
        for begin in range(0, len(keys), BATCH_KEYS):
            batch = keys[begin : begin + BATCH_KEYS]
            values = await read_values(endpoint, batch, name)
            judged = (
                books.judge(key, books.floor(key), value) for key, value in zip(batch, values, strict=True)
            )
            found += [each for each in judged if each is not None]
    return found


async def compare_replicas(api: Api, settings: Settings, books: Books) -> Tally:
    """What every replica holds, beside what may be there."""
    table = await read_table(api, settings.namespace, settings.cluster)
    partitions = len(table.rows)
    mine = {
        key.encode(): frozenset(None if value is None else hash_of(value) for value in books.allowed(key))
        for key in books.keys()  # noqa: SIM118 - books are no dict
    }
    filler = {key: frozenset((hash_of(value),)) for key, value in padded.entries(settings.padded_entries)}
    wanted = {
        LEDGER_KEYSPACE: by_partition(mine, partitions, OWNED),
        PADDED_KEYSPACE: by_partition(filler, partitions),
    }
    async with admin_ports(kind.env(), settings.namespace, settings.cluster) as ports:
        return await ReplicaCheck(ReplicaReader(ports), table, wanted, lambda _: None).run()
