"""Reads what every replica of every partition holds and compares it with what must be there."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from e2e.demo import history, padded
from e2e.demo.admin_ports import AdminPorts
from e2e.demo.errors import DemoError
from e2e.demo.history import Ledger, Violation
from e2e.demo.judge import Hashes, Tally, Wanted, by_partition, compare
from e2e.demo.kube import Api
from e2e.demo.resp import Connection, Endpoint, ReplyFailure
from e2e.demo.settings import LEDGER_KEYSPACE, PADDED_KEYSPACE, RECORDS_KEYSPACE
from e2e.demo.workload import hash_of
from stele.errors import Corrupt
from stele.wire.configmap import Head, decode_head, decode_shard, shard_count

PARTITIONS_AT_ONCE = 4
# A backup learns that a write is committed with the next message of the owner, a moment after the client.
EQUAL_TRIES_MAX = 20
EQUAL_SECONDS = 0.5
READ_BATCH = 64
READ_SECONDS_MAX = 30.0
READ_TRIES_MAX = 20
READ_RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class Table:
    """The members' names of each partition, the owner first."""

    rows: tuple[tuple[str, ...], ...]


async def read_table(api: Api, namespace: str, cluster: str) -> Table:
    """The partition table as the ConfigMaps hold it."""
    prefix = f"/api/v1/namespaces/{namespace}/configmaps/{cluster}-table"
    try:
        head = decode_head((await api.get(prefix))["data"])
        rows: list[tuple[str, ...]] = []
        for number in range(shard_count(head.rows)):
            shard = decode_shard((await api.get(f"{prefix}-{number}"))["data"], number, head.rows)
            rows += [names_of(head, row.replicas) for row in shard.rows]
    except Corrupt as error:
        raise DemoError(f"The partition table of {cluster} cannot be read: {error}") from error
    return Table(tuple(rows))


def names_of(head: Head, replicas: tuple[int | None, ...]) -> tuple[str, ...]:
    """The members of a row by name, the owner first; places that nobody holds are left out."""
    names = {member.index: member.name for member in head.members}
    return tuple(names[index] for index in replicas if index is not None)


def expected(
    records: Mapping[bytes, bytes], padded_entries: int, ledger: Ledger, run: str, partitions: int
) -> dict[str, dict[int, Wanted]]:
    """What must be there, by keyspace and partition."""
    record_hashes = {key: frozenset((each,)) for key, each in records.items()}
    padded_hashes = {key: frozenset((hash_of(value),)) for key, value in padded.entries(padded_entries)}
    ledger_hashes = {
        key.encode(): frozenset(
            hash_of(history.value_of(key, number)) if number else None for number in ledger.allowed(key)
        )
        for key in ledger.keys()  # noqa: SIM118 - a ledger is no dict
    }
    return {
        RECORDS_KEYSPACE: by_partition(record_hashes, partitions),
        PADDED_KEYSPACE: by_partition(padded_hashes, partitions),
        LEDGER_KEYSPACE: by_partition(ledger_hashes, partitions, f"ledger:{run}:".encode()),
    }


class ReplicaReader:
    """Asks members for the hashes of one keyspace of one of their tablets."""

    def __init__(self, ports: AdminPorts) -> None:
        self._ports = ports

    async def hashes(self, member: str, partition: int, keyspace: str) -> Hashes:
        """Hash of each value by key."""
        query = urlencode({"partition": partition, "keyspace": keyspace})
        return parse_digest(await self._ports.text(member, f"/v1/digest?{query}"))


def parse_digest(text: str) -> dict[bytes, bytes]:
    """Hash by key of the answer of `GET /v1/digest`: a line that says what the tablet is at, then one line
    `[key in base64, hash in hex, expiry]` for each entry."""
    try:
        first, *lines = text.splitlines()
        json.loads(first)["partition"]
        entries = map(json.loads, lines)
        return {base64.b64decode(key, validate=True): bytes.fromhex(digest) for key, digest, _ in entries}
    except (KeyError, TypeError, ValueError) as error:
        raise DemoError(f"The answer of /v1/digest is not understood: {error!r}") from error


class ReplicaCheck:
    """Compares all replicas, a few partitions at a time; `told` gets the tally after each."""

    def __init__(
        self,
        reader: ReplicaReader,
        table: Table,
        wanted: dict[str, dict[int, Wanted]],
        told: Callable[[Tally], None],
    ) -> None:
        self._reader, self._table, self._wanted, self._told = reader, table, wanted, told
        self._tally = Tally()

    async def run(self) -> Tally:
        """The tally of all partitions."""
        todo = iter(range(len(self._table.rows)))

        async def work() -> None:
            for partition in todo:
                await self._partition(partition)
                self._told(self._tally)

        async with asyncio.TaskGroup() as group:
            for _ in range(PARTITIONS_AT_ONCE):
                group.create_task(work())
        return self._tally

    async def _partition(self, partition: int) -> None:
        members = self._table.rows[partition]
        for keyspace, parts in self._wanted.items():
            for attempt in range(EQUAL_TRIES_MAX):
                if attempt:
                    await asyncio.sleep(EQUAL_SECONDS)
                held = {each: await self._reader.hashes(each, partition, keyspace) for each in members}
                differences = compare(partition, keyspace, parts[partition], held)
                if not differences:
                    break
            self._tally.add(differences)
            self._tally.entries[keyspace] += sum(map(len, held.values()))
        self._tally.partitions += 1
        self._tally.replicas += len(members)


async def read_ledger(endpoint: Endpoint, ledger: Ledger) -> list[Violation]:
    """Read every key of the ledger once more as a client does, and judge what comes back."""
    stored: dict[str, bytes | None] = {}
    keys = list(ledger.keys())
    for begin in range(0, len(keys), READ_BATCH):
        batch = keys[begin : begin + READ_BATCH]
        stored |= dict(zip(batch, await read_values(endpoint, batch, str(endpoint)), strict=True))
    return history.judge_end(ledger, stored)


async def read_values(endpoint: Endpoint, keys: Sequence[str], through: str) -> list[bytes | None]:
    """The values of these keys of the ledger. Raises DemoError when they cannot be read `through` there."""
    reason = ""
    for _ in range(READ_TRIES_MAX):
        try:
            connection = await Connection.open(endpoint, LEDGER_KEYSPACE, READ_SECONDS_MAX)
            try:
                replies = await connection.ask([(b"GET", key.encode()) for key in keys], READ_SECONDS_MAX)
            finally:
                connection.close()
            failure = next((each for each in replies if isinstance(each, ReplyFailure)), None)
            if failure is None:
                return replies
            reason = str(failure)
        except (OSError, ReplyFailure) as error:
            reason = str(error) or type(error).__name__
        await asyncio.sleep(READ_RETRY_SECONDS)
    raise DemoError(f"The acknowledged writes cannot be read at the end through {through}: {reason}")


@dataclass(frozen=True)
class Verification:
    """The result of both: replicas compared, and the ledger read through a client. `seconds` is the time of
    all of it.
    """

    tally: Tally
    violations: list[Violation]
    keys_read: int
    seconds: float
