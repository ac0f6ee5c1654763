"""Subscribers of keyspace notifications: one at each member, from each start of its process on."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable

from stele.core.kv.notifications import ARRIVED, DEPARTED
from stele.member.node import Node
from stele.member.replication.links import Inbound
from stele.member.replication.replica import Replica
from stele.member.resp.pubsub import Subscriptions
from stele.wire.peer import EventBatch
from tests.fakes.loop import ProcessLoop
from tests.fakes.network import Network
from tests.simulation.clients import Keys
from tests.simulation.history import Operation, Violation
from tests.simulation.kubelet import Machine
from tests.simulation.member import MemberProcess

APPLIED = "events are those of applied operations"
HEARD = "each acknowledged write has its event, or there is a gap"
DEPARTED_ONCE = "a departure is reported once"
KEYS, OTHER = b"__keyspace@0__:", b"__stele__:gap"
LOOK_SECONDS = 0.5


class Subscriber:
    """A client that subscribes in one process, and its connection: `heard` has the number of events by key.

    It hears of what happens after `since`. `departed` has (volume, partition, generation) of all processes.
    """

    def __init__(
        self, id: int, process: MemberProcess, node: Node, departed: set[tuple[str, int, int]]
    ) -> None:
        self.id, self.process = id, process
        self.resp3, self.cluster, self.guard = True, False, None
        self.subscriptions: Subscriptions | None = None
        self.on_close: list[Callable[[], None]] = []
        self.heard: Counter[bytes] = Counter()
        self.gaps: set[int] = set()
        self.since = float("inf")
        self._sent, node.notifier._send = node.notifier._send, self._check_sent  # type: ignore[method-assign]
        self._tablets, self._departed, self._uuid = node.tablets, departed, node.uuid
        self._report, node.moves._report = node.moves._report, self._check_report  # type: ignore[method-assign]
        self.begin(process, node)

    def begin(self, process: MemberProcess, node: Node) -> None:
        """Subscribe to all events."""
        process.loop.create_task(self._subscribe(node))

    def _check_sent(self, listener: Inbound | None, batches: list[EventBatch]) -> None:
        """Fail the run when this process sends events of what it has not applied."""
        for batch in batches:
            applied = self._tablets.replicas[batch.partition].tablet.log.applied[1]
            if batch.last > applied:
                text = f"{self.process.place} sent events up to {batch.last}, and has applied up to {applied}"
                self.process.loop.clock.fail(Violation(APPLIED, text, partition=batch.partition))
        self._sent(listener, batches)

    async def _check_report(self, replica: Replica, generation: int, event: str) -> None:
        """Fail the run when this volume has reported that departure before."""
        place = self._uuid, replica.partition, generation
        if event == DEPARTED:
            if place in self._departed:
                text = f"{self.process.place} reports again what left with generation {generation}"
                violation = Violation(DEPARTED_ONCE, text, partition=replica.partition)
                self.process.loop.clock.fail(violation)
            self._departed.add(place)
        await self._report(replica, generation, event)

    async def _subscribe(self, node: Node) -> None:
        pubsub = node.broadcast.pubsub
        await pubsub.subscribe_patterns(self, [KEYS + b"*"])
        pubsub.subscribe(self, [OTHER])
        await pubsub.listen()
        self.since = self.process.loop.clock.now

    def update_mode(self) -> None:
        """A subscriber of RESP3 may do everything."""

    @property
    def connection(self) -> "Subscriber":
        return self

    @property
    def pushes(self) -> "Subscriber":
        return self

    def send(self, message: bytes) -> None:
        """What PushQueue does; it reads at once."""
        words = message.split(b"\r\n")
        channel, text = words[-4], words[-2]
        if channel == OTHER:
            self.gaps.add(json.loads(text)["partition"])
        elif text.decode() not in (ARRIVED, DEPARTED):
            self.heard[channel.removeprefix(KEYS)] += 1

    @property
    def connected(self) -> bool:
        """Whether it hears of everything from `since` on."""
        return True

    def look(self) -> None:
        """See what has changed at its member."""

    def check(self, key: bytes, partition: int, operations: Iterable[Operation]) -> None:
        """Raise Violation when it did not hear of an acknowledged write."""
        writes = sum(each.begin >= self.since and _wrote(each) for each in operations)
        if self.heard[key] < writes and partition not in self.gaps:
            text = f"{self.process.place} heard {self.heard[key]} events of {key!r}"
            text = f"{text} since {self.since:.3f}, of {writes} writes"
            raise Violation(HEARD, text, key=key)


def _wrote(operation: Operation) -> bool:
    """Whether it was answered, and changed something."""
    if operation.end is None or operation.kind == "get":
        return False
    if operation.kind == "add":
        return operation.reply == "OK"
    return operation.kind != "delete" or operation.reply == 1


class Subscribers:
    """Looks for processes that have started, and checks those that live in the end."""

    place = "subscribers"

    def __init__(self, network: Network, machines: Callable[[], Iterable[Machine]], keys: Keys) -> None:
        self._machines, self._keys = machines, keys
        self._of: dict[MemberProcess, Subscriber] = {}
        self.departed: set[tuple[str, int, int]] = set()
        self._loop = ProcessLoop(network.clock, self.place, network)
        self._loop.create_task(self._look())

    async def _look(self) -> None:
        while True:
            for machine in self._machines():
                process = machine.process
                node = None if process is None or not process.listens else process.node
                if process is not None and node is not None and process not in self._of:
                    self._of[process] = self.make(machine, process, node)
            for each in self.living():
                each.look()
            await asyncio.sleep(LOOK_SECONDS)

    def make(self, machine: Machine, process: MemberProcess, node: Node) -> Subscriber:
        """Return one more."""
        return Subscriber(len(self._of) + 1, process, node, self.departed)

    def living(self) -> list[Subscriber]:
        """Those that are subscribed."""
        return [each for each in self._of.values() if each.process.loop.alive and each.connected]

    def check(self) -> int:
        """Return how many keys were compared."""
        living = self.living()
        for key, operations in self._keys.histories.by_key.items():
            for listener in living:
                listener.check(key, self._keys.partition(key), operations)
        return len(living) * len(self._keys.histories.by_key)

    def stop(self) -> None:
        self._loop.kill()
