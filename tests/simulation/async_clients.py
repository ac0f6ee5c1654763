"""Clients of a keyspace with `replication: Async`, on Redis connections: APPEND, GET and WAIT."""

import asyncio
from typing import Any

from stele.core.kv.commands import Failure
from stele.core.kv.keyspaces import Catalog, Replication, Settings
from tests.fakes.network import Network
from tests.fakes.resp_connection import RespConnection
from tests.simulation.asynchronous import Append, Lists, Read
from tests.simulation.clients import Keys
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.redis_clients import RedisClient
from tests.simulation.trace import Trace

KEYSPACE = "async"
CATALOG = Catalog(1, {KEYSPACE: Settings(replication=Replication.ASYNC)})

LISTS = 4
APPENDS_MAX = 40
"""Begun on one list: then another one follows, so that no list grows long."""
WAIT_MS = 1000
PATIENCE_SECONDS = 2.0


class AsyncClient(RedisClient):
    """`backups` is the answer of WAIT that says that all members of a row have everything."""

    def __init__(
        self,
        name: str,
        network: Network,
        kubelet: Kubelet,
        keys: Keys,
        trace: Trace,
        *,
        lists: Lists,
        backups: int,
    ) -> None:
        self._lists, self._confirms, self._numbers = lists, backups, 0
        self._written: dict[RespConnection, list[Append]] = {}
        super().__init__(name, network, kubelet, keys, trace)
        self._jobs = ((4, self._append), (3, self._read))

    async def _connection(self, machine: Machine) -> RespConnection:
        """A connection that has selected the keyspace, of which all members know by then."""
        for each in self._kubelet.running():
            node = None if each.process is None else each.process.node
            if node is not None and not node.table.keyspaces.asynchronous:
                node.table.keyspaces.use(CATALOG)
        made = await super()._connection(machine)
        if made not in self._written:
            self._written[made] = []
            await made.ask([b"SELECT", KEYSPACE.encode()])
        return made

    def _drop(self, machine: Machine) -> None:
        gone = self._streams.get(machine.place)
        super()._drop(machine)
        if gone is not None:
            self._written.pop(gone, None)

    def _list(self, number: int) -> bytes:
        """The list that tokens of this number go to now."""
        begun = sum(len(self._lists.appends[key]) for key in self._names(number))
        return b"async-%d-%d" % (number, begun // APPENDS_MAX)

    def _names(self, number: int) -> list[bytes]:
        return [key for key in self._lists.appends if key.startswith(b"async-%d-" % number)]

    async def _append(self, machine: Machine) -> None:
        self._numbers += 1
        key = self._list(self._clock.random.randrange(LISTS))
        append = Append(b"<%b.%d>" % (self.name.encode(), self._numbers), self._clock.now)
        self._lists.appends[key].append(append)
        waits = self._clock.random.random() < 0.3
        wait = [[b"WAIT", b"1", b"%d" % WAIT_MS]] if waits else []
        replies = await self._call(machine, [b"APPEND", key, append.token], *wait)
        self._trace.note(self.name, f"{append} {key!r} -> {replies}", self._keys.partition(key))
        if replies is None or not isinstance(replies[0], int):
            return
        append.end = self._clock.now
        written = self._written.setdefault(self._streams[machine.place], [])
        written.append(append)
        if waits and isinstance(replies[1], int) and replies[1] >= self._confirms:
            for each in written:
                each.confirmed = append.end
            written.clear()

    async def _read(self, machine: Machine) -> None:
        await self._read_list(machine, self._list(self._clock.random.randrange(LISTS)))

    async def _read_list(self, machine: Machine, key: bytes) -> bool:
        begin = self._clock.now
        replies = await self._call(machine, [b"GET", key])
        self._trace.note(self.name, f"read {key!r} -> {replies}", self._keys.partition(key))
        if replies is None or isinstance(replies[0], Failure):
            return False
        value: Any = replies[0] or b""
        tokens = [token + b">" for token in value.split(b">")[:-1]]
        self._lists.reads[key].append(Read(begin, self._clock.now, tokens))
        return True

    def read_lists(self, machines: list[Machine]) -> "asyncio.Task[bool]":
        """Read each list through one of these members; whether all were answered."""

        async def read() -> bool:
            chosen = self._clock.random.choice
            return all([await self._read_list(chosen(machines), key) for key in sorted(self._lists.appends)])

        return self._loop.create_task(read())
