"""What one command costs at each stage: the member's own code on a real engine, without sockets.

`python -m e2e.bench.member_budget [CONNECTIONS] [PIPELINE]` prints the table alone.
"""

import asyncio
import logging
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from stele.core.control import commands as m
from stele.core.tablet.owner import Owner
from stele.member.copy.transfer_client import LocalTransfer
from stele.member.node import Node
from stele.member.process import open_volume
from stele.member.replication.delayed_replies import DelayedReplies
from stele.member.replication.log_writer import LogWriter
from stele.member.replication.replicator import Replicator
from stele.member.replication.tablet_store import TabletStore
from stele.member.resp.batching import BatchCollector, PartitionBatch
from stele.member.resp.connection import ClientConnection, ClientPort
from stele.member.resp.limits import RespServerLimits
from stele.member.resp.server import RespServer
from stele.member.serving.executor import CommandExecutor
from stele.member.serving.router import RequestRouter
from stele.member.settings import Fsync, Settings
from stele.member.storage.write_back import WriteBack
from stele.wire.resp import RequestReader, encode_request
from stele.wire.storage.log_record import put_record

CLUSTER = "99999999-2222-3333-4444-555555555555"
VALUE_BYTES = 100
KEYS = 100_000
GROUP = 16

# Stage -> the functions that are its entry points; what a stage calls of another counts there.
STAGES: dict[str, list[tuple[type, str]]] = {
    "parse": [(RequestReader, "feed")],
    "route to partitions": [(BatchCollector, "gather"), (BatchCollector, "_run")],
    "find the owner": [(RequestRouter, "start")],
    "evaluate": [(CommandExecutor, "run"), (CommandExecutor, "read_now")],
    "log in memory": [(Replicator, "append")],
    "log to RocksDB": [(LogWriter, "write")],
    "commit": [(Replicator, "_pump"), (Owner, "advance"), (Owner, "applied")],
    "apply": [(TabletStore, "apply")],
    "look up": [(WriteBack, "get")],
    "data to RocksDB": [(WriteBack, "write_out")],
    "collect replies": [(DelayedReplies, "applied"), (PartitionBatch, "set_result")],
    "encode and write replies": [(ClientConnection, "_answer")],
    "rest of the RESP server": [(ClientConnection, "data_received")],
}


