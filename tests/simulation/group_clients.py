"""Clients of keyspaces with partitions of their own, on Redis connections.

One keyspace has a placement, the other a copy at every member, whose reads any member answers.
"""

from typing import TYPE_CHECKING

from stele.core.kv.keyslot import partition_in, slot_of
from stele.wire.storage.keys import is_service, split_user, tablet_range
from tests.fakes.loop import Clock
from tests.fakes.network import Network
from tests.fakes.resp_connection import RespConnection
from tests.simulation.clients import Connection, Keys, command_of
from tests.simulation.history import Histories, Operation, Violation
from tests.simulation.kubelet import Kubelet, Machine
from tests.simulation.profile import Backups, Profile
from tests.simulation.redis_clients import RedisClient, certain
from tests.simulation.trace import Trace

if TYPE_CHECKING:
    from tests.simulation.world import World

OWN = "entries are in the partitions of their keyspace"
ENTRIES_MAX = 100_000
PLACED, EVERYWHERE = "placed", "everywhere"
SPECS = {
    PLACED: {"placement": {"partitions": 2, "replicas": 2}},
    EVERYWHERE: {"mode": "Replicated", "reads": "Available", "placement": {"partitions": 1}},
}


class GroupKeys(Keys):
    """The keys of one keyspace, whose name they begin with; their histories are among all others."""

    def __init__(self, clock: Clock, profile: Profile, keyspace: str, histories: Histories) -> None:
        super().__init__(clock, profile)
        self.keyspace, self.histories = keyspace, histories
        self._keys = [(f"{keyspace}:{key.decode()}".encode(), sort) for key, sort in self._keys]

    def backups_of(self, client: str) -> Backups:
        """Whether backups may answer a client."""
        return Backups.AVAILABLE if self.keyspace == EVERYWHERE else Backups.NEVER


class GroupClient(RedisClient):
    """Each of its connections remembers what it has seen."""

    def __init__(self, name: str, network: Network, kubelet: Kubelet, keys: Keys, trace: Trace) -> None:
        assert isinstance(keys, GroupKeys)
        self._keyspace = keys.keyspace.encode()
        self._sessions: dict[RespConnection, Connection] = {}
        super().__init__(name, network, kubelet, keys, trace)
        self._jobs = ((1, self._operate),)

    async def _connection(self, machine: Machine) -> RespConnection:
        made = await super()._connection(machine)
        if made not in self._sessions:
            self._sessions[made] = Connection(None)
            await made.ask([b"SELECT", self._keyspace])
        return made

    async def _ask(self, machine: Machine, operation: Operation) -> object:
        reads = [[b"GET", operation.key]] * self._clock.random.choice((0, 0, 1, 3))
        replies = await self._call(machine, *reads, command_of(operation))
        if replies is None:
            return None
        return certain(replies[-1]), self._sessions[self._streams[machine.place]]


def own_partition(world: "World", key: bytes) -> int | None:
    """Return which of a keyspace's own partitions has a key, None while it shares others."""
    head, (keyspace, colon, _) = world.head(), key.partition(b":")
    group = head.groups.of(keyspace.decode()) if head is not None and colon else None
    return None if group is None else partition_in(range(group.first, group.end), slot_of(key))


def check_own(world: "World") -> None:
    """Raise Violation when a replica has an entry of a keyspace whose partitions are others."""
    head = world.head()
    assert head is not None
    for machine in world.present():
        node = machine.node
        assert node is not None
        for number, replica in node.replicas.items():
            entries = node.engine.scan(*tablet_range(number, replica.generation), ENTRIES_MAX)
            for keyspace, key in filter(None, (split_user(data_key) for data_key, _ in entries)):
                if is_service(keyspace):
                    continue
                group, main = head.groups.of(keyspace.decode()), range(head.groups.main(head.rows))
                right = main if group is None else range(group.first, group.end)
                if number not in right:
                    text = (
                        f"{machine.place} has {key!r} of {keyspace!r} in partition {number}, not in {right}"
                    )
                    raise Violation(OWN, text, key=key, partition=number)
                world.trace.checked[OWN] += 1