class Clock:
    """Exclusive seconds per stage, by a stack of what runs."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._stack: list[str] = []
        self._since = 0.0

    def wrap(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **named: Any) -> Any:
            now = time.perf_counter()
            if self._stack:
                self.seconds[self._stack[-1]] += now - self._since
            self._stack.append(stage)
            self._since = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                now = time.perf_counter()
                self.seconds[self._stack.pop()] += now - self._since
                self._since = time.perf_counter()

        return timed

    def taken(self) -> dict[str, float]:
        """The seconds so far; counting begins anew."""
        seconds, self.seconds = self.seconds, dict.fromkeys(STAGES, 0.0)
        return seconds

    @contextmanager
    def watching(self) -> "Iterator[Clock]":
        kept = [(kind, name, getattr(kind, name)) for entries in STAGES.values() for kind, name in entries]
        for stage, entries in STAGES.items():
            for kind, name in entries:
                setattr(kind, name, self.wrap(stage, getattr(kind, name)))
        try:
            yield self
        finally:
            for kind, name, function in kept:
                setattr(kind, name, function)


class Wire:
    """A transport that only counts what is written to it."""

    def __init__(self) -> None:
        self.writes = 0

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 0) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.writes += 1

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def serving_node(folder: Path, fsync: Fsync, partitions: int = 271) -> Node:
    """A member without ports that owns all partitions alone."""
    settings = Settings(folder, CLUSTER, "m0", bind="127.0.0.1", fsync=fsync)
    volume, instance, engine = open_volume(settings)
    transfer = LocalTransfer(settings, volume.pod_token)
    node = Node(settings, (volume, instance), engine, transfer=transfer, failed=sys.exit)
    await node.load()
    node.start()
    node.exchange.start()
    info = m.MemberInfo(0, "m0", node.uuid, "127.0.0.1")
    rows = tuple(m.Row(p, 1, (0,)) for p in range(partitions))
    request = m.ExchangeRequest(
        format=1, cluster=CLUSTER, epoch=1, recipient=node.uuid, self_index=0, partitions=partitions,
        replicas=1, state="Active", member_list_version=1, members=(info,), rows=rows, full=True,
    )  # fmt: skip
    while (reply := await node.exchange.handle(request)).adopting:
        pass  # The disk is slow, and the next answer waits for it, too.
    assert reply.code == "OK", reply
    while node.roles.unserved():  # noqa: ASYNC110  the node tells nobody
        await asyncio.sleep(0.01)
    return node


class Crowd:
    """Connections that send at the same moment and wait for their replies."""

    def __init__(self, node: Node, connections: int, pipeline: int) -> None:
        self._server = RespServer(node.router, RespServerLimits(), node.command_executor.turn_budget)
        self._pipeline = pipeline
        self._wires = [Wire() for _ in range(connections)]
        self._connections = [ClientConnection(self._server, ClientPort.ANY) for _ in range(connections)]
        for connection, wire in zip(self._connections, self._wires, strict=True):
            connection.connection_made(wire)  # type: ignore[arg-type]
        self._random = random.Random(1)
        self.commands = connections * pipeline

    def _sent(self, name: bytes) -> bytes:
        rest = (bytes(VALUE_BYTES),) if name == b"SET" else ()
        keys = (b"key:%012d" % self._random.randrange(KEYS) for _ in range(self._pipeline))
        return b"".join(encode_request((name, key, *rest)) for key in keys)

    async def turn(self, name: bytes) -> float:
        """Seconds of the processor from the first byte to the last reply."""
        sent = [self._sent(name) for _ in self._connections]
        target = sum(wire.writes for wire in self._wires) + len(self._wires)
        begin = time.thread_time()
        for connection, data in zip(self._connections, sent, strict=True):
            connection.data_received(data)
        while sum([wire.writes for wire in self._wires]) < target:  # noqa: ASYNC110  turn after turn
            await asyncio.sleep(0)
        return time.thread_time() - begin


async def measure(
    name: bytes, connections: int, pipeline: int, turns: int = 120
) -> tuple[float, float, dict[str, float]]:
    """Microseconds per command: (median, least, by stage)."""
    with tempfile.TemporaryDirectory() as folder:
        node = await serving_node(Path(folder), Fsync.INTERVAL)
        crowd = Crowd(node, connections, pipeline)
        if name == b"GET":
            for _ in range(20):
                await crowd.turn(b"SET")
        plain = [await crowd.turn(name) / crowd.commands * 1e6 for _ in range(turns)]
        with Clock().watching() as clock:
            watched = [(await crowd.turn(name), clock.taken()) for _ in range(turns)]
        await node.stop()
    best = min((stages for _, stages in watched), key=lambda stages: sum(stages.values()))
    stages = {stage: spent / crowd.commands * 1e6 for stage, spent in best.items()}
    return statistics.median(plain), min(plain), stages


@dataclass(frozen=True, slots=True)
class Commits:
    """What a run of group commits reached."""

    operations: int
    syncs: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.operations / self.seconds


async def group_commit(folder: Path, seconds: float, window: int = 20_000) -> Commits:
    """Append GROUP operations to each tablet in turn, `window` under way, for so long; fsync Always."""
    node = await serving_node(folder, Fsync.ALWAYS)
    replicas = list(node.replicas.values())
    syncs, sync_log = 0, node.engine.sync_log

    def counted() -> None:
        nonlocal syncs
        syncs += 1
        sync_log()

    node.engine.sync_log = counted  # type: ignore[method-assign]
    value, begin = bytes(VALUE_BYTES), time.perf_counter()
    first = sum(replica.tablet.log.applied[1] for replica in replicas)
    sent, done, keys = 0, 0, count()
    while not done or time.perf_counter() - begin < seconds:
        for replica in replicas if sent - done < window else ():
            assert replica.owner is not None
            term = replica.owner.term
            node.replicator.append(
                replica,
                [
                    put_record(term, b"default", b"key:%d" % (next(keys) % KEYS), value, 0)
                    for _ in range(GROUP)
                ],
            )
            sent += GROUP
        await asyncio.sleep(0)
        done = sum([replica.tablet.log.applied[1] for replica in replicas]) - first
    made = Commits(done, syncs, time.perf_counter() - begin)
    await node.stop()
    return made


def main() -> None:
    logging.disable(logging.WARNING)
    connections, pipeline = (int(word) for word in (*sys.argv[1:], "50", "16")[:2])
    for name in (b"SET", b"GET"):
        median, least, stages = uvloop.run(measure(name, connections, pipeline))
        print(f"{name.decode()}: {median:.2f} us per command in the median turn, {least:.2f} in the best")
        for stage, spent in stages.items():
            print(f"  {stage:26s} {spent:6.2f}")


if __name__ == "__main__":
    main()
